"""Paged cases: legal tables, lengths at every border of a block, shared pages, and poison that nobody sees."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from oracles.properties.cases import paged_attention as source
from oracles.properties.cases.paged_attention import PAGED_CASES, PagedRecipe
from oracles.properties.coverage import Coverage
from oracles.reference import paged_attention

EVERYTHING = Coverage(arguments=frozenset({"window", "scale", "softcap", "sinks", "query_lengths"}),
                      dtypes=("float32", "float64", "float16", "bfloat16"), causal=(None, "bottom_right", "top_left"))  # fmt: skip
NARROW = Coverage(dtypes=("bfloat16",), causal=("bottom_right",), head_dims=(64,), grouped=False, empty=False)
OPTIONS = ("window", "scale", "softcap", "sinks", "queries", "causal", "dtype", "kv_lengths", "pages", "S", "strides")
DESIGNED = PAGED_CASES.designed(EVERYTHING)
BUILT = [PAGED_CASES.build(recipe) for recipe in DESIGNED]


@pytest.mark.parametrize("name", OPTIONS)
def test_every_level_stands_equally_often_in_the_table(name: str) -> None:
    counts = Counter(getattr(recipe, name) for recipe in source.table(EVERYTHING))
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize(("one", "other"), list(combinations(OPTIONS, 2)))
def test_every_pair_of_levels_meets_in_the_table(one: str, other: str) -> None:
    pairs = {(getattr(recipe, one), getattr(recipe, other)) for recipe in source.table(EVERYTHING)}
    assert len(pairs) == len({pair[0] for pair in pairs}) * len({pair[1] for pair in pairs})


@pytest.mark.parametrize("recipe", DESIGNED, ids=lambda recipe: str(recipe.seed))
def test_the_oracle_takes_every_case_and_poison_changes_nothing(recipe: PagedRecipe) -> None:
    poisoned, clean = (PAGED_CASES.build(replace(recipe, poison=poison)) for poison in (True, False))
    for with_poison, without in zip(paged_attention(**poisoned.arguments()), paged_attention(**clean.arguments())):
        assert np.array_equal(with_poison, without)
        assert not np.isnan(with_poison).any()


def test_nan_and_finite_poison_are_both_common() -> None:
    held = Counter(case.notes["poison"] for case in BUILT)
    assert held["nan"] > len(BUILT) // 5
    assert held["finite"] > len(BUILT) // 5
    assert all(case.notes["poisoned"] == ("k_pages", "v_pages") for case in BUILT)


def test_tables_name_each_page_once_and_are_filled_up_with_nothing() -> None:
    for case in BUILT:
        tables, n_k, (N, S) = case.arrays["block_tables"], case.arrays["kv_lengths"], case.arrays["k_pages"].shape[:2]
        needed = -(-n_k // S)
        places = np.arange(tables.shape[1])
        assert ((tables >= 0) == (places < needed[:, None])).all()
        assert tables.max(initial=-1) < N
        assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in tables)


def test_lengths_stand_at_a_border_of_blocks_before_it_and_behind_it() -> None:
    seen = Counter()
    for case in BUILT:
        S = case.arrays["k_pages"].shape[1]
        if S > 2:
            filled = [int(n) % S for n in case.arrays["kv_lengths"] if n]
            seen.update(n if n in (0, 1) else "last" if n == S - 1 else "other" for n in filled)
    assert min(seen[where] for where in (0, 1, "last", "other")) >= 8
    everywhere = {int(n) for case in BUILT for n in case.arrays["kv_lengths"]}
    assert {0, 1} <= everywhere


def test_pages_are_shared_where_the_recipe_says_so() -> None:
    def shared(case: source.Case) -> bool:
        named = case.arrays["block_tables"][case.arrays["block_tables"] >= 0]
        return len(np.unique(named)) < named.size

    levels = [(recipe.pages, shared(case)) for recipe, case in zip(DESIGNED, BUILT)]
    assert not any(found for pages, found in levels if pages in ("in_order", "shuffled"))
    assert sum(found for pages, found in levels if pages == "prefix") >= 8
    assert sum(found for pages, found in levels if pages == "forked") >= 8


def test_tables_are_in_no_order_and_pages_of_nobody_stand_among_them() -> None:
    out_of_order = unused = 0
    for recipe, case in zip(DESIGNED, BUILT):
        tables = case.arrays["block_tables"]
        out_of_order += any((np.diff(row[row >= 0]) != 1).any() for row in tables)
        unused += recipe.pages != "in_order" and len(np.unique(tables[tables >= 0])) < len(case.arrays["k_pages"])
    assert out_of_order > len(DESIGNED) // 4
    assert unused > len(DESIGNED) // 2


def test_no_case_lies_outside_a_narrow_coverage() -> None:
    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(PAGED_CASES.strategy(NARROW))
    def inside(recipe: PagedRecipe) -> None:
        assert (recipe.D, recipe.Dv, recipe.G, recipe.dtype, recipe.causal) == (64, 64, 1, "bfloat16", "bottom_right")
        assert (recipe.window, recipe.queries, recipe.sinks) == ("none", "none", "none")
        assert PAGED_CASES.covered(recipe, NARROW) == recipe
        assert PAGED_CASES.build(recipe).arrays["kv_lengths"].min() > 0

    inside()


def test_the_same_recipe_always_builds_the_same_bytes() -> None:
    assert [PAGED_CASES.build(recipe).hash for recipe in DESIGNED] == [case.hash for case in BUILT]
