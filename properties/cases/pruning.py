"""Cases of pruning: layers of every kind of magnitudes, ties and zeros among them, at every share; weights that change between steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat

from .. import regimes, shrinking
from ..array_lists import spread
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..regimes import in_format
from .attention import DTYPES
from .attention_arrays import generator
from .layouts import LAYOUTS, laid_out
from .sampling import rows_laid_out

Array = NDArray[Any]
SPARSITIES = {"half": 0.5, "none": 0.0, "quarter": 0.25, "nine_tenths": 0.9, "most": 0.9375, "all": 1.0, "odd": 0.29}
SCOPES = ("layer", "global")
RULES = ("count", "quantile")
# Layers as one array: rows of n, matrices, kernels with an axis of one channel; or as a list, each layer of a shape of its own.
FORMS = ("rows", "matrices", "kernels", "list")
# A layer far smaller than the others; many equal magnitudes of either sign; half of them zeros.
VALUES = ("normal", "small_layer", "ties", "zeros", "constant", "tiny", "huge", "outlier_channel")


@dataclass(frozen=True)
class MagnitudeRecipe:
    """One case of prune_magnitude: L layers of n weights, or of some more by the form."""

    L: int = shrinking.size_field()
    n: int = shrinking.size_field()
    sparsity: str = shrinking.choice_field(tuple(SPARSITIES))
    scope: str = shrinking.choice_field(SCOPES)
    rule: str = shrinking.choice_field(RULES)
    form: str = shrinking.choice_field(FORMS)
    values: str = shrinking.choice_field(VALUES)
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


def covered_magnitude(recipe: MagnitudeRecipe, coverage: Coverage) -> MagnitudeRecipe:
    """The recipe mapped into the coverage."""
    least, scopes = int(not coverage.empty), coverage.levels("scope", SCOPES)
    return replace(recipe, L=max(recipe.L, 1), n=max(recipe.n, least), scope=recipe.scope if recipe.scope in scopes else scopes[0],
                   rule=recipe.rule if "rule" in coverage.arguments else "count",
                   form=recipe.form if coverage.lists or recipe.form != "list" else "kernels",
                   dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0])  # fmt: skip


@lru_cache(maxsize=16)
def magnitude_table(coverage: Coverage) -> tuple[MagnitudeRecipe, ...]:
    """A corner of every kind, then the balanced part."""
    corners = (MagnitudeRecipe(L=2, n=8, seed=1), MagnitudeRecipe(L=2, n=8, values="ties", seed=2), MagnitudeRecipe(L=2, n=0, seed=3),
               MagnitudeRecipe(L=3, n=20, scope="global", values="small_layer", sparsity="nine_tenths", seed=4),
               MagnitudeRecipe(L=2, n=9, rule="quantile", seed=5),
               *(MagnitudeRecipe(L=1, n=4352, sparsity="nine_tenths", rule=rule, seed=6) for rule in RULES),
               *(MagnitudeRecipe(L=2, n=5, form=form, scope=scope, seed=7) for form in FORMS[1:] for scope in SCOPES),
               MagnitudeRecipe(L=5, n=3, form="list", values="ties", seed=8), MagnitudeRecipe(L=1, n=4, form="list", seed=9),
               MagnitudeRecipe(L=3, n=0, form="list", seed=10))  # fmt: skip
    levels: dict[str, Any] = {"sparsity": tuple(SPARSITIES), "scope": SCOPES, "rule": RULES, "form": FORMS, "values": VALUES,
                              "dtype": coverage.dtypes, "strides": LAYOUTS}  # fmt: skip
    rows = balanced_table({**levels, "L": (1, 2, 3), "n": (1, 2, 7, 16, 33, 100)}, 56, crossed=tuple(levels))
    recipes = [*corners, *(MagnitudeRecipe(seed=100 + index, **row) for index, row in enumerate(rows))]
    return tuple(dict.fromkeys(covered_magnitude(recipe, coverage) for recipe in recipes))


def magnitude_recipes(coverage: Coverage) -> st.SearchStrategy[MagnitudeRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        MagnitudeRecipe, L=st.sampled_from((1, 2, 3)), n=st.integers(0, 60), sparsity=st.sampled_from(tuple(SPARSITIES)),
        scope=st.sampled_from(SCOPES), rule=st.sampled_from(RULES), form=st.sampled_from(FORMS), values=st.sampled_from(VALUES),
        dtype=st.sampled_from(coverage.dtypes), strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_magnitude(recipe, coverage))  # fmt: skip


def build_magnitude(recipe: MagnitudeRecipe) -> Case:
    """weights (L, n), (L, n, 3) or (L, n, 1, 2, 2): the first axis counts layers; or weights.0, weights.1, ..., of 1 to 4 axes."""
    L, n, g = recipe.L, recipe.n, generator(recipe.seed, "values")
    listed = ((n,), (2, n), (n, 1, 2), (1,), (1, 2, n, 3))                      # one weight, one channel, one, two, three, four axes
    if recipe.form == "list":
        shapes = [listed[(i + recipe.seed) % len(listed)] for i in range(L)]
        layers = [weights_of(recipe.values if i == L - 1 else recipe.values.replace("small_layer", "normal"), (1, *shape), recipe.dtype, g)
                  for i, shape in enumerate(shapes)]  # fmt: skip
        arrays = spread("weights", (in_memory(w, recipe.strides)[0] for w in layers))
    else:
        shape = {"rows": (L, n), "matrices": (L, n, 3), "kernels": (L, n, 1, 2, 2)}[recipe.form]
        arrays = {"weights": in_memory(weights_of(recipe.values, shape, recipe.dtype, g), recipe.strides)}
    options: dict[str, Option] = {"sparsity": SPARSITIES[recipe.sparsity], "scope": recipe.scope}
    if recipe.rule != "count":
        options["rule"] = recipe.rule
    return Case("prune_magnitude", arrays, options, origin=str(recipe))


def in_memory(x: Array, layout: str) -> Array:
    """x of two axes or more in a layout."""
    return laid_out(x, layout) if x.ndim > 2 else rows_laid_out(x, layout)


def weights_of(level: str, shape: tuple[int, ...], dtype: str, g: np.random.Generator) -> Array:
    """Weights of a level in the format."""
    if level in regimes.REGIMES:
        return regimes.draw(level, shape, dtype, g)
    x = regimes.draw("normal", shape, dtype, g).astype(np.float64)
    if level == "small_layer":
        x[-1] /= 64.0
    elif level == "ties":
        x = np.where(g.uniform(size=shape) < 0.5, -1.0, 1.0) * g.integers(1, 4, shape)
    else:
        x = np.where(g.uniform(size=shape) < 0.5, 0.0, x)
    return in_format(x, FloatFormat(dtype))


MAGNITUDE_CASES = RecipeSource("prune_magnitude", build=build_magnitude, designed=lambda coverage: list(magnitude_table(coverage)),
                               strategy=magnitude_recipes, covered=covered_magnitude)  # fmt: skip

AXES = {"last": -1, "first": 0}


@dataclass(frozen=True)
class TwoFourRecipe:
    """One case of prune_2_4: w (A, B)."""

    A: int = shrinking.size_field()
    B: int = shrinking.size_field()
    axis: str = shrinking.choice_field(tuple(AXES))
    values: str = shrinking.choice_field(VALUES)
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


def covered_two_four(recipe: TwoFourRecipe, coverage: Coverage) -> TwoFourRecipe:
    """The recipe mapped into the coverage: the last axis, and multiples of a length, where that is all the subject takes."""
    least, multiple = int(not coverage.empty), coverage.length_multiple
    A, B = (-(-max(size, least) // multiple) * multiple for size in (recipe.A, recipe.B))
    return replace(recipe, A=A, B=B, axis=recipe.axis if "axis" in coverage.arguments else "last",
                   dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0])  # fmt: skip


@lru_cache(maxsize=16)
def two_four_table(coverage: Coverage) -> tuple[TwoFourRecipe, ...]:
    """A corner of every kind, then the balanced part."""
    corners = (TwoFourRecipe(A=4, B=4, seed=1), TwoFourRecipe(A=4, B=8, values="ties", seed=2), TwoFourRecipe(A=2, B=7, seed=3),
               TwoFourRecipe(A=0, B=4, seed=4), TwoFourRecipe(A=8, B=2, axis="first", seed=5))  # fmt: skip
    levels: dict[str, Any] = {"axis": tuple(AXES), "values": VALUES, "dtype": coverage.dtypes, "strides": LAYOUTS}
    rows = balanced_table({**levels, "A": (1, 3, 4, 8, 17), "B": (1, 2, 4, 7, 16, 33)}, 36, crossed=tuple(levels))
    recipes = [*corners, *(TwoFourRecipe(seed=100 + index, **row) for index, row in enumerate(rows))]
    return tuple(dict.fromkeys(covered_two_four(recipe, coverage) for recipe in recipes))


def two_four_recipes(coverage: Coverage) -> st.SearchStrategy[TwoFourRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        TwoFourRecipe, A=st.integers(0, 20), B=st.integers(0, 40), axis=st.sampled_from(tuple(AXES)), values=st.sampled_from(VALUES),
        dtype=st.sampled_from(coverage.dtypes), strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_two_four(recipe, coverage))  # fmt: skip


def build_two_four(recipe: TwoFourRecipe) -> Case:
    """w (A, B) and the axis along which fours run."""
    w = weights_of(recipe.values if recipe.A else "normal", (recipe.A, recipe.B), recipe.dtype, generator(recipe.seed, "values"))
    return Case("prune_2_4", {"w": rows_laid_out(w, recipe.strides)}, {"axis": AXES[recipe.axis]}, origin=str(recipe))


TWO_FOUR_CASES = RecipeSource("prune_2_4", build=build_two_four, designed=lambda coverage: list(two_four_table(coverage)),
                              strategy=two_four_recipes, covered=covered_two_four)  # fmt: skip

# A share held all along; one that rises, in sixteenths; nothing, then all at once.
SCHEDULES = ("rising", "held", "at_once")


@dataclass(frozen=True)
class GradualRecipe:
    """One case of gradual_masks: S steps of L layers of n weights, or of 2 n along two axes."""

    S: int = shrinking.size_field()
    L: int = shrinking.size_field()
    n: int = shrinking.size_field()
    form: str = shrinking.choice_field(FORMS[:2])
    schedule: str = shrinking.choice_field(SCHEDULES)
    scope: str = shrinking.choice_field(SCOPES)
    values: str = shrinking.choice_field(VALUES)
    dtype: str = shrinking.choice_field(DTYPES)
    seed: int = field(default=0)


def covered_gradual(recipe: GradualRecipe, coverage: Coverage) -> GradualRecipe:
    """The recipe mapped into the coverage."""
    scopes = coverage.levels("scope", SCOPES)
    return replace(recipe, S=max(recipe.S, 1), L=max(recipe.L, 1), n=max(recipe.n, int(not coverage.empty)),
                   scope=recipe.scope if recipe.scope in scopes else scopes[0],
                   dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0])  # fmt: skip


@lru_cache(maxsize=16)
def gradual_table(coverage: Coverage) -> tuple[GradualRecipe, ...]:
    """A corner of every kind, then the balanced part."""
    corners = (GradualRecipe(S=3, L=2, n=16, seed=1), GradualRecipe(S=10, L=1, n=32, schedule="held", seed=2),
               GradualRecipe(S=2, L=2, n=0, seed=3), GradualRecipe(S=2, L=2, n=3, form="matrices", seed=5),
               GradualRecipe(S=4, L=3, n=16, scope="global", values="small_layer", seed=4))  # fmt: skip
    levels: dict[str, Any] = {"schedule": SCHEDULES, "form": FORMS[:2], "scope": SCOPES, "values": VALUES, "dtype": coverage.dtypes}
    rows = balanced_table({**levels, "S": (1, 2, 3, 6), "L": (1, 2, 3), "n": (1, 4, 7, 16, 33)}, 30, crossed=tuple(levels))
    recipes = [*corners, *(GradualRecipe(seed=100 + index, **row) for index, row in enumerate(rows))]
    return tuple(dict.fromkeys(covered_gradual(recipe, coverage) for recipe in recipes))


def gradual_recipes(coverage: Coverage) -> st.SearchStrategy[GradualRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        GradualRecipe, S=st.integers(1, 8), L=st.integers(1, 3), n=st.integers(0, 40), schedule=st.sampled_from(SCHEDULES),
        form=st.sampled_from(FORMS[:2]), scope=st.sampled_from(SCOPES), values=st.sampled_from(VALUES),
        dtype=st.sampled_from(coverage.dtypes), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_gradual(recipe, coverage))  # fmt: skip


def build_gradual(recipe: GradualRecipe) -> Case:
    """history (S, L, n) or (S, L, n, 2), other weights at each step, and sparsities (S,) in float64."""
    g, S = generator(recipe.seed, "values"), recipe.S
    shape = (recipe.L, recipe.n) if recipe.form == "rows" else (recipe.L, recipe.n, 2)
    history = np.stack([weights_of(recipe.values, shape, recipe.dtype, g) for _ in range(S)])
    sparsities = {"rising": np.floor(np.linspace(4.0, 12.0, S)) / 16.0, "held": np.full(S, 0.5),
                  "at_once": np.where(np.arange(S) == S - 1, 0.75, 0.0)}[recipe.schedule]  # fmt: skip
    return Case("gradual_masks", {"history": history, "sparsities": sparsities}, {"scope": recipe.scope}, origin=str(recipe))


def rising(case: Case) -> Case:
    """The case with sparsities that never fall, in 0..1: what the minimiser makes of them must stay a schedule."""
    return case.with_arrays(sparsities=np.maximum.accumulate(np.clip(case.arrays["sparsities"], 0.0, 1.0)))


GRADUAL_CASES = RecipeSource("gradual_masks", build=build_gradual, designed=lambda coverage: list(gradual_table(coverage)),
                             strategy=gradual_recipes, covered=covered_gradual, complete=rising)  # fmt: skip
