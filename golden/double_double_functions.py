"""Elementary functions of double-doubles: exp, expm1, log, log1p, tanh, sin and cos, each by its series after a reduction.

Relative errors in u = 2^-53, for results that are normal numbers; each is an exact 0, or 1, where the true value is that at 0:

    exp, expm1     64 u^2      argument reduced by k ln 2, halved 9 times, 10 terms of the series, s = 2 s + s^2 nine times
    log, log1p    128 u^2      one Newton step on expm1 from the float64 logarithm
    tanh          128 u^2      -t / (t + 2), t = expm1(-2 |x|)
    sin, cos       64 u^2, and 16 u^2 |x| absolute from |x| = pi/4 on: a multiple of pi/2 is taken off, known to 212 bits

Where they come from, for exp: the series keeps 10 u^2, each of nine doublings adds 3 u^2 and 7 u^2 of the small s^2, 40 u^2 in all of
e^r - 1, which is at most 0.42; the argument itself is off by 4 u^2; the last sum adds 3 u^2. The others follow from that of expm1.
Measured against ball arithmetic the worst are below an eighth of these.

Source: Hida, Li and Bailey 2001 (doi 10.1109/ARITH.2001.930115), section 4, for the reductions.
"""

from __future__ import annotations

from fractions import Fraction
from math import factorial

import numpy as np

from .double_double import DD, exact, two_prod, two_sum, where

EXP_BOUND, LOG_BOUND, TANH_BOUND, TRIG_BOUND = 64.0, 128.0, 128.0, 64.0         # in u^2

# ln 2 in two parts of 42 bits, so that their products with k below 2^11 are exact, and the rest; pi/2 in four float64.
_LN2 = tuple(map(float.fromhex, ("0x1.62e42fefa3800p-1", "0x1.ef35793c76000p-45", "0x1.cc01f97b57a08p-87")))
_HALF_PI = tuple(map(float.fromhex, ("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54", "-0x1.f1976b7ed8fbcp-110", "0x1.4cf98e804177dp-164")))
LN2 = DD(np.float64(float.fromhex("0x1.62e42fefa39efp-1")), np.float64(float.fromhex("0x1.abc9e3b39803fp-56")))  # type: ignore[arg-type]
PI = DD(np.float64(float.fromhex("0x1.921fb54442d18p+1")), np.float64(float.fromhex("0x1.1a62633145c07p-53")))  # type: ignore[arg-type]
_HALVINGS, _TERMS = 9, 10


def of_fraction(x: Fraction) -> DD:
    """The double-double nearest to a fraction."""
    hi = x.numerator / x.denominator
    rest = x - Fraction(hi)
    return DD(np.asarray(hi), np.asarray(rest.numerator / rest.denominator))


_INVERSE_FACTORIALS = [of_fraction(Fraction(1, factorial(n))) for n in range(31)]


def expm1(x: DD) -> DD:
    """e^x - 1; below -760 an exact -1."""
    k, s = _reduced(x)
    return where(x.hi < -760.0, -1.0, s.scaled(k) + DD(*two_sum(np.ldexp(1.0, k), np.asarray(-1.0))))


def exp(x: DD) -> DD:
    """e^x; 0 below -760, where float64 has nothing left."""
    k, s = _reduced(x)
    return where(x.hi < -760.0, 0.0, (s + 1.0).scaled(k))


def _reduced(x: DD) -> tuple[np.ndarray, DD]:
    """k and e^(x - k ln 2) - 1. Every s (2 + s) of the doublings keeps its relative error, as s has one sign."""
    x = where(x.hi < -760.0, 0.0, x)
    k = np.rint(x.hi / _LN2[0])
    r = x - k * _LN2[0] - k * _LN2[1] - DD(*two_prod(k, np.asarray(_LN2[2])))
    r = r.scaled(-_HALVINGS)
    s = _INVERSE_FACTORIALS[_TERMS]
    for n in reversed(range(1, _TERMS)):
        s = s * r + _INVERSE_FACTORIALS[n]
    s = s * r
    for _ in range(_HALVINGS):
        s = s.scaled(1) + s * s
    return k.astype(np.int64), s


def log(x: DD) -> DD:
    """ln x of x > 0: m 2^e with m about 1, e ln 2 + log1p(m - 1)."""
    _, e = np.frexp(x.hi / np.sqrt(0.5))                                        # m in [sqrt(1/2), sqrt 2)
    e = e - 1
    m = x.scaled(-e)
    return where(e == 0, _log1p(m - 1.0), LN2 * e.astype(np.float64) + _log1p(m - 1.0))


def log1p(z: DD) -> DD:
    """ln(1 + z) of z > -1."""
    near = (z.hi > -0.29) & (z.hi < 0.41)
    return where(near, _log1p(where(near, z, 0.0)), log(where(near, 0.0, z) + 1.0))


def _log1p(z: DD) -> DD:
    y = exact(np.log1p(z.hi))
    e = expm1(y)
    return y + (z - e) / (e + 1.0)


def tanh(x: DD) -> DD:
    """tanh x, odd."""
    sign = np.where(x.hi < 0.0, -1.0, 1.0)
    t = expm1(x * (-2.0 * sign))
    return -(t / (t + 2.0)) * sign


def sin_cos(x: DD) -> tuple[DD, DD]:
    """sin x and cos x, |x| up to 2^60."""
    k = np.rint(x.hi / _HALF_PI[0])
    p, e = two_prod(k, np.asarray(_HALF_PI[0]))
    r = DD(*two_sum(x.hi, -p)) + x.lo - e
    for part in _HALF_PI[1:]:
        r = r - DD(*two_prod(k, np.asarray(part)))
    square = r * r
    s, c = _series(square, 29) * r, _series(square, 30)
    quarter = np.mod(k, 4.0)
    sine = where(quarter == 0.0, s, where(quarter == 1.0, c, where(quarter == 2.0, -s, -c)))
    cosine = where(quarter == 0.0, c, where(quarter == 1.0, -s, where(quarter == 2.0, -c, s)))
    return sine, cosine


def _series(square: DD, last: int) -> DD:
    """sum of (-1)^i square^i / n! over n = last % 2, last % 2 + 2, … last: of sin x / x for an odd last, of cos x for an even one."""
    result = _INVERSE_FACTORIALS[last]
    for n in reversed(range(last % 2, last, 2)):
        result = _INVERSE_FACTORIALS[n] - result * square
    return result


def power(base: DD, exponent: DD) -> DD:
    """base^exponent of base > 0; 1 exactly for an exponent of 0."""
    return exp(exponent * log(base))
