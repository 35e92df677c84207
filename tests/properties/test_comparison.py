"""Comparing: NaN, infinities, bounds of 0 and of infinity, nothing at all."""

from __future__ import annotations

import math

import numpy as np
import pytest

from oracles.properties.comparison import compare, ratios
from oracles.properties.law import Evidence, of_comparisons, within

NAN, INF = math.nan, math.inf
# got, wanted, allowed: the ratio
RATIOS: dict[str, tuple[float, float, float, float]] = {
    "right without a bound": (1.0, 1.0, 0.0, 0.0),
    "wrong without a bound": (1.0, 2.0, 0.0, INF),
    "half of the bound": (1.0, 1.5, 1.0, 0.5),
    "exactly the bound": (1.0, 2.0, 1.0, 1.0),
    "four times the bound": (-1.0, 1.0, 0.5, 4.0),
    "zeros of either sign": (-0.0, 0.0, 0.0, 0.0),
    "NaN wanted and got": (NAN, NAN, 1.0, 0.0),
    "NaN wanted, a number got": (1.0, NAN, 1.0, INF),
    "a number wanted, NaN got": (NAN, 1.0, 1.0, INF),
    "NaN got without a bound": (NAN, 1.0, 0.0, INF),
    "infinity wanted and got": (INF, INF, 1.0, 0.0),
    "the other infinity": (-INF, INF, 1.0, INF),
    "a number where infinity is wanted": (1e308, INF, 1.0, INF),
    "infinity where a number is wanted": (INF, 1.0, 1.0, INF),
    "an error that overflows": (1e308, -1e308, 1e308, INF),
    "NaN where nothing is promised": (NAN, 1.0, INF, 0.0),
    "infinity where nothing is promised": (INF, 1.0, INF, 0.0),
    "a subnormal bound": (0.0, 5e-324, 5e-324, 1.0),
}


@pytest.mark.parametrize("name", RATIOS)
def test_the_ratio_of(name: str) -> None:
    got, wanted, allowed, ratio = RATIOS[name]
    assert ratios(np.array([got]), np.array([wanted]), np.array([allowed])).tolist() == [ratio]


@pytest.mark.parametrize("name", [name for name, row in RATIOS.items() if row[2] < INF])
def test_a_comparison_fails_exactly_where_the_ratio_is_above_one(name: str) -> None:
    got, wanted, allowed, ratio = RATIOS[name]
    assert compare("out", np.array([got]), np.array([wanted]), np.array([allowed])).failed == (ratio > 1)


def test_nan_in_a_bound_is_an_error() -> None:
    with pytest.raises(ValueError, match="allowed: got NaN; want a bound"):
        compare("out", np.ones(2), np.ones(2), np.array([1.0, NAN]))


def test_a_bound_of_nan_among_infinite_ones_is_an_error_too() -> None:
    with pytest.raises(ValueError, match="allowed: got NaN"):
        compare("out", np.ones(2), np.ones(2), np.array([INF, NAN]))


def test_what_is_not_promised_is_left_out_and_counted() -> None:
    found = compare("out", np.array([1.0, 5.0, NAN]), np.array([1.0, 1.0, 1.0]), np.array([1.0, INF, INF]))
    assert (found.compared, found.left_out, found.failed, found.worst_at) == (1, 2, False, (0,))


@pytest.mark.parametrize("allowed", [np.zeros((0, 3)), np.full((2, 3), INF)], ids=["empty", "no promise"])
def test_nothing_compared_is_not_a_success(allowed: np.ndarray) -> None:
    found = compare("out", np.zeros(allowed.shape), np.zeros(allowed.shape), allowed)
    assert (found.compared, found.worst_at, str(found)) == (0, None, "out: nothing compared")
    judgement = of_comparisons([found], Evidence())
    assert (judgement.compared, judgement.failed) == (0, False)


def test_the_worst_element_is_found_and_told() -> None:
    found = compare("out", np.array([[1.0, 2.0], [3.0, 9.0]]), np.array([[1.0, 2.5], [3.0, 4.0]]), np.ones((2, 2)))
    assert (found.worst_at, found.worst_ratio, found.place) == ((1, 1), 5.0, "out[1,1]")
    assert str(found) == "out[1,1] is 9, wanted 4 within 1: 5 of what is allowed"


def test_an_array_of_no_axis_is_named_without_brackets() -> None:
    assert str(compare("loss", np.array(2.0), np.array(1.0), np.array(0.5))) == "loss is 2, wanted 1 within 0.5: 2 of what is allowed"


def test_formats_are_compared_exactly_in_float64() -> None:
    assert compare("out", np.array([0.1], np.float32), np.array([0.1]), np.zeros(1)).failed


def test_a_judgement_adds_the_counts_and_keeps_the_worst() -> None:
    outputs = {"out": np.array([1.0, 2.0]), "lse": np.array([4.0])}
    judgement = within(outputs, {"out": np.array([1.0, 2.5]), "lse": np.array([1.0])}, {"out": np.ones(2), "lse": np.ones(1)})
    assert (judgement.compared, judgement.failed, judgement.worst_ratio, judgement.worst_at) == (3, True, 3.0, "lse[0]")
    assert "lse[0] is 4, wanted 1" in judgement.reason


def test_a_judgement_of_results_that_are_not_there_says_nothing() -> None:
    assert within({}, {"out": np.ones(1)}, {"out": np.ones(1)}).compared == 0
