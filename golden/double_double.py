"""Double-double: numbers as unevaluated sums hi + lo of two float64, some 106 bits, in pure NumPy. Functions stand next door.

Every bound is relative, in u = 2^-53, for normal numbers whose products stay within 2^-960 … 2^1020; below that a product may lose
2^-1074. hi is the float64 nearest to the sum, and 0 has no error: what is exact in float64 stays exact.

    two_sum, two_prod   exact
    a + b               3 u^2 / (1 - 4 u)      Joldes, Muller and Popescu 2017, algorithm 6, theorem 3.1
    a b                 7 u^2                  there, algorithm 10, theorem 5.1, which needs no fused multiplication
    a / b               15 u^2 + 56 u^3        there, algorithm 17, theorem 6.1
    sqrt a              4 u^2                  Lefèvre, Louvet, Muller, Picot and Rideau 2023 have 25/8 u^2
    sum of n            g(ceil(log2 n), 3 u^2 / (1 - 4 u)) sum |x|, added in pairs
    a @ b, k terms      g(k, 7 u^2 + 4 u^2) |a| @ |b|, added in order

Source: Dekker 1971 (doi 10.1007/BF01397083) for split and product; Joldes, Muller and Popescu 2017 (doi 10.1145/3121432); Hida, Li and
Bailey 2001 (doi 10.1109/ARITH.2001.930115) for the care with large numbers; doi 10.1145/3568672 for the root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64 = NDArray[np.float64]

U = 2.0**-53
WORST = 16.0                                                                    # of the bounds of + - * / above, in u^2
_SPLITTER = 2.0**27 + 1.0
_LARGE = 2.0**990                                                               # from here on splitting would overflow


def two_sum(a: Float64, b: Float64) -> tuple[Float64, Float64]:
    """s + e = a + b exactly, s the rounded sum. Source: Knuth 1998, section 4.2.2, theorem B."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def quick_two_sum(a: Float64, b: Float64) -> tuple[Float64, Float64]:
    """The same where |a| >= |b| or a = 0. Source: Dekker 1971."""
    s = a + b
    return s, b - (s - a)


def split(a: Float64) -> tuple[Float64, Float64]:
    """a in two parts of at most 26 bits each. Source: Dekker 1971; scaled down and up again where a is large."""
    large = np.abs(a) > _LARGE
    x = np.where(large, a * 2.0**-28, a)
    t = _SPLITTER * x
    hi = t - (t - x)
    lo = x - hi
    back = np.where(large, 2.0**28, 1.0)
    return hi * back, lo * back


def two_prod(a: Float64, b: Float64) -> tuple[Float64, Float64]:
    """p + e = a b exactly, p the rounded product. Source: Dekker 1971."""
    p = a * b
    (a1, a2), (b1, b2) = split(a), split(b)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


@dataclass(frozen=True, eq=False)
class DD:
    """An array of double-doubles.

    >>> third = exact(1.0) / 3.0
    >>> float(third.hi) == 1 / 3, float(third.lo) == 2.0**-54 / 3
    (True, True)
    """

    hi: Float64
    lo: Float64
    __array_ufunc__ = None                                                      # array + DD is DD's business

    @property
    def shape(self) -> tuple[int, ...]:
        return self.hi.shape

    @property
    def T(self) -> DD:
        """The last two axes exchanged."""
        return DD(self.hi.swapaxes(-1, -2), self.lo.swapaxes(-1, -2))

    def __getitem__(self, key: Any) -> DD:
        return DD(np.asarray(self.hi[key]), np.asarray(self.lo[key]))

    def __neg__(self) -> DD:
        return DD(-self.hi, -self.lo)

    def __add__(self, other: DD | ArrayLike) -> DD:
        b = exact(other)
        s, e = two_sum(self.hi, b.hi)
        t, f = two_sum(self.lo, b.lo)
        s, e = quick_two_sum(s, e + t)
        return DD(*quick_two_sum(s, e + f))

    def __sub__(self, other: DD | ArrayLike) -> DD:
        return self + -exact(other)

    def __rsub__(self, other: ArrayLike) -> DD:
        return exact(other) + -self

    def __mul__(self, other: DD | ArrayLike) -> DD:
        b = exact(other)
        p, e = two_prod(self.hi, b.hi)
        return DD(*quick_two_sum(p, e + (self.hi * b.lo + self.lo * b.hi)))

    def __truediv__(self, other: DD | ArrayLike) -> DD:
        b = exact(other)
        q = self.hi / b.hi
        p, e = two_prod(b.hi, q)
        p, t = quick_two_sum(p, b.lo * q)
        p, e = quick_two_sum(p, t + e)                                          # b q, as in their algorithm 7
        return DD(*quick_two_sum(q, ((self.hi - p) + (self.lo - e)) / b.hi))

    def __matmul__(self, other: DD) -> DD:
        """(..., m, k) @ (..., k, n), axes in front broadcast."""
        front = np.broadcast_shapes(self.shape[:-2], other.shape[:-2])
        result = exact(np.zeros((*front, self.shape[-2], other.shape[-1])))
        for i in range(self.shape[-1]):
            result = result + self[..., :, i : i + 1] * other[..., i : i + 1, :]
        return result

    __radd__, __rmul__ = __add__, __mul__

    def __rtruediv__(self, other: ArrayLike) -> DD:
        return exact(other) / self

    def scaled(self, exponent: Any) -> DD:
        """Times 2^exponent, exactly but for underflow."""
        return DD(np.ldexp(self.hi, exponent), np.ldexp(self.lo, exponent))

    def sum(self, axis: int = -1, *, keepdims: bool = False) -> DD:
        """The sum along an axis, in pairs; the empty sum is 0."""
        x = DD(np.moveaxis(self.hi, axis, 0), np.moveaxis(self.lo, axis, 0))
        if not len(x.hi):
            x = exact(np.zeros((1, *x.shape[1:])))
        while len(x.hi) > 1:
            half = len(x.hi) // 2
            pairs = x[:half] + x[half : 2 * half]
            x = DD(np.concatenate([pairs.hi, x.hi[2 * half :]]), np.concatenate([pairs.lo, x.lo[2 * half :]]))
        return DD(np.moveaxis(x.hi, 0, axis), np.moveaxis(x.lo, 0, axis)) if keepdims else x[0]


def exact(x: DD | ArrayLike) -> DD:
    """The numbers of an array as they are."""
    if isinstance(x, DD):
        return x
    wide = np.asarray(x).astype(np.float64)
    return DD(wide, np.zeros_like(wide))


def where(condition: ArrayLike, a: DD | ArrayLike, b: DD | ArrayLike) -> DD:
    """Elements of a where the condition holds, of b elsewhere."""
    a, b = exact(a), exact(b)
    return DD(np.where(condition, a.hi, b.hi), np.where(condition, a.lo, b.lo))


def sqrt(a: DD) -> DD:
    """The square root of a >= 0."""
    s = np.sqrt(a.hi)
    p, e = two_prod(s, s)
    rest = ((a.hi - p) - e) + a.lo                                              # a.hi - p is exact
    with np.errstate(divide="ignore", invalid="ignore"):
        correction = np.where(s > 0.0, rest / (2.0 * np.where(s > 0.0, s, 1.0)), 0.0)
    return DD(*quick_two_sum(s, correction))
