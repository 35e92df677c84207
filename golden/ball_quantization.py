"""Codes and their scales, numbers made of codes and products of codes in ball arithmetic. A code is proven, or it stays open."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .balls import exact, product
from .certified import Balls, flint


def quantize(x: ArrayLike, *, bits: int, axis: int | None = None, group: int | None = None, symmetric: bool = True,
             scale: ArrayLike | None = None, zero: ArrayLike | None = None) -> dict[str, Balls]:
    """q, scale and zero. Quotients are taken as high x / span, which is exact where the result is, ties of halves included."""
    arb, wide = flint().arb, np.asarray(x).astype(np.float64)
    block = _block_of(wide.shape, axis, group)
    shape = _blocks(wide.shape, axis, group)
    high = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
    low = -high if symmetric else 0
    spans, zeros = exact(np.zeros(shape)), exact(np.zeros(shape))
    least = np.zeros(shape)
    for index in np.ndindex(*wide.shape):
        at, value = block(index), arb(float(wide[index]))
        least[at] = min(least[at], wide[index])
        spans[at] = max(spans[at], abs(value)) if symmetric else spans[at]
    if not symmetric:
        most = np.zeros(shape)
        for index in np.ndindex(*wide.shape):
            most[block(index)] = max(most[block(index)], wide[index])
        spans = exact(most) - exact(least)
    for at in np.ndindex(*shape):
        spans[at] = arb(high) if spans[at] == 0 else spans[at]                  # a block of zeros has the scale 1
        zeros[at] = arb(0) if symmetric else _clipped(_whole(-arb(float(least[at])) * high / spans[at]), 0, high)
    if scale is not None:
        spans = exact(scale) * high
        zeros = exact(np.zeros(shape) if zero is None else zero)
    q = exact(np.zeros(wide.shape))
    for index in np.ndindex(*wide.shape):
        at = block(index)
        q[index] = _clipped(_whole(arb(float(wide[index])) * high / spans[at]) + zeros[at], low, high)
    return {"q": q, "scale": spans / high, "zero": zeros}


def dequantize(q: ArrayLike, scale: ArrayLike, zero: ArrayLike, *, axis: int | None = None, group: int | None = None) -> dict[str, Balls]:
    """out: (q - zero) scale."""
    codes, s, z = exact(q), exact(scale), exact(zero)
    block = _block_of(codes.shape, axis, group)
    out = exact(np.zeros(codes.shape))
    for index in np.ndindex(*codes.shape):
        out[index] = (codes[index] - z[block(index)]) * s[block(index)]
    return {"out": out}


def dequantize_blockwise(codes: ArrayLike, absmax: ArrayLike, *, block: int, codebook: ArrayLike, absmax_scale: ArrayLike | None = None,
                         absmax_offset: float = 0.0) -> dict[str, Balls]:
    """out: codebook[codes] times the maximum of the block, which may be absmax_scale absmax + absmax_offset."""
    places, table, maxima = np.asarray(codes), exact(codebook), exact(absmax)
    if absmax_scale is not None:
        maxima = maxima * exact(absmax_scale).item() + flint().arb(float(absmax_offset))
    out = exact(np.zeros(places.shape))
    for index in np.ndindex(*places.shape):
        out[index] = table[places[index]] * maxima[(*index[:-1], index[-1] // block)]
    return {"out": out}


def quantized_matmul(x: ArrayLike, q: ArrayLike, scale: ArrayLike, *, x_scale: ArrayLike,
                     bias: ArrayLike | None = None) -> dict[str, Balls]:
    """out: x_scale scale (x q) + bias."""
    total = product(exact(x), exact(q))                                         # (N, M)
    out = total * exact(np.reshape(x_scale, (-1, 1))) * exact(np.reshape(scale, (1, -1)))
    return {"out": out if bias is None else out + exact(bias)}


def _blocks(shape: tuple[int, ...], axis: int | None, group: int | None) -> tuple[int, ...]:
    """The shape of what there is one of in each block."""
    if group is not None:
        return (*shape[:-1], -(-shape[-1] // group))
    return (1,) if axis is None else (shape[axis],)


def _block_of(shape: tuple[int, ...], axis: int | None, group: int | None) -> Any:
    """From the place of an element to that of its block."""
    if group is not None:
        return lambda index: (*index[:-1], index[-1] // group)
    return (lambda index: (0,)) if axis is None else (lambda index: (index[axis],))


def _whole(x: Any) -> Any:
    """The whole number nearest to a ball, ties to even; NaN, on which no two ends agree, where the ball does not say."""
    arb = flint().arb
    up = (x + arb(0.5)).floor()
    if not up.is_exact():
        return arb("nan")
    n = int(float(up))
    return arb(n - 1 if n % 2 and x + arb(0.5) == n else n)


def _clipped(n: Any, low: int, high: int) -> Any:
    arb = flint().arb
    return arb(low) if n < low else arb(high) if n > high else n
