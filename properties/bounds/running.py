"""Running errors: an array and how far any evaluation of it may be from the exact one, carried from operation to operation.

Where a result is far from its inputs, a decoder's gradient say, no formula of one line bounds it. Each operation here adds to what
its operands bring what itself may round, in any order of its sums; so the same graph that gives the value gives its bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.reference.arguments import Bool, Float64

from .sums import Rounding, g


@dataclass(frozen=True)
class Running:
    """x, and e: |computed - exact| <= e element by element, for every computation in a format of rounding r that takes x's formula.

    As long as nothing overflows: whoever works in a narrow format sees to that.

    >>> one = Running.exact([1.0, 2.0], Rounding(u=0.25, eta=0.0, largest=1e9))
    >>> (one + one).e.tolist(), (one * one).e.tolist()
    ([0.5, 1.0], [0.25, 1.0])

    Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.3, with the second-order terms kept.
    """

    x: Float64
    e: Float64
    r: Rounding

    @classmethod
    def exact(cls, x: ArrayLike, r: Rounding) -> Running:
        """A value that everybody has."""
        x = np.asarray(x, np.float64)
        return cls(x, np.zeros_like(x), r)

    @property
    def size(self) -> Float64:
        """The largest it may have become."""
        return np.asarray(np.abs(self.x) + self.e)

    def rounded(self, x: Float64, e: Float64, times: float = 1.0) -> Running:
        """x known to within e, and `times` roundings of it."""
        return Running(np.asarray(x), np.asarray(e + g(times, self.r.u) * (np.abs(x) + e) + times * self.r.eta * (x != 0)), self.r)

    def shaped(self, change: Callable[[Float64], Float64]) -> Running:
        """Elements moved, copied or left out: nothing rounds."""
        return Running(change(self.x), change(self.e), self.r)

    def at(self, *index: Any) -> Running:
        """The elements at an index."""
        return self.shaped(lambda a: a[index])

    def __add__(self, other: Running) -> Running:
        return self.rounded(self.x + other.x, self.e + other.e)

    def __sub__(self, other: Running) -> Running:
        return self + (-other)

    def __neg__(self) -> Running:
        return Running(-self.x, self.e, self.r)

    def __mul__(self, other: Running) -> Running:
        return self.rounded(self.x * other.x, np.abs(self.x) * other.e + self.e * other.size)

    def times(self, factor: Float64 | float) -> Running:
        """Times a number that everybody has."""
        return self.rounded(self.x * factor, self.e * np.abs(factor))

    def __truediv__(self, other: Running) -> Running:
        """inf where the divisor may be 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            x, least = self.x / other.x, np.abs(other.x) - other.e
            e = np.where(least > 0.0, (self.e + np.abs(x) * other.e) / least, np.inf)
        return self.rounded(np.where(other.x == 0.0, 0.0, x), e)

    def __matmul__(self, other: Running) -> Running:
        """g(n, u) |a| |b| for n terms in any order, and what the factors bring."""
        n, size = self.x.shape[-1], self.size @ other.size
        e = np.abs(self.x) @ other.e + self.e @ other.size + g(float(n), self.r.u) * size + 2.0 * n * self.r.eta
        return Running(self.x @ other.x, e, self.r)

    def sum(self, axis: int | tuple[int, ...]) -> Running:
        """A sum of n terms in any order; the axis stays."""
        x = self.x.sum(axis=axis, keepdims=True)
        n = self.x.size / max(x.size, 1)
        return Running(x, self.e.sum(axis=axis, keepdims=True) + g(n, self.r.u) * self.size.sum(axis=axis, keepdims=True), self.r)

    def exp(self) -> Running:
        """Four roundings of the function."""
        x = np.exp(self.x)
        return self.rounded(x, x * np.expm1(self.e), 4.0)

    def log(self) -> Running:
        """Of a number that is surely above 0, else inf."""
        x = np.log(self.x)
        with np.errstate(divide="ignore", invalid="ignore"):
            e = np.where(self.e < self.x, -np.log1p(-self.e / self.x), np.inf)
        return self.rounded(x, e, 4.0)

    def root(self) -> Running:
        x = np.sqrt(self.x)
        return self.rounded(x, x - np.sqrt(np.maximum(self.x - self.e, 0.0)), 1.0)


def running_softmax(z: Running, seen: Bool | None = None) -> tuple[Running, Running]:
    """The softmax of rows along the last axis over what is seen, and their log-sum-exp (..., 1), at once or from parts.

        d = error of z + u (3 (m - z) + 4 |z| + 4 |lse| + (n + 12))          the exponent: z - m, z - lse, or parts merged by their lse
        |error of p| <= p (e^(d + D) - 1),   D = max over the row of d

    >>> p, lse = running_softmax(Running.exact([[0.0, 0.0]], Rounding(u=2.0**-53, eta=0.0, largest=1e300)))
    >>> p.x.tolist(), bool(p.e.max() < 1e-14), bool(lse.e.max() < 1e-14)
    ([[0.5, 0.5]], True, True)

    Source: as `exponential_weights`, each merge of two parts counted with 4 roundings.
    """
    seen = np.ones(z.x.shape, np.bool_) if seen is None else np.broadcast_to(seen, z.x.shape)
    u, n = z.r.u, z.x.shape[-1]
    m = np.where(seen, z.x, -np.inf).max(axis=-1, keepdims=True)
    e = np.where(seen, np.exp(np.where(seen, z.x - m, 0.0)), 0.0)
    l = e.sum(axis=-1, keepdims=True)
    p, lse = e / l, m + np.log(l)
    d = np.where(seen, z.e + u * (3.0 * np.abs(m - z.x) + 4.0 * (np.abs(z.x) + np.abs(lse) + z.e) + 4.0 * n + 12.0), 0.0)
    D = d.max(axis=-1, keepdims=True)
    lse_e = D + u * (8.0 * np.abs(np.log(l)) + 4.0 * (np.abs(m) + np.abs(lse)))
    return Running(p, p * np.expm1(d + D) + seen * z.r.eta, z.r), Running(lse, lse_e, z.r)
