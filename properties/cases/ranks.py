"""Cases of simulated ranks: how many there are, how much each holds, the options of the operation. What they hold is built elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from .. import regimes, shrinking
from ..array_lists import spread
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from .attention import DTYPES

Array = NDArray[Any]
REGIMES = ("integer_grid", "normal", "uneven", "constant", "one_hot", "outlier_channel")
RANKS, ROWS, COLUMNS, ARRAYS = (1, 2, 3, 4, 5, 8), (1, 2, 3, 5), (1, 2, 3, 7, 12, 24, 65), (1, 2, 3, 5)


@dataclass(frozen=True)
class RankRecipe:
    """One case of R ranks: K arrays (or micro-batches, or heads) of T rows and n columns. choice: which of the operation's options."""

    R: int = shrinking.size_field()
    T: int = shrinking.size_field()
    n: int = shrinking.size_field()
    K: int = shrinking.size_field()
    choice: int = shrinking.size_field()
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(REGIMES)
    seed: int = field(default=0)


# Four distinct vectors of length 8; lengths that no number of ranks divides, and 0; a rank alone; many small arrays.
CORNERS = (
    RankRecipe(R=4, T=1, n=8, seed=1), RankRecipe(R=2, T=2, n=3, K=3, seed=2), RankRecipe(R=3, T=1, n=7, K=2, choice=0, seed=3),
    RankRecipe(R=1, T=2, n=5, K=2, choice=2, seed=4), RankRecipe(R=4, T=0, n=4, K=2, seed=5), RankRecipe(R=2, T=1, n=0, K=1, seed=6),
    RankRecipe(R=8, T=1, n=1, K=5, choice=3, seed=7), RankRecipe(R=4, T=3, n=10, K=4, choice=4, seed=8),
    RankRecipe(R=2, T=4, n=12, K=5, regime="normal", seed=9), RankRecipe(R=4, T=4, n=6, K=3, choice=5, regime="normal", seed=10),
)  # fmt: skip


def rank_source(
    operation: str, build: Callable[[RankRecipe, Mapping[str, Option], np.random.Generator], dict[str, Array]],
    options: Sequence[Mapping[str, Option]], *, least_columns: int = 0,
    complete: Callable[[Case], Case] = lambda case: case,
) -> RecipeSource[RankRecipe]:  # fmt: skip
    """The cases of one operation: `build` makes the arrays of a recipe, `options` are what it is called with, the defaults first.

    An option set is covered where the subject takes every argument in which it differs from the first, with that value.
    least_columns: the number below which the operation has no meaning. complete: see `CaseSource`.
    """
    def chosen(recipe: RankRecipe) -> Mapping[str, Option]:
        return options[(recipe.choice - 1) % len(options)]

    def covered(recipe: RankRecipe, coverage: Coverage) -> RankRecipe:
        least = 0 if coverage.empty else 1
        dtype = recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0]
        recipe = replace(recipe, R=max(recipe.R, 1), T=max(recipe.T, least), n=max(recipe.n, least, least_columns), K=max(recipe.K, 1),
                         dtype=dtype)  # fmt: skip
        turns = [replace(recipe, choice=recipe.choice + i) for i in range(len(options))]
        return next((turn for turn in turns if _takes(coverage, chosen(turn), options[0])), replace(recipe, choice=1))

    def designed(coverage: Coverage) -> list[RankRecipe]:
        levels = {"R": RANKS, "n": COLUMNS, "choice": tuple(range(1, len(options) + 1)), "dtype": coverage.dtypes, "regime": REGIMES}
        rows = balanced_table({**levels, "T": ROWS, "K": ARRAYS}, 42, crossed=("R", "choice", "dtype", "regime"))
        table = [RankRecipe(seed=100 + index, **row) for index, row in enumerate(rows)]
        return list(dict.fromkeys(covered(recipe, coverage) for recipe in (*CORNERS, *table)))

    def strategy(coverage: Coverage) -> st.SearchStrategy[RankRecipe]:
        return st.builds(
            RankRecipe, R=st.integers(1, 8), T=st.integers(0, 5), n=st.integers(0, 40), K=st.integers(1, 6),
            choice=st.integers(1, len(options)), dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(REGIMES),
            seed=st.integers(0, 2**32 - 1),
        ).map(lambda recipe: covered(recipe, coverage))  # fmt: skip

    def built(recipe: RankRecipe) -> Case:
        arrays = build(recipe, chosen(recipe), np.random.default_rng(recipe.seed))
        named: dict[str, Array] = {}
        for name, value in arrays.items():
            named |= spread(name, value) if isinstance(value, list) else {name: value}
        own = {name: value for name, value in chosen(recipe).items() if value is not None}
        return Case(operation, named, _with_sizes(own, recipe), origin=str(recipe))

    return RecipeSource(operation, build=built, designed=designed, strategy=strategy, covered=covered, complete=complete)


def drawn(recipe: RankRecipe, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """An array of the recipe's regime and format."""
    return regimes.draw(recipe.regime, shape, recipe.dtype, generator)


def _takes(coverage: Coverage, wanted: Mapping[str, Option], default: Mapping[str, Option]) -> bool:
    """Whether a subject takes an option set: the arguments in which it differs from the default, or the words it is limited to."""
    limited = dict(coverage.only)
    return all(
        value in limited[name] if name in limited else value == default.get(name) or name in coverage.arguments
        for name, value in wanted.items()
    )  # fmt: skip


def _with_sizes(options: Mapping[str, Option], recipe: RankRecipe) -> dict[str, Option]:
    """Options in which "R" stands for the number of ranks."""
    return {name: recipe.R if value == "R" else value for name, value in options.items()}
