"""Certified: real numbers known as balls to any precision, each rounded to two limbs only when the rounding is proven.

    hi = RN64(x),   lo = RN64(x - hi)

A ball holds the exact result. Where both of its ends round to one number, so does everything between them. Where they do not, the
balls are computed again with more bits (Ziv 1991); exact results come out as balls of radius 0 in the end, ties included.
Needs python-flint, an extra: pip install 'oracles[certify]'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Balls = NDArray[np.object_]                                                     # of arb, and of floats where a value is inf or exact
Float64 = NDArray[np.float64]

PRECISIONS = (192, 320, 640, 1280, 2560, 5120, 10240)                           # bits


class Unproven(ArithmeticError):
    """Some value could not be rounded with proof; the golden file must not be written."""


@dataclass(frozen=True)
class Limbs:
    """x to 106 bits: hi the correctly rounded float64, lo the correctly rounded rest. inf and -inf have lo = 0."""

    hi: Float64
    lo: Float64


def flint() -> Any:
    """python-flint. Raises ImportError that names the extra where it is missing."""
    try:
        import flint as module
    except ImportError:
        raise ImportError("certify: python-flint is not installed; want it: pip install 'oracles[certify]'") from None
    return module


def certified(evaluate: Callable[[], Mapping[str, Balls]]) -> tuple[dict[str, Limbs], int]:
    """The limbs of every result, and the precision that was needed. `evaluate` computes balls at the precision flint is set to.

    Raises Unproven where the last of `PRECISIONS` leaves an element open.
    """
    context = flint().ctx
    before, hi, lo, open_at = context.prec, {}, {}, {}
    try:
        for precision in PRECISIONS:
            context.prec = precision
            for name, balls in evaluate().items():
                if name not in hi:
                    hi[name], lo[name] = np.full(balls.shape, np.nan), np.full(balls.shape, np.nan)
                    open_at[name] = np.ones(balls.shape, dtype=bool)
                for index in map(tuple, np.argwhere(open_at[name])):
                    limbs = _rounded(balls[index])
                    if limbs is not None:
                        hi[name][index], lo[name][index] = limbs
                        open_at[name][index] = False
            if not any(left.any() for left in open_at.values()):
                return {name: Limbs(hi[name], lo[name]) for name in hi}, precision
    finally:
        context.prec = before
    left = ", ".join(f"{int(places.sum())} of {name}" for name, places in open_at.items() if places.any())
    raise Unproven(f"{left}: not proven at {PRECISIONS[-1]} bits")


def _rounded(x: Any) -> tuple[float, float] | None:
    """The two limbs of a ball, or None where its ends round differently."""
    if isinstance(x, float):                                                    # exact by construction: 0, inf, a copied input
        return x, 0.0
    hi = _common(x)
    if hi is None or not np.isfinite(hi):
        return None if hi is None else (hi, 0.0)
    lo = _common(x - hi)
    return None if lo is None else (hi + 0.0, lo + 0.0)


def _common(x: Any) -> float | None:
    """What both ends of a ball round to, to nearest, ties to even: float() of an exact ball does that."""
    low, high = float(x.lower()), float(x.upper())
    return low if low == high else None
