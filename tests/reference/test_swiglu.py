"""SwiGLU against its formula in decimal."""

from __future__ import annotations

import decimal
from decimal import Decimal

import numpy as np
import pytest

from oracles.reference import swiglu
from oracles.reference.swiglu import silu

pytestmark = pytest.mark.filterwarnings("error")
U = 2.0**-53
EXACT = decimal.Context(prec=50)


def exact_silu(g: Decimal) -> Decimal:
    return g / (1 + EXACT.exp(-g))


@pytest.mark.parametrize("g", [0.0, 1.0, -1.0, 30.0, -30.0, 1e-8, -700.0, 700.0])
def test_silu_is_its_formula_within_the_bound(g: float) -> None:
    with decimal.localcontext(EXACT):
        want = float(exact_silu(Decimal(g)))
    assert abs(float(silu(g)) - want) <= 7 * U * abs(want)


def test_silu_of_a_very_negative_number_is_zero() -> None:
    assert silu(-1e300) == 0.0


def test_it_is_its_formula_within_the_bound() -> None:
    r = np.random.default_rng(0)
    E, F = 3, 5
    x, w_gate, w_up, w_down = (r.normal(size=shape) for shape in ((E,), (E, F), (E, F), (F, E)))
    with decimal.localcontext(EXACT):
        D = [[Decimal(float(y)) for y in row] for row in np.concatenate([w_gate, w_up], axis=1)]
        products = [sum(Decimal(float(x[e])) * D[e][j] for e in range(E)) for j in range(2 * F)]
        h = [exact_silu(products[j]) * products[F + j] for j in range(F)]
        want = np.array([float(sum(h[j] * Decimal(float(w_down[j, e])) for j in range(F))) for e in range(E)])
    g, a, h = (np.array([float(y) for y in z]) for z in (products[:F], products[F:], h))
    d_g, d_a = ((E + 1) * U * (np.abs(x) @ np.abs(w)) for w in (w_gate, w_up))
    d_h = 1.1 * d_g * np.abs(a) + (np.abs(silu(g)) + 1.1 * d_g) * d_a + 8 * U * np.abs(h)
    bound = (d_h + (F + 2) * U * np.abs(h)) @ np.abs(w_down)
    assert (np.abs(swiglu(x, w_gate, w_up, w_down) - want) <= bound).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"w_gate: got shape \(2, 4\) for x \(3,\); want \(3, F\)"):
        swiglu(np.ones(3), np.ones((2, 4)), np.ones((3, 4)), np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"w_up: got shape \(3, 5\); want \(3, 4\)"):
        swiglu(np.ones(3), np.ones((3, 4)), np.ones((3, 5)), np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"w_down: got shape \(3, 4\); want \(4, 3\)"):
        swiglu(np.ones(3), np.ones((3, 4)), np.ones((3, 4)), np.ones((3, 4)))
