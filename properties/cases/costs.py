"""Cases of costs: configs of every form of attention, some as short as a published one may be, lengths on both sides of a window."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from .. import shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..signatures import SIGNATURES

# Key and value heads for each query head; those of grouped attention left unnamed; all layers windowed; every third sees all; latent.
FORMS = ("grouped", "unnamed", "windowed", "alternating", "latent")
HEADS = ("shared_out", "named")                                                 # head_dim left to hidden / heads, or another one named
BITS = ("16", "8", "4", "32")
FEEDS = ("dense", "mixture", "tied")
PASSES = ("forward", "training")
PAIRS = SIGNATURES["model_flops"].choices["pairs"]
ROWS = 40


@dataclass(frozen=True)
class ConfigRecipe:
    """One case of kv_bytes or model_flops: n sequences of up to `length` tokens, and a small model."""

    n: int = shrinking.size_field()
    length: int = shrinking.size_field()
    layers: int = shrinking.size_field()
    kv_heads: int = shrinking.size_field()
    group: int = shrinking.size_field()
    head_dim: int = shrinking.size_field()
    window: int = shrinking.size_field()
    form: str = shrinking.choice_field(FORMS)
    heads: str = shrinking.choice_field(HEADS)
    bits: str = shrinking.choice_field(BITS)
    feed: str = shrinking.choice_field(FEEDS)
    passes: str = shrinking.choice_field(PASSES)
    pairs: str = shrinking.choice_field(PAIRS)
    seed: int = field(default=0)


_SIZES: dict[str, tuple[int, ...]] = {
    "n": (1, 3, 7), "length": (1, 17, 300, 5000, 40000), "layers": (1, 3, 6, 8), "kv_heads": (1, 2, 8), "group": (1, 2, 3, 4),
    "head_dim": (1, 16, 64, 128), "window": (1, 128, 4096),
}  # fmt: skip
_CHOICES: dict[str, tuple[str, ...]] = {"form": FORMS, "heads": HEADS, "bits": BITS, "feed": FEEDS, "passes": PASSES, "pairs": PAIRS}
CORNERS = (
    ConfigRecipe(length=4096, layers=32, kv_heads=8, group=4, head_dim=128, heads="named"),
    ConfigRecipe(length=8192, layers=2, kv_heads=8, group=3, head_dim=64, heads="shared_out", seed=1),
    ConfigRecipe(n=3, length=32768, layers=24, kv_heads=4, group=2, head_dim=64, window=128, form="alternating", seed=2),
    ConfigRecipe(n=0, length=5, layers=2, kv_heads=2, seed=3),
    ConfigRecipe(n=2, length=2**17 - 1, layers=61, kv_heads=7, group=8, head_dim=128, seed=4),   # past 32 bits, and past 24 of a float32
)


def covered_config(recipe: ConfigRecipe, coverage: Coverage) -> ConfigRecipe:
    """The recipe with no sizes of 0 but that of the batch, and defaults for what the subject does not take."""
    least = {name: max(getattr(recipe, name), 1) for name in ("length", "layers", "kv_heads", "group", "head_dim", "window")}
    counted = coverage.levels("pairs", PAIRS)
    return replace(recipe, n=max(recipe.n, int(not coverage.empty)), **least, pairs=recipe.pairs if recipe.pairs in counted else counted[0],
                   bits=recipe.bits if "element_bits" in coverage.arguments else "16",
                   passes=recipe.passes if "backward" in coverage.arguments else "forward")  # fmt: skip


@lru_cache(maxsize=8)
def config_table(coverage: Coverage) -> tuple[ConfigRecipe, ...]:
    """The balanced part of the designed cases."""
    rows = balanced_table({**_CHOICES, **_SIZES}, ROWS, crossed=tuple(_CHOICES))
    return tuple(covered_config(ConfigRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_configs(coverage: Coverage) -> list[ConfigRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_config(corner, coverage) for corner in CORNERS), *config_table(coverage)]))


def config_recipes(coverage: Coverage) -> st.SearchStrategy[ConfigRecipe]:
    """Random recipes inside a coverage."""
    choices: dict[str, Any] = {name: st.sampled_from(levels) for name, levels in _CHOICES.items()}
    return st.builds(
        ConfigRecipe, n=st.sampled_from((1, 2, 5, 0)), length=st.integers(1, 40000), layers=st.integers(1, 8), kv_heads=st.integers(1, 8),
        group=st.integers(1, 4), head_dim=st.integers(1, 128), window=st.sampled_from((1, 2, 128, 4096)), seed=st.integers(0, 2**32 - 1),
        **choices,
    ).map(lambda recipe: covered_config(recipe, coverage))  # fmt: skip


def build_config(recipe: ConfigRecipe) -> dict[str, Any]:
    """The keys of a config.json, only those which the form has."""
    query_heads = recipe.kv_heads * (1 if recipe.form == "unnamed" else recipe.group)
    hidden = query_heads * recipe.head_dim
    config: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": recipe.layers, "num_attention_heads": query_heads}
    if recipe.form != "unnamed":
        config["num_key_value_heads"] = recipe.kv_heads
    if recipe.heads == "named":
        config["head_dim"] = recipe.head_dim + 1
    if recipe.form in ("windowed", "alternating"):
        config["sliding_window"] = recipe.window
    if recipe.form == "alternating":
        config["sliding_window_pattern"] = 3
    if recipe.form == "latent":
        config |= {"kv_lora_rank": 2 * recipe.head_dim, "qk_rope_head_dim": 2, "qk_nope_head_dim": recipe.head_dim,
                   "v_head_dim": recipe.head_dim + 3}  # fmt: skip
    return config


def _lengths(recipe: ConfigRecipe) -> np.ndarray:
    """One of the greatest length, the others anywhere below, 0 among them."""
    lengths = np.random.default_rng(recipe.seed).integers(0, recipe.length + 1, recipe.n)
    lengths[:1] = recipe.length
    return lengths.astype(np.int64)


def build_kv_bytes(recipe: ConfigRecipe) -> Case:
    """Lengths, and a config without what no cache depends on."""
    options: dict[str, Option] = {"config": build_config(recipe)}
    return Case("kv_bytes", {"lengths": _lengths(recipe)}, _but_defaults(options, element_bits=(int(recipe.bits), 16)), origin=str(recipe))


def build_flops(recipe: ConfigRecipe) -> Case:
    """Lengths, and a config with feed-forward layers and a vocabulary."""
    hidden = recipe.kv_heads * recipe.head_dim
    more: dict[str, Any] = {"intermediate_size": 2 * hidden + 1, "vocab_size": 500 + recipe.seed % 31500}
    if recipe.feed == "mixture":
        more |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    more |= {"tie_word_embeddings": True} if recipe.feed == "tied" else {}
    options: dict[str, Option] = {"config": {**build_config(recipe), **more}, "pairs": recipe.pairs}
    return Case("model_flops", {"lengths": _lengths(recipe)}, _but_defaults(options, backward=(recipe.passes == "training", False)),
                origin=str(recipe))  # fmt: skip


def _but_defaults(options: dict[str, Option], **given: tuple[Option, Option]) -> dict[str, Option]:
    """The options, and those of the given (value, default) that are not at their default."""
    return {**options, **{name: value for name, (value, default) in given.items() if value != default}}


KV_BYTES_CASES = RecipeSource("kv_bytes", build=build_kv_bytes, designed=designed_configs, strategy=config_recipes, covered=covered_config)
FLOPS_CASES = replace(KV_BYTES_CASES, operation="model_flops", build=build_flops)


# Training memory ---------------------------------------------------------------------------------------------------------

STAGES = ("0", "1", "2", "3")
LAYOUTS = {"mixed": (2, 2, 12), "float32_gradients": (2, 4, 12), "float32_copies": (2, 2, 16), "float32": (4, 4, 8), "eight_bit": (2, 2, 6)}


@dataclass(frozen=True)
class TrainingRecipe:
    """One case of training_bytes: n models, `world` devices, a stage and a layout."""

    n: int = shrinking.size_field()
    parameters: int = shrinking.size_field()
    world: int = shrinking.size_field()
    stage: str = shrinking.choice_field(STAGES)
    layout: str = shrinking.choice_field(tuple(LAYOUTS))
    seed: int = field(default=0)


_LAYOUT_ARGUMENTS = ("weight_bytes", "gradient_bytes", "optimizer_bytes")


def covered_training(recipe: TrainingRecipe, coverage: Coverage) -> TrainingRecipe:
    """The recipe with at least one device, and the usual layout for a subject that takes no other."""
    takes = set(_LAYOUT_ARGUMENTS) <= coverage.arguments
    return replace(recipe, n=max(recipe.n, int(not coverage.empty)), world=max(recipe.world, 1), layout=recipe.layout if takes else "mixed")


def designed_training(coverage: Coverage) -> list[TrainingRecipe]:
    """The published figures, and a balanced table."""
    published = [TrainingRecipe(parameters=N, world=8, stage=stage) for N in (7 * 10**9, 10**9) for stage in STAGES]
    levels: dict[str, tuple[Any, ...]] = {"stage": STAGES, "layout": tuple(LAYOUTS), "world": (1, 2, 7, 8, 64, 1000)}
    rows = balanced_table({**levels, "n": (1, 2, 5, 0), "parameters": (1, 999, 10**6 + 1, 7 * 10**10)}, ROWS, crossed=tuple(levels))
    table = [TrainingRecipe(seed=100 + index, **row) for index, row in enumerate(rows)]
    return list(dict.fromkeys(covered_training(recipe, coverage) for recipe in (*published, *table)))


def training_recipes(coverage: Coverage) -> st.SearchStrategy[TrainingRecipe]:
    """Random recipes inside a coverage."""
    return st.builds(
        TrainingRecipe, n=st.sampled_from((1, 2, 5, 0)), parameters=st.integers(0, 10**12), world=st.integers(1, 2000),
        stage=st.sampled_from(STAGES), layout=st.sampled_from(tuple(LAYOUTS)), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_training(recipe, coverage))  # fmt: skip


def build_training(recipe: TrainingRecipe) -> Case:
    """Numbers of parameters, the first the greatest; a layout that is not the usual one is named."""
    parameters = np.random.default_rng(recipe.seed).integers(0, recipe.parameters + 1, recipe.n).astype(np.int64)
    parameters[:1] = recipe.parameters
    layout = dict(zip(_LAYOUT_ARGUMENTS, LAYOUTS[recipe.layout])) if recipe.layout != "mixed" else {}
    options: dict[str, Option] = {"stage": int(recipe.stage), "world": recipe.world, **layout}
    return Case("training_bytes", {"parameters": parameters}, options, origin=str(recipe))


TRAINING_CASES = RecipeSource("training_bytes", build=build_training, designed=designed_training, strategy=training_recipes,
                              covered=covered_training)  # fmt: skip
