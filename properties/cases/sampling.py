"""Sampling cases: logits with parameters for the whole or row by row, token histories to penalise, weights to draw from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat

from .. import shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..regimes import in_format
from .attention import DTYPES
from .layouts import LAYOUTS, laid_out

R = TypeVar("R")
Array = NDArray[Any]

# Logits: N(0, 4); whole numbers, many equal; all equal; a lead of some thirty; one in three -inf; all but one -inf; a steady slope.
LOGITS = ("normal", "ties", "constant", "peaked", "hidden", "one_left", "slope")
TEMPERATURES = {"one": 1.0, "half": 0.5, "two": 2.0, "odd": 0.7, "zero": 0.0}
TOP_K = ("none", "some", "one", "beyond")
TOP_P = {"none": None, "0.9": 0.9, "half": 0.5, "0.6": 0.6, "0.8": 0.8, "little": 2.0**-10, "all": 1.0}
MIN_P = {"none": None, "0.1": 0.1, "half": 0.5, "one": 1.0, "zero": 0.0}
# One number for all rows, or one a row.
PARAMETERS = ("shared", "per_row")
VOCABULARIES = (2, 3, 5, 8, 33, 100, 257, 513)


@dataclass(frozen=True)
class FilterRecipe:
    """One case of filter_probabilities: B rows of V logits."""

    B: int = shrinking.size_field()
    V: int = shrinking.size_field()
    logits: str = shrinking.choice_field(LOGITS)
    temperature: str = shrinking.choice_field(tuple(TEMPERATURES))
    top_k: str = shrinking.choice_field(TOP_K)
    top_p: str = shrinking.choice_field(tuple(TOP_P))
    min_p: str = shrinking.choice_field(tuple(MIN_P))
    parameters: str = shrinking.choice_field(PARAMETERS)
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


FILTER_OPTIONS = {"temperature": "one", "top_k": "none", "top_p": "none", "min_p": "none"}
FILTER_CORNERS = (
    FilterRecipe(V=4, seed=1),
    FilterRecipe(B=2, V=8, logits="constant", top_p="half", seed=2),
    FilterRecipe(B=3, V=6, logits="ties", top_k="some", seed=3),
    FilterRecipe(B=3, V=6, logits="ties", top_p="0.6", seed=4),
    FilterRecipe(B=2, V=5, top_p="all", seed=5),
    FilterRecipe(B=2, V=5, top_k="some", top_p="0.8", seed=6),
    FilterRecipe(B=2, V=5, top_k="some", min_p="half", seed=7),
    FilterRecipe(B=2, V=5, top_p="0.8", min_p="half", seed=8),
    FilterRecipe(B=3, V=7, temperature="zero", logits="ties", seed=9),
    FilterRecipe(B=4, V=9, temperature="zero", top_k="some", top_p="0.9", min_p="0.1", parameters="per_row", seed=10),
    FilterRecipe(B=2, V=1, top_k="one", top_p="little", seed=11),
    FilterRecipe(B=2, V=500, top_p="0.9", seed=12),
    FilterRecipe(B=2, V=1000, top_k="one", top_p="0.8", logits="slope", seed=13),
    FilterRecipe(B=0, V=4, seed=14),
)


def with_coverage(recipe: R, coverage: Coverage, options: dict[str, str]) -> R:
    """The recipe mapped into the coverage: options not taken at their simplest, a covered format, rows where there must be some."""
    old: Any = recipe
    changes: dict[str, Any] = {name: level for name, level in options.items() if name not in coverage.arguments}
    if old.dtype not in coverage.dtypes:
        changes["dtype"] = coverage.dtypes[0]
    if not coverage.empty and old.B == 0:
        changes["B"] = 1
    changed: R = replace(old, **changes)
    return changed


def rows_laid_out(x: Array, layout: str) -> Array:
    """Rows (B, V) as a view into memory of another order: as `laid_out`, each row a matrix of its own.

    >>> rows_laid_out(np.zeros((2, 3), np.float32), "stepped").strides
    (36, 4)
    """
    return laid_out(x[:, None, :], layout)[:, 0, :]


def covered_filter(recipe: FilterRecipe, coverage: Coverage) -> FilterRecipe:
    return with_coverage(replace(recipe, V=max(recipe.V, 1)), coverage, FILTER_OPTIONS)


@lru_cache(maxsize=8)
def filter_table(coverage: Coverage) -> tuple[FilterRecipe, ...]:
    """The balanced part of the designed cases."""
    options: dict[str, Any] = {"temperature": tuple(TEMPERATURES), "top_k": TOP_K, "top_p": tuple(TOP_P), "min_p": tuple(MIN_P)}
    levels = {name: values for name, values in options.items() if name in coverage.arguments}
    factors = {**levels, "logits": LOGITS, "parameters": PARAMETERS, "dtype": coverage.dtypes, "strides": LAYOUTS}
    rows = balanced_table({**factors, "B": (1, 2, 3, 5), "V": VOCABULARIES}, 54, crossed=tuple(factors))
    return tuple(covered_filter(FilterRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_filters(coverage: Coverage) -> list[FilterRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_filter(corner, coverage) for corner in FILTER_CORNERS), *filter_table(coverage)]))


def filter_recipes(coverage: Coverage) -> st.SearchStrategy[FilterRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        FilterRecipe, B=st.sampled_from((1, 2, 3, 4, 0)), V=st.integers(1, 300), logits=st.sampled_from(LOGITS),
        temperature=st.sampled_from(tuple(TEMPERATURES)), top_k=st.sampled_from(TOP_K), top_p=st.sampled_from(tuple(TOP_P)),
        min_p=st.sampled_from(tuple(MIN_P)), parameters=st.sampled_from(PARAMETERS), dtype=st.sampled_from(coverage.dtypes),
        strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_filter(recipe, coverage))  # fmt: skip


def build_filter(recipe: FilterRecipe) -> Case:
    """The logits and the parameters: options where all rows share them, arrays (B,) where each row has its own."""
    g = np.random.default_rng(recipe.seed)
    logits = rows_laid_out(_logits(recipe.logits, (recipe.B, recipe.V), recipe.dtype, g), recipe.strides)
    wide = np.float64 if recipe.dtype == "float64" else np.float32
    shared: dict[str, Option] = {}
    arrays: dict[str, Array] = {"logits": logits}
    k = {"none": None, "one": 1, "some": int(g.integers(1, recipe.V + 1)), "beyond": recipe.V + 3}[recipe.top_k]
    values: dict[str, tuple[Any, Any, Any]] = {
        "temperature": (TEMPERATURES[recipe.temperature], tuple(TEMPERATURES.values()), wide),
        "top_k": (k, tuple(range(1, recipe.V + 2)), np.int64),
        "top_p": (TOP_P[recipe.top_p], (0.5, 0.8, 0.95, 1.0), wide),
        "min_p": (MIN_P[recipe.min_p], (0.0, 0.25, 0.5), wide),
    }
    for name, (value, others, dtype) in values.items():
        if getattr(recipe, name) == FILTER_OPTIONS[name]:
            continue
        if recipe.parameters == "per_row" and recipe.B > 0:
            arrays[name] = np.array([value, *g.choice(np.array(others, dtype=dtype), recipe.B - 1)], dtype=dtype)
        else:
            shared[name] = value
    return Case("filter_probabilities", arrays, shared, origin=str(recipe))


def _logits(level: str, shape: tuple[int, int], dtype: str, g: np.random.Generator) -> Array:
    z = 2.0 * g.standard_normal(shape)
    B, V = shape
    hidden = g.uniform(size=shape) < {"hidden": 1 / 3, "one_left": 1.0}.get(level, 0.0)
    lead = g.integers(0, max(V, 1), (B, 1)) == np.arange(V)
    z = {"ties": np.rint(z / 2), "constant": np.broadcast_to(np.rint(z[:, :1]), shape), "peaked": np.where(lead, z + 30, z),
         "slope": -np.arange(V) / 4 + z / 16}.get(level, z)  # fmt: skip
    drawn = in_format(np.array(z), FloatFormat(dtype))
    if hidden.any() and FloatFormat(dtype).has_infinity:
        drawn[hidden & ~lead] = -np.inf
    return drawn


FILTER_CASES = RecipeSource("filter_probabilities", build=build_filter, designed=designed_filters, strategy=filter_recipes,
                            covered=covered_filter)

# Penalties ---------------------------------------------------------------------------------------------------------------

PROMPTS = ("none", "some", "whole", "per_row")
REPETITIONS = {"one": 1.0, "two": 2.0, "half": 0.5, "odd": 1.3}
AMOUNTS = {"zero": 0.0, "quarter": 0.25, "odd": 0.7, "negative": -0.5}


@dataclass(frozen=True)
class PenaltyRecipe:
    """One case of apply_penalties: B rows of V logits, histories of T tokens, some of them shorter."""

    B: int = shrinking.size_field()
    V: int = shrinking.size_field()
    T: int = shrinking.size_field()
    prompt: str = shrinking.choice_field(PROMPTS)
    repetition: str = shrinking.choice_field(tuple(REPETITIONS))
    frequency: str = shrinking.choice_field(tuple(AMOUNTS))
    presence: str = shrinking.choice_field(tuple(AMOUNTS))
    parameters: str = shrinking.choice_field(PARAMETERS)
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


PENALTY_OPTIONS = {"repetition": "one", "frequency": "zero", "presence": "zero"}
PENALTY_CORNERS = (
    PenaltyRecipe(B=2, V=6, T=3, repetition="two", prompt="some", seed=1),
    PenaltyRecipe(B=2, V=6, T=1, frequency="odd", prompt="whole", seed=2),
    PenaltyRecipe(B=2, V=6, T=1, repetition="two", prompt="whole", seed=3),
    PenaltyRecipe(B=4, V=5, T=8, repetition="odd", frequency="quarter", presence="odd", prompt="per_row", parameters="per_row", seed=4),
    PenaltyRecipe(B=3, V=4, T=0, repetition="two", presence="odd", seed=5),
    PenaltyRecipe(B=0, V=4, T=2, repetition="two", seed=6),
)


def covered_penalty(recipe: PenaltyRecipe, coverage: Coverage) -> PenaltyRecipe:
    """As `with_coverage`; without prompt_lengths nothing is a prompt, and an empty history counts as empty."""
    least = int(not coverage.empty)
    simplest = {**PENALTY_OPTIONS, "prompt": "none"}
    taken = replace(coverage, arguments=coverage.arguments | ({"prompt"} if "prompt_lengths" in coverage.arguments else set()))
    return with_coverage(replace(recipe, V=max(recipe.V, 1), T=max(recipe.T, least)), taken, simplest)


@lru_cache(maxsize=8)
def penalty_table(coverage: Coverage) -> tuple[PenaltyRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"prompt": PROMPTS, "repetition": tuple(REPETITIONS), "frequency": tuple(AMOUNTS), "presence": tuple(AMOUNTS),
              "parameters": PARAMETERS, "dtype": coverage.dtypes, "strides": LAYOUTS}  # fmt: skip
    rows = balanced_table({**levels, "B": (1, 2, 3, 5), "V": (2, 5, 33, 130), "T": (1, 2, 7, 40)}, 30, crossed=tuple(levels))
    return tuple(covered_penalty(PenaltyRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_penalties(coverage: Coverage) -> list[PenaltyRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_penalty(corner, coverage) for corner in PENALTY_CORNERS), *penalty_table(coverage)]))


def penalty_recipes(coverage: Coverage) -> st.SearchStrategy[PenaltyRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        PenaltyRecipe, B=st.sampled_from((1, 2, 3, 4, 0)), V=st.integers(1, 60), T=st.integers(0, 30), prompt=st.sampled_from(PROMPTS),
        repetition=st.sampled_from(tuple(REPETITIONS)), frequency=st.sampled_from(tuple(AMOUNTS)), presence=st.sampled_from(tuple(AMOUNTS)),
        parameters=st.sampled_from(PARAMETERS), dtype=st.sampled_from(coverage.dtypes), strides=st.sampled_from(LAYOUTS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_penalty(recipe, coverage))  # fmt: skip


def build_penalty(recipe: PenaltyRecipe) -> Case:
    """Logits of both signs; a row's history ends anywhere, with -1 behind it; about half of its tokens come twice."""
    g = np.random.default_rng(recipe.seed)
    B, V, T = recipe.B, recipe.V, recipe.T
    wide = np.float64 if recipe.dtype == "float64" else np.float32
    logits = rows_laid_out(in_format(3.0 * g.standard_normal((B, V)), FloatFormat(recipe.dtype)), recipe.strides)
    tokens = g.integers(0, max(1, min(V, (T + 3) // 2)), (B, T))
    lengths = np.where(np.arange(B) % 2 == 0, T, g.integers(0, T + 1, B))
    tokens = np.where(np.arange(T) < lengths[:, None], tokens, -1)
    arrays: dict[str, Array] = {"logits": logits, "tokens": tokens}
    options: dict[str, Option] = {}
    if recipe.prompt == "per_row":
        arrays["prompt_lengths"] = g.integers(0, T + 1, B)
    elif recipe.prompt != "none":
        options["prompt_lengths"] = T if recipe.prompt == "whole" else int(g.integers(0, T + 1))
    for name, table in (("repetition", REPETITIONS), ("frequency", AMOUNTS), ("presence", AMOUNTS)):
        level = getattr(recipe, name)
        if level == PENALTY_OPTIONS[name]:
            continue
        if recipe.parameters == "per_row" and B > 0:                            # the first row plain: vllm-project/vllm#5639
            neutral = table[PENALTY_OPTIONS[name]]
            arrays[name] = np.array([neutral, *g.choice([table[level], neutral], B - 1)], dtype=wide)
        else:
            options[name] = table[level]
    return Case("apply_penalties", arrays, options, origin=str(recipe))


PENALTY_CASES = RecipeSource("apply_penalties", build=build_penalty, designed=designed_penalties, strategy=penalty_recipes,
                             covered=covered_penalty)
