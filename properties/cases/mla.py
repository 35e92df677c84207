"""Latent attention cases: queries in two parts, one latent and one rotary key a token, and what each head makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat, visible_keys

from .. import regimes, shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from . import attention_arrays as arrays_of
from .attention import CAUSAL, DTYPES
from .attention import OPTIONS as ATTENTION_OPTIONS
from .covering import alignments, covered_levels
from .layouts import LAYOUTS, laid_out
from .poison import poison

# default: 1/sqrt(Dn + Dr); stretched: times 1.5896, the square of 0.1 * 0.707 ln 40 + 1 of a context forty times as long; the others
# as in attention.
SCALES = ("default", "stretched", "power_of_two", "odd", "negative")
STRETCHED = (0.1 * 0.707 * np.log(40.0) + 1.0) ** 2
OPTIONS = {"scale": ("scale", SCALES), **{name: ATTENTION_OPTIONS[name] for name in ("kv_lengths", "mask")}}

LENGTHS = ((1, 1), (1, 2), (1, 9), (1, 17), (1, 33), (1, 64), (1, 129), (1, 257), (2, 2), (2, 7), (3, 3), (4, 20), (5, 5), (7, 3), (8, 40),
           (9, 9), (16, 16), (17, 33), (20, 20), (33, 33), (5, 64), (12, 65))  # fmt: skip
HEAD_DIMS = (16, 8, 32, 1, 4, 64, 128, 3)
ROTARY = (8, 2, 4, 16, 64, 0)
LATENTS = (32, 16, 8, 64, 1, 5, 128)
ROWS = 84
WORK = 2**17                              # B H Lq Lk of one case at most
HUGE = ("huge", "uneven")                 # not drawn: products of three factors leave every format, or say nothing new


@dataclass(frozen=True)
class LatentRecipe:
    """One case of latent attention. Letters as in the contract: Dn, Dr the two parts of a query, C the latent's size."""

    B: int = shrinking.size_field()
    H: int = shrinking.size_field()
    Lq: int = shrinking.size_field()
    Lk: int = shrinking.size_field()
    Dn: int = shrinking.size_field()
    Dr: int = shrinking.size_field()
    C: int = shrinking.size_field()
    Dv: int = shrinking.size_field()
    causal: str = shrinking.choice_field(CAUSAL)
    scale: str = shrinking.choice_field(SCALES)
    kv_lengths: str = shrinking.choice_field(OPTIONS["kv_lengths"][1])
    mask: str = shrinking.choice_field(OPTIONS["mask"][1])
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(tuple(r for r in regimes.REGIMES if r not in HUGE))
    strides: str = shrinking.choice_field(LAYOUTS)
    poison: bool = False
    seed: int = field(default=0)


CORNERS = (
    LatentRecipe(B=1, H=2, Lq=1, Lk=129, Dn=128, Dr=64, C=128, Dv=128, scale="stretched", seed=1),
    LatentRecipe(B=2, H=4, Lq=1, Lk=40, Dn=16, Dr=8, C=32, Dv=16, scale="stretched", kv_lengths="ragged", causal="bottom_right",
                 poison=True, seed=2),
    LatentRecipe(B=2, H=3, Lq=9, Lk=9, Dn=16, Dr=8, C=16, Dv=8, causal="bottom_right", seed=3),
    LatentRecipe(B=2, H=2, Lq=6, Lk=11, Dn=8, Dr=0, C=8, Dv=8, causal="bottom_right", seed=4),
    LatentRecipe(B=3, H=2, Lq=4, Lk=12, Dn=8, Dr=4, C=16, Dv=8, kv_lengths="some_zero", poison=True, seed=6),
    LatentRecipe(B=2, H=2, Lq=7, Lk=3, Dn=8, Dr=2, C=8, Dv=4, causal="bottom_right", seed=7),
    LatentRecipe(B=1, H=2, Lq=3, Lk=0, Dn=8, Dr=2, C=8, Dv=4, seed=8),
    LatentRecipe(B=1, H=2, Lq=0, Lk=5, Dn=8, Dr=2, C=8, Dv=4, seed=9),
    LatentRecipe(B=0, H=2, Lq=2, Lk=5, Dn=8, Dr=2, C=8, Dv=4, seed=10),
)  # fmt: skip


def covered(recipe: LatentRecipe, coverage: Coverage) -> LatentRecipe:
    """The recipe mapped into the coverage, and bounded in its work; mapping twice changes nothing more.

    head_dims are sizes of Dn and Dv. Without empty sizes there is a rotary part.
    """
    changes: dict[str, Any] = {name: levels[0] for name, (argument, levels) in OPTIONS.items() if argument not in coverage.arguments}
    if recipe.scale == "negative" and not coverage.negative_scale:
        changes.setdefault("scale", "odd")
    if recipe.kv_lengths == "some_zero" and not coverage.empty:
        changes.setdefault("kv_lengths", "ragged")
    if recipe.dtype not in coverage.dtypes:
        changes["dtype"] = coverage.dtypes[0]
    if recipe.causal not in alignments(coverage):
        changes["causal"] = alignments(coverage)[0]
    least, multiple = int(not coverage.empty), coverage.length_multiple
    Lq, Lk = (-(-max(n, least) // multiple) * multiple for n in (recipe.Lq, recipe.Lk))
    Dn, Dv = (n if coverage.head_dims is None else min(coverage.head_dims, key=lambda m: (abs(m - n), m)) for n in (recipe.Dn, recipe.Dv))
    recipe = replace(recipe, B=max(recipe.B, least), Lq=Lq if coverage.cross_lengths else Lk, Lk=Lk, Dn=Dn, Dr=max(recipe.Dr, least),
                     Dv=Dv if coverage.value_dim else Dn, **changes)  # fmt: skip
    for name in ("B", "H"):
        if recipe.B * recipe.H * recipe.Lq * recipe.Lk > WORK:
            recipe = replace(recipe, **{name: 1})  # type: ignore[arg-type]
    return recipe


@lru_cache(maxsize=8)
def table(coverage: Coverage) -> tuple[LatentRecipe, ...]:
    """The balanced part of the designed cases: each level equally often, all pairs of levels of the options met."""
    head_dims = HEAD_DIMS if coverage.head_dims is None else coverage.head_dims
    levels = covered_levels(coverage, OPTIONS) | {"strides": LAYOUTS, "poison": (True, True, True, False)}
    shapes = {"regime": tuple(r for r in regimes.REGIMES if r not in HUGE), "B": (1, 2, 3), "H": (1, 2, 4), "pair": LENGTHS,
              "Dn": head_dims, "Dr": ROTARY, "C": LATENTS, "Dv": head_dims, "parity": (0, 1)}  # fmt: skip
    rows = balanced_table({**levels, **shapes}, ROWS, crossed=tuple(levels))
    recipes = []
    for index, row in enumerate(rows):
        (Lq, Lk), parity = row.pop("pair"), row.pop("parity")
        recipes.append(covered(LatentRecipe(Lq=Lq, Lk=Lk, seed=100 + 2 * index + parity, **row), coverage))
    return tuple(recipes)


def designed(coverage: Coverage) -> list[LatentRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered(corner, coverage) for corner in CORNERS), *table(coverage)]))


def recipes(coverage: Coverage) -> st.SearchStrategy[LatentRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    levels = {name: st.sampled_from(levels) for name, (_, levels) in OPTIONS.items()}
    lengths = (*range(1, 20), 31, 32, 33, 40, 64, 65, 0)
    head_dims = coverage.head_dims or HEAD_DIMS
    return st.builds(
        LatentRecipe,
        B=st.sampled_from((1, 2, 3) * 10 + (0,)), H=st.sampled_from((1, 2, 3, 4, 8)), Lq=st.sampled_from((1,) * 10 + lengths),
        Lk=st.sampled_from((*lengths[:-1], 128, 129, 257, 0)), Dn=st.sampled_from(head_dims), Dr=st.sampled_from(ROTARY),
        C=st.sampled_from(LATENTS), Dv=st.sampled_from(head_dims), causal=st.sampled_from(CAUSAL), dtype=st.sampled_from(coverage.dtypes),
        regime=st.sampled_from([r for r in regimes.REGIMES if r not in HUGE]), strides=st.sampled_from(LAYOUTS),
        poison=st.sampled_from((False, True, True, True)), seed=st.integers(0, 2**32 - 1), **levels,
    ).map(lambda recipe: covered(recipe, coverage))  # fmt: skip


def build(recipe: LatentRecipe) -> Case:
    """The case of a recipe. Poisoned recipes of even seed hold NaN beyond kv_lengths, those of odd seed finite numbers.

    A regime describes the queries and what they meet: w_uk is near the identity, w_uv any mixture of the latent's channels.
    """
    B, H, Lq, Lk, Dn, Dr, C = recipe.B, recipe.H, recipe.Lq, recipe.Lk, recipe.Dn, recipe.Dr, recipe.C
    fmt, scale = FloatFormat(recipe.dtype), _scale(recipe)
    widest = max(Dn, C)
    q, k, _ = regimes.draw_attention(recipe.regime, (B, H, Lq, widest + Dr), (B, 1, Lk, widest + Dr), (B, 1, Lk, 1), recipe.dtype,
                                     arrays_of.generator(recipe.seed, "values"), scale=scale)
    q_nope, q_rope, latent, k_rope = q[..., :Dn], q[..., widest:], k[:, :, :, :C], k[:, :, :, widest:]
    w_uk, w_uv = _projections(recipe, fmt, arrays_of.generator(recipe.seed, "bias"))
    extra: dict[str, NDArray[Any]] = {}
    if recipe.mask != "none":
        extra["mask"] = arrays_of.mask_of(recipe.mask, (B, H, Lq, Lk), arrays_of.generator(recipe.seed, "mask"))
    if recipe.kv_lengths != "none":
        extra["kv_lengths"] = arrays_of.kv_lengths_of(recipe.kv_lengths, B, Lk, arrays_of.generator(recipe.seed, "kv_lengths"))
    options: dict[str, Option] = {"causal": None if recipe.causal == "none" else recipe.causal, "scale": scale}
    held = None
    if recipe.poison:
        visible = visible_keys(B, H, Lq, Lk, causal=options["causal"], **extra)  # type: ignore[arg-type]
        beyond = np.arange(Lk) >= extra["kv_lengths"][:, None] if "kv_lengths" in extra else np.zeros((B, Lk), dtype=bool)
        # Hidden numbers so large that q w_uk latent, whatever its order, just stays finite.
        reach = fmt.cast(np.concatenate([q_nope.astype(np.float64), q_rope.astype(np.float64), np.ones((B, H, Lq, 1))], axis=-1))
        factor = max(1.0, abs(scale)) * (Dn + Dr) * max(1.0, *(float(np.abs(w.astype(np.float64)).max()) for w in (w_uk, w_uv)))
        both, _, held = poison(reach, np.concatenate([latent, k_rope], axis=-1), latent[..., :1], reach,
                               visible=visible, beyond=beyond, scale=factor, nonfinite=recipe.seed % 2 == 0,
                               generator=arrays_of.generator(recipe.seed, "poison"))
        latent, k_rope = both[..., :C], both[..., C:]
    q_nope, q_rope, latent, k_rope = (laid_out(x, recipe.strides) for x in (q_nope, q_rope, latent, k_rope))
    arrays = {"q_nope": q_nope, "q_rope": q_rope, "latent": latent[:, 0], "k_rope": k_rope[:, 0], "w_uk": w_uk, "w_uv": w_uv, **extra}
    return Case("mla_attention", arrays, options, origin=str(recipe), notes={"poison": held, "poisoned": ("latent", "k_rope")})


def _scale(recipe: LatentRecipe) -> float:
    D = recipe.Dn + recipe.Dr
    if recipe.scale == "stretched":
        return float(STRETCHED / np.sqrt(D))
    return float(arrays_of.scale_of(recipe.scale, D) or D**-0.5)


def _projections(recipe: LatentRecipe, fmt: FloatFormat, g: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """w_uk (H, C, Dn) and w_uv (H, C, Dv): another mixture for each head, integers where the regime is integers."""
    H, C, Dn, Dv = recipe.H, recipe.C, recipe.Dn, recipe.Dv
    noise_k, noise_v = g.standard_normal((H, C, Dn)), g.standard_normal((H, C, Dv))
    if recipe.regime == "integer_grid":
        return fmt.cast(np.eye(C, Dn) + np.clip(np.rint(noise_k / 2), -1, 1)), fmt.cast(np.clip(np.rint(noise_v), -1, 1))
    return fmt.cast(np.eye(C, Dn) + noise_k / (4 * np.sqrt(C))), fmt.cast(noise_v / np.sqrt(C))


LATENT_CASES = RecipeSource("mla_attention", build=build, designed=designed, strategy=recipes, covered=covered)
