"""What one rounding, and a sum of n terms, may cost in each declared format. What is summed is left to the other modules.

The model of every operation: fl(x op y) = (x op y)(1 + d) + e with |d| <= u and |e| <= eta, u the unit roundoff of the
format and eta what underflow may lose. It holds for fused and unfused operations, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import FloatFormat
from oracles.reference.arguments import Float64

# Bounds are computed in float64 and square their operands: beyond this nothing is promised, and the bound is inf.
_SQUARE_FITS = 2.0**500


@dataclass(frozen=True)
class Rounding:
    """One rounding to a format: relative error u, absolute error eta of underflow, the largest number.

    eta is half the smallest subnormal number under gradual underflow, the smallest normal one where subnormal results
    may become zero. `Rounding(0, 0, largest)` is no rounding at all.
    """

    u: float
    eta: float
    largest: float

    def bound(self, x: Float64, error: Float64 | float = 0.0) -> Float64:
        """The error of a value rounded to this format, when it is x give or take `error` before.

            error + u (|x| + error) + min(eta, |x| + error)

        inf where the value may pass the largest number, exactly 0 where x and error are 0.

        >>> Rounding(u=2.0**-8, eta=0.0, largest=100.0).bound(np.array([0.0, 2.0, 100.0]), np.array([0.0, 0.0, 1.0]))
        array([0.       , 0.0078125,       inf])
        """
        most = np.abs(x) + error
        return np.asarray(np.where(most > self.largest, np.inf, error + self.u * most + np.minimum(self.eta, most)))


@dataclass(frozen=True)
class Roundings:
    """A `Rounding` for every format an arithmetic names, under the names it uses.

    `probabilities` and `scores` round nothing where that format holds every number of `elementwise`, and `gradient` and
    `projected` nothing where it holds every number of `accumulate`: storing there is exact. `function_exp` and so on are the
    relative errors of the functions. `declared` is the arithmetic they come from.
    """

    declared: ResolvedArithmetic
    inputs: Rounding
    out: Rounding
    accumulate: Rounding
    elementwise: Rounding
    probabilities: Rounding
    scores: Rounding
    lse: Rounding
    gradient: Rounding
    moments: Rounding
    phases: Rounding
    projected: Rounding

    @property
    def rescale_u(self) -> float:
        """A multiplication of an accumulator may be done in either format."""
        return max(self.accumulate.u, self.elementwise.u)

    @property
    def exp_cost(self) -> float:
        """-ln(1 - error of exp): what one exp may add to, or take from, the logarithm of its value."""
        return relative_cost(self.declared.exp_ulps * self.elementwise.u)


@lru_cache(maxsize=256)
def roundings(arithmetic: ResolvedArithmetic) -> Roundings:
    """The roundings of an arithmetic. Truncating accumulation loses twice as much.

    >>> from oracles.properties import Arithmetic
    >>> r = roundings(Arithmetic(truncating=True).resolve("bfloat16"))
    >>> r.out.u == 2.0**-8, r.accumulate.u == 2.0**-23, r.probabilities.u
    (True, True, 0.0)
    """
    def plain(name: str, source: str | None = None, factor: float = 1.0) -> Rounding:
        f = FloatFormat(name)
        largest = min(f.max, _SQUARE_FITS)
        if source is not None and holds(f, FloatFormat(source)):
            return Rounding(0.0, 0.0, largest)
        return Rounding(factor * f.unit_roundoff, factor * underflow_unit(name, arithmetic.flush_to_zero), largest)

    a = arithmetic
    return Roundings(
        a, inputs=plain(a.inputs), out=plain(a.out), accumulate=plain(a.accumulate, factor=2.0 if a.truncating else 1.0),
        elementwise=plain(a.elementwise), probabilities=plain(a.probabilities, a.elementwise), scores=plain(a.scores, a.elementwise),
        lse=plain(a.lse), gradient=plain(a.gradient, a.accumulate), moments=plain(a.moments), phases=plain(a.phases),
        projected=plain(a.projected, a.accumulate))


def underflow_unit(name: str, flush_to_zero: bool) -> float:
    """The largest absolute error of underflow in a format: half the smallest subnormal, or the smallest normal number.

    The latter for float64 too, in which bounds are computed: multiples of half its smallest number would vanish there.

    >>> underflow_unit("float16", False) == 2.0**-25, underflow_unit("float16", True) == 2.0**-14
    (True, True)
    """
    f = FloatFormat(name)
    return f.tiny if flush_to_zero or name == "float64" else f.smallest / 2


def holds(wide: FloatFormat, narrow: FloatFormat) -> bool:
    """Every number of `narrow` is one of `wide`."""
    return (wide.fraction_bits >= narrow.fraction_bits and wide.smallest <= narrow.smallest and wide.max >= narrow.max
            and wide.tiny <= narrow.tiny)


def g(n: Float64 | float, u: float) -> Float64:
    """The largest relative growth of a product of n roundings: g(n, u) = (1 + u)^n - 1.

    A sum of n terms, in whatever order, blocked or not, fused or not, has an error of at most g(n, u) times the sum of
    the absolute values.

    >>> float(g(1.0, 0.25)), float(g(2.0, 0.25))
    (0.25, 0.5625)

    Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1, before the step to n u / (1 - n u).
    """
    return np.asarray(np.expm1(np.asarray(n, np.float64) * np.log1p(u)))


def compound(*relative: Float64 | float) -> Float64:
    """Relative errors one after another: prod (1 + r) - 1.

    >>> float(compound(0.25, 0.25))
    0.5625
    """
    return np.asarray(np.expm1(sum(np.log1p(r) for r in relative)))


def relative_cost(r: float) -> float:
    """-ln(1 - r), the most a relative error of r moves a logarithm; inf from r = 1 on."""
    return float(-np.log1p(-r)) if r < 1.0 else float("inf")


def dot_bound(rounding: Rounding, absolute: Float64 | float, n: Float64 | float) -> Float64:
    """The error of sums of n products whose absolute values sum to `absolute`, before their result is stored elsewhere.

        g(n, u) absolute + 2 n eta (1 + g(n, u))

    Every product and every addition may underflow once. Any order, blocks, fused or not.

    >>> float(dot_bound(Rounding(u=0.25, eta=0.0, largest=9.0), np.array(4.0), 1))
    1.0

    Source: Jeannerod and Rump 2013 (doi 10.1137/120894488) for the sharper n u; g is valid for every n.
    """
    growth = g(n, rounding.u)
    return np.asarray(growth * absolute + 2.0 * np.asarray(n) * rounding.eta * (1.0 + growth))


def underflow(most: Float64, *etas: float) -> Float64:
    """What roundings one after another may lose by underflow of a value of at most `most`: exactly 0 where that is 0.

    Each loses at most its eta, and at most all there is: but a value just above a half of the smallest number is
    rounded up, so the next one may find up to twice as much.

    >>> underflow(np.array([0.0, 1.0, 8.0]), 2.0, 2.0)
    array([0., 3., 4.])
    """
    lost: Float64 = np.zeros_like(most)
    for eta in etas:
        if eta:
            lost = lost + np.minimum(eta, most + lost)
    return lost


def checked(bounds: dict[str, Float64]) -> dict[str, Float64]:
    """The bounds, none of them NaN: a NaN would let everything pass. Raises ArithmeticError."""
    for name, bound in bounds.items():
        if np.isnan(bound).any():
            place = np.argwhere(np.isnan(bound))[0].tolist()
            raise ArithmeticError(f"{name}: the bound is NaN at {place}; want a number or inf everywhere")
    return bounds
