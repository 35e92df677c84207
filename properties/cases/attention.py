"""Attention cases: recipes over shapes, options, formats and regimes, for attention and its backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat, attention, visible_keys

from .. import regimes, shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from . import attention_arrays as arrays_of
from .covering import covered_attention, covered_levels
from .layouts import LAYOUTS, laid_out
from .poison import poison

CAUSAL = ("none", "bottom_right", "top_left")
DTYPES = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e4m3fnuz", "float8_e5m2fnuz",
          "float8_e4m3b11fnuz", "float8_e3m4", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")

# field of the recipe: (the argument of the contract it needs, its levels, the simplest first)
OPTIONS = {
    "window": ("window", ("none", "left", "both", "right")),
    "scale": ("scale", ("default", "power_of_two", "odd", "negative")),
    "softcap": ("softcap", ("none", "tight", "loose")),
    "bias": ("bias", ("none", "per_key", "per_head", "full", "minus_infinity")),
    "mask": ("mask", ("none", "leading_padding", "random", "block", "hidden_rows")),
    "kv_lengths": ("kv_lengths", ("none", "ragged", "some_zero", "full")),
    "sinks": ("sinks", ("none", "normal", "dominant")),
    "alibi": ("alibi_slopes", ("none", "geometric")),
    "dropout": ("dropout_mask", ("none", "half", "tenth")),
}

# Levels that hand-written and random cases know beside those of the balanced table.
BIASES = (*OPTIONS["bias"][1], "per_item", "per_head_key")
SINKS = (*OPTIONS["sinks"][1], "towering")

# (Lq, Lk) of the balanced table: decoding, equal, more keys, more queries; one and one past the tile borders.
LENGTHS = (
    (1, 1), (1, 2), (1, 17), (1, 33), (1, 64), (1, 129), (1, 513), (2, 2), (2, 5), (2, 65), (3, 3), (3, 16), (3, 257), (4, 4),
    (4, 31), (5, 1), (5, 5), (5, 40), (6, 3), (7, 7), (7, 17), (8, 8), (8, 128), (9, 24), (11, 11), (12, 5), (13, 48), (15, 15),
    (16, 16), (16, 33), (16, 129), (17, 17), (17, 7), (19, 23), (20, 64), (23, 23), (24, 96), (27, 9), (29, 29), (32, 32), (32, 65),
    (33, 33), (33, 12), (37, 41), (40, 40), (48, 17), (64, 64), (65, 65), (65, 129), (70, 33), (97, 31), (128, 16), (129, 20),
    (31, 60), (21, 35), (10, 127),
)  # fmt: skip
HEAD_DIMS = (64, 128, 1, 8, 16, 32, 40, 80, 2, 3, 5, 7, 13, 64)
ROWS = 2 * len(LENGTHS)
WORK = 2**18                              # B Hq Lq Lk of one case at most


@dataclass(frozen=True)
class AttentionRecipe:
    """One case of attention in a few words. Letters as in the contract, Hq = G Hkv; the default is the simplest case."""

    B: int = shrinking.size_field()
    Hkv: int = shrinking.size_field()
    G: int = shrinking.size_field()
    Lq: int = shrinking.size_field()
    Lk: int = shrinking.size_field()
    D: int = shrinking.size_field()
    Dv: int = shrinking.size_field()
    causal: str = shrinking.choice_field(CAUSAL)
    window: str = shrinking.choice_field(OPTIONS["window"][1])
    scale: str = shrinking.choice_field(OPTIONS["scale"][1])
    softcap: str = shrinking.choice_field(OPTIONS["softcap"][1])
    bias: str = shrinking.choice_field(BIASES)
    mask: str = shrinking.choice_field(OPTIONS["mask"][1])
    kv_lengths: str = shrinking.choice_field(OPTIONS["kv_lengths"][1])
    sinks: str = shrinking.choice_field(SINKS)
    alibi: str = shrinking.choice_field(OPTIONS["alibi"][1])
    dropout: str = shrinking.choice_field(OPTIONS["dropout"][1])
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(regimes.REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    poison: bool = False
    seed: int = field(default=0)

    @property
    def Hq(self) -> int:
        return self.Hkv * self.G

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """The shape of the scores, (B, Hq, Lq, Lk)."""
        return self.B, self.Hq, self.Lq, self.Lk


# Written by hand: what a table of small balanced shapes meets too rarely.
CORNERS = (
    AttentionRecipe(Lk=513, D=64, Dv=64, seed=1),
    AttentionRecipe(B=2, Hkv=2, G=4, Lk=257, D=128, Dv=128, causal="bottom_right", kv_lengths="ragged", poison=True, seed=2),
    AttentionRecipe(Hkv=2, Lq=257, Lk=257, D=64, Dv=64, causal="bottom_right", seed=3),
    AttentionRecipe(Lq=129, Lk=129, D=40, Dv=40, causal="top_left", seed=4),
    AttentionRecipe(Lq=65, Lk=513, D=32, Dv=32, regime="ascending", causal="bottom_right", seed=5),
    AttentionRecipe(B=2, Hkv=3, G=2, Lq=7, Lk=5, D=8, Dv=16, regime="one_hot", seed=6),
    AttentionRecipe(B=2, Hkv=2, G=2, Lq=20, Lk=9, D=16, Dv=16, causal="bottom_right", poison=True, seed=7),
    AttentionRecipe(B=2, Hkv=2, G=2, Lq=9, Lk=20, D=16, Dv=16, causal="top_left", poison=True, seed=8),
    AttentionRecipe(B=3, Hkv=1, G=2, Lq=6, Lk=11, D=8, Dv=8, kv_lengths="some_zero", sinks="normal", poison=True, seed=10),
    AttentionRecipe(B=2, Hkv=2, G=1, Lq=150, Lk=150, D=16, Dv=16, causal="bottom_right", window="left", poison=True, seed=11),
    AttentionRecipe(B=1, Hkv=1, G=2, Lq=3, Lk=40, D=32, Dv=32, kv_lengths="ragged", causal="bottom_right", poison=True, seed=12),
    # A negative scale turns -inf written into q k^T before it is scaled into +inf: docs/findings.md, torch-negative-scale-under-causal.
    AttentionRecipe(Hkv=2, Lq=6, Lk=6, D=8, Dv=8, causal="bottom_right", scale="negative", seed=9),
    AttentionRecipe(Hkv=2, Lq=6, Lk=7, D=8, Dv=8, causal="top_left", scale="negative", seed=9),
    # Distances that go on growing behind the last tile: pytorch/pytorch#153799. A right side of 0 hides the future: jax-ml/jax#39576.
    AttentionRecipe(Hkv=2, Lq=11, Lk=27, D=16, Dv=16, alibi="geometric", causal="bottom_right", regime="peaked", seed=17),
    AttentionRecipe(Lq=9, Lk=9, D=8, Dv=8, window="both", seed=33),             # drawn as (4, 0)
    # Three heads a group, where h / G is no shift; a bias that items, or heads and keys alone, have of their own.
    AttentionRecipe(B=2, Hkv=2, G=3, Lq=6, Lk=9, D=8, Dv=8, bias="per_item", causal="bottom_right", seed=34),
    AttentionRecipe(B=2, Hkv=2, G=3, Lq=5, Lk=7, D=8, Dv=8, bias="per_head_key", sinks="normal", seed=35),
    # The maximum starts at the sink, or e^(sink - m) overflows.
    AttentionRecipe(Hkv=2, Lq=4, Lk=9, D=8, Dv=8, sinks="towering", seed=37),
    AttentionRecipe(B=2, Hkv=1, G=3, Lq=4, Lk=0, D=8, Dv=5, sinks="normal", seed=13),
    AttentionRecipe(B=2, Hkv=2, G=1, Lq=0, Lk=6, D=8, Dv=8, causal="bottom_right", seed=14),
    AttentionRecipe(B=0, Hkv=2, G=2, Lq=3, Lk=5, D=8, Dv=8, seed=15),
)  # fmt: skip


def covered(recipe: AttentionRecipe, coverage: Coverage) -> AttentionRecipe:
    """The recipe mapped into the coverage, and bounded in its work."""
    return _bounded(covered_attention(recipe, coverage, OPTIONS))


def _bounded(recipe: AttentionRecipe) -> AttentionRecipe:
    """Fewer heads and sequences, where the work would be too much for one case among hundreds."""
    for name in ("B", "Hkv", "G"):
        if np.prod(recipe.scores) > WORK:
            recipe = replace(recipe, **{name: 1})  # type: ignore[arg-type]
    return recipe


@lru_cache(maxsize=8)
def table(coverage: Coverage) -> tuple[AttentionRecipe, ...]:
    """The balanced part of the designed cases: each level equally often, all pairs of levels of the options met."""
    levels = covered_levels(coverage, OPTIONS)
    levels |= {"strides": LAYOUTS, "regime": regimes.REGIMES, "poison": (True, True, True, False), "parity": (0, 1)}
    head_dims = HEAD_DIMS if coverage.head_dims is None else coverage.head_dims
    shapes = {"B": (1, 2, 3), "Hkv": (1, 2, 3), "G": (1, 2, 4), "lengths": LENGTHS, "D": head_dims, "Dv": head_dims, "equal": (True, False)}
    rows = balanced_table({**levels, **shapes}, ROWS, crossed=tuple(levels))
    recipes = []
    for index, row in enumerate(rows):
        (Lq, Lk), equal, parity = row.pop("lengths"), row.pop("equal"), row.pop("parity")
        row["Dv"] = row["D"] if equal else row["Dv"]
        recipes.append(covered(AttentionRecipe(Lq=Lq, Lk=Lk, seed=100 + 2 * index + parity, **row), coverage))
    return tuple(recipes)


def recipes(coverage: Coverage) -> st.SearchStrategy[AttentionRecipe]:
    """Random recipes inside a coverage. A fixed number of draws, the mapping afterwards: draws that depend on others do not shrink."""
    levels = {name: st.sampled_from(levels) for name, (_, levels) in OPTIONS.items()} | {"bias": st.sampled_from(BIASES)}
    head_dims = coverage.head_dims or (*HEAD_DIMS, 4, 11, 24, 96)
    lengths = (*range(1, 25), 31, 32, 33, 40, 48, 63, 64, 65, 80, 100, 127, 128, 129, 200, 257, 0)
    return st.builds(
        AttentionRecipe,
        B=st.sampled_from((1, 2, 3) * 10 + (4, 0)), Hkv=st.sampled_from((1, 2, 3, 1, 2, 4)), G=st.sampled_from((1, 2, 3, 4, 1, 2, 8)),
        Lq=st.sampled_from(lengths), Lk=st.sampled_from((*lengths[:-1], 255, 256, 300, 511, 513, 0)),
        D=st.sampled_from(head_dims), Dv=st.sampled_from(head_dims),
        causal=st.sampled_from(CAUSAL), dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(regimes.REGIMES),
        strides=st.sampled_from(LAYOUTS), poison=st.sampled_from((False, True, True, True)), seed=st.integers(0, 2**32 - 1), **levels,
    ).map(lambda recipe: covered(recipe, coverage))  # fmt: skip


def build(recipe: AttentionRecipe, *, backward: bool = False) -> Case:
    """The case of a recipe. Poisoned recipes of even seed hold NaN beyond kv_lengths, those of odd seed finite numbers."""
    fmt = FloatFormat(recipe.dtype)
    B, Hq, Lq, Lk = recipe.scores
    options, extra = _options(recipe), _arrays(recipe, fmt)
    scale = arrays_of.scale_of(recipe.scale, recipe.D) or recipe.D**-0.5
    q, k, v = regimes.draw_attention(recipe.regime, (B, Hq, Lq, recipe.D), (B, recipe.Hkv, Lk, recipe.D), (B, recipe.Hkv, Lk, recipe.Dv),
                                     recipe.dtype, arrays_of.generator(recipe.seed, "values"), scale=scale)
    dout = regimes.draw("normal", (B, Hq, Lq, recipe.Dv), recipe.dtype, arrays_of.generator(recipe.seed, "dout"))
    held = None
    if recipe.poison:
        visible = visible_keys(B, Hq, Lq, Lk, causal=options["causal"], window=options.get("window"),  # type: ignore[arg-type]
                               mask=extra.get("mask"), kv_lengths=extra.get("kv_lengths"), bias=extra.get("bias"))
        beyond = np.arange(Lk) >= extra["kv_lengths"][:, None] if "kv_lengths" in extra else np.zeros((B, Lk), dtype=bool)
        k, v, held = poison(q, k, v, dout, visible=visible, beyond=beyond, scale=scale, nonfinite=recipe.seed % 2 == 0,
                            generator=arrays_of.generator(recipe.seed, "poison"))
    q, k, v, dout = (laid_out(x, recipe.strides) for x in (q, k, v, dout))
    case = Case("attention", {"q": q, "k": k, "v": v, **extra}, options, origin=str(recipe), notes={"poison": held})
    return completed(replace(case.with_arrays(dout=dout), operation="attention_backward")) if backward else case


def completed(case: Case) -> Case:
    """The case of a backward pass with out and lse of the oracle, rounded to the format of q and to float32 (float64)."""
    q = case.arrays["q"]
    fmt = FloatFormat(q.dtype.name)
    arguments = {name: value for name, value in case.arguments().items() if name not in ("out", "lse", "dout")}
    out, lse = attention(**arguments)
    return case.with_arrays(out=fmt.cast(out), lse=FloatFormat("float64" if fmt.name == "float64" else "float32").cast(lse))


def _options(recipe: AttentionRecipe) -> dict[str, Option]:
    """The scalar arguments; those at their default are left out, `causal` never."""
    options: dict[str, Option] = {
        "window": arrays_of.window_of(recipe.window, recipe.Lk, arrays_of.generator(recipe.seed, "window")),
        "scale": arrays_of.scale_of(recipe.scale, recipe.D),
        "softcap": arrays_of.softcap_of(recipe.softcap),
        "dropout_p": arrays_of.dropout_p_of(recipe.dropout),
    }
    return {"causal": None if recipe.causal == "none" else recipe.causal, **{n: o for n, o in options.items() if o is not None}}


def _arrays(recipe: AttentionRecipe, fmt: FloatFormat) -> dict[str, NDArray[Any]]:
    """The arrays beside q, k and v."""
    shape = recipe.scores
    makers: dict[str, Callable[[np.random.Generator], NDArray[Any]]] = {
        "bias": lambda g: arrays_of.bias_of(recipe.bias, shape, fmt, g),
        "mask": lambda g: arrays_of.mask_of(recipe.mask, shape, g),
        "kv_lengths": lambda g: arrays_of.kv_lengths_of(recipe.kv_lengths, recipe.B, recipe.Lk, g),
        "sinks": lambda g: arrays_of.sinks_of(recipe.sinks, recipe.Hq, fmt, g),
        "alibi": lambda g: arrays_of.alibi_of(recipe.Hq, fmt),
        "dropout": lambda g: arrays_of.dropout_of(recipe.dropout, shape, g),
    }
    given = [name for name in makers if getattr(recipe, name) != "none"]
    return {OPTIONS[name][0]: makers[name](arrays_of.generator(recipe.seed, name)) for name in given}


def build_backward(recipe: AttentionRecipe) -> Case:
    """The case of the backward pass: `build` with out, lse and dout."""
    return build(recipe, backward=True)


def designed(coverage: Coverage) -> list[AttentionRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered(corner, coverage) for corner in CORNERS), *table(coverage)]))


ATTENTION_CASES = RecipeSource("attention", build=build, designed=designed, strategy=recipes, covered=covered)
ATTENTION_BACKWARD_CASES = replace(ATTENTION_CASES, operation="attention_backward", build=build_backward, complete=completed)
