"""Rope cases: vectors of every regime at positions near, far, scattered and negative, with every pairing and kind of scaling."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from .. import regimes, shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..signatures import SIGNATURES
from .attention import DTYPES
from .attention_arrays import generator
from .layouts import LAYOUTS, laid_out

PAIRINGS = SIGNATURES["rope"].choices["pairing"]
# Axes of x before D: (B, H, T), (B, T), (T), or none, a single vector.
AXES = ("bht", "bt", "t", "none")
# One number for each t (T,), for each item and t (B, 1, T), for each row of x, one for all ().
SHAPES = ("row", "item", "full", "one")
# 0, 1, 2, ...; the same after a prefix; any order with repetitions; up to a million; before 0, as when cached keys are shifted; where
# float32 stops to count by ones.
PLACES = ("from_zero", "offset", "scattered", "far", "negative", "edge")
ROTARY = ("all", "half", "all_but_two", "two")
BASES = {"default": 10000.0, "large": 500000.0, "small": 100.0}
_YARN = {"kind": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "linear": {"kind": "linear", "factor": 2.5},
    "ntk": {"kind": "ntk", "factor": 3.0},
    "yarn": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.0, "truncate": True},
    "yarn_ratio": {**_YARN, "factor": 16.0, "beta_fast": 24.0, "mscale": 0.707, "mscale_all_dim": 1.0, "truncate": True},
    "yarn_equal": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707, "truncate": True},
    "yarn_smooth": {**_YARN, "factor": 4.0, "original_max_position_embeddings": 8192, "mscale": 1.0, "mscale_all_dim": 0.0,
                    "truncate": False},
    "llama3": {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0},
    "llama3_short": {"kind": "llama3", "factor": 32.0, "original_max_position_embeddings": 512, "low_freq_factor": 1.5,
                     "high_freq_factor": 6.0},
}  # fmt: skip
HEAD_DIMS = (2, 4, 6, 8, 16, 40, 64, 80, 128)
ROWS = 90


@dataclass(frozen=True)
class RopeRecipe:
    """One case of rope: x of some of the axes (B, H, T), and D."""

    B: int = shrinking.size_field()
    H: int = shrinking.size_field()
    T: int = shrinking.size_field()
    D: int = shrinking.size_field()
    axes: str = shrinking.choice_field(AXES)
    pairing: str = shrinking.choice_field(PAIRINGS)
    places: str = shrinking.choice_field(PLACES)
    shape: str = shrinking.choice_field(SHAPES)
    wide_positions: bool = True
    rotary: str = shrinking.choice_field(ROTARY)
    base: str = shrinking.choice_field(tuple(BASES))
    scaling: str = shrinking.choice_field(tuple(SCALINGS))
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(regimes.REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    RopeRecipe(D=2, seed=1),
    RopeRecipe(D=2, T=3, pairing="interleaved", places="offset", seed=2),
    RopeRecipe(B=2, H=3, T=0, D=8, seed=3),
    RopeRecipe(B=0, H=2, T=3, D=8, seed=4),
    RopeRecipe(B=2, H=2, T=5, D=128, places="edge", seed=5),
    RopeRecipe(B=1, H=2, T=4, D=128, places="far", base="large", scaling="llama3", seed=6),
    RopeRecipe(T=7, D=64, places="far", scaling="yarn", seed=7),
    RopeRecipe(B=2, H=2, T=9, D=64, pairing="interleaved", places="scattered", rotary="half", seed=8),
)


def _kind(level: str) -> str:
    record = SCALINGS[level]
    return "none" if record is None else str(record["kind"])


def scalings(coverage: Coverage) -> tuple[str, ...]:
    """The levels of scaling that a subject takes."""
    if "scaling" not in coverage.arguments:
        return ("none",)
    return tuple(level for level in SCALINGS if _kind(level) in coverage.levels("scaling", SIGNATURES["rope"].kinds["scaling"]))


def covered_rope(recipe: RopeRecipe, coverage: Coverage) -> RopeRecipe:
    """The recipe mapped into the coverage, and on to what the oracle takes: D even where all of it turns, at least 4 for ntk."""
    least, multiple = int(not coverage.empty), coverage.length_multiple
    known, pairings = scalings(coverage), coverage.levels("pairing", PAIRINGS)
    scaling = recipe.scaling if recipe.scaling in known else next((s for s in known if _kind(s) == _kind(recipe.scaling)), known[0])
    rotary = recipe.rotary if "rotary_dim" in coverage.arguments else "all"
    fewest = 4 if _kind(scaling) == "ntk" else 2
    sizes = coverage.head_dims or (max(recipe.D, fewest),)
    D = min(sizes, key=lambda n: (n < fewest, abs(n - recipe.D), n))
    if D % 2 and coverage.head_dims is None:
        D += 1
    if rotary_dim(rotary, D) < fewest or rotary_dim(rotary, D) % 2:
        rotary = "all"
    return replace(
        recipe, B=max(recipe.B, least), H=max(recipe.H, 1), T=-(-max(recipe.T, least) // multiple) * multiple, D=D, rotary=rotary,
        scaling=scaling, pairing=recipe.pairing if recipe.pairing in pairings else pairings[0],
        base=recipe.base if "base" in coverage.arguments else "default",
        dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0],
    )  # fmt: skip


def rotary_dim(level: str, D: int) -> int:
    """How many coordinates turn; "half" rounded down to an even number."""
    return {"all": D, "half": D // 4 * 2, "all_but_two": D - 2, "two": 2}[level]


@lru_cache(maxsize=8)
def rope_table(coverage: Coverage) -> tuple[RopeRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {
        "scaling": scalings(coverage), "pairing": coverage.levels("pairing", PAIRINGS), "places": PLACES, "shape": SHAPES, "rotary": ROTARY,
        "dtype": coverage.dtypes, "base": tuple(BASES),
    }  # fmt: skip
    sizes = {
        "axes": ("bht", "bht", "bht", "bt", "t", "none"), "wide_positions": (True, False), "regime": regimes.REGIMES, "strides": LAYOUTS,
        "B": (1, 2, 3), "H": (1, 2, 5), "T": (1, 2, 3, 7, 16, 33), "D": coverage.head_dims or HEAD_DIMS,
    }  # fmt: skip
    rows = balanced_table({**levels, **sizes}, ROWS, crossed=tuple(levels))
    return tuple(covered_rope(RopeRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_rope(coverage: Coverage) -> list[RopeRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_rope(corner, coverage) for corner in CORNERS), *rope_table(coverage)]))


def rope_recipes(coverage: Coverage) -> st.SearchStrategy[RopeRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        RopeRecipe,
        B=st.sampled_from((1, 2, 3) * 10 + (0,)), H=st.sampled_from((1, 2, 3, 4)), T=st.sampled_from((*range(1, 34), 0)),
        D=st.sampled_from(coverage.head_dims or HEAD_DIMS), axes=st.sampled_from(AXES), pairing=st.sampled_from(PAIRINGS),
        places=st.sampled_from(PLACES), shape=st.sampled_from(SHAPES), wide_positions=st.booleans(), rotary=st.sampled_from(ROTARY),
        base=st.sampled_from(tuple(BASES)), scaling=st.sampled_from(scalings(coverage)), dtype=st.sampled_from(coverage.dtypes),
        regime=st.sampled_from(regimes.REGIMES), strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_rope(recipe, coverage))  # fmt: skip


def build_rope(recipe: RopeRecipe) -> Case:
    """x of a regime and positions in int64 or int32; options that are at their default are left out."""
    sizes = {"b": recipe.B, "h": recipe.H, "t": recipe.T}
    outer = tuple(sizes[axis] for axis in recipe.axes.replace("none", ""))
    x = regimes.draw(recipe.regime, (*outer, recipe.D), recipe.dtype, generator(recipe.seed, "values"))
    if len(outer) > 1:
        x = laid_out(x, recipe.strides)
    positions = _positions(recipe, outer).astype(np.int64 if recipe.wide_positions else np.int32)
    options: dict[str, Option] = {"pairing": recipe.pairing}
    if recipe.base != "default":
        options["base"] = BASES[recipe.base]
    if recipe.rotary != "all":
        options["rotary_dim"] = rotary_dim(recipe.rotary, recipe.D)
    record = SCALINGS[recipe.scaling]
    if record is not None:
        options["scaling"] = dict(record)
    return Case("rope", {"x": x, "positions": positions}, options, origin=str(recipe))


def _positions(recipe: RopeRecipe, outer: tuple[int, ...]) -> NDArray[np.int64]:
    g = generator(recipe.seed, "lengths")
    shape = {"row": outer[-1:], "full": outer, "one": ()}.get(recipe.shape, (*outer[:1], *(1,) * (len(outer) - 2), *outer[-1:]))
    if recipe.shape == "item" and len(outer) < 2:
        shape = outer
    T = shape[-1] if shape else 1
    first = g.integers(1, 4096, (*shape[:-1], 1) if shape else ())
    run = np.arange(T) if shape else np.zeros((), np.int64)
    places = {
        "from_zero": np.broadcast_to(run, shape), "offset": first + run, "scattered": g.integers(0, 4096, shape),
        "far": np.exp2(g.uniform(12, 20, shape)).astype(np.int64), "negative": -g.integers(1, 4096, shape),
        "edge": g.choice([0, 1, 255, 257, 2047, 2049, 4095, 131071, 2**24 - 1, 2**24 + 1], shape),
    }  # fmt: skip
    return np.array(places[recipe.places], dtype=np.int64)


ROPE_CASES = RecipeSource("rope", build=build_rope, designed=designed_rope, strategy=rope_recipes, covered=covered_rope)
