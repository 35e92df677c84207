"""Textbook forms of context parallelism, in float32 (float64 for float64), made of steps of which a specimen exchanges one.

It shares no arithmetic with the oracles. Results in the format of q, log-sum-exps in the format that is computed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .textbook_decoding import working

Array = NDArray[Any]
Part = Callable[[Array, Array, Array, Array, float], tuple[Array, Array]]
Merge = Callable[[Array, Array, Array, Array], tuple[Array, Array]]
Source = Callable[[int, int, int], int]                                         # (rank, step, R) -> whose keys it has then


@dataclass(frozen=True)
class Call:
    """One call, keys and values repeated for their query heads, in the format in which it is computed."""

    q: list[Array]
    k: list[Array]
    v: list[Array]
    places: list[Array]
    segments: Array
    causal: bool
    zigzag: bool
    scale: float
    G: int

    @property
    def R(self) -> int:
        return len(self.q)


def prepared(q_shards: Sequence[Any], k_shards: Sequence[Any], v_shards: Sequence[Any], *, causal: Any, order: str = "contiguous",
             segments: Any = None, scale: float | None = None) -> Call:
    """The call of these arguments."""
    R, (B, _, n, D), G = len(q_shards), q_shards[0].shape, q_shards[0].shape[1] // k_shards[0].shape[1]
    if order == "zigzag":
        half = np.arange(n // 2)
        places = [np.concatenate([r * (n // 2) + half, (2 * R - 1 - r) * (n // 2) + half]) for r in range(R)]
    else:
        places = [r * n + np.arange(n) for r in range(R)]
    k, v = ([np.repeat(working(x), G, axis=1) for x in shards] for shards in (k_shards, v_shards))
    numbers = np.zeros((B, R * n), dtype=np.int64) if segments is None else np.asarray(segments)
    return Call([working(x) for x in q_shards], k, v, places, numbers, causal is not None, order == "zigzag",
                D**-0.5 if scale is None else float(scale), G)  # fmt: skip


def visible(call: Call, i: int, j: int) -> Array:
    """Which keys of rank j the queries of rank i see, (B, 1, n, n)."""
    p, place = call.places[i][:, None], call.places[j][None, :]
    mine, theirs = call.segments[:, call.places[i], None], call.segments[:, None, call.places[j]]
    return np.asarray(((mine == theirs) & (mine >= 0) & (~np.bool_(call.causal) | (place <= p)))[:, None])


def part(q: Array, k: Array, v: Array, seen: Array, scale: float) -> tuple[Array, Array]:
    """Attention over one shard's keys: out and its log-sum-exp."""
    if k.shape[2] == 0:
        return np.zeros((*q.shape[:3], v.shape[3]), q.dtype), np.full(q.shape[:3], -np.inf, q.dtype)
    s = np.where(seen, q.dtype.type(scale) * (q @ k.swapaxes(-1, -2)), -np.inf).astype(q.dtype)
    m = s.max(axis=-1, keepdims=True)
    m = np.where(np.isneginf(m), 0, m)
    e = np.exp(s - m)
    l = e.sum(axis=-1, keepdims=True, dtype=q.dtype)
    with np.errstate(divide="ignore"):
        lse = (m + np.log(l))[..., 0]
    return np.asarray(e @ v / np.where(l == 0, 1, l)), np.asarray(lse)


def merge(out: Array, lse: Array, out_b: Array, lse_b: Array) -> tuple[Array, Array]:
    """Weights over their sum, from the larger of the two log-sum-exps."""
    m = np.maximum(lse, lse_b)
    shift = np.where(np.isneginf(m), 0, m)
    a, b = np.exp(lse - shift), np.exp(lse_b - shift)
    with np.errstate(divide="ignore"):
        both = shift + np.log(a + b)
    l = np.where(a + b == 0, 1, a + b)
    return np.asarray((a / l)[..., None] * out + (b / l)[..., None] * out_b), np.asarray(both)


def from_behind(r: int, t: int, R: int) -> int:
    """Keys come from the rank before: after t steps those of rank r - t."""
    return (r - t) % R


def ring(call: Call, *, source: Source = from_behind, part: Part = part, merge: Merge = merge,
         seen: Callable[[Call, int, int], Array] = visible) -> tuple[list[Array], list[Array]]:
    """Out and log-sum-exp of every rank, in the format that is computed in."""
    outs = [np.zeros((*q.shape[:3], call.v[0].shape[3]), q.dtype) for q in call.q]
    lses = [np.full(q.shape[:3], -np.inf, q.dtype) for q in call.q]
    for t in range(call.R):
        for r in range(call.R):
            j = source(r, t, call.R)
            new = part(call.q[r], call.k[j], call.v[j], seen(call, r, j), call.scale)
            outs[r], lses[r] = merge(outs[r], lses[r], *new)
    return outs, lses


def rounded(outs: list[Array], lses: list[Array], like: Any) -> tuple[list[Array], list[Array]]:
    """The results in the formats they are returned in."""
    return [x.astype(like.dtype) for x in outs], lses


def ring_attention(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                   scale: Any = None) -> tuple[list[Array], list[Array]]:
    """The ring of the paper."""
    call = prepared(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return rounded(*ring(call), q_shards[0])


def block(call: Call, i: int, j: int, key: int, dout: Array, out: Array, lse: Array) -> tuple[Array, Array, Array]:
    """What queries of rank i and keys of rank j add to dq, dk, dv; `key`: whose keys and values are read."""
    q, k, v, seen = call.q[i], call.k[key], call.v[key], visible(call, i, j)
    f = q.dtype.type
    s = np.where(seen, f(call.scale) * (q @ k.swapaxes(-1, -2)), -np.inf)
    p = np.where(seen, np.exp(s - np.where(np.isneginf(lse), 0, lse)[..., None]), 0).astype(q.dtype)
    delta = (dout * out).sum(axis=-1, keepdims=True, dtype=q.dtype)
    ds = p * (dout @ v.swapaxes(-1, -2) - delta) * f(call.scale)
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout


def own_keys(i: int, j: int) -> int:
    """Keys and values of the rank whose gradient is taken."""
    return j


def ring_gradients(call: Call, douts: Sequence[Any], *, source: Source = from_behind,
                   key: Callable[[int, int], int] = own_keys) -> tuple[list[Array], list[Array], list[Array]]:
    """dq, dk and dv of every rank, key heads not yet summed over their group."""
    outs, lses = ring(call)
    wide = [working(x) for x in douts]
    dq, dk, dv = ([np.zeros(x.shape, x.dtype) for x in shards] for shards in (call.q, call.k, call.v))
    for t in range(call.R):
        for i in range(call.R):
            j = source(i, t, call.R)
            new = block(call, i, j, key(i, j), wide[i], outs[i], lses[i])
            dq[i], dk[j], dv[j] = dq[i] + new[0], dk[j] + new[1], dv[j] + new[2]
    return dq, dk, dv


def over_groups(x: Array, G: int) -> Array:
    """The gradient of a key head, summed over its query heads."""
    B, H, n, D = x.shape
    return np.asarray(x.reshape(B, H // G, G, n, D).sum(axis=2, dtype=x.dtype))


def returned(call: Call, gradients: tuple[list[Array], list[Array], list[Array]], like: Any) -> tuple[list[Array], ...]:
    """The gradients as they are returned."""
    dq, dk, dv = gradients
    return ([x.astype(like.dtype) for x in dq], *([over_groups(x, call.G).astype(like.dtype) for x in shards] for shards in (dk, dv)))


def ring_attention_backward(q_shards: Any, k_shards: Any, v_shards: Any, dout_shards: Any, *, causal: Any, order: str = "contiguous",
                            segments: Any = None, scale: Any = None) -> tuple[list[Array], ...]:
    """The ring of the paper, backward."""
    call = prepared(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return returned(call, ring_gradients(call, dout_shards), q_shards[0])


# A cache over ranks, and a norm before an all-to-all ---------------------------------------------------------------------


def on_rank(indices: Array, r: int, R: int, interleave: int) -> Array:
    """Of one row of indices, the places of rank r that are asked for."""
    mine = indices[(indices >= 0) & (indices // interleave % R == r)]
    return np.asarray(mine // (interleave * R) * interleave + mine % interleave)


def sharded_cache_attention(q: Any, k_shards: Any, v_shards: Any, indices: Any, *, interleave: int, scale: Any = None,
                            places: Callable[[Array, int, int, int], Array] = on_rank) -> tuple[Array, Array]:
    """Each rank over its own tokens, merged in the order of the ranks."""
    wide, (B, Hq, D), R = working(q)[:, :, None], q.shape, len(k_shards)
    outs, lses = np.zeros((B, Hq, v_shards[0].shape[3]), wide.dtype), np.full((B, Hq), -np.inf, wide.dtype)
    for b in range(B):
        out, lse = outs[b, None, :, None], lses[b, None, :, None]
        for r in range(R):
            at = places(indices[b], r, R, interleave)
            k, v = (np.repeat(working(shards[r])[b : b + 1, :, at], Hq // shards[r].shape[1], axis=1) for shards in (k_shards, v_shards))
            new = part(wide[b : b + 1], k, v, np.ones((1, 1, 1, len(at)), dtype=bool), D**-0.5 if scale is None else float(scale))
            out, lse = merge(out, lse, *new)
        outs[b], lses[b] = out[0, :, 0], lse[0, :, 0]
    return outs.astype(q.dtype), lses


def norm_backward(dy: Array, x: Array, w: Array, eps: float) -> tuple[Array, Array]:
    """dx, and what each vector adds to dweight."""
    r = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True, dtype=x.dtype) + x.dtype.type(eps))
    unit = x * r
    t = dy * w
    return np.asarray(r * (t - unit * (t * unit).mean(axis=-1, keepdims=True, dtype=x.dtype))), np.asarray(dy * unit)


def to_tokens(dy: Sequence[Any], R: int) -> list[Array]:
    """The all-to-all back: all heads of a rank's own tokens."""
    parts = [np.split(working(x), R, axis=2) for x in dy]
    return [np.concatenate([parts[i][r] for i in range(R)], axis=1) for r in range(R)]


def exchanged_norm_backward(dy_shards: Any, x_shards: Any, weight: Any, *, eps: float = 1e-6) -> tuple[list[Array], Array]:
    """First the exchange, then the norm of each rank, then the sum over the ranks."""
    each = [norm_backward(dy, working(x), working(weight), eps) for dy, x in zip(to_tokens(dy_shards, len(x_shards)), x_shards)]
    total = sum(terms.reshape(-1, terms.shape[-1]).sum(axis=0, dtype=terms.dtype) for _, terms in each)
    return [dx.astype(weight.dtype) for dx, _ in each], np.asarray(total).astype(weight.dtype)
