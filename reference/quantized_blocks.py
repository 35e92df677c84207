"""Blocks of numbers as indices into a table and one absolute maximum each: NF4, and the way back; packing of 4 bits; 8-bit floats.

Codes that are integers with a scale are left to `quantization`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import arguments
from .arguments import Float64, Int64
from .float_format import FloatFormat
from .quantization import blocks_of, integer_codes, spread_over

# The 16 values of NF4: quantiles of N(0, 1), scaled into [-1, 1], with an exact 0 (arXiv 2305.14314, appendix E).
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])  # fmt: skip
NF4.flags.writeable = False


def nf4_quantize(x: ArrayLike, *, block: int = 64) -> tuple[Int64, Float64]:
    """Each number as the index of the NF4 value nearest to x / absmax of its block.

        absmax = max |x| of a run of `block` along the last axis,      codes = argmin_i |NF4_i - x / absmax|

    x (..., n); codes (..., n) in 0..15, absmax (..., ceil(n / block)). Of two values equally near the lower index. A block of zeros has
    absmax 0 and the code of 0, which is 7. Raises ValueError for NaN and infinities.
    Source: Dettmers et al. 2023 (arXiv 2305.14314), section 3.

    >>> codes, absmax = nf4_quantize([0.0, -2.0, 1.1, 0.9])
    >>> codes.tolist(), absmax.tolist()
    ([7, 0, 13, 12], [2.0])
    """
    x = _finite(x)
    absmax = np.abs(blocks_of(x, axis=None, group=block)).max(axis=-1, initial=0.0)
    scaled = x / spread_over(np.where(absmax == 0.0, 1.0, absmax), x.shape, axis=None, group=block)
    middles = (NF4[1:] + NF4[:-1]) / 2.0
    return np.searchsorted(middles, scaled, side="left").astype(np.int64), absmax


def dequantize_blockwise(
    codes: ArrayLike, absmax: ArrayLike, *, block: int, codebook: ArrayLike, absmax_scale: ArrayLike | None = None,
    absmax_offset: float = 0.0,
) -> Float64:  # fmt: skip
    """Indices into a table of values, times the absolute maximum of their block.

        x = codebook[codes] a,      a = absmax,  or  absmax_scale absmax + absmax_offset  where absmax holds codes itself

    codes (..., n), absmax (..., ceil(n / block)), codebook (K,); absmax_scale a number: the block maxima are quantized once more
    ("double quantization"), absmax then holds their codes as floats. Returns float64. Raises ValueError for a code past the table.
    Error bound: `properties.bounds.dequantize_blockwise_bound`.
    Source: Dettmers et al. 2023 (arXiv 2305.14314), section 3 and equation 6.

    >>> dequantize_blockwise([7, 0, 15], [2.0], block=64, codebook=NF4).tolist()
    [0.0, -2.0, 2.0]
    >>> dequantize_blockwise([1], [3.0], block=4, codebook=[0.0, 1.0], absmax_scale=0.5, absmax_offset=1.0).tolist()
    [2.5]
    """
    table = arguments.widen("codebook", codebook, ndim=1)
    index = arguments.integers("codes", codes, least=0, most=len(table) - 1)
    block = arguments.whole_number("block", block, least=1)
    a = arguments.widen("absmax", absmax)
    if absmax_scale is not None:
        a = arguments.widen("absmax_scale", absmax_scale, ()) * a + arguments.real_number("absmax_offset", absmax_offset)
    return np.asarray(table[index] * spread_over(a, index.shape, axis=None, group=block))


def pack_int4(codes: ArrayLike) -> NDArray[np.uint8]:
    """Codes of 4 bits, two a byte: the even places in the low half. An odd last one has a 0 above it.

    codes (..., n), all in -8..7 (two's complement) or all in 0..15; returns (..., ceil(n / 2)). Raises ValueError for others: what does
    not fit must not spill into its neighbour (intel/auto-round#2273).
    Source: the layout of https://onnx.ai/onnx/technical/int4.html

    >>> pack_int4([1, -2, 7]).tolist(), pack_int4([1, 15]).tolist()
    ([225, 7], [241])
    """
    q = integer_codes("codes", codes)
    signed = bool((q < 0).any())
    q = arguments.integers("codes", q, least=-8 if signed else 0, most=7 if signed else 15)
    even = np.pad(q & 15, [(0, 0)] * (q.ndim - 1) + [(0, q.shape[-1] % 2)])
    return np.asarray((even[..., ::2] | even[..., 1::2] << 4).astype(np.uint8))


def unpack_int4(packed: ArrayLike, n: int, *, signed: bool) -> Int64:
    """The first n codes of `pack_int4` along the last axis, in -8..7 or 0..15.

    >>> unpack_int4([225, 7], 3, signed=True).tolist()
    [1, -2, 7]
    """
    p = arguments.integers("packed", packed, least=0, most=255)
    if not 0 <= p.shape[-1] * 2 - n <= 1:
        raise ValueError(f"n: got {n} for {p.shape[-1]} bytes; want {max(0, p.shape[-1] * 2 - 1)} or {p.shape[-1] * 2}")
    codes = np.stack([p & 15, p >> 4], axis=-1).reshape(*p.shape[:-1], -1)[..., :n]
    return np.where(codes > 7, codes - 16, codes) if signed else codes


def fp8_quantize(x: ArrayLike, *, block: int = 128, fmt: str = "float8_e4m3fn") -> tuple[Float64, Float64]:
    """Each block scaled so that its largest number is the largest of an 8-bit float, and rounded to that format.

        scale = max |x| / fmt.max of a run of `block` along the last axis,      q = fmt.round(x / scale)

    x (..., n); q (..., n) in float64, every value one of the format; scale (..., ceil(n / block)); a block of zeros has scale 1.
    x ~ q scale. Nothing overflows; small numbers of a block become subnormal, or 0.
    Source: DeepSeek-V3 (arXiv 2412.19437), section 3.3.2, blocks of 1 x 128.

    >>> q, scale = fp8_quantize([1.0, -448.0, 0.3])
    >>> q.tolist(), scale.tolist()
    ([1.0, -448.0, 0.3125], [1.0])
    """
    x, f = _finite(x), FloatFormat(fmt)
    scale = np.abs(blocks_of(x, axis=None, group=block)).max(axis=-1, initial=0.0) / f.max
    scale = np.where(scale == 0.0, 1.0, scale)
    return f.round(x / spread_over(scale, x.shape, axis=None, group=block), overflow="saturate"), scale


def _finite(x: ArrayLike) -> Float64:
    x = arguments.widen("x", x)
    if not np.isfinite(x).all():
        raise ValueError(f"x: got {x[~np.isfinite(x)][0]}; want finite numbers")
    return x
