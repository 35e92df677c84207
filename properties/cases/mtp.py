"""Cases of the loss of multi-token prediction: heads, packed documents, ignored tokens, and NaN where no head is scored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat
from oracles.reference.mtp import mtp_positions

from .. import regimes, shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from .attention import DTYPES
from .layouts import LAYOUTS, laid_out

Array = NDArray[Any]
IGNORE = -100
WEIGHTS = ("none", "powers", "odd", "some_zero")
# One document; several in a row; each token its own.
SEGMENTS = ("none", "packed", "singles")
# No token ignored; some; all of them.
IGNORED = ("none", "some", "all")
# What stands where no head is scored: numbers as elsewhere, or NaN.
UNSCORED = ("numbers", "nan")
REGIMES = ("normal", "peaked", "constant", "integer_grid", "flat", "outlier_channel", "ascending")


@dataclass(frozen=True)
class MtpRecipe:
    """One case of mtp_loss: K heads, T tokens, V numbers a row."""

    K: int = shrinking.size_field()
    T: int = shrinking.size_field()
    V: int = shrinking.size_field()
    weights: str = shrinking.choice_field(WEIGHTS)
    segments: str = shrinking.choice_field(SEGMENTS)
    ignored: str = shrinking.choice_field(IGNORED)
    unscored: str = shrinking.choice_field(UNSCORED)
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    MtpRecipe(K=1, T=6, V=5, seed=1),
    MtpRecipe(K=2, T=6, V=7, seed=2),
    MtpRecipe(K=2, T=8, V=7, segments="packed", seed=3),
    MtpRecipe(K=3, T=2, V=4, seed=4),
    MtpRecipe(K=2, T=5, V=4, segments="singles", weights="odd", seed=5),
    MtpRecipe(K=2, T=9, V=4, ignored="some", unscored="nan", seed=6),
    MtpRecipe(K=2, T=9, V=4, ignored="all", seed=7),
    MtpRecipe(K=0, T=4, V=3, seed=8),
    MtpRecipe(K=2, T=0, V=3, seed=9),
    MtpRecipe(K=3, T=33, V=257, weights="some_zero", segments="packed", unscored="nan", seed=10),
)
OPTIONS = {"weights": "none", "segments": "none"}


def covered_mtp(recipe: MtpRecipe, coverage: Coverage) -> MtpRecipe:
    """The recipe mapped into the coverage: options not taken at their simplest, a covered format, no empty sizes."""
    least = int(not coverage.empty)
    changes: dict[str, Any] = {name: level for name, level in OPTIONS.items() if name not in coverage.arguments}
    dtype = recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0]
    return replace(recipe, K=max(recipe.K, least), T=max(recipe.T, least), V=max(recipe.V, 1), dtype=dtype, **changes)


@lru_cache(maxsize=8)
def mtp_table(coverage: Coverage) -> tuple[MtpRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"weights": WEIGHTS, "segments": SEGMENTS, "ignored": IGNORED, "unscored": UNSCORED, "dtype": coverage.dtypes,
              "strides": LAYOUTS}  # fmt: skip
    rows = balanced_table({**levels, "regime": REGIMES, "K": (1, 2, 3, 4), "T": (2, 5, 12, 33), "V": (2, 5, 33, 200)}, 36,
                          crossed=tuple(levels))  # fmt: skip
    return tuple(covered_mtp(MtpRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_mtp(coverage: Coverage) -> list[MtpRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_mtp(corner, coverage) for corner in CORNERS), *mtp_table(coverage)]))


def mtp_recipes(coverage: Coverage) -> st.SearchStrategy[MtpRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        MtpRecipe, K=st.sampled_from((1, 2, 3, 4, 0)), T=st.integers(0, 24), V=st.integers(1, 60), weights=st.sampled_from(WEIGHTS),
        segments=st.sampled_from(SEGMENTS), ignored=st.sampled_from(IGNORED), unscored=st.sampled_from(UNSCORED),
        dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(REGIMES), strides=st.sampled_from(LAYOUTS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_mtp(recipe, coverage))  # fmt: skip


def build_mtp(recipe: MtpRecipe) -> Case:
    """Logits of a regime, tokens, and what the levels add; documents are runs of one to five tokens."""
    g, (K, T, V) = np.random.default_rng(recipe.seed), (recipe.K, recipe.T, recipe.V)
    wide = np.float64 if recipe.dtype == "float64" else np.float32
    logits = regimes.draw(recipe.regime, (K, T, V), recipe.dtype, g)
    tokens = g.integers(0, V, T)
    share = {"none": 0.0, "some": 1 / 3, "all": 1.0}[recipe.ignored]
    tokens = np.where(g.uniform(size=T) < share, IGNORE, tokens)
    arrays: dict[str, Array] = {"tokens": tokens}
    if recipe.weights != "none":
        w = {"powers": 2.0 ** -np.arange(K), "odd": g.uniform(0.1, 1.0, K), "some_zero": np.arange(K) % 2 * 1.0}[recipe.weights]
        arrays["weights"] = np.asarray(w, dtype=wide)
    if recipe.segments != "none":
        arrays["segments"] = np.arange(T) if recipe.segments == "singles" else np.repeat(np.arange(T), g.integers(1, 6, T))[:T]
    if recipe.unscored == "nan" and FloatFormat(recipe.dtype).has_nan:
        logits[~_scored(K, tokens, arrays.get("segments"))] = np.nan
    options: dict[str, Option] = {}
    return Case("mtp_loss", {"logits": laid_out(logits, recipe.strides), **arrays}, options, origin=str(recipe))


def _scored(K: int, tokens: Array, segments: Array | None) -> Array:
    """Where a head is scored on a token that is not ignored: (K, T)."""
    scored = mtp_positions(K, len(tokens), segments=segments)
    for j in range(1, K + 1):
        scored[j - 1, : max(len(tokens) - j, 0)] &= tokens[j:] != IGNORE
    return scored


MTP_CASES = RecipeSource("mtp_loss", build=build_mtp, designed=designed_mtp, strategy=mtp_recipes, covered=covered_mtp)
