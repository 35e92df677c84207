"""Cases of the clipping of gradients: lists of arrays of several shapes, limits on either side of the norm."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from hypothesis import strategies as st

from oracles.reference import FloatFormat

from .. import regimes, shrinking
from ..array_lists import spread
from ..case import Case
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from .attention import DTYPES

# The limit: half the norm; twice it; far below; exactly 0.
LIMITS = {"half": 0.5, "twice": 2.0, "far_below": 1e-3, "zero": 0.0}
REGIMES = ("normal", "integer_grid", "constant", "one_hot", "uneven", "outlier_channel")


@dataclass(frozen=True)
class ClipRecipe:
    """One case of clip_grad_norm: K arrays of (A, n) numbers, each of another shape. zero: all gradients are 0."""

    K: int = shrinking.size_field()
    A: int = shrinking.size_field()
    n: int = shrinking.size_field()
    limit: str = shrinking.choice_field(tuple(LIMITS))
    zero: bool = False
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(REGIMES)
    seed: int = field(default=0)


CORNERS = (
    ClipRecipe(K=3, A=2, n=5, seed=1), ClipRecipe(K=3, A=2, n=5, limit="twice", seed=2), ClipRecipe(K=2, A=1, n=4, zero=True, seed=3),
    ClipRecipe(K=12, A=1, n=3, seed=4), ClipRecipe(K=2, A=0, n=4, seed=5), ClipRecipe(K=2, A=2, n=3, limit="zero", seed=6),
    # More arrays than one launch for many tensors takes, which is 110 at most; more elements than a block, and than its chunk of 2^16.
    ClipRecipe(K=130, A=1, n=1, seed=7), ClipRecipe(K=2, A=3, n=1001, seed=8), ClipRecipe(K=2, A=1, n=2**16 + 37, seed=9),
)  # fmt: skip


def covered_clip(recipe: ClipRecipe, coverage: Coverage) -> ClipRecipe:
    """The recipe mapped into the coverage: a covered format, at least one array, no empty ones where those are refused."""
    least = int(not coverage.empty)
    dtype = recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0]
    return replace(recipe, K=max(recipe.K, 1), A=max(recipe.A, least), n=max(recipe.n, least), dtype=dtype)


@lru_cache(maxsize=8)
def clip_table(coverage: Coverage) -> tuple[ClipRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"limit": tuple(LIMITS), "dtype": coverage.dtypes, "regime": REGIMES}
    rows = balanced_table({**levels, "K": (1, 2, 3, 5), "A": (1, 2, 3), "n": (1, 7, 33, 300)}, 26, crossed=tuple(levels))
    return tuple(covered_clip(ClipRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_clips(coverage: Coverage) -> list[ClipRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_clip(corner, coverage) for corner in CORNERS), *clip_table(coverage)]))


def clip_recipes(coverage: Coverage) -> st.SearchStrategy[ClipRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        ClipRecipe, K=st.integers(1, 6), A=st.integers(0, 3), n=st.integers(0, 40), limit=st.sampled_from(tuple(LIMITS)),
        zero=st.booleans(), dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(REGIMES), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_clip(recipe, coverage))  # fmt: skip


def build_clip(recipe: ClipRecipe) -> Case:
    """K arrays, the k-th of shape (A, n + k), and a limit that is a share of their norm."""
    g, fmt = np.random.default_rng(recipe.seed), FloatFormat(recipe.dtype)
    grads = [regimes.draw(recipe.regime, (recipe.A, recipe.n + k), recipe.dtype, g) for k in range(recipe.K)]
    grads = [fmt.cast(np.zeros(x.shape)) for x in grads] if recipe.zero else grads
    norm = float(np.sqrt(sum(float((x.astype(np.float64) ** 2).sum()) for x in grads)))
    return Case("clip_grad_norm", spread("grads", grads), {"max_norm": LIMITS[recipe.limit] * norm}, origin=str(recipe))


CLIP_CASES = RecipeSource("clip_grad_norm", build=build_clip, designed=designed_clips, strategy=clip_recipes, covered=covered_clip)
