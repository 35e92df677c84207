"""Bounds of context parallelism: attention's, and what merging the parts of R ranks two by two may add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.reference import arguments
from oracles.reference.arguments import Causal, Float64
from oracles.reference.sequence_shards import Order, Shards, gathered_sequence, scattered_sequence

from ..arithmetic import ResolvedArithmetic
from ..array_lists import spread
from .attention import Forward, forward, odd
from .attention_backward import from_forward
from .scores import finite, grouped
from .sums import Roundings, checked, g, roundings


def ring_attention_bound(arithmetic: ResolvedArithmetic, q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike],
                         v_shards: Sequence[ArrayLike], *, causal: Causal, order: Order = "contiguous", segments: ArrayLike | None = None,
                         scale: float | None = None) -> dict[str, Float64]:
    """How far a legal kernel's shards may be from the exact ones: {"out.0", …, "lse.0", …}.

    `attention_bound` of the whole sequence, with blocks as short as the parts of a rank, and for each of K merges in pairs (K = R, or
    2 R where a rank holds two parts)

        e = u (3 M + log_ulps + 4) + 2 exp_cost,   M = max |s| + ln n of the row's visible keys
        |error of out| += (e^(2 K e) - 1 + g(8 K, u)) sum_j p_j |v_j|          lse: += K e

    A merge takes the exp of both log-sum-exps less the larger, adds them, and rounds the logarithm of the sum (at most ln 2) and the
    new log-sum-exp (at most M, with two constants in base 2): its weights are off by e, and so is what normalises them. The sum of
    p |v| is what the weighted |out| of the parts cannot exceed.

    With `merges_lse` parts may be merged by a sigmoid of the difference, out - sigmoid(lse_b - lse) (out - out_b) and
    lse - ln sigmoid(lse - lse_b): its logarithm may be as large as the difference, e += 2 u log_ulps M, and out is rounded as it is,
    whatever it weighs: max_j |v_j| in place of sum_j p_j |v_j| beside g. Then the roundings of `out` and `lse`.

    >>> from oracles.properties import Arithmetic
    >>> one = np.ones((1, 1, 1, 1), np.float32)
    >>> bounds = ring_attention_bound(Arithmetic().resolve("float32"), [one, one], [one, one], [one, one], causal="top_left")
    >>> list(bounds), bool(bounds["out.1"].item() < 1e-5)
    (['out.0', 'out.1', 'lse.0', 'lse.1'], True)

    Source: derived here; the forms of a merge: Milakov and Gimelshein 2018 (arXiv 1805.02867); zhuzilin/ring-flash-attention.
    """
    s = Shards.of(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments)
    q, k, v = (gathered_sequence(shards, s.positions) for shards in (s.q, s.k, s.v))
    (B, Hq, L, _), Dv = q.shape, v.shape[3]
    f = _ring_forward(roundings(in_parts(arithmetic, s)), q, k, v, s, order, scale)
    out, lse = f.out_bound.reshape(B, Hq, L, Dv), f.lse_bound.reshape(B, Hq, L)
    return checked({**spread("out", scattered_sequence(out, s.positions)), **spread("lse", scattered_sequence(lse, s.positions))})


def ring_attention_backward_bound(arithmetic: ResolvedArithmetic, q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike],
                                  v_shards: Sequence[ArrayLike], dout_shards: Sequence[ArrayLike], *, causal: Causal,
                                  order: Order = "contiguous", segments: ArrayLike | None = None,
                                  scale: float | None = None) -> dict[str, Float64]:
    """How far a legal kernel's gradients may be from the exact ones: {"dq.0", …, "dk.0", …, "dv.0", …}.

    `attention_backward_bound` of the whole sequence for a kernel that recomputes out and lse, these known to within
    `ring_attention_bound`. What the ranks add up is part of its sums, whatever their order; partial sums that travel in a narrower
    format than `accumulate` are declared as `gradient`.

    >>> from oracles.properties import Arithmetic
    >>> one = np.ones((1, 1, 1, 1), np.float32)
    >>> list(ring_attention_backward_bound(Arithmetic().resolve("float32"), [one], [one], [one], [one], causal=None))
    ['dq.0', 'dk.0', 'dv.0']

    Source: derived here.
    """
    s = Shards.of(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments)
    q, k, v = (gathered_sequence(shards, s.positions) for shards in (s.q, s.k, s.v))
    shape = (*s.q[0].shape[:3], v.shape[3])
    dout = gathered_sequence([arguments.widen(f"dout_shards[{r}]", x, shape) for r, x in enumerate(dout_shards)], s.positions)
    if odd(q, k, v, dout, None, None):
        raise ArithmeticError("q, k, v, dout: got NaN or inf; want finite numbers: no case of a ring has others")
    r, Hkv = roundings(replace(in_parts(arithmetic, s), recomputes=True)), k.shape[1]
    f = _ring_forward(r, q, k, v, s, order, scale)
    rows, keys, dout_rows = grouped(finite(q.astype(np.float64)), Hkv), finite(k.astype(np.float64)), grouped(finite(dout), Hkv)
    _, bounds = from_forward(r, f, rows, keys, dout_rows, arguments.score_scale(scale, q.shape[3]))
    bounds["dq"] = bounds["dq"].reshape(q.shape)
    parts = {name: spread(name, scattered_sequence(bound, s.positions)) for name, bound in bounds.items()}
    return checked({**parts["dq"], **parts["dk"], **parts["dv"]})


def in_parts(arithmetic: ResolvedArithmetic, s: Shards) -> ResolvedArithmetic:
    """The arithmetic with blocks as short as half of a rank's tokens."""
    return replace(arithmetic, tile_min=max(1, min(arithmetic.tile_min, s.q[0].shape[2] // 2)))


def _ring_forward(r: Roundings, q: ArrayLike, k: ArrayLike, v: ArrayLike, s: Shards, order: Order, scale: float | None) -> Forward:
    """Attention's forward pass with the bounds of a ring."""
    same = (s.segments[:, :, None] == s.segments[:, None, :]) & (s.segments >= 0)[:, :, None]
    q, k, v = arguments.query_key_value(q, k, v)
    f = forward(r, q, k, v, causal=s.causal, mask=same[:, None], scale=scale, **PLAIN)
    return with_merges(r, f, float(len(s.q) * (2 if order == "zigzag" else 1)))


def with_merges(r: Roundings, f: Forward, merges: float) -> Forward:
    """A forward pass whose parts were merged in pairs so many times."""
    anything = f.w.seen > 0.0
    M = np.where(f.scores.visible, np.abs(f.scores.s), 0.0).max(axis=-1, keepdims=True, initial=0.0) + np.log(np.maximum(f.w.seen, 1.0))
    by_difference = 2.0 * r.declared.log_ulps * M if r.declared.merges_lse else 0.0
    e = merges * (r.elementwise.u * (3.0 * M + r.declared.log_ulps + 4.0 + by_difference) + 2.0 * r.exp_cost)
    size = f.w.p @ np.abs(f.v)                                                  # (B, Hkv, R, Dv)
    with np.errstate(over="ignore"):                                            # then the bound is inf
        out = np.where(size > 0.0, np.expm1(2.0 * e) * size, 0.0)
    largest = np.abs(f.v).max(axis=2, keepdims=True, initial=0.0) if r.declared.merges_lse else size
    out = out + float(g(8.0 * merges, r.rescale_u)) * largest
    out = np.where(anything, f.out_bound + (1.0 + r.out.u) * out + merges * r.elementwise.eta, f.out_bound)
    lse = np.where(anything, f.lse_bound + (1.0 + r.lse.u) * e, f.lse_bound)
    return replace(f, out_bound=out, lse_bound=lse)


# The options of attention that no ring has.
PLAIN: dict[str, Any] = dict(window=None, softcap=None, bias=None, kv_lengths=None, sinks=None, alibi_slopes=None, dropout_mask=None,
                             dropout_p=0.0)  # fmt: skip
