"""Softmax cases: rows of every regime with some or all entries -inf; and pairs of parts of an attention to merge."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat

from .. import regimes, shrinking
from ..case import Case
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from .attention import DTYPES
from .attention_arrays import generator
from .layouts import LAYOUTS, laid_out

AXES = {"last": -1, "first": 0, "middle": 1, "last_but_one": -2}
# Which entries are -inf: none, a third at random, whole rows, all but one of each row.
INFINITIES = ("none", "some", "rows", "all_but_one")
ROW_LENGTHS = (1, 2, 3, 7, 16, 17, 33, 64, 129, 257, 513, 1000)
ROWS = 42


@dataclass(frozen=True)
class SoftmaxRecipe:
    """One case of a row operation: A x B rows of n entries along one of three axes, of which one may be counted from behind."""

    A: int = shrinking.size_field()
    B: int = shrinking.size_field()
    n: int = shrinking.size_field()
    axis: str = shrinking.choice_field(tuple(AXES))
    infinities: str = shrinking.choice_field(INFINITIES)
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(regimes.REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


SOFTMAX_CORNERS = (
    SoftmaxRecipe(seed=1),
    SoftmaxRecipe(A=2, B=3, n=5, infinities="rows", seed=2),
    SoftmaxRecipe(n=4097, regime="flat", seed=3),
    SoftmaxRecipe(A=2, B=3, n=0, seed=4),
    SoftmaxRecipe(A=0, B=3, n=4, seed=5),
)


def covered_softmax(recipe: SoftmaxRecipe, coverage: Coverage) -> SoftmaxRecipe:
    """The recipe mapped into the coverage: the last axis, a covered format, no empty sizes, length multiples."""
    least, multiple = int(not coverage.empty), coverage.length_multiple
    A, B, n = (max(size, least) for size in (recipe.A, recipe.B, recipe.n))
    return replace(
        recipe, A=A, B=B, n=-(-n // multiple) * multiple, axis=recipe.axis if "axis" in coverage.arguments else "last",
        dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0],
    )  # fmt: skip


@lru_cache(maxsize=8)
def softmax_table(coverage: Coverage) -> tuple[SoftmaxRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"axis": tuple(AXES) if "axis" in coverage.arguments else ("last",), "infinities": INFINITIES, "dtype": coverage.dtypes,
              "strides": LAYOUTS}
    sizes = {"regime": regimes.REGIMES, "A": (1, 2, 3), "B": (1, 2, 5), "n": ROW_LENGTHS}
    rows = balanced_table({**levels, **sizes}, ROWS, crossed=tuple(levels))
    return tuple(covered_softmax(SoftmaxRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_softmax(coverage: Coverage) -> list[SoftmaxRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_softmax(corner, coverage) for corner in SOFTMAX_CORNERS), *softmax_table(coverage)]))


def softmax_recipes(coverage: Coverage) -> st.SearchStrategy[SoftmaxRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    few = (1, 2, 3, 5) * 8 + (0,)
    n = (*range(1, 34), *ROW_LENGTHS, 0)
    return st.builds(
        SoftmaxRecipe,
        A=st.sampled_from(few), B=st.sampled_from(few), n=st.sampled_from(n), axis=st.sampled_from(tuple(AXES)),
        infinities=st.sampled_from(INFINITIES), dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(regimes.REGIMES),
        strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_softmax(recipe, coverage))  # fmt: skip


def build_softmax(recipe: SoftmaxRecipe, operation: str = "softmax") -> Case:
    """x of three axes with its rows along `axis`. A format without infinities holds none."""
    shape = (recipe.A, recipe.B, recipe.n)
    x = regimes.draw(recipe.regime, shape, recipe.dtype, generator(recipe.seed, "values"))
    if FloatFormat(recipe.dtype).has_infinity:
        x[_hidden(recipe.infinities, shape, generator(recipe.seed, "mask"))] = -np.inf
    axis = AXES[recipe.axis]
    x = laid_out(np.moveaxis(x, -1, axis), recipe.strides)
    return Case(operation, {"x": x}, {"axis": axis}, origin=str(recipe))


def build_log_sum_exp(recipe: SoftmaxRecipe) -> Case:
    """The same arrays for log_sum_exp."""
    return build_softmax(recipe, "log_sum_exp")


def _hidden(level: str, shape: tuple[int, int, int], g: np.random.Generator) -> NDArray[np.bool_]:
    some = g.uniform(size=shape) < 1 / 3
    rows = np.broadcast_to(g.integers(0, 2, (*shape[:2], 1)) == 0, shape)
    all_but_one = np.arange(shape[2]) != g.integers(0, max(shape[2], 1), (*shape[:2], 1))
    return np.asarray({"none": np.zeros(shape, dtype=bool), "some": some, "rows": rows, "all_but_one": all_but_one}[level])


SOFTMAX_CASES = RecipeSource("softmax", build=build_softmax, designed=designed_softmax, strategy=softmax_recipes, covered=covered_softmax)
LOG_SUM_EXP_CASES = replace(SOFTMAX_CASES, operation="log_sum_exp", build=build_log_sum_exp)


# How the log-sum-exps of the parts lie: near each other, equal, one far above, so large that e^lse overflows, either part empty or both
# (out 0, lse -inf), and all of these in one array.
PARTS = ("near", "equal", "far", "huge", "a_empty", "b_empty", "both_empty", "mixed")


@dataclass(frozen=True)
class MergeRecipe:
    """One case of merge_attention: two parts of shape (B, H, L, Dv)."""

    B: int = shrinking.size_field()
    H: int = shrinking.size_field()
    L: int = shrinking.size_field()
    Dv: int = shrinking.size_field()
    parts: str = shrinking.choice_field(PARTS)
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(regimes.REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


MERGE_CORNERS = (
    MergeRecipe(seed=1),
    MergeRecipe(parts="both_empty", seed=2),
    MergeRecipe(B=2, H=3, L=5, Dv=8, parts="mixed", seed=3),
    MergeRecipe(B=2, H=3, L=0, Dv=8, seed=4),
)


def covered_merge(recipe: MergeRecipe, coverage: Coverage) -> MergeRecipe:
    """The recipe mapped into the coverage: a covered format and head size, no empty sizes, length multiples."""
    least, multiple = int(not coverage.empty), coverage.length_multiple
    B, L = max(recipe.B, least), max(recipe.L, least)
    Dv = recipe.Dv if coverage.head_dims is None else min(coverage.head_dims, key=lambda n: (abs(n - recipe.Dv), n))
    dtype = recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0]
    return replace(recipe, B=B, L=-(-L // multiple) * multiple, Dv=Dv, dtype=dtype)


@lru_cache(maxsize=8)
def merge_table(coverage: Coverage) -> tuple[MergeRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"parts": PARTS, "dtype": coverage.dtypes, "strides": LAYOUTS}
    head_dims = coverage.head_dims or (1, 8, 16, 40, 64, 128)
    sizes = {"regime": regimes.REGIMES, "B": (1, 2, 3), "H": (1, 2, 3), "L": (1, 2, 7, 16, 33), "Dv": head_dims}
    rows = balanced_table({**levels, **sizes}, ROWS, crossed=tuple(levels))
    return tuple(covered_merge(MergeRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_merge(coverage: Coverage) -> list[MergeRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_merge(corner, coverage) for corner in MERGE_CORNERS), *merge_table(coverage)]))


def merge_recipes(coverage: Coverage) -> st.SearchStrategy[MergeRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        MergeRecipe,
        B=st.sampled_from((1, 2, 3) * 10 + (0,)), H=st.sampled_from((1, 2, 3, 4)), L=st.sampled_from((*range(1, 34), 0)),
        Dv=st.sampled_from(coverage.head_dims or (1, 2, 3, 8, 16, 40, 64, 80, 128)), parts=st.sampled_from(PARTS),
        dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(regimes.REGIMES), strides=st.sampled_from(LAYOUTS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_merge(recipe, coverage))  # fmt: skip


def build_merge(recipe: MergeRecipe) -> Case:
    """out_a, out_b of a regime in the format, lse_a, lse_b in float32 (float64 for float64); an empty part is (0, -inf)."""
    shape, g = (recipe.B, recipe.H, recipe.L), generator(recipe.seed, "lengths")
    wide = FloatFormat("float64" if recipe.dtype == "float64" else "float32")
    outs = [regimes.draw(recipe.regime, (*shape, recipe.Dv), recipe.dtype, generator(recipe.seed, part)) for part in ("values", "dout")]
    levels = np.full(shape, recipe.parts) if recipe.parts != "mixed" else np.array(PARTS[:-1])[g.integers(0, len(PARTS) - 1, shape)]
    lse_a, lse_b = _log_sum_exps(levels, wide, g)
    for out, lse in zip(outs, (lse_a, lse_b)):
        out[np.isneginf(lse)] = 0
    out_a, out_b = (laid_out(out, recipe.strides) for out in outs)
    arrays = {"out_a": out_a, "lse_a": wide.cast(lse_a), "out_b": out_b, "lse_b": wide.cast(lse_b)}
    return Case("merge_attention", arrays, {}, origin=str(recipe))


def _log_sum_exps(levels: NDArray[np.str_], wide: FloatFormat, g: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = g.standard_normal((2, *levels.shape))
    sign = g.integers(0, 2, levels.shape) * 2.0 - 1.0
    b = np.select([levels == "equal", levels == "far"], [a, a + sign * 10 ** g.uniform(1, 3, levels.shape)], b)
    huge = levels == "huge"
    largest = wide.max / 8
    a, b = (np.where(huge, sign * largest * 2.0 ** -g.integers(0, wide.fraction_bits * 5, levels.shape), x) for x in (a, b))
    a = np.where(np.isin(levels, ("a_empty", "both_empty")), -np.inf, a)
    b = np.where(np.isin(levels, ("b_empty", "both_empty")), -np.inf, b)
    return a, b


MERGE_CASES = RecipeSource("merge_attention", build=build_merge, designed=designed_merge, strategy=merge_recipes, covered=covered_merge)
