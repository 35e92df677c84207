"""Cases of token_accuracy: logits without equals, predictions right and wrong, targets ignored, rows too short to predict anything."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from oracles.reference import FloatFormat

from .. import shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from .attention import DTYPES

IGNORED = ("none", "some", "prompt")
SKILLS = ("half", "none", "all")                                                # of the predictions that are right
INDICES = ("usual", "other")                                                    # ignore_index: -100, or -1


@dataclass(frozen=True)
class AccuracyRecipe:
    """One case of token_accuracy: B rows of T tokens out of V."""

    B: int = shrinking.size_field()
    T: int = shrinking.size_field()
    V: int = shrinking.size_field()
    ignored: str = shrinking.choice_field(IGNORED)
    skill: str = shrinking.choice_field(SKILLS)
    index: str = shrinking.choice_field(INDICES)
    dtype: str = shrinking.choice_field(DTYPES)
    seed: int = field(default=0)


CORNERS = (AccuracyRecipe(T=3, V=2, skill="all"), AccuracyRecipe(B=2, T=0, V=3, seed=1), AccuracyRecipe(B=0, T=4, V=3, seed=2),
           AccuracyRecipe(B=2, T=9, V=128, skill="all", seed=3))  # fmt: skip


def covered_accuracy(recipe: AccuracyRecipe, coverage: Coverage) -> AccuracyRecipe:
    """The recipe inside the coverage; V small enough for the format to hold 0, 1, …, V - 1."""
    least = int(not coverage.empty)
    dtype = recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0]
    most = min(2 ** (FloatFormat(dtype).fraction_bits + 1), int(FloatFormat(dtype).max) + 1)
    return replace(recipe, B=max(recipe.B, least), T=max(recipe.T, least), V=min(max(recipe.V, 1), most), dtype=dtype,
                   index=recipe.index if "ignore_index" in coverage.arguments else "usual")  # fmt: skip


def designed_accuracy(coverage: Coverage) -> list[AccuracyRecipe]:
    """The corners, then a balanced table, all inside the coverage."""
    levels = {"ignored": IGNORED, "skill": SKILLS, "index": INDICES, "dtype": coverage.dtypes}
    rows = balanced_table({**levels, "B": (1, 2, 5), "T": (1, 2, 7, 33), "V": (2, 3, 16, 100, 129)}, 36, crossed=tuple(levels))
    table = [AccuracyRecipe(seed=100 + index, **row) for index, row in enumerate(rows)]
    return list(dict.fromkeys(covered_accuracy(recipe, coverage) for recipe in (*CORNERS, *table)))


def accuracy_recipes(coverage: Coverage) -> st.SearchStrategy[AccuracyRecipe]:
    """Random recipes inside a coverage."""
    return st.builds(
        AccuracyRecipe, B=st.sampled_from((1, 2, 3, 4, 0)), T=st.integers(0, 40), V=st.integers(1, 150), ignored=st.sampled_from(IGNORED),
        skill=st.sampled_from(SKILLS), index=st.sampled_from(INDICES), dtype=st.sampled_from(coverage.dtypes),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_accuracy(recipe, coverage))  # fmt: skip


def build_accuracy(recipe: AccuracyRecipe) -> Case:
    """Each row of logits holds 0, 1, …, V - 1 in some order: exact in the format, and no two equal."""
    g, shape = np.random.default_rng(recipe.seed), (recipe.B, recipe.T)
    ids = g.integers(0, recipe.V, shape).astype(np.int64)
    x = g.permuted(np.broadcast_to(np.arange(recipe.V), (*shape, recipe.V)), axis=-1)
    clever = {"half": g.integers(0, 2, shape) == 1, "none": np.zeros(shape, bool), "all": np.ones(shape, bool)}[recipe.skill]
    for b, t in np.argwhere(clever[:, :-1]):
        best, wanted = x[b, t].argmax(), ids[b, t + 1]
        x[b, t, [best, wanted]] = x[b, t, [wanted, best]]
    ignore = -100 if recipe.index == "usual" else -1
    hidden = {"none": np.zeros(shape, bool), "some": g.integers(0, 3, shape) == 0,
              "prompt": np.broadcast_to(np.arange(recipe.T) < recipe.T // 2, shape)}[recipe.ignored]
    options: dict[str, Option] = {} if recipe.index == "usual" else {"ignore_index": ignore}
    arrays = {"logits": FloatFormat(recipe.dtype).cast(x.astype(np.float64)), "tokens": np.where(hidden, ignore, ids)}
    return Case("token_accuracy", arrays, options, origin=str(recipe))


ACCURACY_CASES = RecipeSource("token_accuracy", build=build_accuracy, designed=designed_accuracy, strategy=accuracy_recipes,
                              covered=covered_accuracy)  # fmt: skip
