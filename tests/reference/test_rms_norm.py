"""RMSNorm against its formula in exact fractions."""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import rms_norm

pytestmark = pytest.mark.filterwarnings("error")
U = 2.0**-53
EXACT = decimal.Context(prec=50)


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.5])
@pytest.mark.parametrize("D", [1, 3, 64])
def test_it_is_its_formula_within_the_bound(eps: float, D: int) -> None:
    r = np.random.default_rng(D)
    x, weight = r.normal(size=D) * 3, r.normal(size=D)
    with decimal.localcontext(EXACT):
        root = (sum(Decimal(float(a)) ** 2 for a in x) / D + Decimal(eps)).sqrt()
        want = np.array([float(Decimal(float(a)) / root * Decimal(float(w))) for a, w in zip(x, weight)])
    assert (np.abs(rms_norm(x, weight, eps=eps) - want) <= (D / 2 + 6) * U * np.abs(want)).all()


def test_each_vector_by_itself() -> None:
    x, weight = np.random.default_rng(0).normal(size=(2, 3, 4)), np.arange(4.0)
    np.testing.assert_array_equal(rms_norm(x, weight)[1, 2], rms_norm(x[1, 2], weight))


def test_a_vector_of_zeros_is_zero_with_eps_and_nan_without() -> None:
    assert (rms_norm(np.zeros(3), np.ones(3)) == 0).all()
    assert np.isnan(rms_norm(np.zeros(3), np.ones(3), eps=0.0)).all()


def test_narrow_floats_are_widened_exactly() -> None:
    x = np.random.default_rng(0).normal(size=4).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(rms_norm(x, np.ones(4)), rms_norm(x.astype(np.float64), np.ones(4)))


@pytest.mark.parametrize(("given", "words"), [
    (([], []), r"x: got shape \(0,\); want a last axis of at least 1"),
    ((np.ones(3), np.ones(4)), r"weight: got shape \(4,\); want \(3,\)"),
])
def test_shapes_that_do_not_fit_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rms_norm(*given)
    with pytest.raises(ValueError, match=r"eps: got -1\.0; want a finite number >= 0"):
        rms_norm(np.ones(3), np.ones(3), eps=-1.0)
