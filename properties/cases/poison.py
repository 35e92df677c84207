"""Poison: large finite numbers behind masks, NaN where no query of a sequence may look. What is visible is given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.reference import FloatFormat

Array = NDArray[Any]


def poison(q: Array, k: Array, v: Array, dout: Array, *, visible: NDArray[np.bool_], beyond: NDArray[np.bool_], scale: float,
           nonfinite: bool, generator: np.random.Generator) -> tuple[Array, Array, str | None]:
    """k and v with everything that no query of their key head sees replaced, and what they now hold: "finite", "nan" or None.

        |k| <= min(1e30, max / 8, max / (8 D max|q| max(1, |scale|)))      so that every partial sum of a score stays finite
        |v| <= min(1e30, max / 8, max / (8 Dv max|dout|))                  so that every partial sum of dout v^T does

    with the largest number max of the format (of float32 in the last term for 8 bits and fewer), and 1e300 for 1e30 in
    float64. None: nothing was hidden. nonfinite: the keys past the end of the sequence, marked by beyond, become NaN in v,
    and NaN, inf and -inf in turn in k. q `(..., Hq, Lq, D)`, k `(..., Hkv, Lk, D)`, v `(..., Hkv, Lk, Dv)`,
    dout `(..., Hq, Lq, Dv)`, visible `(..., Hq, Lq, Lk)`, beyond `(..., Lk)`. k and v themselves are left alone.

    Source: the rules for poison in the contract; larger numbers make legal additive masks overflow.
    """
    fmt = FloatFormat(q.dtype.name)
    *outer, Hkv, Lk, D = k.shape
    Hq, Lq = visible.shape[-3:-1]
    hidden = ~visible.reshape(*outer, Hkv, Hq // Hkv * Lq, Lk).any(axis=-2)                       # (..., Hkv, Lk)
    if not hidden.any():
        return k, v, None
    factor = max(1.0, abs(scale))
    k, v = k.copy(), v.copy()
    k[hidden] = _large((int(hidden.sum()), D), _largest(fmt, D * factor, q), fmt, generator)
    v[hidden] = _large((int(hidden.sum()), v.shape[-1]), _largest(fmt, v.shape[-1], dout), fmt, generator)
    past = np.broadcast_to(beyond[..., None, :], hidden.shape)
    if not (nonfinite and fmt.has_nan and past.any()):
        return k, v, "finite"
    v[past] = np.nan
    kinds = np.array([np.nan, np.inf, -np.inf] if fmt.has_infinity else [np.nan]).astype(k.dtype)
    k[past] = kinds[np.arange(int(past.sum())) % len(kinds)][:, None]
    return k, v, "nan"


def _largest(fmt: FloatFormat, terms: float, other: Array) -> float:
    top = fmt.max if fmt.fraction_bits >= 7 else FloatFormat("float32").max       # nobody keeps scores in 8 bits
    largest = float(np.abs(other.astype(np.float64)).max(initial=fmt.tiny))
    return min(1e300 if fmt.name == "float64" else 1e30, fmt.max / 8, top / 8 / terms / largest)


def _large(shape: tuple[int, int], largest: float, fmt: FloatFormat, generator: np.random.Generator) -> Array:
    """Rows of numbers of either sign, in [largest / 2, largest], rounded."""
    signs = generator.integers(0, 2, shape) * 2.0 - 1.0
    return fmt.cast(signs * largest * generator.uniform(0.5, 1.0, shape))
