"""The balanced table keeps its two promises: equal counts, and all pairs that can meet."""

from __future__ import annotations

import doctest
import importlib
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from oracles.properties.case_source import RecipeSource, balanced_table
from oracles.properties.cases.attention import ATTENTION_CASES

MODULES = ("case_source", "regimes", "shrinking", "value_minimiser", "cases.layouts", "cases.poison", "cases.attention")
FACTORS = {"a": (0, 1), "b": "xyz", "c": tuple(range(7)), "d": tuple("pqrst")}


@pytest.mark.parametrize("rows", [36, 40, 71])
def test_every_level_stands_equally_often_give_or_take_one(rows: int) -> None:
    table = balanced_table(FACTORS, rows, crossed=tuple(FACTORS))
    for name, levels in FACTORS.items():
        counts = Counter(row[name] for row in table)
        assert set(counts) == set(levels)
        assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("rows", [40, 71])
def test_all_pairs_of_crossed_factors_meet(rows: int) -> None:
    table = balanced_table(FACTORS, rows, crossed=tuple(FACTORS))
    for f, g in combinations(FACTORS, 2):
        assert len({(row[f], row[g]) for row in table}) == len(FACTORS[f]) * len(FACTORS[g])


def test_factors_with_more_pairs_than_rows_are_left_as_they_fall() -> None:
    table = balanced_table({"a": range(10), "b": range(10), "c": (0, 1)}, 40, crossed=("a", "b", "c"))
    assert len({(row["a"], row["c"]) for row in table}) == 20


def test_the_same_seed_gives_the_same_table() -> None:
    assert balanced_table(FACTORS, 40, crossed=("a", "b")) == balanced_table(FACTORS, 40, crossed=("a", "b"))


def test_a_source_is_put_together_from_functions() -> None:
    assert isinstance(ATTENTION_CASES, RecipeSource)
    assert ATTENTION_CASES.operation == "attention"


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"oracles.properties.{name}"), extraglobs={"np": np}).failed == 0
