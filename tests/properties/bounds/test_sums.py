"""The pieces: one rounding, one sum, and what a bound may never be."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds.sums import Rounding, checked, compound, dot_bound, g, roundings, underflow_unit
from oracles.reference import FloatFormat

FORMATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def test_growth_is_the_product_of_the_roundings() -> None:
    exact = (1 + Fraction(1, 256)) ** 40 - 1
    assert abs(Fraction(float(g(40.0, 2.0**-8))) - exact) <= exact * Fraction(8, 2**53)
    assert compound(2.0**-8, g(39.0, 2.0**-8)) == pytest.approx(float(exact), rel=8 * 2.0**-53)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("flush", [False, True])
def test_one_rounding_never_exceeds_its_bound_and_comes_near_it(name: str, flush: bool) -> None:
    form = FloatFormat(name)
    rng = np.random.default_rng(0)
    top = min(form.max, 2.0**20)
    x = rng.standard_normal(20000) * 2.0 ** rng.uniform(np.log2(form.smallest) - 2, np.log2(top) - 3, 20000)
    rounded = form.round(x)
    rounded = np.where(flush & (np.abs(rounded) < form.tiny), 0.0, rounded)
    r = Rounding(form.unit_roundoff, underflow_unit(name, flush), form.max)
    ratio = np.abs(rounded - x) / r.bound(x)
    assert 0.8 < ratio.max() <= 1.0


@pytest.mark.parametrize("order", ["forward", "backward", "pairs"])
@pytest.mark.parametrize("family", ["random", "one sign", "one large, then halves of its last place"])
def test_a_float32_sum_stays_within_n_roundings_in_any_order(order: str, family: str) -> None:
    n, rng = 512, np.random.default_rng(1)
    a = {"random": rng.standard_normal(n), "one sign": rng.uniform(1, 2, n),
         "one large, then halves of its last place": np.r_[1.0, np.full(n - 1, 2.0**-24)]}[family].astype(np.float32)
    b = np.ones(n, np.float32)
    terms = list((a * b)[::-1] if order == "backward" else a * b)
    while order == "pairs" and len(terms) > 1:
        terms = [x + y for x, y in zip(terms[::2], terms[1::2], strict=True)]
    total = np.float32(0)
    for term in terms:
        total = np.float32(total + term)
    bound = dot_bound(roundings(Arithmetic().resolve("float32")).accumulate, float(np.abs(a.astype(np.float64)).sum()), n)
    error = abs(float(total) - float(a.astype(np.float64).sum()))
    assert error <= bound
    if family.startswith("one large") and order == "forward":
        assert error > 0.9 * bound                                              # the bound is reached: it cannot be made smaller


def test_storing_in_a_wider_format_rounds_nothing() -> None:
    r = roundings(Arithmetic().resolve("bfloat16"))
    assert (r.probabilities.u, r.scores.u, r.gradient.u, r.scores.eta) == (0.0, 0.0, 0.0, 0.0)
    narrow = roundings(Arithmetic(probabilities="input", scores="float16", gradient="bfloat16").resolve("bfloat16"))
    assert (narrow.probabilities.u, narrow.scores.u, narrow.gradient.u) == (2.0**-8, 2.0**-11, 2.0**-8)


def test_truncation_doubles_what_the_accumulator_loses() -> None:
    plain, truncating = (roundings(Arithmetic(truncating=t).resolve("float32")).accumulate for t in (False, True))
    assert (truncating.u, truncating.eta) == (2 * plain.u, 2 * plain.eta)


def test_a_value_past_the_largest_number_is_not_bounded() -> None:
    r = roundings(Arithmetic().resolve("float16")).out
    assert np.isposinf(r.bound(np.array([65505.0, -65505.0]))).all()
    assert np.isfinite(r.bound(np.array([65504.0])))


def test_nothing_is_allowed_where_nothing_can_be_wrong() -> None:
    assert roundings(Arithmetic(flush_to_zero=True).resolve("float16")).out.bound(np.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_a_bound_of_nan_is_an_error() -> None:
    with pytest.raises(ArithmeticError, match=r"out: the bound is NaN at \[1\]"):
        checked({"out": np.array([0.0, np.nan])})
