"""Legal variants of attention's backward pass: where delta comes from, what is recomputed, and in which pieces gradients add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook
from . import variants_steps as steps
from .specimen import variant
from .textbook import Array, Call

FAMILY = "attention-backward"
EVERY_ALIGNMENT = (None, "bottom_right", "top_left")
BFLOAT16, FLOAT16 = steps.in_format("bfloat16"), steps.in_format("float16")


@variant("attention_backward", id="gradient-textbook", family=FAMILY, causal=EVERY_ALIGNMENT, promises=("deterministic",))
def gradient_of_the_textbook(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, **options: Any) -> dict[str, Array]:
    """Whole rows, P from the saved log-sum-exp, delta from dO O."""
    return textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, **options)


def _delta_from_p(call: Call, p: Array, dp: Array, delta: Array) -> Array:
    return np.asarray(p * (dp - (p * dp).sum(axis=-1, keepdims=True)))


@variant("attention_backward", id="delta-from-p-dp", family=FAMILY)
def delta_from_p(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, **options: Any) -> dict[str, Array]:
    """delta is the row sum of P dP, and the saved output is not read, but for the sinks."""
    return textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, score_gradient=_delta_from_p, **options)


@variant("attention_backward", id="delta-summed-in-order", family=FAMILY)
def delta_in_order(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, **options: Any) -> dict[str, Array]:
    """delta = rowsum(dO O) is added one term after another."""
    return textbook.attention_backward(q, k, v, out, lse, dout, causal=causal,
                                       row_sums=lambda dout, out: steps.sequential_sum(dout * out), **options)  # fmt: skip


@variant("attention_backward", id="gradient-in-base-2", family=FAMILY)
def gradient_in_base_2(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, **options: Any) -> dict[str, Array]:
    """P is 2^(s log2 e - lse log2 e), both products rounded."""

    def recomputed(call: Call, lse: Array) -> Array:
        log2e = call.q.dtype.type(steps.LOG2E)
        shift = np.where(np.isneginf(lse), 0, lse)[..., None].astype(call.q.dtype)
        s = np.where(textbook.visible(call), textbook.scores(call), -np.inf).astype(call.q.dtype)
        return np.asarray(np.exp2(s * log2e - shift * log2e))

    return textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, recomputed=recomputed, **options)


@variant("attention_backward", id="gradient-recomputes-lse", family=FAMILY, arithmetic=Arithmetic(recomputes=True))
def own_log_sum_exp(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None, softcap: Any = None,
                    mask: Any = None, kv_lengths: Any = None) -> dict[str, Array]:  # fmt: skip
    """The forward pass runs again, and neither the saved output nor the saved log-sum-exp is read."""
    options = {"causal": causal, "scale": scale, "softcap": softcap, "mask": mask, "kv_lengths": kv_lengths}
    out, lse = textbook.attention(q, k, v, **options)
    return textbook.attention_backward(q, k, v, out, lse, dout, **options)


def _in_blocks_of_rows(
    block: int, stored: Callable[[Array], Array], q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any,
    scale: Any, between: Callable[[Array], Array] = steps.kept, order: Callable[[int], Any] = steps.forwards,
) -> dict[str, Array]:  # fmt: skip
    """dK and dV added up over blocks of query rows; P and dS go through `stored`, partial sums through `between`."""
    with np.errstate(all="ignore"):
        call = textbook.prepared(q, k, v, causal=causal, scale=scale)
        number = call.q.dtype.type(call.scale)
        out, lse, dout = (x.astype(call.q.dtype) for x in (out, lse, dout))
        seen = np.broadcast_to(textbook.visible(call), (*q.shape[:3], call.Lk))
        dq, dk, dv = np.zeros_like(call.q), np.zeros_like(call.k), np.zeros_like(call.v)
        for i in order(-(-call.Lq // block)):
            rows = (slice(None), slice(None), slice(i * block, (i + 1) * block))
            s = np.where(seen[rows], number * (call.q[rows] @ call.k.swapaxes(-1, -2)), -np.inf).astype(call.q.dtype)
            p = np.exp(s - np.where(np.isneginf(lse[rows]), 0, lse[rows])[..., None])
            delta = (dout[rows] * out[rows]).sum(axis=-1, keepdims=True)
            ds = stored(p * np.where(seen[rows], dout[rows] @ call.v.swapaxes(-1, -2) - delta, 0))
            dq[rows] = number * (ds @ call.k)
            dk = between(dk + number * (ds.swapaxes(-1, -2) @ call.q[rows]))
            dv = between(dv + stored(p).swapaxes(-1, -2) @ dout[rows])
        G = q.shape[1] // k.shape[1]
        dk, dv = (textbook.summed_over_group(x, G) for x in (dk, dv))
        return {"dq": dq.astype(q.dtype), "dk": dk.astype(k.dtype), "dv": dv.astype(v.dtype)}


@variant("attention_backward", id="gradient-in-blocks-of-16-rows", family=FAMILY)
def in_blocks_of_16(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None) -> dict[str, Array]:
    """dK and dV are accumulated block after block of 16 query rows, the first one first."""
    return _in_blocks_of_rows(16, steps.kept, q, k, v, out, lse, dout, causal=causal, scale=scale)


@variant("attention_backward", id="gradient-in-blocks-of-64-backwards", family=FAMILY, causal=EVERY_ALIGNMENT)
def in_blocks_of_64(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None) -> dict[str, Array]:
    """dK and dV are accumulated from the last block of 64 query rows to the first."""
    return _in_blocks_of_rows(64, steps.kept, q, k, v, out, lse, dout, causal=causal, scale=scale, order=steps.backwards)


@variant("attention_backward", id="gradient-p-and-ds-in-bfloat16", family=FAMILY, dtypes=["bfloat16"],
         arithmetic=Arithmetic(probabilities="input"))  # fmt: skip
def p_and_ds_in_bfloat16(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None) -> dict[str, Array]:
    """P and dS are rounded to bfloat16 for the products, gradients are kept in float32 until the end."""
    return _in_blocks_of_rows(32, BFLOAT16, q, k, v, out, lse, dout, causal=causal, scale=scale)


@variant("attention_backward", id="gradient-p-and-ds-in-float16", family=FAMILY, dtypes=["float16"],
         arithmetic=Arithmetic(probabilities="input"))  # fmt: skip
def p_and_ds_in_float16(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None) -> dict[str, Array]:
    """P and dS are rounded to float16 for the products."""
    return _in_blocks_of_rows(64, lambda x: x.astype(np.float16).astype(x.dtype), q, k, v, out, lse, dout, causal=causal, scale=scale)


@variant("attention_backward", id="gradient-kept-in-bfloat16", family=FAMILY, dtypes=["bfloat16"],
         arithmetic=Arithmetic(gradient="input", gradient_blocks=8, probabilities="input"), refuses=("grouped",))  # fmt: skip
def partial_gradients_in_bfloat16(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None
) -> dict[str, Array]:
    """dK and dV are rounded to bfloat16 after every block of query rows, of which there are at most eight."""
    block = max(1, -(-q.shape[2] // 8))
    return _in_blocks_of_rows(block, BFLOAT16, q, k, v, out, lse, dout, causal=causal, scale=scale, between=BFLOAT16)


@variant("attention_backward", id="gradient-sixteen-bit-float32-inside", family=FAMILY, dtypes=("float16", "bfloat16"))
def sixteen_bits_wide_inside(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, **options: Any) -> dict[str, Array]:
    """16-bit inputs, float32 inside, the gradients alone rounded."""
    return textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, **options)


@variant("attention_backward", id="gradient-of-keys-by-tiles", family=FAMILY)
def in_tiles_of_keys(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None) -> dict[str, Array]:
    """The outer loop is over tiles of 32 keys; dQ is accumulated, dK and dV are finished tile by tile."""
    with np.errstate(all="ignore"):
        call = textbook.prepared(q, k, v, causal=causal, scale=scale)
        number, G = call.q.dtype.type(call.scale), q.shape[1] // k.shape[1]
        out, lse, dout = (x.astype(call.q.dtype) for x in (out, lse, dout))
        seen = np.broadcast_to(textbook.visible(call), (*q.shape[:3], call.Lk))
        shift, delta = np.where(np.isneginf(lse), 0, lse)[..., None], (dout * out).sum(axis=-1, keepdims=True)
        dq, dk, dv = np.zeros_like(call.q), np.zeros_like(call.k), np.zeros_like(call.v)
        for start in range(0, call.Lk, 32):
            tile = (slice(None), slice(None), slice(start, start + 32))
            x = seen[..., start : start + 32]
            p = np.exp(np.where(x, number * (call.q @ call.k[tile].swapaxes(-1, -2)), -np.inf) - shift).astype(call.q.dtype)
            ds = p * np.where(x, dout @ call.v[tile].swapaxes(-1, -2) - delta, 0)
            dq += number * (ds @ call.k[tile])
            dk[tile], dv[tile] = number * (ds.swapaxes(-1, -2) @ call.q), p.swapaxes(-1, -2) @ dout
        dk, dv = (textbook.summed_over_group(x, G) for x in (dk, dv))
        return {"dq": dq.astype(q.dtype), "dk": dk.astype(k.dtype), "dv": dv.astype(v.dtype)}


@variant("attention_backward", id="gradient-float64-inside", family=FAMILY, causal=["top_left"])
def in_float64(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None, sinks: Any = None
) -> dict[str, Array]:
    """Computed in float64 whatever comes in, top-left causal masks alone."""
    wide_q, k, v, out, lse, dout = (x.astype(np.float64) for x in (q, k, v, out, lse, dout))
    gradients = textbook.attention_backward(wide_q, k, v, out, lse, dout, causal=causal, scale=scale, sinks=sinks)
    return {name: x.astype(q.dtype) for name, x in gradients.items()}


# Packed sequences --------------------------------------------------------------------------------------------------------


@variant("attention_packed", id="packed-sequence-by-sequence", family="attention-forward", causal=EVERY_ALIGNMENT)
def packed_one_by_one(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """Each sequence is a call of its own."""
    return textbook.attention_packed(q, k, v, cu_q, cu_k, causal=causal, **options)


def _tiled_packed(chosen: steps.Steps, q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, **options: Any) -> tuple[Array, Array]:
    out, lse = np.zeros((*q.shape[:2], v.shape[-1]), q.dtype), np.full((q.shape[1], len(q)), -np.inf, textbook.working(q))
    for rows, keys in textbook.sequences(cu_q, cu_k):
        o, l = steps.online(chosen, *(textbook.batch(x) for x in (q[rows], k[keys], v[keys])), **options)
        out[rows], lse[:, rows] = o[0].swapaxes(0, 1), l[0]
    return out, lse


@variant("attention_packed", id="packed-tiles-of-32", family="attention-forward")
def packed_in_tiles(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """Online softmax over tiles of 32 keys of each sequence, the last tile first."""
    return _tiled_packed(steps.Steps(tile=32, order=steps.backwards), q, k, v, cu_q, cu_k, causal=causal, **options)


@variant("attention_packed", id="packed-in-bfloat16", family="attention-forward", dtypes=["bfloat16"],
         arithmetic=Arithmetic(probabilities="input"))  # fmt: skip
def packed_in_bfloat16(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """bfloat16 with P in bfloat16, powers of 2."""
    chosen = steps.Steps(tile=64, base=steps.BINARY, stored=BFLOAT16)
    return _tiled_packed(chosen, q, k, v, cu_q, cu_k, causal=causal, **options)


def _segments(cu: Any, n: int) -> Array:
    return np.searchsorted(cu, np.arange(n), side="right")


@variant("attention_packed", id="packed-block-diagonal-mask", family="masking")
def packed_by_a_mask(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """All sequences in one call under a block-diagonal mask, the causal limit inside each block."""
    of_q, of_k = _segments(cu_q, len(q)), _segments(cu_k, len(k))
    mask = of_q[:, None] == of_k
    if causal is not None:
        ends = np.stack([np.asarray(cu_k)[of_q], np.asarray(cu_q)[of_q]]) if len(q) else np.zeros((2, 0), np.int64)
        mask = mask & (np.arange(len(k)) - ends[0][:, None] <= (np.arange(len(q)) - ends[1])[:, None])
    out, lse = textbook.attention(*(textbook.batch(x) for x in (q, k, v)), causal=None, mask=mask[None, None], scale=scale)
    return out[0].swapaxes(0, 1), lse[0]


@variant("attention_packed", id="packed-padded-to-the-longest", family="masking")
def packed_by_padding(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """Sequences are unpacked one to a row of a padded batch, queries at its end, and packed again."""
    pairs = textbook.sequences(cu_q, cu_k)
    out, lse = np.zeros((*q.shape[:2], v.shape[-1]), q.dtype), np.full((q.shape[1], len(q)), -np.inf, textbook.working(q))
    if not pairs:
        return out, lse
    lengths_q, lengths_k = np.diff(cu_q), np.diff(cu_k)
    n_q, n_k = int(lengths_q.max()), int(lengths_k.max())
    padded = [np.zeros((len(pairs), x.shape[1], n, x.shape[2]), x.dtype) for x, n in ((q, n_q), (k, n_k), (v, n_k))]
    for i, (rows, keys) in enumerate(pairs):
        padded[0][i, :, n_q - lengths_q[i] :] = q[rows].swapaxes(0, 1)          # bottom right: the last query meets the last key
        for x, given in ((padded[1], k), (padded[2], v)):
            x[i, :, : lengths_k[i]] = given[keys].swapaxes(0, 1)
    o, l = textbook.attention(*padded, causal=causal, kv_lengths=lengths_k, scale=scale)
    for i, (rows, _) in enumerate(pairs):
        out[rows], lse[:, rows] = o[i, :, n_q - lengths_q[i] :].swapaxes(0, 1), l[i, :, n_q - lengths_q[i] :]
    return out, lse


@variant("attention_packed_backward", id="packed-gradient-sequence-by-sequence", family=FAMILY, causal=EVERY_ALIGNMENT)
def packed_gradient(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any, *, causal: Any, **options: Any
) -> dict[str, Array]:
    """Each sequence is a call of its own."""
    return textbook.attention_packed_backward(q, k, v, out, lse, dout, cu_q, cu_k, causal=causal, **options)


@variant("attention_packed_backward", id="packed-gradient-delta-from-p", family=FAMILY)
def packed_gradient_by_p(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any, *, causal: Any, **options: Any
) -> dict[str, Array]:
    """Each sequence by itself, delta from P dP."""
    return textbook.attention_packed_backward(q, k, v, out, lse, dout, cu_q, cu_k, causal=causal, score_gradient=_delta_from_p, **options)


@variant("attention_packed_backward", id="packed-gradient-block-diagonal-mask", family=FAMILY)
def packed_gradient_by_a_mask(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any, *, causal: Any, scale: Any = None
) -> dict[str, Array]:
    """All sequences in one call under a block-diagonal mask."""
    of_q, of_k = _segments(cu_q, len(q)), _segments(cu_k, len(k))
    mask = of_q[:, None] == of_k
    if causal is not None and len(q):
        ahead = np.arange(len(k)) - np.asarray(cu_k)[of_q][:, None]
        mask = mask & (ahead <= (np.arange(len(q)) - np.asarray(cu_q)[of_q])[:, None])
    q, k, v, out, dout = (textbook.batch(x) for x in (q, k, v, out, dout))
    gradients = textbook.attention_backward(q, k, v, out, lse[None], dout, causal=None, mask=mask[None, None], scale=scale)
    return {name: x[0].swapaxes(0, 1) for name, x in gradients.items()}
