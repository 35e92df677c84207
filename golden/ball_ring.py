"""Context parallelism in ball arithmetic: the attention of the whole sequence, cut again; the norm's gradient of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.array_lists import spread

from .ball_attention import attention, attention_backward
from .ball_shards import norm_backward
from .balls import exact
from .certified import Balls


def ring_attention(q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike], *, causal: str | None,
                   order: str = "contiguous", segments: ArrayLike | None = None, scale: float | None = None) -> dict[str, Balls]:
    """out.0, …, lse.0, …: of the sequence in its order, tokens of one segment seeing each other."""
    held = held_by(len(q_shards), np.shape(q_shards[0])[2], order)
    q, k, v = (in_order(shards, held) for shards in (q_shards, k_shards, v_shards))
    whole = attention(q, k, v, causal=causal, mask=of_one_segment(segments), scale=scale)
    return _cut(whole, held)


def ring_attention_backward(q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike],
                            dout_shards: Sequence[ArrayLike], *, causal: str | None, order: str = "contiguous",
                            segments: ArrayLike | None = None, scale: float | None = None) -> dict[str, Balls]:
    """dq.0, …, dk.0, …, dv.0, …: of the sequence in its order."""
    held = held_by(len(q_shards), np.shape(q_shards[0])[2], order)
    q, k, v, dout = (in_order(shards, held) for shards in (q_shards, k_shards, v_shards, dout_shards))
    options: dict[str, Any] = {"causal": causal, "mask": of_one_segment(segments), "scale": scale}
    return _cut(attention_backward(q, k, v, dout, dout, dout, **options), held)  # which looks at neither out nor lse


def _cut(whole: dict[str, Balls], held: list[list[int]]) -> dict[str, Balls]:
    results: dict[str, Balls] = {}
    for name, x in whole.items():
        results |= spread(name, [x[:, :, places] for places in held])
    return results


def held_by(R: int, n: int, order: str) -> list[list[int]]:
    """The places of the sequence that each rank holds, n of them, in their order there; in zig-zag order halves r and 2 R - 1 - r."""
    if order == "contiguous":
        return [list(range(r * n, (r + 1) * n)) for r in range(R)]
    half = n // 2
    return [[*range(r * half, (r + 1) * half), *range((2 * R - 1 - r) * half, (2 * R - r) * half)] for r in range(R)]


def in_order(shards: Sequence[ArrayLike], held: list[list[int]]) -> Any:
    """The sequence whose tokens (axis 2) the ranks hold."""
    first = np.asarray(shards[0])
    whole = np.zeros((*first.shape[:2], sum(map(len, held)), first.shape[3]), first.dtype)
    for shard, places in zip(shards, held):
        whole[:, :, places] = np.asarray(shard)
    return whole


def of_one_segment(segments: ArrayLike | None) -> Any:
    """Which tokens are of one segment, and no padding: (B, 1, L, L)."""
    if segments is None:
        return None
    given = np.asarray(segments)
    return ((given[:, :, None] == given[:, None, :]) & (given[:, :, None] >= 0))[:, None]


def sharded_cache_attention(q: ArrayLike, k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike], indices: ArrayLike, *,
                            interleave: int, scale: float | None = None) -> dict[str, Balls]:
    """out (B, Hq, Dv), lse (B, Hq): over the tokens asked for, each fetched from its rank."""
    q, (k, v) = np.asarray(q), (np.stack([np.asarray(x) for x in shards]) for shards in (k_shards, v_shards))
    out, lse = exact(np.zeros((*q.shape[:2], v.shape[-1]))), np.full(q.shape[:2], -np.inf, dtype=object)
    for b, row in enumerate(np.asarray(indices).tolist()):
        at = np.asarray([place_of(g, len(k), interleave) for g in row if g >= 0], dtype=np.int64).reshape(-1, 2)
        key, value = (x[at[:, 0], b, :, at[:, 1]].swapaxes(0, 1)[None] for x in (k, v))                     # (1, Hkv, N, ...)
        one = attention(q[b : b + 1, :, None], key, value, causal=None, scale=scale)
        out[b], lse[b] = one["out"][0, :, 0], one["lse"][0, :, 0]
    return {"out": out, "lse": lse}


def place_of(g: int, R: int, interleave: int) -> tuple[int, int]:
    """The rank that holds token g, and its place there: whole turns come before the one that it is in."""
    turns, rest = divmod(g, interleave * R)
    return rest // interleave, turns * interleave + rest % interleave


def exchanged_norm_backward(dy_shards: Sequence[ArrayLike], x_shards: Sequence[ArrayLike], weight: ArrayLike, *,
                            eps: float = 1e-6) -> dict[str, Balls]:
    """dx.0, … and dweight: dy of all heads beside x of all tokens, cut by tokens."""
    dy, x = np.concatenate([np.asarray(a) for a in dy_shards], axis=1), np.concatenate([np.asarray(a) for a in x_shards], axis=2)
    dx, dweight = norm_backward(x, weight, dy, eps)
    return {**spread("dx", np.split(dx, len(x_shards), axis=2)), "dweight": dweight}
