"""Case source: where the cases of an operation come from, and the balanced table behind the designed ones.

A check is designed cases first, then random ones. Both are *recipes*: small frozen records from which the case is built
on demand, always the same bytes. How a recipe shrinks is `shrinking`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from hypothesis.strategies import SearchStrategy

from .case import Case
from .coverage import Coverage
from .shrinking import simpler_recipes

R = TypeVar("R")


class CaseSource(Protocol[R]):
    """Cases of one operation, as recipes: frozen dataclasses with a fixed number of ints, strings and bools."""

    @property
    def operation(self) -> str:
        """The operation's name in the contract."""

    def designed(self, coverage: Coverage) -> list[R]:
        """The recipes every check runs first: corners written by hand, then a balanced table, all inside the coverage."""

    def strategy(self, coverage: Coverage) -> SearchStrategy[R]:
        """Random recipes inside the coverage: a draw of fixed arity, mapped into the coverage afterwards."""

    def build(self, recipe: R) -> Case:
        """The case of a recipe, the same bytes every time."""

    def simpler(self, recipe: R) -> Iterator[R]:
        """Strictly smaller recipes, in the order to try them. They may lie outside a coverage: map them with `covered`."""

    def covered(self, recipe: R, coverage: Coverage) -> R:
        """The recipe mapped into the coverage; what lies inside is left alone."""

    def complete(self, case: Case) -> Case:
        """The case with those arrays computed anew that follow from the others (out and lse of a backward pass)."""


def unchanged(case: Case) -> Case:
    """The case itself: no array of it follows from the others."""
    return case


@dataclass(frozen=True)
class RecipeSource(Generic[R]):
    """A `CaseSource` put together from functions; see there for what each of them has to do."""

    operation: str
    build: Callable[[R], Case]
    designed: Callable[[Coverage], list[R]]
    strategy: Callable[[Coverage], SearchStrategy[R]]
    covered: Callable[[R, Coverage], R]
    simpler: Callable[[R], Iterator[R]] = simpler_recipes
    complete: Callable[[Case], Case] = unchanged


def balanced_table(factors: Mapping[str, Sequence[Any]], rows: int, *, crossed: Sequence[str], seed: int = 0) -> list[dict[str, Any]]:
    """`rows` combinations in which each level of a factor stands equally often, give or take one, and pairs are met.

    Every column holds its levels in turn, shuffled. Then, as long as two levels of two `crossed` factors meet in no row,
    two entries of one column are exchanged where that loses no more pairs than it wins: balance is never lost. Factors that
    have more pairs of levels than there are rows are not crossed.

    >>> table = balanced_table({"a": (0, 1), "b": "xyz"}, 6, crossed=("a", "b"))
    >>> sorted((row["a"], row["b"]) for row in table)
    [(0, 'x'), (0, 'y'), (0, 'z'), (1, 'x'), (1, 'y'), (1, 'z')]
    """
    generator = np.random.default_rng(seed)
    columns = {name: [int(level) for level in generator.permutation(np.arange(rows) % len(levels))] for name, levels in factors.items()}
    _meet_all_pairs(columns, {name: len(factors[name]) for name in crossed}, generator)
    return [{name: factors[name][column[row]] for name, column in columns.items()} for row in range(rows)]


def _meet_all_pairs(columns: dict[str, list[int]], levels: dict[str, int], generator: np.random.Generator) -> None:
    rows = len(next(iter(columns.values())))
    pairs = [(f, g) for f, g in combinations(levels, 2) if levels[f] * levels[g] <= rows]
    met = {(f, g): np.zeros((levels[f], levels[g]), dtype=int) for f, g in pairs}
    for (f, g), count in met.items():
        np.add.at(count, (columns[f], columns[g]), 1)
    met |= {(g, f): count.T for (f, g), count in met.items()}          # views: one count under both names

    def move(name: str, row: int, level: int) -> int:
        """Put a level into a row; returns how many pairs that meets anew, less those it loses."""
        old, won = columns[name][row], 0
        for other in levels:
            if (name, other) in met:
                count, opposite = met[name, other], columns[other][row]
                count[old, opposite] -= 1
                won += int(count[level, opposite] == 0) - int(count[old, opposite] == 0)
                count[level, opposite] += 1
        columns[name][row] = level
        return won

    for _ in range(4000):
        unmet = [(f, g, a, b) for f, g in pairs for a, b in np.argwhere(met[f, g] == 0)]
        if not unmet:
            return
        f, g, a, b = unmet[generator.integers(len(unmet))]
        if generator.integers(2):
            f, g, a, b = g, f, b, a
        here = int(generator.choice([row for row in range(rows) if columns[f][row] == a]))
        there = int(generator.choice([row for row in range(rows) if columns[g][row] == b]))
        old = columns[g][here]
        if move(g, here, int(b)) + move(g, there, old) < 0:
            move(g, here, old)
            move(g, there, int(b))
