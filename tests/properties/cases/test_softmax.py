"""Rows and parts to merge: what each level says is there, and the oracles take all of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from oracles.properties.cases import softmax as source
from oracles.properties.cases.softmax import AXES, LOG_SUM_EXP_CASES, MERGE_CASES, SOFTMAX_CASES, MergeRecipe, SoftmaxRecipe
from oracles.properties.coverage import Coverage
from oracles.reference import log_sum_exp, merge_attention, softmax

EVERYTHING = Coverage(arguments=frozenset({"axis"}), dtypes=("float32", "float64", "float16", "bfloat16"))
ROWS, PARTS = SOFTMAX_CASES.designed(EVERYTHING), MERGE_CASES.designed(EVERYTHING)


@pytest.mark.parametrize(("one", "other"), list(combinations(("axis", "infinities", "dtype", "strides"), 2)))
def test_every_pair_of_levels_of_softmax_meets_equally_balanced(one: str, other: str) -> None:
    table = source.softmax_table(EVERYTHING)
    pairs = {(getattr(recipe, one), getattr(recipe, other)) for recipe in table}
    assert len(pairs) == len({pair[0] for pair in pairs}) * len({pair[1] for pair in pairs})
    for name in (one, other):
        counts = Counter(getattr(recipe, name) for recipe in table).values()
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("one", "other"), list(combinations(("parts", "dtype", "strides"), 2)))
def test_every_pair_of_levels_of_merging_meets_equally_balanced(one: str, other: str) -> None:
    table = source.merge_table(EVERYTHING)
    pairs = {(getattr(recipe, one), getattr(recipe, other)) for recipe in table}
    assert len(pairs) == len({pair[0] for pair in pairs}) * len({pair[1] for pair in pairs})
    for name in (one, other):
        counts = Counter(getattr(recipe, name) for recipe in table).values()
        assert max(counts) - min(counts) <= 1


def test_the_oracles_take_every_row_and_answer_without_nan() -> None:
    for recipe in ROWS:
        case = SOFTMAX_CASES.build(recipe)
        p, lse = softmax(**case.arguments()), log_sum_exp(**LOG_SUM_EXP_CASES.build(recipe).arguments())
        assert np.isfinite(p).all()
        assert not (np.isnan(lse) | np.isposinf(lse)).any()


def test_rows_lie_along_the_axis() -> None:
    for name, axis in AXES.items():
        case = SOFTMAX_CASES.build(SoftmaxRecipe(A=2, B=3, n=7, axis=name))
        assert case.options == {"axis": axis}
        assert case.arrays["x"].shape[axis] == 7


def test_infinities_are_where_their_level_says() -> None:
    hidden = {level: np.isneginf(SOFTMAX_CASES.build(SoftmaxRecipe(A=3, B=5, n=9, infinities=level, seed=1)).arrays["x"])
              for level in source.INFINITIES}
    assert not hidden["none"].any()
    assert 0 < hidden["some"].mean() < 0.5
    assert set(hidden["rows"].mean(axis=-1).ravel()) == {0.0, 1.0}
    assert (hidden["all_but_one"].sum(axis=-1) == 8).all()


@pytest.mark.parametrize("source_name", ["softmax", "merge"])
def test_the_same_recipe_always_builds_the_same_bytes(source_name: str) -> None:
    if source_name == "softmax":
        assert [SOFTMAX_CASES.build(recipe).hash for recipe in ROWS] == [SOFTMAX_CASES.build(recipe).hash for recipe in ROWS]
    else:
        assert [MERGE_CASES.build(recipe).hash for recipe in PARTS] == [MERGE_CASES.build(recipe).hash for recipe in PARTS]


def test_no_row_lies_outside_a_narrow_coverage() -> None:
    narrow = Coverage(dtypes=("float16",), empty=False, length_multiple=4)

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(SOFTMAX_CASES.strategy(narrow))
    def inside(recipe: SoftmaxRecipe) -> None:
        assert (recipe.dtype, recipe.axis, recipe.n % 4) == ("float16", "last", 0)
        assert min(recipe.A, recipe.B, recipe.n) > 0

    inside()


def test_no_merge_lies_outside_a_narrow_coverage() -> None:
    narrow = Coverage(dtypes=("float16",), empty=False, head_dims=(64,))

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(MERGE_CASES.strategy(narrow))
    def inside(recipe: MergeRecipe) -> None:
        assert (recipe.dtype, recipe.Dv) == ("float16", 64)
        assert min(recipe.B, recipe.L) > 0

    inside()
    assert MERGE_CASES.covered(MergeRecipe(B=0, L=0, Dv=50), narrow) == MergeRecipe(Dv=64, dtype="float16")


def test_the_merging_oracle_takes_every_case_and_answers_without_nan() -> None:
    for recipe in PARTS:
        out, lse = merge_attention(**MERGE_CASES.build(recipe).arguments())
        assert np.isfinite(out).all()
        assert not (np.isnan(lse) | np.isposinf(lse)).any()


def test_empty_parts_are_0_and_minus_infinity() -> None:
    for level, empty in (("a_empty", "a"), ("b_empty", "b"), ("both_empty", "ab")):
        arrays = MERGE_CASES.build(MergeRecipe(B=2, H=2, L=3, Dv=4, parts=level)).arrays
        for part in "ab":
            assert np.isneginf(arrays[f"lse_{part}"]).all() == (part in empty)
            assert (not arrays[f"out_{part}"].any()) == (part in empty)


def test_the_other_levels_lie_as_their_names_say() -> None:
    plain = MergeRecipe(B=2, H=3, L=16, Dv=1)
    lse = {level: MERGE_CASES.build(replace(plain, parts=level)).arrays for level in source.PARTS}
    assert np.array_equal(lse["equal"]["lse_a"], lse["equal"]["lse_b"])
    assert np.abs(lse["far"]["lse_a"] - lse["far"]["lse_b"]).min() > 9
    assert np.abs(lse["near"]["lse_a"] - lse["near"]["lse_b"]).max() < 9
    assert np.median(np.abs(lse["huge"]["lse_a"])) > 2.0**60
    assert 0 < np.isneginf(lse["mixed"]["lse_a"]).mean() < 1
