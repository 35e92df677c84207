"""Balls: arrays of exact numbers for ball arithmetic, and the few operations on them that every formula needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .certified import Balls, flint


def exact(x: ArrayLike) -> Balls:
    """The numbers of an array as balls of radius 0. Raises ValueError for NaN and infinity, which are no numbers."""
    wide = np.asarray(x).astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("x: got NaN or infinity; want numbers")
    return elementwise(flint().arb, wide)


def elementwise(function: Callable[..., Any], *arrays: Any) -> Balls:
    """A function of one ball each, applied to every element."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), dtype=object).reshape(np.broadcast_shapes(*map(np.shape, arrays)))


def product(a: Balls, b: Balls) -> Balls:
    """Matrix product (m, k) (k, n) -> (m, n); the empty sum is 0."""
    (m, k), (_, n) = a.shape, b.shape
    if 0 in (m, k, n):
        return exact(np.zeros((m, n)))
    matrix = flint().arb_mat
    return np.asarray((matrix(a.tolist()) * matrix(b.tolist())).tolist(), dtype=object).reshape(m, n)


def total(x: Balls, axis: int | tuple[int, ...] | None = None) -> Balls:
    """The sum along axes; the empty sum is 0."""
    return np.asarray(x.sum(axis=axis, initial=flint().arb(0)), dtype=object)


def middles(x: Balls) -> NDArray[np.float64]:
    """Centres as float64, for choices that need no proof, such as what to subtract from exponents."""
    return np.asarray(np.frompyfunc(float, 1, 1)(x), dtype=np.float64).reshape(x.shape)
