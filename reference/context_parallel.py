"""Context parallelism by a ring: attention over a sequence of which each rank holds a part, forward and backward. All-to-all is apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Bool, Causal, Float64
from .attention import attention, attention_scores, seen_product
from .collectives import shift
from .sequence_shards import Order, Shards
from .softmax import merge_attention


def ring_attention(q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike], *, causal: Causal,
                   order: Order = "contiguous", segments: ArrayLike | None = None,
                   scale: float | None = None) -> tuple[list[Float64], list[Float64]]:
    """Attention of a sequence over itself, R ranks holding a part each: the shards of out and of its log-sum-exp, two lists.

        for t in 0 .. R - 1:    rank r holds keys and values of rank r - t
            out, lse = merge(out, lse, attention(q_r, k_{r-t}, v_{r-t}))
            keys and values go on to rank r + 1

    q_r (B, Hq, n, D), k_r (B, Hkv, n, D), v_r (B, Hkv, n, Dv), n tokens on every rank, which stand in the sequence where
    `shard_positions` of that order says. causal: None, or either alignment, which are the same here. segments (B, R n), in the order
    of the sequence: tokens of one number are a sequence of their own, packed with others; those of -1 are padding, which sees nothing
    and is not seen. scale None: 1/sqrt(D). Nothing visible: out 0, lse -inf. n = 0 and R = 1 are legal.

    >>> q = k = np.zeros((1, 1, 1, 1))
    >>> ring_attention([q, q], [k, k], [np.full((1, 1, 1, 1), 1.0), np.full((1, 1, 1, 1), 3.0)], causal="top_left")[0]
    [array([[[[1.]]]]), array([[[[2.]]]])]

    Raises ValueError or TypeError that names the argument, the rank, what came and what is wanted.
    Error bound: `properties.bounds.context_parallel`.
    Source: Liu, Zaharia and Abbeel 2023 (arXiv 2310.01889), algorithm 1; merging: Milakov and Gimelshein 2018 (arXiv 1805.02867).
    """
    s = Shards.of(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments)
    R, k, v = len(s.q), [x.astype(np.float64) for x in s.k], [x.astype(np.float64) for x in s.v]
    outs = [np.zeros((*q.shape[:3], v[0].shape[3])) for q in s.q]
    lses = [np.full(q.shape[:3], -np.inf) for q in s.q]
    for t in range(R):
        for r in range(R):
            part = attention(s.q[r], k[r], v[r], causal=None, mask=s.visible(r, (r - t) % R), scale=scale)
            outs[r], lses[r] = merge_attention(outs[r], lses[r], *part)
        k, v = _onwards(k, t, R), _onwards(v, t, R)
    return outs, lses


def ring_attention_backward(q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike],
                            dout_shards: Sequence[ArrayLike], *, causal: Causal, order: Order = "contiguous",
                            segments: ArrayLike | None = None,
                            scale: float | None = None) -> tuple[list[Float64], list[Float64], list[Float64]]:
    """The gradients of sum over ranks of sum(dout_r * out_r): the shards of dq, dk and dv, three lists.

        out, lse of the forward ring;    delta_r = rowsum(dout_r out_r)
        for t in 0 .. R - 1:    rank r holds k, v of rank r - t, and their gradients so far
            p = e^(s - lse_r);    dv += p^T dout_r;    ds = scale p (dout_r v^T - delta_r);    dq_r += ds k;    dk += ds^T q_r
            keys, values and both gradients go on to rank r + 1
        after R steps the gradients are back at the rank of their keys

    The log-sum-exp is that of the whole row, so that each part's p needs no other part. Arguments as in `ring_attention`; dout_r
    (B, Hq, n, Dv). Nothing visible: all gradients 0.

    >>> x = np.zeros((1, 1, 1, 1))
    >>> v, dout = [x + 1.0, x + 3.0], [x, x + 1.0]
    >>> ring_attention_backward([x, x + 1.0], [x, x], v, dout, causal="top_left", scale=1.0)[1]
    [array([[[[-0.5]]]]), array([[[[0.5]]]])]

    Raises ValueError or TypeError that names the argument, the rank, what came and what is wanted.
    Error bound: `properties.bounds.context_parallel`.
    Source: Liu, Zaharia and Abbeel 2023 (arXiv 2310.01889), section 3; Dao et al. 2022 (arXiv 2205.14135), appendix B.2.
    """
    s = Shards.of(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments)
    outs, lses = ring_attention(s.q, s.k, s.v, causal=causal, order=order, segments=segments, scale=scale)
    R, shapes = len(s.q), [x.shape for x in outs]
    if len(dout_shards) != R:
        raise ValueError(f"dout_shards: got {len(dout_shards)} shards; want {R}, one for every rank")
    douts = [arguments.widen(f"dout_shards[{r}]", x, shape) for r, (x, shape) in enumerate(zip(dout_shards, shapes))]
    q, k, v = ([x.astype(np.float64) for x in shards] for shards in (s.q, s.k, s.v))
    dq, dk, dv = ([np.zeros_like(x) for x in shards] for shards in (q, k, v))
    scale = arguments.score_scale(scale, q[0].shape[3])
    with np.errstate(invalid="ignore", over="ignore"):
        for t in range(R):
            for r in range(R):
                parts = _block(q[r], k[r], v[r], outs[r], lses[r], douts[r], s.visible(r, (r - t) % R), scale)
                dq[r], dk[r], dv[r] = (whole + part for whole, part in zip((dq[r], dk[r], dv[r]), parts))
            k, v = _onwards(k, t, R), _onwards(v, t, R)
            dk, dv = shift(dk)[0], shift(dv)[0]                                 # R times round: home again
    return dq, dk, dv


def _onwards(shards: list[Array], t: int, R: int) -> list[Array]:
    """Everything to the next rank; nothing after the last step, when nobody would read it."""
    return shift(shards)[0] if t < R - 1 else shards


def _block(q: Float64, k: Float64, v: Float64, out: Float64, lse: Float64, dout: Float64, seen: Bool,
           scale: float) -> tuple[Float64, Float64, Float64]:
    """What the queries of one shard and the keys of another add to dq, dk and dv."""
    G, seen = q.shape[1] // k.shape[1], np.broadcast_to(seen, (*q.shape[:3], k.shape[2]))
    keys, values = np.repeat(k, G, axis=1), np.repeat(v, G, axis=1)             # (B, Hq, n, ...)
    s = attention_scores(q, k, causal=None, scale=scale)                        # (B, Hq, n, n)
    p = np.where(seen, np.exp(s - np.where(np.isneginf(lse), 0.0, lse)[..., None]), 0.0)
    dp = np.where(seen, dout @ values.swapaxes(-1, -2), 0.0)
    delta = (dout * out).sum(axis=-1, keepdims=True)
    ds = scale * np.where(seen, p * (dp - delta), 0.0)
    seen_by = seen.swapaxes(-1, -2)
    dq = seen_product(ds, keys, seen)
    dk, dv = seen_product(ds.swapaxes(-1, -2), q, seen_by), seen_product(p.swapaxes(-1, -2), dout, seen_by)
    return dq, _over_the_group(dk, G), _over_the_group(dv, G)


def _over_the_group(x: Float64, G: int) -> Float64:
    """(B, Hq, n, D) summed over the G query heads of each key head."""
    B, Hq, n, D = x.shape
    return np.asarray(x.reshape(B, Hq // G, G, n, D).sum(axis=2))
