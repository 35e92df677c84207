"""Double-double: errors against exact fractions within the stated bounds; exact where it says so; large and small numbers."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from oracles.golden import double_double, double_double_functions
from oracles.golden.double_double import DD, exact, sqrt, two_prod, two_sum
from oracles.golden.double_double_functions import EXP_BOUND, LOG_BOUND, TANH_BOUND, TRIG_BOUND, sin_cos

U2 = Fraction(1, 2**106)
N = 400


def drawn(seed: int, low: float, high: float, *, n: int = N, signed: bool = False) -> DD:
    """Double-doubles between low and high, uniform in the logarithm, with full lower halves."""
    g = np.random.default_rng(seed)
    x = np.exp(g.uniform(np.log(low), np.log(high), n)) * (g.choice([-1.0, 1.0], n) if signed else 1.0)
    return DD(x, x * g.uniform(-0.99, 0.99, n) * 2.0**-54)


def fractions(x: DD) -> list[Fraction]:
    return [Fraction(float(hi)) + Fraction(float(lo)) for hi, lo in zip(x.hi.ravel(), x.lo.ravel())]


def worst(got: DD, wanted: list[Fraction]) -> float:
    """The largest relative error in u^2."""
    return max(float(abs(g - w) / abs(w) / U2) if w else float(g != 0) * np.inf for g, w in zip(fractions(got), wanted))


ARITHMETIC: dict[str, tuple[Callable[[DD, DD], DD], Callable[[Fraction, Fraction], Fraction], float]] = {
    "add": (lambda a, b: a + b, lambda a, b: a + b, 3.0 + 2.0**-50),
    "subtract": (lambda a, b: a - b, lambda a, b: a - b, 3.0 + 2.0**-50),
    "multiply": (lambda a, b: a * b, lambda a, b: a * b, 7.0),
    "divide": (lambda a, b: a / b, lambda a, b: a / b, 15.0 + 2.0**-47),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_is_within_its_bound(name: str) -> None:
    operation, truth, bound = ARITHMETIC[name]
    for seed, (low, high) in enumerate([(1e-5, 1e5), (0.5, 2.0), (0.999, 1.001)]):
        a, b = drawn(seed, low, high, signed=True), drawn(seed + 100, low, high, signed=True)
        assert worst(operation(a, b), [truth(x, y) for x, y in zip(fractions(a), fractions(b))]) <= bound


def test_the_root_is_within_its_bound() -> None:
    """|r^2 - a| / a is twice the relative error of r, and its square."""
    a = drawn(7, 1e-9, 1e9)
    r = fractions(sqrt(a))
    assert max(float(abs(x * x - y) / y / U2) for x, y in zip(r, fractions(a))) <= 2.0 * 4.0 * (1.0 + 2.0**-50)
    assert sqrt(exact([0.0, 4.0])).hi.tolist() == [0.0, 2.0]


def test_sums_and_products_of_matrices_are_within_their_bounds() -> None:
    a, b = drawn(1, 1e-3, 1e3, n=15 * 7, signed=True), drawn(2, 1e-3, 1e3, n=7 * 11, signed=True)
    fa, fb = (np.asarray(fractions(x), dtype=object).reshape(shape) for x, shape in ((a, (15, 7)), (b, (7, 11))))
    product = DD(a.hi.reshape(15, 7), a.lo.reshape(15, 7)) @ DD(b.hi.reshape(7, 11), b.lo.reshape(7, 11))
    error = abs(np.asarray(fractions(product), dtype=object).reshape(15, 11) - fa @ fb)
    assert (error <= (abs(fa) @ abs(fb)) * U2 * 7 * 12).all()
    total = DD(a.hi.reshape(15, 7), a.lo.reshape(15, 7)).sum(axis=0)
    assert (abs(np.asarray(fractions(total), dtype=object) - fa.sum(axis=0)) <= abs(fa).sum(axis=0) * U2 * 4 * 4).all()


def test_empty_sums_are_zero_and_axes_may_stay() -> None:
    assert exact(np.ones((2, 0))).sum().hi.tolist() == [0.0, 0.0]
    assert exact(np.ones((2, 3))).sum(keepdims=True).hi.tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize(("a", "b"), [(1e308, 1e-300), (3e300, 1e3), (2.0**1000 + 2.0**950, 3.0), (1.0 + 2.0**-52, 1.0 + 2.0**-52)])
def test_products_are_exact_also_of_large_numbers(a: float, b: float) -> None:
    p, e = (float(x) for x in two_prod(np.float64(a), np.float64(b)))
    assert Fraction(p) + Fraction(e) == Fraction(a) * Fraction(b)


def test_sums_are_exact() -> None:
    a, b = drawn(3, 1e-20, 1e20, signed=True).hi, drawn(4, 1e-20, 1e20, signed=True).hi
    s, e = two_sum(a, b)
    given, kept = ([Fraction(float(x)) + Fraction(float(y)) for x, y in zip(*pair)] for pair in ((a, b), (s, e)))
    assert kept == given


def test_what_is_exact_stays_exact() -> None:
    zero = exact(np.zeros(1))
    for name, value in (("exp", 1.0), ("expm1", 0.0), ("log1p", 0.0), ("tanh", 0.0)):
        got = getattr(double_double_functions, name)(zero)
        assert (got.hi.tolist(), got.lo.tolist()) == ([value], [0.0])
    assert [x.hi.tolist() for x in sin_cos(zero)] == [[0.0], [1.0]]
    assert double_double_functions.log(exact([1.0])).hi.tolist() == [0.0]
    assert (exact([3.0]) / 3.0).hi.tolist() == [1.0]
    assert double_double_functions.exp(exact([-1e6])).hi.tolist() == [0.0]
    assert double_double_functions.expm1(exact([-1e6])).hi.tolist() == [-1.0]


# name: (bound in u^2, ranges of the argument, whether it is drawn on both sides of 0)
FUNCTIONS: dict[str, tuple[float, tuple[tuple[float, float], ...], bool]] = {
    "exp": (EXP_BOUND, ((1e-20, 1e-3), (0.1, 1.0), (1.0, 600.0)), True),
    "expm1": (EXP_BOUND, ((1e-20, 1e-3), (0.1, 1.0), (1.0, 600.0)), True),
    "log": (LOG_BOUND, ((1e-290, 1e290), (0.5, 2.0), (0.999999, 1.000001)), False),
    "log1p": (LOG_BOUND, ((1e-20, 1e-3), (0.1, 0.9), (1.0, 1e290)), False),
    "tanh": (TANH_BOUND, ((1e-20, 1e-3), (0.1, 1.0), (1.0, 50.0)), True),
}


@pytest.mark.certify
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_within_their_bounds_of_ball_arithmetic(name: str) -> None:
    bound, ranges, signed = FUNCTIONS[name]
    for seed, (low, high) in enumerate(ranges):
        x = drawn(seed, low, high, n=5000, signed=signed)
        assert worst_of_balls(getattr(double_double_functions, name)(x), x, lambda ball: getattr(ball, name)()) <= bound / 8.0


@pytest.mark.certify
@pytest.mark.parametrize("which", [0, 1], ids=["sin", "cos"])
def test_sines_are_within_their_bounds_of_ball_arithmetic(which: int) -> None:
    for seed, (low, high) in enumerate([(1e-20, 0.78), (0.5, 20.0), (1.0, 2.0**43)]):
        x = drawn(seed, low, high, n=5000, signed=True)
        far = np.where(np.abs(x.hi) < np.pi / 4, 0.0, 16.0 * np.abs(x.hi))
        assert worst_of_balls(sin_cos(x)[which], x, lambda ball: (ball.sin(), ball.cos())[which], absolute=far, relative=TRIG_BOUND) <= 1.0


def worst_of_balls(got: DD, x: DD, function: Callable, *, absolute: np.ndarray | float = 0.0, relative: float = 1.0) -> float:
    """The largest error over (relative |true| + absolute) u^2, the true value a ball of 500 bits."""
    from flint import arb, ctx

    before, ctx.prec = ctx.prec, 500
    try:
        ratios = []
        for hi, lo, a, b, more in zip(got.hi, got.lo, x.hi, x.lo, np.broadcast_to(absolute, x.shape)):
            true = function(arb(float(a)) + arb(float(b)))
            allowed = (abs(true) * relative + float(more)) / 2**106
            ratios.append(float((abs(arb(float(hi)) + arb(float(lo)) - true) / allowed).upper()))
        return max(ratios)
    finally:
        ctx.prec = before


def test_a_product_that_forgets_the_lower_halves_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DD, "__mul__", lambda a, b: DD(*two_prod(a.hi, exact(b).hi)))
    with pytest.raises(AssertionError):
        test_arithmetic_is_within_its_bound("multiply")


def test_a_split_of_too_many_bits_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double_double, "_SPLITTER", 2.0**24 + 1.0)
    with pytest.raises(AssertionError):
        test_arithmetic_is_within_its_bound("multiply")


def test_the_example_of_the_docstring_runs() -> None:
    ended = doctest.testmod(double_double)
    assert (ended.failed, ended.attempted) == (0, 2)
