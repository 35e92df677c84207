"""Packed cases: legal offsets, empty sequences, balance, and poison that nobody sees."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from oracles.properties.cases import attention_packed as source
from oracles.properties.cases.attention_packed import PACKED_BACKWARD_CASES, PACKED_CASES, PackedRecipe
from oracles.properties.coverage import Coverage
from oracles.reference.attention_packed import attention_packed, attention_packed_backward

EVERYTHING = Coverage(arguments=frozenset({"window", "scale", "softcap"}), dtypes=("float32", "float64", "float16", "bfloat16"),
                      causal=(None, "bottom_right", "top_left"))
NARROW = Coverage(dtypes=("bfloat16",), causal=("bottom_right",), head_dims=(64,), grouped=False, cross_lengths=False, empty=False,
                  length_multiple=8)
OPTIONS = ("window", "scale", "softcap", "causal", "dtype", "strides", "lengths")
DESIGNED = PACKED_CASES.designed(EVERYTHING)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_level_stands_equally_often_in_the_table(name: str) -> None:
    counts = Counter(getattr(recipe, name) for recipe in source.table(EVERYTHING))
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize(("one", "other"), list(combinations(OPTIONS, 2)))
def test_every_pair_of_levels_meets_in_the_table(one: str, other: str) -> None:
    pairs = {(getattr(recipe, one), getattr(recipe, other)) for recipe in source.table(EVERYTHING)}
    assert len(pairs) == len({pair[0] for pair in pairs}) * len({pair[1] for pair in pairs})


@pytest.mark.parametrize("recipe", DESIGNED, ids=lambda recipe: str(recipe.seed))
def test_the_oracle_takes_every_case_and_poison_changes_nothing(recipe: PackedRecipe) -> None:
    poisoned, clean = (PACKED_CASES.build(replace(recipe, poison=poison)) for poison in (True, False))
    for with_poison, without in zip(attention_packed(**poisoned.arguments()), attention_packed(**clean.arguments())):
        assert np.array_equal(with_poison, without)
        assert not np.isnan(with_poison).any()


def test_a_fifth_of_the_designed_cases_are_poisoned() -> None:
    assert Counter(PACKED_CASES.build(recipe).notes["poison"] for recipe in DESIGNED)["finite"] > len(DESIGNED) // 5


def test_offsets_begin_at_0_never_fall_and_end_at_the_number_of_tokens() -> None:
    for recipe in DESIGNED:
        arrays = PACKED_CASES.build(recipe).arrays
        for cu, x in ((arrays["cu_q"], arrays["q"]), (arrays["cu_k"], arrays["k"])):
            assert cu.dtype == np.int64
            assert (cu[0], cu[-1], cu.size) == (0, x.shape[0], recipe.B + 1)
            assert (np.diff(cu) >= 0).all()


def test_equal_lengths_pack_queries_and_keys_alike() -> None:
    arrays = PACKED_CASES.build(PackedRecipe(B=5, Lq=9, Lk=9, lengths="some_empty", seed=3)).arrays
    assert np.array_equal(arrays["cu_q"], arrays["cu_k"])


def test_some_sequences_are_empty_but_not_all() -> None:
    for seed in range(20):
        lengths = np.diff(PACKED_CASES.build(PackedRecipe(B=1 + seed % 2, Lq=3, Lk=5, lengths="some_empty", seed=seed)).arrays["cu_k"])
        assert lengths.any()
    assert any((np.diff(PACKED_CASES.build(recipe).arrays["cu_k"]) == 0).any() for recipe in DESIGNED if recipe.Lk)


def test_no_case_lies_outside_a_narrow_coverage() -> None:
    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(PACKED_CASES.strategy(NARROW))
    def inside(recipe: PackedRecipe) -> None:
        assert (recipe.D, recipe.G, recipe.dtype, recipe.causal) == (64, 1, "bfloat16", "bottom_right")
        assert (recipe.window, recipe.lengths) == ("none", "full")
        assert recipe.Lq == recipe.Lk > 0
        assert recipe.Lk % 8 == 0
        assert recipe.B > 0
        assert PACKED_CASES.covered(recipe, NARROW) == recipe

    inside()


def test_without_empty_sizes_no_sequence_is_empty() -> None:
    coverage = replace(EVERYTHING, empty=False)
    assert Counter(recipe.lengths for recipe in source.table(coverage)) == {"full": source.ROWS // 2, "ragged": source.ROWS // 2}
    for recipe in PACKED_CASES.designed(coverage):
        arrays = PACKED_CASES.build(recipe).arrays
        assert (np.diff(arrays["cu_q"]) > 0).all()
        assert (np.diff(arrays["cu_k"]) > 0).all()


def test_the_same_recipe_always_builds_the_same_bytes() -> None:
    assert [PACKED_BACKWARD_CASES.build(r).hash for r in DESIGNED] == [PACKED_BACKWARD_CASES.build(r).hash for r in DESIGNED]


def test_the_backward_oracle_takes_every_case_and_answers_in_finite_numbers() -> None:
    for recipe in DESIGNED:
        case = PACKED_BACKWARD_CASES.build(recipe)
        assert case.operation == "attention_packed_backward"
        assert all(np.isfinite(gradient).all() for gradient in attention_packed_backward(**case.arguments()).values())
