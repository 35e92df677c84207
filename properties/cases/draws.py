"""Cases of sample: weights of every kind, and uniforms anywhere, at the edges between tokens, and at the ends of [0, 1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat

from .. import shrinking
from ..case import Case
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..regimes import in_format
from .attention import DTYPES
from .layouts import LAYOUTS
from .sampling import rows_laid_out, with_coverage

Array = NDArray[Any]
GRID = 2**24                                                                    # uniforms are multiples of 1 / GRID, as in float32

# A softmax; multiples of 1/16 of sum 1; the same with half of them 0; one token alone; weights whose sum is anything; many tiny ones
# behind a large one; rows whose law is computed or tested (V from 2 to 5); the same of weights that sum to `LITTLE`; a tail of tokens
# less likely than what the format's own uniforms tell apart, for generators of the subject's own.
WEIGHTS = ("softmax", "sixteenths", "zeros", "one_hot", "any_sum", "long_tail", "law", "little_law", "tail")
LITTLE = 2.0**-50                                                               # less than any number added against a division by 0
UNIFORMS = ("anywhere", "edges", "ends")
# Formats in which a generator that draws in them has few numbers, and how fine their uniforms are: a tail shows it in few draws.
WIDE = ("float32", "float64")
COARSE = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class SampleRecipe:
    """One case of sample: B rows of V weights."""

    B: int = shrinking.size_field()
    V: int = shrinking.size_field()
    weights: str = shrinking.choice_field(WEIGHTS)
    uniforms: str = shrinking.choice_field(UNIFORMS)
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    SampleRecipe(V=2, weights="tail", seed=30),
    SampleRecipe(V=3, seed=1),
    SampleRecipe(B=8, V=8, weights="one_hot", uniforms="ends", seed=2),
    SampleRecipe(B=32, V=5, weights="sixteenths", uniforms="edges", seed=3),
    SampleRecipe(B=32, V=6, weights="zeros", uniforms="edges", seed=4),
    SampleRecipe(B=2, V=1, uniforms="ends", seed=5),
    SampleRecipe(B=0, V=4, seed=6),
    *(SampleRecipe(B=4, V=V, weights="law", seed=7 + V) for V in (2, 3, 4, 5, 3, 4)),
    *(SampleRecipe(B=6, V=V, weights="law", seed=20 + V) for V in (2, 3, 4)),
    *(SampleRecipe(B=4, V=V, weights="little_law", seed=40 + V) for V in (3, 5)),
)


def covered_sample(recipe: SampleRecipe, coverage: Coverage) -> SampleRecipe:
    """As `with_coverage`; a law is of single or double precision where the subject takes one of them, a tail of 16 bits or none."""
    wanted = {"law": WIDE, "little_law": WIDE, "tail": tuple(COARSE)}.get(recipe.weights, ())
    taken = [name for name in wanted if name in coverage.dtypes]
    if recipe.weights == "tail" and not taken:
        recipe = replace(recipe, weights="long_tail")
    elif wanted:
        recipe = replace(recipe, B=max(recipe.B, 1), V=min(max(recipe.V, 2), 5), strides="contiguous",
                         dtype=recipe.dtype if recipe.dtype in taken or not taken else taken[0])
    return with_coverage(replace(recipe, V=max(recipe.V, 1)), coverage, {})


@lru_cache(maxsize=8)
def sample_table(coverage: Coverage) -> tuple[SampleRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"weights": WEIGHTS[:6], "uniforms": UNIFORMS, "dtype": coverage.dtypes, "strides": LAYOUTS}
    rows = balanced_table({**levels, "B": (1, 2, 7, 16), "V": (2, 3, 8, 33, 130, 1000)}, 36, crossed=tuple(levels))
    return tuple(covered_sample(SampleRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_samples(coverage: Coverage) -> list[SampleRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_sample(corner, coverage) for corner in CORNERS), *sample_table(coverage)]))


def sample_recipes(coverage: Coverage) -> st.SearchStrategy[SampleRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        SampleRecipe, B=st.sampled_from((1, 2, 3, 9, 0)), V=st.integers(1, 300), weights=st.sampled_from(WEIGHTS[:6]),
        uniforms=st.sampled_from(UNIFORMS), dtype=st.sampled_from(coverage.dtypes), strides=st.sampled_from(LAYOUTS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_sample(recipe, coverage))  # fmt: skip


def sixteenths(V: int, g: np.random.Generator, *, zeros: bool = False) -> Array:
    """A distribution over V tokens in multiples of 1/16: exact in every format of five bits, and so are its sums."""
    possible = np.arange(V) if not zeros else g.permutation(V)[: max(1, (V + 1) // 2)]
    p = np.bincount(g.choice(possible, 16), minlength=V)
    return np.asarray(p / 16.0)


def build_sample(recipe: SampleRecipe) -> Case:
    """Weights (B, V) in the format, uniforms (B,) in float32, float64 for float64."""
    g = np.random.default_rng(recipe.seed)
    wide = np.dtype("float64" if recipe.dtype == "float64" else "float32")
    if recipe.weights == "tail":
        p = in_format(_tail(recipe.dtype), FloatFormat(recipe.dtype))
        u = np.full(1, 0.5, dtype=wide)
        return Case("sample", {"probabilities": p[None], "u": u}, {}, origin=str(recipe), notes={"tail": True})
    p = np.array([_weights(recipe.weights, recipe.V, g) for _ in range(recipe.B)]).reshape(recipe.B, recipe.V)
    drawn = in_format(p, FloatFormat(recipe.dtype))
    drawn[(drawn == 0).all(axis=-1)] = 1                                        # a format may have lost the last of a row
    u = _uniforms(recipe.uniforms, drawn.astype(np.float64), g).astype(wide)
    notes = {"law": True} if recipe.weights in ("law", "little_law") else {}
    return Case("sample", {"probabilities": rows_laid_out(drawn, recipe.strides), "u": u}, {}, origin=str(recipe), notes=notes)


def _tail(dtype: str) -> Array:
    """One head, and a sixteenth in tokens of a quarter of the format's step each: noise without numbers below it draws one in seven."""
    p = COARSE[dtype] / 4
    return np.append(15 / 16, np.full(round(1 / 16 / p), p))


def _weights(level: str, V: int, g: np.random.Generator) -> Array:
    if level in ("sixteenths", "zeros"):
        return sixteenths(V, g, zeros=level == "zeros")
    if level in ("law", "little_law"):
        return sixteenths(V, g, zeros=bool(g.integers(0, 4) == 0)) * (LITTLE if level == "little_law" else 1.0)
    if level == "one_hot":
        return np.asarray(np.arange(V) == g.integers(0, V), dtype=np.float64)
    if level == "any_sum":
        return g.uniform(0.0, 4.0, V)
    w = np.exp(2.0 * g.standard_normal(V))
    if level == "long_tail":
        w *= np.where(np.arange(V) == g.integers(0, V), 1.0, 2.0**-12)
    return np.asarray(w / w.sum())


def _uniforms(level: str, p: Array, g: np.random.Generator) -> Array:
    """Multiples of 2^-24 in [0, 1): anywhere; within one of an edge between two tokens; the least and the largest."""
    B = len(p)
    if level == "anywhere" or B == 0:
        return g.integers(0, GRID, B) / GRID
    if level == "ends":
        return np.where(np.arange(B) % 2 == 0, 0.0, 1.0 - 1.0 / GRID)
    c = np.cumsum(p, axis=-1)
    edge = np.rint(np.take_along_axis(c / c[:, -1:], g.integers(0, p.shape[-1], (B, 1)), axis=-1)[:, 0] * GRID)
    return np.asarray(np.clip(edge + np.arange(B) % 3 - 1, 0, GRID - 1) / GRID)


SAMPLE_CASES = RecipeSource("sample", build=build_sample, designed=designed_samples, strategy=sample_recipes, covered=covered_sample)
