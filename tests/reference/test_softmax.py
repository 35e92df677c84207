"""Softmax and log-sum-exp against decimal arithmetic of 60 digits, and against one another."""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import attention, log_sum_exp, merge_attention, online_softmax, softmax

U = 2.0**-53
EXACT = decimal.Context(prec=60)

pytestmark = pytest.mark.filterwarnings("error")
ROWS = {
    "normal": np.random.default_rng(1).normal(size=37),
    "wide": np.random.default_rng(2).normal(size=53) * 200,
    "one key leads by 40": np.array([0.0, -40.0, -41.5, -40.25]),
    "a tiny maximum": np.array([3.704484891371765e-15, -32.24088816148505]),   # 22 ulp if x - m is rounded
    "near overflow": np.array([1e308, 1e308, -1e308]),
    "subnormal": np.array([5e-324, 0.0, -5e-324]),
    "constant": np.full(101, 0.7),
    "one": np.array([0.3]),
    "negative": np.array([-3.0, -2.5, -9.0]),
}


def decimal_softmax(x: np.ndarray) -> tuple[list[Decimal], Decimal]:
    m = Decimal(float(x.max()))
    terms = [EXACT.exp(EXACT.subtract(Decimal(float(value)), m)) for value in x]
    total = Decimal(0)
    for term in terms:
        total = EXACT.add(total, term)
    return [EXACT.divide(term, total) for term in terms], EXACT.add(m, EXACT.ln(total))


def spread(x: np.ndarray) -> np.ndarray:
    """m - x; past 1,000 the softmax is 0 and any number will do."""
    return 2 * np.minimum(x.max() / 2 - x / 2, 500.0)


@pytest.mark.parametrize("name", ROWS)
def test_softmax_is_within_its_bound(name: str) -> None:
    x = ROWS[name]
    exact = np.array([float(value) for value in decimal_softmax(x)[0]])
    bound = (len(x) + 6 + spread(x)) * U * exact + 2.0**-1074
    assert (np.abs(softmax(x) - exact) <= bound).all()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("block", [1, 2, 16, 1000])
def test_online_softmax_is_within_its_bound(name: str, block: int) -> None:
    x = ROWS[name]
    exact = np.array([float(value) for value in decimal_softmax(x)[0]])
    blocks = -(-len(x) // block)
    bound = (len(x) + 6 + 3 * blocks + 2 * spread(x)) * U * exact + 2.0**-1074
    assert (np.abs(online_softmax(x, block=block) - exact) <= bound).all()


@pytest.mark.parametrize("name", ROWS)
def test_log_sum_exp_is_within_4_ulp_of_the_larger_of_itself_and_the_maximum(name: str) -> None:
    x = ROWS[name]
    exact = decimal_softmax(x)[1]
    ulp = np.spacing(max(abs(float(exact)), abs(float(x.max()))))
    assert abs(Decimal(float(log_sum_exp(x))) - exact) <= 4 * Decimal(float(ulp))


def test_log_sum_exp_keeps_the_digits_of_a_sum_just_above_one() -> None:
    x = np.array([0.0, -50.0, -51.0])
    exact = float(decimal_softmax(x)[1])
    assert abs(float(log_sum_exp(x)) - exact) <= 4 * np.spacing(exact)


def test_log_sum_exp_of_n_equal_numbers_is_the_number_plus_log_n() -> None:
    assert log_sum_exp(np.zeros(8)) == np.log(8.0)


SPECIAL = {"empty": ([], [], -np.inf), "all minus infinity": ([-np.inf] * 2, [0.0, 0.0], -np.inf),
           "a minus infinity": ([-np.inf, 3.0], [0.0, 1.0], 3.0), "nan": ([np.nan, 0.0], [np.nan] * 2, np.nan),
           "nan beside minus infinity": ([-np.inf, np.nan], [np.nan] * 2, np.nan), "plus infinity": ([np.inf, 0.0], [np.nan] * 2, np.nan)}


@pytest.mark.parametrize("name", SPECIAL)
def test_softmax_of_special_rows(name: str) -> None:
    x, p, _ = SPECIAL[name]
    np.testing.assert_array_equal(softmax(np.array(x, float)), np.array(p, float))


@pytest.mark.parametrize("name", SPECIAL)
def test_online_softmax_of_special_rows(name: str) -> None:
    x, p, _ = SPECIAL[name]
    np.testing.assert_array_equal(online_softmax(np.array(x, float), block=1), np.array(p, float))


@pytest.mark.parametrize("name", SPECIAL)
def test_log_sum_exp_of_special_rows(name: str) -> None:
    x, _, lse = SPECIAL[name]
    np.testing.assert_array_equal(log_sum_exp(np.array(x, float)), lse)


def test_any_axis_can_be_chosen() -> None:
    x = np.random.default_rng(3).normal(size=(3, 4, 5))
    np.testing.assert_array_equal(softmax(x, axis=1), np.moveaxis(softmax(np.moveaxis(x, 1, -1).copy()), -1, 1))


def test_log_sum_exp_loses_the_axis_it_sums() -> None:
    assert log_sum_exp(np.zeros((3, 4, 5)), axis=0).shape == (4, 5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_narrow_floats_are_widened_exactly(dtype: Any) -> None:
    x = np.random.default_rng(4).normal(size=9).astype(dtype)
    np.testing.assert_array_equal(softmax(x), softmax(x.astype(np.float64)))


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: softmax([1, 2]), TypeError, "x: got dtype int64; want a float of at most 64 bits"),
    (lambda: softmax(np.zeros(2, np.longdouble)), TypeError, "x: got dtype (longdouble|float128)"),
    (lambda: softmax(np.zeros((2, 2)), axis=2), ValueError, r"axis: got 2 for x of shape \(2, 2\); want -2..1"),
    (lambda: log_sum_exp(np.float64(1.0)), ValueError, r"axis: got -1 for x of shape \(\)"),
    (lambda: online_softmax([1.0], block=0), ValueError, "block: got 0; want a whole number >= 1"),
    (lambda: merge_attention(np.zeros((2, 1)), np.zeros(2), np.zeros((3, 1)), np.zeros(3)), ValueError, r"out_b: got shape \(3, 1\)"),
    (lambda: merge_attention(np.zeros((2, 1)), np.zeros(1), np.zeros((2, 1)), np.zeros(1)), ValueError, r"lse_a: got shape \(1,\)"),
])
def test_bad_input_is_refused_by_name(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def parts(cut: int) -> tuple[tuple[np.ndarray, ...], ...]:
    r = np.random.default_rng(5)
    q, k, v = r.normal(size=(1, 2, 3, 4)), r.normal(size=(1, 2, 7, 4)), r.normal(size=(1, 2, 7, 5))
    whole, first, rest = (attention(q, k[..., part, :], v[..., part, :], causal=None)
                          for part in (slice(None), slice(0, cut), slice(cut, None)))
    return whole, first, rest, (q, k, v)


@pytest.mark.parametrize("cut", [0, 1, 3, 7])
def test_merged_parts_are_the_whole(cut: int, rounding: Any) -> None:
    whole, a, b, arrays = parts(cut)
    bound = rounding(*arrays, {"causal": None})
    out, lse = merge_attention(*a, *b)
    assert (np.abs(out - whole[0]) <= 3 * bound.out()).all()                    # the whole, the parts, their merging
    assert (np.abs(lse - whole[1]) <= 3 * bound.of_lse()).all()


def test_nothing_is_neutral_to_the_bit() -> None:
    (out, lse), *_ = parts(0)
    merged = merge_attention(out, lse, np.full_like(out, np.nan), np.full_like(lse, -np.inf))
    assert (merged[0] == out).all()
    assert (merged[1] == lse).all()


def test_two_empty_parts_make_an_empty_whole() -> None:
    out, lse = merge_attention(np.zeros((1, 2)), np.array([-np.inf]), np.zeros((1, 2)), np.array([-np.inf]))
    assert out.tolist() == [[0.0, 0.0]]
    assert lse.tolist() == [-np.inf]


def test_merging_commutes_to_the_bit() -> None:
    _, a, b, _ = parts(3)
    for x, y in zip(merge_attention(*a, *b), merge_attention(*b, *a)):
        assert (x == y).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_lse_that_is_no_number_makes_the_row_nan(bad: float) -> None:
    out, lse = merge_attention(np.ones((1, 2)), np.array([0.0]), np.ones((1, 2)), np.array([bad]))
    assert np.isnan(out).all()
    assert np.isnan(lse).all()


def test_a_merged_lse_near_zero_keeps_its_digits() -> None:
    _, lse = merge_attention(np.ones((1, 1)), np.array([0.0]), np.ones((1, 1)), np.array([-45.0]))
    assert lse[0] == np.log1p(np.exp(-45.0))
