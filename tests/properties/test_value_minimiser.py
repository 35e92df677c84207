"""The value minimiser makes plain what does not matter, and touches nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracles.properties.case import Case
from oracles.properties.cases.attention import ATTENTION_BACKWARD_CASES, ATTENTION_CASES, AttentionRecipe
from oracles.properties.shrinking import Deadline
from oracles.properties.value_minimiser import minimise_values
from oracles.reference import attention

PATIENCE = 60.0
RECIPE = AttentionRecipe(B=2, Lq=3, Lk=6, D=4, Dv=4, mask="random", kv_lengths="ragged", bias="full", seed=3)


def minimised(case: Case, fails: Any, **options: Any) -> Case:
    return minimise_values(case, fails, until=Deadline.after(PATIENCE), **options)


def test_arrays_that_do_not_matter_become_zero() -> None:
    case = minimised(ATTENTION_CASES.build(RECIPE), lambda c: True)
    assert all(not case.arrays[name].any() for name in ("q", "k", "v", "bias"))


def test_only_the_element_that_matters_is_left_and_it_is_plain() -> None:
    start = ATTENTION_CASES.build(RECIPE)
    i = tuple(int(n) for n in np.argwhere(start.arrays["v"] > 0.6)[0])
    case = minimised(start, lambda c: c.arrays["v"][i] > 0.5)
    assert np.argwhere(case.arrays["v"]).tolist() == [list(i)]
    assert case.arrays["v"][i] in (1.0, 2.0, 4.0)
    assert not case.arrays["q"].any()


def test_a_value_that_no_plainer_one_replaces_keeps_three_bits() -> None:
    start = Case("attention", {"q": np.array([[0.6, 0.2]])}, {"causal": None})
    case = minimised(start, lambda c: bool(0.55 < c.arrays["q"][0, 0] < 0.7))
    assert case.arrays["q"].tolist() == [[0.625, 0.0]]


def test_rows_that_matter_are_told_from_those_that_do_not() -> None:
    case = minimised(ATTENTION_CASES.build(RECIPE), lambda c: bool(c.arrays["k"][1, 0, 2].all()))
    k = case.arrays["k"].copy()
    assert set(np.abs(k[1, 0, 2])) <= {0.125, 0.25, 0.5, 1.0, 2.0}
    k[1, 0, 2] = 0
    assert not k.any()


def test_integers_and_booleans_are_not_touched() -> None:
    start = ATTENTION_CASES.build(RECIPE)
    case = minimised(start, lambda c: True)
    assert np.array_equal(case.arrays["mask"], start.arrays["mask"])
    assert np.array_equal(case.arrays["kv_lengths"], start.arrays["kv_lengths"])


def test_nan_and_infinities_stay() -> None:
    recipe = AttentionRecipe(B=3, Lq=2, Lk=9, D=3, Dv=3, kv_lengths="ragged", bias="minus_infinity", poison=True, seed=4)
    start = ATTENTION_CASES.build(recipe)
    assert start.notes["poison"] == "nan"
    case = minimised(start, lambda c: True)
    for name in ("k", "v", "bias"):
        finite = np.isfinite(start.arrays[name])
        assert not finite.all()
        assert np.array_equal(case.arrays[name][~finite], start.arrays[name][~finite], equal_nan=True)
        assert not case.arrays[name][finite].any()


def test_strides_and_offsets_stay() -> None:
    for layout in ("transposed", "stepped", "offset"):
        start = ATTENTION_CASES.build(AttentionRecipe(Hkv=2, Lq=3, Lk=6, D=4, Dv=4, strides=layout, dtype="bfloat16", seed=3))
        case = minimised(start, lambda c: bool(c.arrays["v"][0, 1, 2, 3]))
        assert case.arrays["v"].strides == start.arrays["v"].strides
        assert np.argwhere(case.arrays["v"]).tolist() == [[0, 1, 2, 3]]


def test_the_case_it_was_given_is_not_changed() -> None:
    start = ATTENTION_CASES.build(RECIPE)
    before = start.hash
    minimised(start, lambda c: True)
    assert start.hash == before


def test_it_is_deterministic() -> None:
    def fails(case: Case) -> bool:
        return bool(np.abs(attention(**case.arguments())[0]).max() > 0.5)

    start = ATTENTION_CASES.build(RECIPE)
    assert fails(start)
    assert minimised(start, fails).hash == minimised(start, fails).hash


def test_the_order_of_the_arrays_does_not_matter() -> None:
    start = ATTENTION_CASES.build(RECIPE)
    for names in (list(start.arrays), list(start.arrays)[::-1]):
        reordered = replace(start, arrays={name: start.arrays[name] for name in names})
        case = minimised(reordered, lambda c: bool(c.arrays["q"].any() or c.arrays["k"].any()))
        assert not case.arrays["k"].any()
        assert case.arrays["q"].any()


def test_out_and_lse_of_a_backward_case_follow_the_other_arrays() -> None:
    start = ATTENTION_BACKWARD_CASES.build(RECIPE)
    case = minimised(start, lambda c: bool(c.arrays["out"].any()), complete=ATTENTION_BACKWARD_CASES.complete)
    assert not case.arrays["dout"].any()
    assert case.arrays["out"].any()
    assert case.arrays["out"].tobytes() == ATTENTION_BACKWARD_CASES.complete(case).arrays["out"].tobytes()
    assert np.count_nonzero(case.arrays["v"]) == 1


def test_what_is_kept_still_fails() -> None:
    def fails(case: Case) -> bool:
        return bool(abs(attention(**case.arguments())[0][0, 0, 0, 0]) > 0.01)

    start = ATTENTION_CASES.build(AttentionRecipe(Lq=2, Lk=5, D=3, Dv=2, seed=3))
    assert fails(start)
    assert fails(minimised(start, fails))


def test_no_time_leaves_the_case_as_it_is() -> None:
    start = ATTENTION_CASES.build(RECIPE)
    assert minimise_values(start, lambda c: True, until=Deadline.after(0.0)) is start


def test_the_largest_number_of_a_format_does_not_overflow_to_infinity() -> None:
    start = Case("attention", {"q": np.array([65504.0, 1.0], dtype=np.float16)}, {"causal": None})
    case = minimised(start, lambda c: bool(c.arrays["q"][0] > 60000))
    assert np.isfinite(case.arrays["q"]).all()
