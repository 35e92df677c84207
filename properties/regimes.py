"""Regimes: the kinds of values a case may hold. Shapes, masks and poison are the business of the case sources.

Every value is finite and one of the format asked for. The same generator state gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.reference import FloatFormat

Float64 = NDArray[np.float64]
Array = NDArray[Any]
Triple = tuple[Float64, Float64, Float64]

REGIMES = ("normal", "integer_grid", "uneven", "peaked", "flat", "huge", "tiny", "constant", "one_hot", "duplicated_keys",
           "outlier_channel", "alternating", "ascending", "descending")


def draw(regime: str, shape: tuple[int, ...], dtype: str, generator: np.random.Generator) -> Array:
    """One array of a regime, for operations on rows along the last axis, such as a softmax.

        x = round(regime(N(0, 1)))     rounded once to the format, past its largest number the largest

    >>> draw("integer_grid", (4,), "bfloat16", np.random.default_rng(0)).astype(float)
    array([0., 0., 1., 0.])

    A regime that speaks of keys means here the entries of a row: "duplicated_keys" repeats values, "ascending" rises
    along a row. Raises ValueError for a regime that is not in `REGIMES`.
    """
    fmt = FloatFormat(dtype)
    return in_format(_chosen(_ROWS, regime)(generator.standard_normal(shape), fmt, generator), fmt)


def draw_attention(regime: str, q_shape: tuple[int, ...], k_shape: tuple[int, ...], v_shape: tuple[int, ...], dtype: str,
                   generator: np.random.Generator, *, scale: float) -> tuple[Array, Array, Array]:
    """q `(..., Lq, D)`, k `(..., Lk, D)` and v `(..., Lk, Dv)` of a regime; the regime describes scores scale * q k^T, and v.

        normal            N(0, 1)
        integer_grid      integers in -4..4, exact in every format of 8 bits or more with their products in 16
        uneven            N(0, 1) times a power of two of its own for each leading index (batch item and head)
        peaked            scores of standard deviation 30: the softmax is nearly one-hot
        flat              scores below 2^-10: the softmax is nearly uniform
        huge              every partial sum of a score stays below 2^-16 of the largest float32 (2^-64 for float64), and near it
                          where the format reaches that far
        tiny              subnormal numbers of the format
        constant          one number per array and leading index
        one_hot           q and k select channels, v is a one-hot of the key tagged by its head
        duplicated_keys   about three equal keys of each kind, with different values
        outlier_channel   one channel some thirty times larger
        alternating       v large and of alternating sign, nearly uniform weights: massive cancellation
        ascending         each key's score above those before it, from 0 to 40: the running maximum moves at every tile
        descending        the same from the other end: the running maximum never moves

    Raises ValueError for a regime that is not in `REGIMES`.
    """
    fmt = FloatFormat(dtype)
    q, k, v = (generator.standard_normal(shape) for shape in (q_shape, k_shape, v_shape))
    q, k, v = _chosen(_ATTENTION, regime)(q, k, v, scale, fmt, generator)
    return in_format(q, fmt), in_format(k, fmt), in_format(v, fmt)


def in_format(x: Float64, fmt: FloatFormat) -> Array:
    """x rounded to the format, clipped to its largest number."""
    return fmt.cast(np.clip(x, -fmt.max, fmt.max))


def _chosen(table: dict[str, Any], regime: str) -> Any:
    if regime not in table:
        raise ValueError(f"regime: got {regime!r}; want one of {', '.join(REGIMES)}")
    return table[regime]


def _uneven(x: Float64, generator: np.random.Generator) -> Float64:
    leading = x.shape[:-2] if x.ndim > 2 else x.shape[:-1]
    factor = np.exp2(generator.integers(-3, 4, leading))
    return np.asarray(x * factor.reshape(leading + (1,) * (x.ndim - len(leading))))


def _subnormal(x: Float64, fmt: FloatFormat) -> Float64:
    """Multiples of the smallest number, below the smallest normal one."""
    steps = 2.0**fmt.fraction_bits
    return np.asarray(np.clip(np.rint(x * steps / 4), 1 - steps, steps - 1) * fmt.smallest)


def _grid(x: Float64) -> Float64:
    return np.asarray(np.clip(np.rint(2 * x), -4, 4) + 0.0)                           # no negative zeros


def _signs(generator: np.random.Generator, shape: tuple[int, ...]) -> Float64:
    return np.asarray(generator.integers(0, 2, shape) * 2.0 - 1.0)


def _away_from_zero(generator: np.random.Generator, shape: tuple[int, ...]) -> Float64:
    """Numbers in [1/2, 1] of either sign."""
    return np.asarray(_signs(generator, shape) * generator.uniform(0.5, 1.0, shape))


def _one_hot_rows(shape: tuple[int, ...], channel: NDArray[np.int64]) -> Float64:
    return np.asarray(channel[..., None] == np.arange(shape[-1]), dtype=np.float64)


# Of one array, the rows along its last axis -------------------------------------------------------------------------

def _row_duplicated(x: Float64, fmt: FloatFormat, generator: np.random.Generator) -> Float64:
    n = x.shape[-1]
    return x[..., generator.integers(0, max(1, n // 3), n)]


def _row_outlier(x: Float64, fmt: FloatFormat, generator: np.random.Generator) -> Float64:
    n = x.shape[-1]
    return np.where(np.arange(n) == generator.integers(0, max(n, 1)), 30 * x, x)


def _row_slope(x: Float64) -> Float64:
    n = x.shape[-1]
    return np.asarray(40 * (np.arange(1, n + 1) + np.tanh(x) / 4) / n)


_ROWS: dict[str, Callable[[Float64, FloatFormat, np.random.Generator], Float64]] = {
    "normal": lambda x, fmt, g: x,
    "integer_grid": lambda x, fmt, g: _grid(x),
    "uneven": lambda x, fmt, g: _uneven(x, g),
    "peaked": lambda x, fmt, g: 30 * x,
    "flat": lambda x, fmt, g: x * 2.0**-12,
    "huge": lambda x, fmt, g: _away_from_zero(g, x.shape) * fmt.max / 4,
    "tiny": lambda x, fmt, g: _subnormal(x, fmt),
    "constant": lambda x, fmt, g: np.broadcast_to(x[..., :1], x.shape).copy(),
    "one_hot": lambda x, fmt, g: 12 * _one_hot_rows(x.shape, g.integers(0, max(x.shape[-1], 1), x.shape[:-1])),
    "duplicated_keys": _row_duplicated,
    "outlier_channel": _row_outlier,
    "alternating": lambda x, fmt, g: np.where(np.arange(x.shape[-1]) % 2, -16.0, 16.0) + x / 64,
    "ascending": lambda x, fmt, g: _row_slope(x),
    "descending": lambda x, fmt, g: _row_slope(x)[..., ::-1].copy(),
}


# Of q, k and v together ---------------------------------------------------------------------------------------------

def _peaked(q: Float64, k: Float64, v: Float64, scale: float, fmt: FloatFormat, generator: np.random.Generator) -> Triple:
    return q * (30 / (abs(scale) * q.shape[-1]**0.5)), k, v


def _huge(q: Float64, k: Float64, v: Float64, scale: float, fmt: FloatFormat, generator: np.random.Generator) -> Triple:
    wide = fmt.max * 2.0**-64 if fmt.name == "float64" else FloatFormat("float32").max * 2.0**-16
    largest = min(fmt.max / 2, (wide / (q.shape[-1] * max(1.0, abs(scale))))**0.5)
    return _away_from_zero(generator, q.shape) * largest, _away_from_zero(generator, k.shape) * largest, v


def _constant(q: Float64, k: Float64, v: Float64, scale: float, fmt: FloatFormat, generator: np.random.Generator) -> Triple:
    def same(x: Float64) -> Float64:
        number = generator.standard_normal((*x.shape[:-2], 1, 1))
        return np.broadcast_to(number, x.shape).copy()

    return same(q), same(k), same(v)


def _one_hot(q: Float64, k: Float64, v: Float64, scale: float, fmt: FloatFormat, generator: np.random.Generator) -> Triple:
    D, Dv = q.shape[-1], v.shape[-1]
    q = _one_hot_rows(q.shape, generator.integers(0, max(D, 1), q.shape[:-1])) * 12 / scale
    k = _one_hot_rows(k.shape, generator.integers(0, max(D, 1), k.shape[:-1]))
    keys = np.broadcast_to(np.arange(v.shape[-2]) % max(Dv, 1), v.shape[:-1])
    tag = 1.0 + np.arange(v.shape[-3])[:, None, None] if v.ndim > 2 else 1.0       # a wrong head map must not hide
    return q, k, _one_hot_rows(v.shape, keys) * tag


def _duplicated(q: Float64, k: Float64, v: Float64, scale: float, fmt: FloatFormat, generator: np.random.Generator) -> Triple:
    Lk = k.shape[-2]
    return q, k[..., generator.integers(0, max(1, Lk // 3), Lk), :], v


def _outlier(q: Float64, k: Float64, v: Float64, scale: float, fmt: FloatFormat, generator: np.random.Generator) -> Triple:
    outlier = np.arange(q.shape[-1]) == generator.integers(0, max(q.shape[-1], 1))
    return q, np.where(outlier, 30 * k, k), v


def _alternating(q: Float64, k: Float64, v: Float64, scale: float, fmt: FloatFormat, generator: np.random.Generator) -> Triple:
    sign = np.where(np.arange(v.shape[-2]) % 2, -1.0, 1.0)[:, None]
    return q * 2.0**-4, k, sign * min(2.0**10, fmt.max / 4) * (1 + v / 64)


def _sloped(q: Float64, k: Float64, v: Float64, scale: float, generator: np.random.Generator, *, down: bool) -> Triple:
    D, Lk = q.shape[-1], k.shape[-2]
    direction = _signs(generator, (D,))
    rise = np.arange(1, Lk + 1)[:, None] / Lk
    rise = rise[::-1] if down else rise
    each = 1 + np.tanh(k[..., :1, :1]) / 8                                          # heads differ, the order of keys does not
    return 40 / (scale * D) * direction * (1 + np.tanh(q) / 8), direction * rise * each, v


_ATTENTION: dict[str, Callable[[Float64, Float64, Float64, float, FloatFormat, np.random.Generator], Triple]] = {
    "normal": lambda q, k, v, scale, fmt, g: (q, k, v),
    "integer_grid": lambda q, k, v, scale, fmt, g: (_grid(q), _grid(k), _grid(v)),
    "uneven": lambda q, k, v, scale, fmt, g: (_uneven(q, g), _uneven(k, g), _uneven(v, g)),
    "peaked": _peaked,
    "flat": lambda q, k, v, scale, fmt, g: (q * 2.0**-9 / max(1.0, abs(scale) * q.shape[-1]), k / 16, v),
    "huge": _huge,
    "tiny": lambda q, k, v, scale, fmt, g: (_subnormal(q, fmt), _subnormal(k, fmt), _subnormal(v, fmt)),
    "constant": _constant,
    "one_hot": _one_hot,
    "duplicated_keys": _duplicated,
    "outlier_channel": _outlier,
    "alternating": _alternating,
    "ascending": lambda q, k, v, scale, fmt, g: _sloped(q, k, v, scale, g, down=False),
    "descending": lambda q, k, v, scale, fmt, g: _sloped(q, k, v, scale, g, down=True),
}
