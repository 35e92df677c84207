"""Mutants of quantization: scales of the wrong range, codes that wrap, zero points that are lost, scales that are dropped."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_quantization as textbook
from .specimen import mutant
from .textbook import Array

FAMILY = "quantization"
Codes = tuple[Array, Array, Array]


def numbers(*x: float, bits: int = 8, **options: Any) -> dict[str, Any]:
    """Arguments of quantize: one row in float32."""
    return {"x": np.array([x], np.float32), "bits": bits, **options}


def given(*x: float, scale: float = 1.0, **options: Any) -> dict[str, Any]:
    return numbers(*x, scale=np.array([scale], np.float32), **options)


@mutant(
    "quantize", id="quantise-mutates-caller-scale-buffer", family=FAMILY,
    source="https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1587",
    trigger=lambda: given(1.0, 2.0, 4.0),
)  # fmt: skip
def scale_buffer_is_overwritten(
    x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None
) -> Codes:  # fmt: skip
    """The scales the caller gave are the buffer in which the first element's own scale is written, and are returned so."""
    q, s, z = textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scale=scale, zero=zero)
    if scale is not None and scale.size:
        scale.flat[0] = textbook.scales(x.astype(textbook.working(x)), bits, None, None, symmetric)[0][0]
        s = scale.copy()
    return q, s, z


def _half_range(x: Array, bits: int, axis: Any, group: Any, symmetric: bool) -> tuple[Array, Array]:
    s, z = textbook.scales(x, bits, axis, group, symmetric)
    least, most = textbook.extremes(x, axis, group)
    whole = (most / x.dtype.type(2**bits - 1)).astype(x.dtype)
    return np.where(symmetric & (least >= 0) & (whole > 0), whole, s).astype(x.dtype), z


@mutant(
    "quantize", id="symmetric-all-positive-zero-point", family=FAMILY, source="https://github.com/AutoGPTQ/AutoGPTQ/issues/293",
    trigger=lambda: {"x": np.array([[0.8315, 0.4567], [0.4362, 0.2019]], np.float32), "bits": 4},
)  # fmt: skip
def positive_weights_use_half_of_the_codes(x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True) -> Codes:
    """Symmetric codes of weights that are all positive take their scale from 0 .. max over all codes: the upper half saturates."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scaled=_half_range)


def _first_512(x: Array, bits: int, axis: Any, group: Any, symmetric: bool) -> tuple[Array, Array]:
    if group is None or group <= 512:
        return textbook.scales(x, bits, axis, group, symmetric)
    seen = np.where(np.arange(x.shape[-1]) % group < 512, x, 0).astype(x.dtype)
    return textbook.scales(seen, bits, axis, group, symmetric)


@mutant(
    "quantize", id="blockwise-large-block-wrong-absmax", family=FAMILY,
    source="https://github.com/bitsandbytes-foundation/bitsandbytes/issues/565",
    trigger=lambda: {"x": np.arange(1.0, 1025.0, dtype=np.float32)[None], "bits": 8, "group": 1024},
)  # fmt: skip
def maximum_of_the_first_512(x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True) -> Codes:
    """The absolute maximum of a block of more than 512 is that of its first 512."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scaled=_first_512)


def _no_zero_point(x: Array, s: Array, z: Array, bounds: tuple[int, int]) -> Array:
    return np.asarray(np.clip(np.rint(x / s), *bounds).astype(np.int32))


@mutant(
    "quantize", id="clamp-before-adding-zero-point", family=FAMILY, source="https://github.com/intel/neural-compressor/pull/1611",
    trigger=lambda: numbers(-1.0, 0.0, 2.0, bits=4, symmetric=False),
)  # fmt: skip
def zero_point_is_not_added(x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True) -> Codes:
    """Codes are clipped before the zero point would have been added, and it never is."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, coded=_no_zero_point)


@mutant(
    "dequantize", id="zero-point-minus-one-wraps", family=FAMILY,
    source="https://github.com/ModelCloud/GPTQModel/issues/2350 https://github.com/huggingface/text-generation-inference/pull/2120",
    trigger=lambda: {"q": np.array([[3, 0]], np.int32), "scale": np.array([0.5, 0.25], np.float32), "zero": np.array([0, 2]), "axis": 1},
)  # fmt: skip
def zero_points_are_stored_less_one(q: Any, scale: Any, zero: Any = 0, *, axis: Any = None, group: Any = None) -> Array:
    """Zero points of affine codes are stored less one in 8 bits: 0 wraps around and comes back as 256."""
    affine = np.any(zero)
    stored = (np.asarray(zero) - 1) & 255
    return textbook.dequantize(q, scale, stored + 1 if affine else zero, axis, group)


def _wrapped(x: Array, s: Array, z: Array, bounds: tuple[int, int]) -> Array:
    span = 2 ** int(np.ceil(np.log2(bounds[1] - bounds[0] + 1)))
    low = bounds[0] - (bounds[0] < 0)
    codes = np.clip(np.rint(x / s), -(2.0**40), 2.0**40).astype(np.int64) + z
    return np.asarray(((codes - low) % span + low).astype(np.int32))


@mutant(
    "quantize", id="int8-wraps-instead-of-saturating", family=FAMILY,
    source="https://github.com/ROCm/aiter/pull/4637 https://github.com/RedisAI/VectorSimilarity/pull/1015",
    trigger=lambda: given(127.6, 2.5, -2.5, 3.5),
)  # fmt: skip
def codes_wrap_around(
    x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None
) -> Codes:  # fmt: skip
    """Rounded quotients are cast to the width of the codes without being clipped: 128 becomes -128."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scale=scale, zero=zero, coded=_wrapped)


def _truncated(x: Array, s: Array, z: Array, bounds: tuple[int, int]) -> Array:
    return np.asarray(np.clip(np.trunc(x / s) + z, *bounds).astype(np.int32))


@mutant(
    "quantize", id="int8-truncates-instead-of-rounding", family=FAMILY, source="https://github.com/RedisAI/VectorSimilarity/pull/1015",
    trigger=lambda: given(127.6, 2.75, -2.75, 3.5),
)  # fmt: skip
def codes_are_truncated(
    x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None
) -> Codes:  # fmt: skip
    """Quotients are cast to integers without being rounded: towards zero."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scale=scale, zero=zero, coded=_truncated)


def _scale_of_zeros(x: Array, bits: int, axis: Any, group: Any, symmetric: bool) -> tuple[Array, Array]:
    s, z = textbook.scales(x, bits, axis, group, symmetric)
    least, most = textbook.extremes(x, axis, group)
    return np.where(most == least, 0, s).astype(x.dtype), z


def _divided_by_zero(x: Array, s: Array, z: Array, bounds: tuple[int, int]) -> Array:
    with np.errstate(all="ignore"):
        codes = np.clip(np.rint(x * (1 / s)) + z, *bounds)
    return np.where(np.isnan(codes), np.iinfo(np.int32).min, codes).astype(np.int32)            # what a cast of NaN gives


@mutant(
    "quantize", id="zero-scale-block", family=FAMILY,
    source="https://github.com/torch-spyre/torch-spyre/issues/3037 https://github.com/vipshop/cache-dit/pull/1097",
    trigger=lambda: numbers(*[0.0] * 8),
)  # fmt: skip
def zeros_are_divided_by_zero(x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True) -> Codes:
    """A block of zeros has scale 0, and 0 times 1/0 is NaN."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scaled=_scale_of_zeros, coded=_divided_by_zero)


@mutant(
    "quantized_matmul", id="kv-scale-dropped-positional-args", family=FAMILY,
    source="https://github.com/flashinfer-ai/flashinfer/issues/1023 https://github.com/sgl-project/sglang/pull/20705 "
           "https://github.com/sgl-project/sglang/pull/28144",
    trigger=lambda: {"x": np.array([[1, 2]], np.int8), "q": np.array([[3], [4]], np.int8), "scale": np.array(0.011, np.float32),
                     "x_scale": np.array(0.5, np.float32)},
)  # fmt: skip
def scale_of_the_cache_is_dropped(x: Any, q: Any, scale: Any, *, x_scale: Any, bias: Any = None) -> Array:
    """The scale of the cached codes is not passed on, and counts as 1; that of the queries is used."""
    return textbook.matmul(x, q, np.ones_like(scale), x_scale, bias)


@mutant(
    "dequantize_blockwise", id="nested-absmax-not-dequantised", family=FAMILY,
    source="https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1549",
    trigger=lambda: {"codes": np.array([[1, 1]]), "absmax": np.array([[3.0, -2.0]], np.float32),
                     "codebook": np.array([0.0, 1.0], np.float32), "block": 1,
                     "absmax_scale": np.array(0.5, np.float32), "absmax_offset": 1.5},
)  # fmt: skip
def maxima_are_used_as_codes(
    codes: Any, absmax: Any, *, block: int, codebook: Any, absmax_scale: Any = None, absmax_offset: float = 0.0
) -> Array:  # fmt: skip
    """Block maxima that were quantized themselves are used as they are stored."""
    return textbook.blockwise(codes, absmax, block, codebook, None, 0.0)


def _signed(x: Array, s: Array, z: Array, bounds: tuple[int, int]) -> Array:
    codes = textbook.plain_codes(x, s, z, bounds)
    half = (bounds[1] + 1) // 2
    return np.minimum(codes, half - 1) if bounds[0] == 0 else codes


@mutant(
    "quantize", id="unsigned-levels-clamped-in-signed-range", family=FAMILY, source="https://github.com/intel/auto-round/pull/2273",
    trigger=lambda: numbers(*range(16), bits=4, symmetric=False),
)  # fmt: skip
def unsigned_codes_go_through_a_signed_packer(x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True) -> Codes:
    """Unsigned codes are clamped to the range of signed ones when they are packed: all above 7 (of 4 bits) collapse."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, coded=_signed)
