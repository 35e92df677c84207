"""Legal variants of quantization and pruning: other orders, other halves, other ranges, as they declare."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook_quantization as textbook
from .specimen import variant
from .textbook import Array

FAMILY = "quantization"
PRUNING = "pruning"
SIXTEEN = ("float16", "bfloat16")
Codes = tuple[Array, Array, Array]


def _by_reciprocal(x: Array, s: Array, z: Array, bounds: tuple[int, int]) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        codes = np.clip(np.rint(x * (x.dtype.type(1) / s)) + z, *bounds)
    return np.where(np.isnan(codes), z, codes).astype(np.int32)                 # 0 times an overflowed reciprocal


@variant("quantize", id="quantize-reciprocal", family=FAMILY, source="https://github.com/pytorch/FBGEMM", promises=("deterministic",))
def quantize_by_reciprocal(
    x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None
) -> Codes:  # fmt: skip
    """x times the reciprocal of the scale instead of a quotient: one code in a million is another."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scale=scale, zero=zero, coded=_by_reciprocal)


def _reciprocal_of_the_range(x: Array, bits: int, axis: Any, group: Any, symmetric: bool) -> tuple[Array, Array]:
    least, most = textbook.extremes(x, axis, group)
    share = x.dtype.type(1) / x.dtype.type(textbook.limits(bits, symmetric)[1])
    s = (np.maximum(most, -least) if symmetric else most - least) * share
    s = np.where(s == 0, 1, s).astype(x.dtype)
    z = np.zeros(s.shape, np.int64) if symmetric else np.clip(np.rint(-least / s), 0, 2**bits - 1).astype(np.int64)
    return s, z


@variant("quantize", id="quantize-scale-by-reciprocal", family=FAMILY)
def quantize_with_a_reciprocal_of_127(x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True) -> Codes:
    """The scale is the maximum times 1/127, whose last digit may differ."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scaled=_reciprocal_of_the_range)


def _with_zero(x: Array, s: Array, z: Array, bounds: tuple[int, int]) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(np.clip(np.rint(x / s + z.astype(x.dtype)), *bounds).astype(np.int32))


@variant("quantize", id="quantize-zero-point-inside", family=FAMILY, conventions={"code_ties": "even_with_zero"})
def quantize_rounds_the_sum(
    x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None
) -> Codes:  # fmt: skip
    """The zero point is added before rounding, so that halves go to an even sum."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scale=scale, zero=zero, coded=_with_zero)


def _away(x: Array, s: Array, z: Array, bounds: tuple[int, int]) -> Array:
    with np.errstate(over="ignore"):
        t = x / s
    return np.asarray(np.clip(np.sign(t) * np.floor(np.abs(t) + x.dtype.type(0.5)) + z, *bounds).astype(np.int32))


@variant("quantize", id="quantize-halves-away", family=FAMILY, source="https://github.com/ggml-org/ggml", conventions={"code_ties": "away"})
def quantize_with_roundf(
    x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None
) -> Codes:  # fmt: skip
    """C's roundf: halves away from zero."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scale=scale, zero=zero, coded=_away)


def _full(x: Array, s: Array, z: Array, bounds: tuple[int, int]) -> Array:
    return textbook.plain_codes(x, s, z, (bounds[0] - (bounds[0] < 0), bounds[1]))


@variant("quantize", id="quantize-full-range", family=FAMILY, source="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
         conventions={"symmetric_codes": "full"})  # fmt: skip
def quantize_to_minus_128(
    x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None
) -> Codes:  # fmt: skip
    """Symmetric codes saturate at -128."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scale=scale, zero=zero, coded=_full)


@variant("quantize", id="quantize-sixteen-bit", family=FAMILY, dtypes=SIXTEEN)
def quantize_sixteen_bits(
    x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None
) -> Codes:  # fmt: skip
    """16-bit inputs in float32; the scale is rounded to 16 bits first, and codes are made with what is stored."""
    return textbook.quantize(x, bits=bits, axis=axis, group=group, symmetric=symmetric, scale=scale, zero=zero)


@variant("quantize", id="quantize-scale-stored-last", family=FAMILY, source="https://github.com/ggml-org/ggml", dtypes=SIXTEEN,
         conventions={"scale_of_codes": "unstored"})  # fmt: skip
def quantize_with_the_unrounded_scale(x: Any, *, bits: int, axis: Any = None, group: Any = None, symmetric: bool = True) -> Codes:
    """Codes are made with the float32 scale, which is rounded to 16 bits only when it is stored."""
    q, s, z = textbook.quantize(x.astype(np.float32), bits=bits, axis=axis, group=group, symmetric=symmetric)
    stored = s.astype(x.dtype)
    return q, np.where(stored == 0, 1, stored).astype(x.dtype), z


@variant("quantize", id="quantize-int8-rows", family=FAMILY, only={"bits": ["8"]}, promises=("deterministic",))
def quantize_rows_to_int8(x: Any, *, axis: Any = None) -> Codes:
    """Symmetric int8 in int8, one row or column after another."""
    if axis is None:
        q, s, z = textbook.quantize(x, bits=8)
        return q.astype(np.int8), s, z
    rows = np.moveaxis(x, axis, 0)
    parts = [textbook.quantize(row, bits=8) for row in rows]
    q = np.array([part[0] for part in parts], np.int8).reshape(rows.shape)
    return np.moveaxis(q, 0, axis), np.array([part[1][0] for part in parts], x.dtype), np.zeros(len(parts), np.int64)


@variant("dequantize", id="dequantize-expanded", family=FAMILY)
def dequantize_expanded(q: Any, scale: Any, zero: Any = 0, *, axis: Any = None, group: Any = None) -> Array:
    """q s - zero s, with the second product made once for each block."""
    s = textbook.spread(scale, q.shape, axis, group)
    z = textbook.spread(zero.astype(scale.dtype) * scale, q.shape, axis, group)
    return np.asarray(q.astype(scale.dtype) * s - z)


@variant("dequantize", id="dequantize-sixteen-bit", family=FAMILY, dtypes=SIXTEEN)
def dequantize_to_sixteen_bits(q: Any, scale: Any, zero: Any = 0, *, axis: Any = None, group: Any = None) -> Array:
    """The product in float32, rounded to 16 bits."""
    return textbook.dequantize(q, scale, zero, axis, group)


@variant("quantized_matmul", id="int8-matmul-scales-in-turn", family=FAMILY)
def matmul_with_scales_in_turn(x: Any, q: Any, scale: Any, *, x_scale: Any, bias: Any = None) -> Array:
    """The integer sum times one scale, then times the other."""
    total = (x.astype(np.int32) @ q.astype(np.int32)).astype(scale.dtype)
    out = total * scale * np.asarray(x_scale, scale.dtype).reshape(-1, 1)
    return np.asarray(out if bias is None else out + bias)


@variant("quantized_matmul", id="int8-matmul-split", family=FAMILY, promises=("deterministic",))
def matmul_in_two_halves(x: Any, q: Any, scale: Any, *, x_scale: Any, bias: Any = None) -> Array:
    """Split K: two integer sums, added as integers."""
    half = x.shape[1] // 2
    x, q = x.astype(np.int32), q.astype(np.int32)
    total = (x[:, half:] @ q[half:] + x[:, :half] @ q[:half]).astype(scale.dtype)
    out = total * (np.asarray(x_scale, scale.dtype).reshape(-1, 1) * scale.reshape(1, -1))
    return np.asarray(out if bias is None else out + bias)


@variant("quantized_matmul", id="int8-matmul-sixteen-bit-out", family=FAMILY, dtypes=SIXTEEN)
def matmul_to_sixteen_bits(x: Any, q: Any, scale: Any, *, x_scale: Any, bias: Any = None) -> Array:
    """Scales and bias of 16 bits, all in float32 until the result is stored."""
    return textbook.matmul(x, q, scale, x_scale, bias)


@variant("dequantize_blockwise", id="blockwise-block-by-block", family=FAMILY)
def blocks_one_by_one(
    codes: Any, absmax: Any, *, block: int, codebook: Any, absmax_scale: Any = None, absmax_offset: float = 0.0
) -> Array:  # fmt: skip
    """The table is scaled once for each block, and then looked up."""
    dtype = absmax.dtype.type
    a = absmax if absmax_scale is None else absmax * dtype(absmax_scale) + dtype(absmax_offset)
    out = np.empty(codes.shape, absmax.dtype)
    for i in range(a.shape[-1]):
        for row in range(len(codes)):
            out[row, i * block : (i + 1) * block] = (codebook * a[row, i])[codes[row, i * block : (i + 1) * block]]
    return out


# Pruning ------------------------------------------------------------------------------------------------------------------


@variant("prune_magnitude", id="prune-by-descending-sort", family=PRUNING, promises=("deterministic",))
def prune_from_the_largest(weights: Any, *, sparsity: float, scope: str) -> Any:
    """Those that stay are counted from the largest, the highest index first among equals; layers of any shapes."""
    flat = [np.abs(w.astype(np.float64)).reshape(-1) for w in weights]
    masks = []
    for row in [np.concatenate(flat)] if scope == "global" else flat:
        order = np.lexsort((-np.arange(row.size), -row))
        mask = np.zeros(row.size, bool)
        mask[order[: row.size - textbook.share(sparsity, row.size)]] = True
        masks.append(mask)
    if scope == "global":
        masks = np.split(masks[0], np.cumsum([row.size for row in flat])[:-1])
    shaped = [mask.reshape(w.shape) for mask, w in zip(masks, weights)]
    return shaped if isinstance(weights, list) else np.array(shaped)


@variant("prune_magnitude", id="prune-by-selection", family=PRUNING, conventions={"pruned_ties": "any"}, refuses=("lists",),
         source="https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.prune.l1_unstructured.html")  # fmt: skip
def prune_by_partition(weights: Any, *, sparsity: float, scope: str) -> Array:
    """A selection without an order among equals."""
    w = np.abs(weights.astype(np.float64))
    rows = w.reshape(1, -1) if scope == "global" else w.reshape(len(w), w.size // max(len(w), 1))
    masks = np.ones(rows.shape, bool)
    for mask, row in zip(masks, rows):
        gone = textbook.share(sparsity, row.size)
        if gone:
            mask[np.argpartition(row[::-1], gone - 1)[:gone]] = False
            mask[:] = mask[::-1].copy()
    return masks.reshape(w.shape)


@variant("prune_magnitude", id="prune-nearest-count", family=PRUNING, conventions={"pruned_count": "nearest"}, refuses=("lists",),
         source="https://github.com/pytorch/pytorch/blob/main/torch/nn/utils/prune.py")  # fmt: skip
def prune_the_nearest_number(weights: Any, *, sparsity: float, scope: str) -> Array:
    """round(sparsity n) weights go."""
    w = np.abs(weights.astype(np.float64))
    rows = w.reshape(1, -1) if scope == "global" else w.reshape(len(w), w.size // max(len(w), 1))
    return np.array([textbook.largest(row, round(sparsity * row.size)) for row in rows], bool).reshape(w.shape)


@variant("prune_magnitude", id="prune-quantile-in-float32", family=PRUNING, dtypes=("float32",), refuses=("lists",))
def prune_above_a_float32_quantile(weights: Any, *, sparsity: float, scope: str, rule: str = "count") -> Array:
    """The quantile is computed in the weights' own float32."""
    if rule == "count" or not weights.size:
        return textbook.magnitude(weights, sparsity, scope)
    w = np.abs(weights)
    rows = w.reshape(1, -1) if scope == "global" else w.reshape(len(w), w.size // len(w))
    ordered, place = np.sort(rows, axis=1), np.float32(sparsity) * np.float32(rows.shape[1] - 1)
    below = int(place)
    a, b = ordered[:, below], ordered[:, min(below + 1, rows.shape[1] - 1)]
    return np.asarray((rows > (a + (place - np.float32(below)) * (b - a))[:, None]).reshape(w.shape))


@variant("prune_2_4", id="two-four-by-sort", family=PRUNING)
def two_four_by_sort(w: Any, *, axis: int) -> Array:
    """Each four is sorted, and the last two places marked."""
    rows = np.moveaxis(np.abs(w.astype(np.float64)), axis, -1)
    mask = np.zeros(rows.shape, bool)
    for start in range(0, rows.shape[-1], 4):
        four = rows[..., start : start + 4]
        order = np.lexsort((-np.broadcast_to(np.arange(four.shape[-1]), four.shape), four), axis=-1)[..., -2:]
        np.put_along_axis(mask[..., start : start + 4], order, True, axis=-1)
    return np.moveaxis(mask, -1, axis)


@variant("prune_2_4", id="two-four-last-of-equals", family=PRUNING, conventions={"pruned_ties": "any"}, length_multiple=4)
def two_four_of_whole_fours(w: Any) -> Array:
    """Whole fours along the last axis alone; of equals the last stay."""
    fours = np.abs(w.astype(np.float64)).reshape(*w.shape[:-1], w.shape[-1] // 4, 4)
    order = np.argsort(fours, axis=-1, kind="stable")[..., 2:]
    mask = np.zeros(fours.shape, bool)
    np.put_along_axis(mask, order, True, axis=-1)
    return mask.reshape(w.shape)


@variant("gradual_masks", id="masks-from-survivors", family=PRUNING)
def masks_from_survivors(history: Any, *, sparsities: Any, scope: str) -> Array:
    """Only those that are left are sorted, and as many more go as are wanting."""
    masks = []
    mask = np.ones(history.shape[1:], bool)
    for w, sparsity in zip(history, sparsities):
        shape = (1, mask.size) if scope == "global" else (len(mask), mask.size // len(mask))
        rows, sizes = mask.reshape(shape).copy(), np.abs(w.astype(np.float64)).reshape(shape)
        for row, size in zip(rows, sizes):
            left = np.flatnonzero(row)
            more = textbook.share(float(sparsity), row.size) - (row.size - left.size)
            row[left[np.argsort(size[left], kind="stable")[:more]]] = False
        mask = rows.reshape(mask.shape)
        masks.append(mask)
    return np.array(masks).reshape(history.shape)


@variant("quantized_matmul", id="int8-matmul-float64-inside", family=FAMILY, arithmetic=Arithmetic(elementwise="float64"))
def matmul_scaled_in_float64(x: Any, q: Any, scale: Any, *, x_scale: Any, bias: Any = None) -> Array:
    """The integer sum is scaled in float64, and rounded once."""
    total = (x.astype(np.int64) @ q.astype(np.int64)).astype(np.float64)
    out = total * np.asarray(x_scale, np.float64).reshape(-1, 1) * np.asarray(scale, np.float64).reshape(1, -1)
    return np.asarray((out if bias is None else out + bias.astype(np.float64)).astype(scale.dtype))
