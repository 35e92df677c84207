"""Legal variants of softmax, log-sum-exp and the merge of partial results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook
from .specimen import variant
from .textbook import Array
from .variants_steps import LN2, LOG2E, pairwise_sum, reversed_sum, sequential_sum, sum_in_lanes

FAMILY = "softmax"
SIXTEEN = ("float16", "bfloat16")


def _rows(x: Any, axis: int) -> Array:
    """x with the axis of the softmax last, in the type it is computed in."""
    return np.asarray(np.moveaxis(x.astype(textbook.working(x)), axis, -1))


def _shift(rows: Array) -> Array:
    m = rows.max(axis=-1, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(m), 0, m).astype(rows.dtype)


def _safe(l: Array) -> Array:
    return np.where(l == 0, 1, l).astype(l.dtype)


def _two_passes(x: Any, axis: int, row_sum: Callable[[Array], Array]) -> Array:
    with np.errstate(all="ignore"):
        rows = _rows(x, axis)
        e = np.exp(rows - _shift(rows))
        return np.asarray(np.moveaxis(e / _safe(row_sum(e)), -1, axis).astype(x.dtype))


@variant("softmax", id="softmax-two-passes", family=FAMILY, promises=("deterministic",))
def softmax_in_two_passes(x: Any, *, axis: int = -1) -> Array:
    """The maximum first, then exponentials that are kept, and their sum in pairs."""
    return _two_passes(x, axis, pairwise_sum)


@variant("softmax", id="softmax-sequential-sum", family=FAMILY)
def softmax_summed_forwards(x: Any, *, axis: int = -1) -> Array:
    """The exponentials are added one after another, which is the least accurate legal order."""
    return _two_passes(x, axis, sequential_sum)


@variant("softmax", id="softmax-reversed-sum", family=FAMILY)
def softmax_summed_backwards(x: Any, *, axis: int = -1) -> Array:
    """The exponentials are added from the last to the first."""
    return _two_passes(x, axis, reversed_sum)


@variant("softmax", id="softmax-lanes", family=FAMILY)
def softmax_summed_in_lanes(x: Any, *, axis: int = -1) -> Array:
    """Eight lanes add every eighth exponential each, then their sums are added in pairs."""
    return _two_passes(x, axis, sum_in_lanes)


@variant("softmax", id="softmax-sixteen-bit", family=FAMILY, dtypes=SIXTEEN)
def softmax_of_sixteen_bits(x: Any, *, axis: int = -1) -> Array:
    """16-bit inputs are widened to float32, and only the result is rounded."""
    return _two_passes(x, axis, sequential_sum)


@variant("softmax", id="softmax-sixteen-bit-to-float32", family=FAMILY, dtypes=SIXTEEN, arithmetic=Arithmetic(out="float32"))
def softmax_of_sixteen_bits_kept_wide(x: Any, *, axis: int = -1) -> Array:
    """16-bit inputs give probabilities in float32."""
    return _two_passes(x.astype(np.float32), axis, pairwise_sum)


@variant("softmax", id="softmax-three-passes", family=FAMILY)
def softmax_in_three_passes(x: Any, *, axis: int = -1) -> Array:
    """Nothing is kept between passes: the exponentials are taken once for the sum, and again for the result."""
    with np.errstate(all="ignore"):
        rows = _rows(x, axis)
        l = sequential_sum(np.exp(rows - _shift(rows)))
        return np.asarray(np.moveaxis(np.exp(rows - _shift(rows)) / _safe(l), -1, axis).astype(x.dtype))


@variant("softmax", id="softmax-base-2", family=FAMILY)
def softmax_in_base_2(x: Any, *, axis: int = -1) -> Array:
    """2^(x log2 e - m log2 e) stands for e^(x - m), both products rounded."""
    with np.errstate(all="ignore"):
        rows = _rows(x, axis)
        log2e = rows.dtype.type(LOG2E)
        e = np.exp2(rows * log2e - _shift(rows) * log2e)
        return np.asarray(np.moveaxis(e / _safe(pairwise_sum(e)), -1, axis).astype(x.dtype))


@variant("softmax", id="softmax-reciprocal", family=FAMILY)
def softmax_by_reciprocal(x: Any, *, axis: int = -1) -> Array:
    """One reciprocal a row, one product an element, instead of divisions."""
    with np.errstate(all="ignore"):
        rows = _rows(x, axis)
        e = np.exp(rows - _shift(rows))
        return np.asarray(np.moveaxis(e * (1 / _safe(pairwise_sum(e))), -1, axis).astype(x.dtype))


def _online(rows: Array, block: int) -> tuple[Array, Array]:
    """The running maximum (0 where there is none) and sum over blocks of a row."""
    m, l = np.full((*rows.shape[:-1], 1), -np.inf, rows.dtype), np.zeros((*rows.shape[:-1], 1), rows.dtype)
    for start in range(0, rows.shape[-1], block):
        x = rows[..., start : start + block]
        m_new = np.maximum(m, x.max(axis=-1, keepdims=True))
        shift = np.where(np.isneginf(m_new), 0, m_new)
        l = l * np.exp(m - shift) + np.exp(x - shift).sum(axis=-1, keepdims=True)
        m = m_new
    return np.where(np.isneginf(m), 0, m).astype(rows.dtype), l.astype(rows.dtype)


@variant("softmax", id="softmax-online-blocks-of-16", family=FAMILY, source="Milakov and Gimelshein 2018 (arXiv 1805.02867)")
def softmax_online(x: Any, *, axis: int = -1) -> Array:
    """Maximum and sum in one pass over blocks of 16, the sum rescaled whenever the maximum rises."""
    with np.errstate(all="ignore"):
        rows = _rows(x, axis)
        m, l = _online(rows, 16)
        return np.asarray(np.moveaxis(np.exp(rows - m) / _safe(l), -1, axis).astype(x.dtype))


@variant("softmax", id="softmax-online-each-entry", family=FAMILY, arithmetic=Arithmetic(tile_min=1))
def softmax_online_entry_by_entry(x: Any, *, axis: int = -1) -> Array:
    """One pass in which every entry may move the maximum."""
    with np.errstate(all="ignore"):
        rows = _rows(x, axis)
        m, l = _online(rows, 1)
        return np.asarray(np.moveaxis(np.exp(rows - m) / _safe(l), -1, axis).astype(x.dtype))


@variant("softmax", id="softmax-padded-scratch", family=FAMILY)
def softmax_in_padded_scratch(x: Any, *, axis: int = -1) -> Array:
    """Rows are copied into scratch memory of a multiple of 32 entries, which held NaN before; the tail is set to -inf."""
    with np.errstate(all="ignore"):
        rows = _rows(x, axis)
        n = rows.shape[-1]
        scratch = np.full((*rows.shape[:-1], -(-n // 32) * 32), np.nan, rows.dtype)
        scratch[..., :n], scratch[..., n:] = rows, -np.inf
        e = np.exp(scratch - _shift(scratch))
        return np.asarray(np.moveaxis((e / _safe(pairwise_sum(e)))[..., :n], -1, axis).astype(x.dtype))


@variant("softmax", id="softmax-float64-inside", family=FAMILY)
def softmax_in_float64(x: Any, *, axis: int = -1) -> Array:
    """Computed in float64 whatever comes in, then rounded once."""
    return np.asarray(_two_passes(x.astype(np.float64), axis, pairwise_sum).astype(x.dtype))


@variant("softmax", id="softmax-into-a-buffer", family=FAMILY, buffers=("p",))
def softmax_into(x: Any, *, p: Any, axis: int = -1) -> None:
    """The result is written into a buffer, the exponentials first and then divided in place."""
    with np.errstate(all="ignore"):
        rows, target = _rows(x, axis), np.moveaxis(p, axis, -1)
        np.exp(rows - _shift(rows), out=target)
        target /= _safe(pairwise_sum(target))


# Log-sum-exp -------------------------------------------------------------------------------------------------------------


@variant("log_sum_exp", id="lse-online-blocks-of-32", family=FAMILY)
def lse_online(x: Any, *, axis: int = -1) -> Array:
    """One pass over blocks of 32 with a running maximum."""
    with np.errstate(all="ignore"):
        m, l = _online(_rows(x, axis), 32)
        return np.asarray((m + np.log(l))[..., 0])


@variant("log_sum_exp", id="lse-sequential-sum", family=FAMILY, dtypes=("float32", "float64", *SIXTEEN))
def lse_summed_forwards(x: Any, *, axis: int = -1) -> Array:
    """The exponentials are added one after another."""
    with np.errstate(all="ignore"):
        rows = _rows(x, axis)
        return np.asarray((_shift(rows) + np.log(sequential_sum(np.exp(rows - _shift(rows)))))[..., 0])


@variant("log_sum_exp", id="lse-base-2", family=FAMILY)
def lse_in_base_2(x: Any, *, axis: int = -1) -> Array:
    """ln 2 log2 of a sum of powers of 2, the maximum kept natural."""
    with np.errstate(all="ignore"):
        rows = _rows(x, axis)
        number, m = rows.dtype.type, _shift(rows)
        return np.asarray((m + number(LN2) * np.log2(pairwise_sum(np.exp2((rows - m) * number(LOG2E)))))[..., 0])


@variant("log_sum_exp", id="lse-maximum-left-out", family=FAMILY)
def lse_by_log1p(x: Any, *, axis: int = -1) -> Array:
    """The largest entry's own 1 stays out of the sum: m + log1p of the others, which keeps digits where one entry leads."""
    with np.errstate(all="ignore"):
        rows = _rows(x, axis)
        if not rows.shape[-1]:
            return np.full(rows.shape[:-1], -np.inf, rows.dtype)
        top = rows.argmax(axis=-1)[..., None]
        m = np.take_along_axis(rows, top, axis=-1)
        others = np.where(np.arange(rows.shape[-1]) == top, 0, np.exp(rows - _shift(rows))).sum(axis=-1, keepdims=True)
        return np.asarray((m + np.log1p(others))[..., 0])


@variant("log_sum_exp", id="lse-tree-of-pairs", family=FAMILY, arithmetic=Arithmetic(tile_min=1))
def lse_in_a_tree(x: Any, *, axis: int = -1) -> Array:
    """Pairs of (maximum, sum) are combined in a tree, as a block of threads does; only the root takes a logarithm."""
    with np.errstate(all="ignore"):
        m = _rows(x, axis)
        l = np.where(np.isneginf(m), 0, 1).astype(m.dtype)
        if not m.shape[-1]:
            return np.full(m.shape[:-1], -np.inf, m.dtype)
        while m.shape[-1] > 1:
            if m.shape[-1] % 2:
                m = np.concatenate([m, np.full_like(m[..., :1], -np.inf)], axis=-1)
                l = np.concatenate([l, np.zeros_like(l[..., :1])], axis=-1)
            top = np.maximum(m[..., 0::2], m[..., 1::2])
            shift = np.where(np.isneginf(top), 0, top)
            l = l[..., 0::2] * np.exp(m[..., 0::2] - shift) + l[..., 1::2] * np.exp(m[..., 1::2] - shift)
            m = top
        return np.asarray((np.where(np.isneginf(m), 0, m) + np.log(l))[..., 0])


# The merge of two parts --------------------------------------------------------------------------------------------------


def _weights(lse_a: Any, lse_b: Any) -> tuple[Array, Array, Array]:
    """The maximum, 0 where both parts are empty, and the two unnormalised weights."""
    wide = textbook.working(lse_a)
    m = np.maximum(lse_a, lse_b).astype(wide)
    m = np.where(np.isneginf(m), 0, m).astype(wide)
    return m, np.exp(lse_a - m), np.exp(lse_b - m)


@variant("merge_attention", id="merge-weights-normalised", family=FAMILY)
def merge_with_normalised_weights(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Array, Array]:
    """Each weight is divided by the sum before it multiplies its part."""
    return textbook.merge_attention(out_a, lse_a, out_b, lse_b)


@variant("merge_attention", id="merge-divides-last", family=FAMILY, dtypes=("float32", "float64", *SIXTEEN))
def merge_dividing_last(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Array, Array]:
    """The weighted sum of the parts is divided by the sum of the weights."""
    with np.errstate(all="ignore"):
        m, w_a, w_b = _weights(lse_a, lse_b)
        l = w_a + w_b
        total = w_a[..., None] * out_a.astype(m.dtype) + w_b[..., None] * out_b.astype(m.dtype)
        return (total / _safe(l)[..., None]).astype(out_a.dtype), m + np.log(l)


@variant("merge_attention", id="merge-by-logistic", family=FAMILY)
def merge_by_logistic(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Array, Array]:
    """The weights are logistic functions of the difference of the two log-sum-exps, and lse comes through log1p."""
    with np.errstate(all="ignore"):
        m = np.maximum(lse_a, lse_b)
        apart = np.where(np.isneginf(m), 0, lse_a - lse_b).astype(m.dtype)
        w_a, w_b = 1 / (1 + np.exp(-apart)), 1 / (1 + np.exp(apart))
        w_a, w_b = (np.where(np.isneginf(lse), 0, w).astype(m.dtype) for w, lse in ((w_a, lse_a), (w_b, lse_b)))
        out = w_a[..., None] * out_a + w_b[..., None] * out_b
        return out.astype(out_a.dtype), m + np.log1p(np.exp(-np.abs(apart)))


@variant("merge_attention", id="merge-base-2", family=FAMILY)
def merge_in_base_2(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Array, Array]:
    """Weights are powers of 2 of the differences times log2 e."""
    with np.errstate(all="ignore"):
        m, _, _ = _weights(lse_a, lse_b)
        number = m.dtype.type
        w_a, w_b = (np.exp2((lse - m) * number(LOG2E)) for lse in (lse_a, lse_b))
        l = w_a + w_b
        out = (w_a / _safe(l))[..., None] * out_a + (w_b / _safe(l))[..., None] * out_b
        return out.astype(out_a.dtype), m + np.log2(l) * number(LN2)


@variant("merge_attention", id="merge-empty-parts-copied", family=FAMILY, buffers=("out", "lse"))
def merge_copying_around_the_empty(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, *, out: Any, lse: Any) -> None:
    """Where one part is empty the other is copied unread by any arithmetic; results go into buffers."""
    merged, log = textbook.merge_attention(out_a, lse_a, out_b, lse_b)
    no_a, no_b = np.isneginf(lse_a), np.isneginf(lse_b)
    out[...] = np.where((no_a & no_b)[..., None], 0, np.where(no_b[..., None], out_a, np.where(no_a[..., None], out_b, merged)))
    lse[...] = np.where(no_b, lse_a, np.where(no_a, lse_b, log))
