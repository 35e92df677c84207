"""Codes and their scales, numbers made of codes and products of codes in double-double."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .double_double import DD, exact, where

Results = dict[str, DD]


def quantize(x: ArrayLike, *, bits: int, axis: int | None = None, group: int | None = None, symmetric: bool = True,
             scale: ArrayLike | None = None, zero: ArrayLike | None = None) -> Results:
    """q, scale and zero; codes by the upper halves, since no golden case stands within rounding of a half."""
    wide = np.asarray(x).astype(np.float64)
    high, low = (2 ** (bits - 1) - 1, 1 - 2 ** (bits - 1)) if symmetric else (2**bits - 1, 0)
    shape, number = _numbers(wide.shape, axis, group)
    least, most = np.zeros(int(np.prod(shape))), np.zeros(int(np.prod(shape)))
    np.minimum.at(least, number, wide)
    np.maximum.at(most, number, wide)
    span = exact(np.maximum(most, -least)) if symmetric else exact(most) - least
    s = where(span.hi == 0.0, 1.0, span / float(high))
    z = np.zeros(s.shape) if symmetric else np.clip(np.rint((exact(-least) / s).hi), 0, high)
    if scale is not None:
        s, z = exact(np.asarray(scale).reshape(-1)), np.zeros(s.shape) if zero is None else np.asarray(zero).reshape(-1)
    codes = np.clip(np.rint((exact(wide) / s[number]).hi) + z[number], low, high)
    return {"q": exact(codes), "scale": DD(s.hi.reshape(shape), s.lo.reshape(shape)), "zero": exact(z.reshape(shape))}


def dequantize(q: ArrayLike, scale: ArrayLike, zero: ArrayLike, *, axis: int | None = None, group: int | None = None) -> Results:
    """out, the shape of q."""
    _, number = _numbers(np.shape(q), axis, group)
    s, z = (exact(np.asarray(x).reshape(-1))[number] for x in (scale, zero))
    return {"out": (exact(q) - z) * s}


def dequantize_blockwise(codes: ArrayLike, absmax: ArrayLike, *, block: int, codebook: ArrayLike, absmax_scale: ArrayLike | None = None,
                         absmax_offset: float = 0.0) -> Results:
    """out, the shape of codes."""
    a = exact(absmax) if absmax_scale is None else exact(absmax) * exact(absmax_scale) + float(absmax_offset)
    numbers = np.arange(np.shape(codes)[-1]) // block
    return {"out": exact(codebook)[np.asarray(codes)] * a[..., numbers]}


def quantized_matmul(x: ArrayLike, q: ArrayLike, scale: ArrayLike, *, x_scale: ArrayLike, bias: ArrayLike | None = None) -> Results:
    """out (N, M)."""
    total = np.asarray(x).astype(np.int64) @ np.asarray(q).astype(np.int64)
    out = exact(total) * np.reshape(x_scale, (-1, 1)).astype(np.float64) * np.reshape(scale, (1, -1)).astype(np.float64)
    return {"out": out if bias is None else out + bias}


def _numbers(shape: tuple[int, ...], axis: int | None, group: int | None) -> tuple[tuple[int, ...], Any]:
    """The shape of the blocks, and the number in it of each element's."""
    places = np.indices(shape)
    if group is not None:
        blocks = (*shape[:-1], -(-shape[-1] // group))
        return blocks, np.ravel_multi_index((*places[:-1], places[-1] // group), blocks) if all(shape) else np.zeros(shape, dtype=np.int64)
    return ((1,), np.zeros(shape, dtype=np.int64)) if axis is None else ((shape[axis],), places[axis])
