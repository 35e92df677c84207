"""Quantization and pruning as a textbook has them: what mutants and variants are made of. No oracle is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .textbook import Array

Codes = tuple[Array, Array, Array]


def working(x: Any) -> Any:
    """The type numbers are computed in: float64 for float64, else float32."""
    return np.float64 if x.dtype == np.float64 else np.float32


def spread(per_block: Any, shape: tuple[int, ...], axis: int | None, group: int | None) -> Array:
    """One number a block against x of that shape."""
    if group is not None:
        return np.repeat(per_block, group, axis=-1)[..., : shape[-1]]
    if axis is None:
        return np.asarray(per_block).reshape(())
    return np.asarray(per_block).reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])


def extremes(x: Array, axis: int | None, group: int | None) -> tuple[Array, Array]:
    """min(x, 0) and max(x, 0) of each block."""
    if group is not None:
        starts = np.arange(0, x.shape[-1], group)
        if not x.size:
            nothing = np.zeros((*x.shape[:-1], len(starts)), x.dtype)
            return nothing, nothing
        pair = np.minimum.reduceat(x, starts, axis=-1), np.maximum.reduceat(x, starts, axis=-1)
    elif axis is None:
        pair = np.min(x, initial=0.0)[None], np.max(x, initial=0.0)[None]
    else:
        others = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
        pair = x.min(axis=others, initial=0.0), x.max(axis=others, initial=0.0)
    return np.minimum(pair[0], x.dtype.type(0)), np.maximum(pair[1], x.dtype.type(0))


def limits(bits: int, symmetric: bool) -> tuple[int, int]:
    """The least and the largest code."""
    return (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)


def scales(x: Array, bits: int, axis: int | None, group: int | None, symmetric: bool) -> tuple[Array, Array]:
    """Scale and zero point of each block; a block of zeros has scale 1."""
    least, most = extremes(x, axis, group)
    high = x.dtype.type(limits(bits, symmetric)[1])
    s = np.maximum(most, -least) / high if symmetric else (most - least) / high
    s = np.where(s == 0, 1, s).astype(x.dtype)
    return s, np.zeros(s.shape, np.int64) if symmetric else np.clip(np.rint(-least / s), 0, high).astype(np.int64)


def quantize(
    x: Any, *, bits: int, axis: int | None = None, group: int | None = None, symmetric: bool = True, scale: Any = None, zero: Any = None,
    scaled: Callable[..., tuple[Array, Array]] = scales, coded: Callable[..., Array] | None = None,
) -> Codes:  # fmt: skip
    """The textbook's codes. scaled: makes scale and zero point; coded: makes codes of x, the spread scale and zero, and the limits."""
    wide = x.astype(working(x))
    if scale is None:
        s, z = scaled(wide, bits, axis, group, symmetric)
        s = s.astype(x.dtype)
    else:
        s = np.array(scale)
        z = np.zeros(s.shape, np.int64) if zero is None else np.array(zero)
    over = [spread(a, x.shape, axis, group) for a in (s.astype(wide.dtype), z)]
    return (coded or plain_codes)(wide, over[0], over[1], limits(bits, symmetric)), s, z


def plain_codes(x: Array, s: Array, z: Array, bounds: tuple[int, int]) -> Array:
    """clip(rint(x / s) + z)."""
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(np.clip(np.rint(x / s) + z, *bounds).astype(np.int32))


def dequantize(q: Any, scale: Any, zero: Any, axis: int | None, group: int | None) -> Array:
    """(q - zero) scale in the format of the scale."""
    wide = working(scale)
    z = spread(zero, q.shape, axis, group) if np.size(zero) > 1 else zero
    return np.asarray(((q - z).astype(wide) * spread(scale.astype(wide), q.shape, axis, group)).astype(scale.dtype))


def matmul(x: Any, q: Any, scale: Any, x_scale: Any, bias: Any) -> Array:
    """x q in int32, then the scales, then the bias."""
    wide = working(scale)
    total = (x.astype(np.int32) @ q.astype(np.int32)).astype(wide)
    out = total * (np.asarray(x_scale, wide).reshape(-1, 1) * np.asarray(scale, wide).reshape(1, -1))
    with np.errstate(over="ignore"):                                            # float16 may not hold the product
        return np.asarray((out if bias is None else out + bias.astype(wide)).astype(scale.dtype))


def blockwise(codes: Any, absmax: Any, block: int, codebook: Any, absmax_scale: Any, absmax_offset: float) -> Array:
    """codebook[codes] times the maximum of the block."""
    wide = working(absmax)
    a = absmax.astype(wide)
    if absmax_scale is not None:
        a = a * wide(absmax_scale) + wide(absmax_offset)
    return np.asarray((codebook.astype(wide)[codes] * spread(a, codes.shape, None, block)).astype(absmax.dtype))


def largest(w: Array, gone: int) -> Array:
    """A mask of all but the `gone` smallest magnitudes of a row, ties by index."""
    mask = np.ones(w.size, bool)
    mask[np.argsort(np.abs(w.reshape(-1)), kind="stable")[:gone]] = False
    return mask.reshape(w.shape)


def share(sparsity: float, n: int) -> int:
    """floor(sparsity n), the product rounded to twelve digits so that 0.29 of 100 are 29."""
    return int(np.floor(round(float(sparsity) * n, 12)))


def magnitude(weights: Any, sparsity: float, scope: str, rule: str = "count") -> Array:
    """Masks of an array of layers."""
    w = np.abs(weights.astype(np.float64))
    rows = w.reshape(1, -1) if scope == "global" else w.reshape(len(w), w.size // max(len(w), 1))
    if not w.size:
        return np.zeros(w.shape, bool)
    if rule == "quantile":
        return np.asarray((rows > np.quantile(rows, sparsity, axis=1, keepdims=True)).reshape(w.shape))
    return np.array([largest(row, share(sparsity, row.size)) for row in rows]).reshape(w.shape)


def two_four(w: Any, axis: int) -> Array:
    """The two largest magnitudes of each four, by counting those that come before."""
    rows = np.moveaxis(np.abs(w.astype(np.float64)), axis, -1)
    n = rows.shape[-1]
    place = np.arange(n)
    same_four = place[:, None] // 4 == place // 4
    before = (rows[..., None, :] > rows[..., :, None]) | ((rows[..., None, :] == rows[..., :, None]) & (place < place[:, None]))
    return np.moveaxis((before & same_four).sum(axis=-1) < 2, -1, axis)


def gradual(history: Any, sparsities: Any, scope: str) -> Array:
    """What is gone sorts before everything else."""
    masks, mask = [], np.ones(history.shape[1:], bool)
    for w, sparsity in zip(history, sparsities):
        mask = magnitude(np.where(mask, np.abs(w.astype(np.float64)) + 2.0**-1000, 0.0), float(sparsity), scope)
        masks.append(mask)
    return np.array(masks).reshape(history.shape)
