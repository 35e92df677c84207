"""Quantization to integers: symmetric and affine, one scale a tensor, an index of an axis, or a run of the last axis; and back.

Codes are whole numbers in int32, whatever their number of bits; packing them is left to `int4_packing`, tables of values that are no
integers to `blockwise`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import arguments
from .arguments import Array, Float64, Int64

Int32 = NDArray[np.int32]


def quantize(
    x: ArrayLike, *, bits: int, axis: int | None = None, group: int | None = None, symmetric: bool = True,
    scale: ArrayLike | None = None, zero: ArrayLike | None = None,
) -> tuple[Int32, Float64, Int64]:  # fmt: skip
    """Numbers as codes of a few bits and a scale: x ~ (q - zero) scale.

        symmetric   scale = max |x| / (2^(bits-1) - 1),               zero = 0,                   q = clip(rint(x / scale))
        affine      scale = (max(x, 0) - min(x, 0)) / (2^bits - 1),   zero = rint(-min(x, 0) / scale),
                    q = clip(rint(x / scale) + zero)

    Codes are clipped to +-(2^(bits-1) - 1), or to 0 .. 2^bits - 1; affine blocks take 0 in, so that 0 is exactly a code. rint rounds
    halves to even. `axis`: the axis along which scales vary, one for each of its indices; `group`: one for each run of so many along
    the last axis, the last run may be short; neither: one for all. Given `scale` (and `zero`, for affine), those are used, and returned
    as they came: copies or the same arrays.

    x of any shape; q of that shape in int32; scale in float64 and zero in int64, of shape (1,), (channels,) or (..., ceil(n / group)).
    A block of zeros, an empty one, and one so small that its scale vanishes have scale 1 and zero 0. Raises ValueError for NaN and
    infinities, for a span that overflows, for axis beside group, for scales that are not positive.
    Error bound: `properties.bounds.quantize_bound`.
    Source: Jacob et al. 2018 (arXiv 1712.05877), section 2.1; groups: Dettmers et al. 2022 (arXiv 2110.02861).

    >>> q, scale, zero = quantize([[1.0, -2.0], [0.5, 127.0]], bits=8, axis=0)
    >>> q.tolist(), scale.tolist()
    ([[64, -127], [0, 127]], [0.015748031496062992, 1.0])
    >>> quantize([0.0, 1.0, 3.0], bits=2, symmetric=False)[0].tolist()
    [0, 1, 3]
    """
    x = _finite("x", x)
    bits = bit_width(bits)
    blocks = _Blocks(x.shape, axis, group)
    low, high = code_range(bits, symmetric)
    if scale is None:
        if zero is not None:
            raise ValueError("zero: got one without a scale; want both, or none")
        s, z = _scales(blocks.split(x), high, symmetric)
    else:
        s, z = _given(scale, zero, blocks, bits, symmetric)
    codes = np.rint(x / blocks.spread(s)) + blocks.spread(z)
    return np.clip(codes, low, high).astype(np.int32), s, z


def dequantize(
    q: ArrayLike, scale: ArrayLike, zero: ArrayLike = 0, *, axis: int | None = None, group: int | None = None
) -> Float64:
    """Codes as numbers again: (q - zero) scale, in float64.

    axis and group as in `quantize`, from where scale and zero come; a scale of one element, and a zero, serve all.

    >>> dequantize([3, 0, -3], [0.5]).tolist()
    [1.5, 0.0, -1.5]
    >>> dequantize([[1, 2, 3]], [[2.0, 10.0]], group=2).tolist()
    [[2.0, 4.0, 30.0]]

    Raises ValueError for scales of another shape, TypeError for codes that are no integers.
    Error bound: `properties.bounds.dequantize_bound`.
    Source: Jacob et al. 2018 (arXiv 1712.05877), equation 1.
    """
    q = integer_codes("q", q)
    blocks = _Blocks(q.shape, axis, group)
    s = blocks.checked("scale", arguments.widen("scale", scale))
    z = blocks.checked("zero", integer_codes("zero", zero))
    return np.asarray((q - blocks.spread(z)).astype(np.float64) * blocks.spread(s))


def code_range(bits: int, symmetric: bool) -> tuple[int, int]:
    """The least and the largest code.

    >>> code_range(8, True), code_range(4, False)
    ((-127, 127), (0, 15))
    """
    most: int = 2 ** (bits - 1) - 1
    return (-most, most) if symmetric else (0, 2**bits - 1)


def blocks_of(x: Array, *, axis: int | None, group: int | None) -> Array:
    """x with the elements of each block along a new last axis: (blocks..., members), a short last group filled up with zeros.

    >>> blocks_of(np.arange(3.0), axis=None, group=2).tolist()
    [[0.0, 1.0], [2.0, 0.0]]
    """
    return _Blocks(x.shape, axis, group).split(x)


def spread_over(per_block: Array, shape: tuple[int, ...], *, axis: int | None, group: int | None) -> Array:
    """One number a block as an array that broadcasts against x of that shape.

    >>> spread_over(np.array([1.0, 2.0]), (1, 3), axis=None, group=2).tolist()
    Traceback (most recent call last):
    ValueError: scale: got shape (2,) for an array of shape (1, 3); want (1, 2), one number a block
    """
    blocks = _Blocks(shape, axis, group)
    return blocks.spread(blocks.checked("scale", per_block))


def bit_width(bits: Any) -> int:
    """bits as an int from 2 to 16."""
    width = arguments.whole_number("bits", bits, least=2)
    if width > 16:
        raise ValueError(f"bits: got {width}; want 2..16")
    return width


def integer_codes(name: str, q: ArrayLike) -> Int64:
    """Whole numbers of any integer type as int64."""
    q = np.asarray(q)
    return arguments.integers(name, q, least=-(2**31), most=2**32 - 1)


class _Blocks:
    """How the elements of an array fall into blocks that share a scale."""

    def __init__(self, shape: tuple[int, ...], axis: int | None, group: int | None) -> None:
        if axis is not None and group is not None:
            raise ValueError(f"axis, group: got {axis} and {group}; want one of them, or none")
        if axis is not None and not -len(shape) <= axis < len(shape):
            raise ValueError(f"axis: got {axis} for {len(shape)} axes; want -{len(shape)}..{len(shape) - 1}")
        if group is not None:
            group = arguments.whole_number("group", group, least=1)
            if not shape:
                raise ValueError("group: got a number without axes; want at least one axis")
        self.shape, self.axis, self.group = shape, axis, group
        self.per_block = self._per_block()

    def _per_block(self) -> tuple[int, ...]:
        if self.group is not None:
            return (*self.shape[:-1], -(-self.shape[-1] // self.group))
        return (1,) if self.axis is None else (self.shape[self.axis],)

    def split(self, x: Array) -> Array:
        """x as (*per_block, members)."""
        if self.group is not None:
            missing = self.per_block[-1] * self.group - self.shape[-1]
            filled = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])        # zeros change neither max |x| nor max(x, 0)
            return filled.reshape(*self.per_block, self.group)
        if self.axis is None:
            return x.reshape(1, -1)
        moved = np.moveaxis(x, self.axis, 0)
        return moved.reshape(len(moved), int(np.prod(moved.shape[1:])))

    def spread(self, per_block: Array) -> Array:
        """One number a block as an array that broadcasts against x."""
        if per_block.size == 1 or (self.group is None and self.axis is None):
            return per_block.reshape(())
        if self.group is not None:
            return np.repeat(per_block, self.group, axis=-1)[..., : self.shape[-1]]
        assert self.axis is not None
        behind = len(self.shape) - 1 - self.axis % len(self.shape)
        return per_block.reshape(-1, *[1] * behind)

    def checked(self, name: str, per_block: Array) -> Array:
        if per_block.shape == self.per_block or (per_block.size == 1 and (name == "zero" or self.per_block == (1,))):
            return per_block
        raise ValueError(
            f"{name}: got shape {per_block.shape} for an array of shape {self.shape}; want {self.per_block}, one number a block"
        )


def _scales(blocks: Float64, high: int, symmetric: bool) -> tuple[Float64, Int64]:
    """Scale and zero of blocks (..., members)."""
    least, most = blocks.min(axis=-1, initial=0.0), blocks.max(axis=-1, initial=0.0)
    with np.errstate(over="ignore"):
        s = np.maximum(most, -least) / high if symmetric else (most - least) / high
    if not np.isfinite(s).all():
        raise ValueError("x: got a block whose span overflows; want max(x, 0) - min(x, 0) finite")
    s = np.where(s == 0.0, 1.0, s)
    z = np.zeros(s.shape) if symmetric else np.clip(np.rint(-least / s), 0, high)
    return s, z.astype(np.int64)


def _given(scale: ArrayLike, zero: ArrayLike | None, blocks: _Blocks, bits: int, symmetric: bool) -> tuple[Float64, Int64]:
    s = blocks.checked("scale", arguments.widen("scale", scale))
    if s.shape != blocks.per_block:
        raise ValueError(f"scale: got shape {s.shape}; want {blocks.per_block}")
    if not (np.isfinite(s) & (s > 0.0)).all():
        raise ValueError(f"scale: got {s[~(np.isfinite(s) & (s > 0.0))][0]}; want finite numbers > 0")
    if symmetric:
        if zero is not None and np.any(zero):
            raise ValueError("zero: got one with symmetric=True; want None, or zeros")
        return s, np.zeros(s.shape, np.int64)
    if zero is None:
        raise ValueError("zero: got None beside a scale with symmetric=False; want the codes of 0")
    return s, arguments.integers("zero", zero, blocks.per_block, least=0, most=2**bits - 1)


def _finite(name: str, x: ArrayLike) -> Float64:
    x = arguments.widen(name, x)
    if not np.isfinite(x).all():
        at = np.argwhere(~np.isfinite(x))[0].tolist()
        raise ValueError(f"{name}: got {x[tuple(at)]} at {at}; want finite numbers")
    return x
