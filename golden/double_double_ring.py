"""Context parallelism in double-double: the whole sequence at once, its shards taken out of it; each rank's norm with its own tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.array_lists import spread

from .ball_ring import held_by, in_order, of_one_segment, place_of
from .double_double import DD
from .double_double_attention import attention, attention_backward
from .double_double_shards import norm_backward

Results = dict[str, DD]


def ring_attention(q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike], *, causal: str | None,
                   order: str = "contiguous", segments: ArrayLike | None = None, scale: float | None = None) -> Results:
    """out.0, …, lse.0, …"""
    held = held_by(len(q_shards), np.shape(q_shards[0])[2], order)
    q, k, v = (in_order(shards, held) for shards in (q_shards, k_shards, v_shards))
    return _cut(attention(q, k, v, causal=causal, mask=of_one_segment(segments), scale=scale), held)


def ring_attention_backward(q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike],
                            dout_shards: Sequence[ArrayLike], *, causal: str | None, order: str = "contiguous",
                            segments: ArrayLike | None = None, scale: float | None = None) -> Results:
    """dq.0, …, dk.0, …, dv.0, …"""
    held = held_by(len(q_shards), np.shape(q_shards[0])[2], order)
    q, k, v, dout = (in_order(shards, held) for shards in (q_shards, k_shards, v_shards, dout_shards))
    return _cut(attention_backward(q, k, v, dout, dout, dout, causal=causal, mask=of_one_segment(segments), scale=scale), held)


def sharded_cache_attention(q: ArrayLike, k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike], indices: ArrayLike, *,
                            interleave: int, scale: float | None = None) -> Results:
    """out (B, Hq, Dv), lse (B, Hq): over the caches of all ranks, what is not asked for hidden."""
    R, S, B = len(k_shards), np.shape(k_shards[0])[2], len(np.asarray(q))
    seen = np.zeros((B, 1, 1, R * S), dtype=bool)
    for b, row in enumerate(np.asarray(indices).tolist()):
        for r, place in (place_of(g, R, interleave) for g in row if g >= 0):
            seen[b, 0, 0, r * S + place] = True
    k, v = (np.concatenate([np.asarray(x) for x in shards], axis=2) for shards in (k_shards, v_shards))
    whole = attention(np.asarray(q)[:, :, None], k, v, causal=None, mask=seen, scale=scale)
    return {"out": whole["out"][:, :, 0], "lse": whole["lse"][:, :, 0]}


def exchanged_norm_backward(dy_shards: Sequence[ArrayLike], x_shards: Sequence[ArrayLike], weight: ArrayLike, *,
                            eps: float = 1e-6) -> Results:
    """dx.0, … and dweight: each rank receives its tokens of all heads."""
    n, parts, dxs = np.shape(x_shards[0])[2], list[DD](), list[DD]()
    for r, x in enumerate(x_shards):
        dy = np.concatenate([np.asarray(a)[:, :, r * n : (r + 1) * n] for a in dy_shards], axis=1)
        dx, dweight = norm_backward(x, weight, dy, eps)
        dxs.append(dx)
        parts.append(dweight)
    return {**spread("dx", dxs), "dweight": DD(np.stack([one.hi for one in parts]), np.stack([one.lo for one in parts])).sum(axis=0)}


def _cut(whole: Results, held: list[list[int]]) -> Results:
    results: Results = {}
    for name, x in whole.items():
        results |= spread(name, [x[:, :, places] for places in held])
    return results

