"""Bounds of what ranks exchange one by one: attention over a cache that they share out, and a norm differentiated after an all-to-all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from oracles.reference import arguments, cache_place
from oracles.reference.sharded_cache import indices_of

from ..arithmetic import ResolvedArithmetic
from ..array_lists import spread
from ..comparison import Float64
from .attention import forward
from .context_parallel import PLAIN, with_merges
from .sums import checked, g, roundings


def sharded_cache_attention_bound(arithmetic: ResolvedArithmetic, q: ArrayLike, k_shards: Sequence[ArrayLike],
                                  v_shards: Sequence[ArrayLike], indices: ArrayLike, *, interleave: int,
                                  scale: float | None = None) -> dict[str, Float64]:
    """How far a legal kernel may be from exact attention over the chosen tokens: {"out" (B, Hq, Dv), "lse" (B, Hq)}.

    `attention_bound` over the tokens of all ranks, the others hidden, in blocks of one token, and a merge for each rank as in
    `ring_attention_bound`.

    >>> from oracles.properties import Arithmetic
    >>> one = np.ones((1, 1, 1, 1), np.float32)
    >>> bound = sharded_cache_attention_bound(Arithmetic().resolve("float32"), one[0], [one], [one], [[0]], interleave=1)
    >>> bound["out"].shape, bool(bound["lse"] < 1e-5)
    ((1, 1, 1), True)

    Source: derived here.
    """
    q = arguments.float_array("q", q, ndim=3)
    k, v = (np.concatenate([np.asarray(x) for x in shards], axis=2) for shards in (k_shards, v_shards))
    R, S = len(k_shards), np.shape(k_shards[0])[2]
    seen = np.zeros((len(q), R * S), dtype=bool)
    for b, row in enumerate(indices_of(indices, R, S, len(q))):
        rank, place = cache_place(row[row >= 0], ranks=R, interleave=interleave)
        seen[b, rank * S + place] = True
    r = roundings(replace(arithmetic, tile_min=1))
    q, k, v = arguments.query_key_value(q[:, :, None], k, v)
    f = with_merges(r, forward(r, q, k, v, causal=None, mask=seen[:, None, None], scale=scale, **PLAIN), float(R))
    shape = q.shape[:2]
    return checked({"out": f.out_bound.reshape(*shape, v.shape[3]), "lse": f.lse_bound.reshape(shape)})


def exchanged_norm_backward_bound(arithmetic: ResolvedArithmetic, dy_shards: Sequence[ArrayLike], x_shards: Sequence[ArrayLike],
                                  weight: ArrayLike, *, eps: float = 1e-6) -> dict[str, Float64]:
    """How far legal gradients may be from the exact ones: {"dx.0", …, "dweight"}.

        dx        g(2 D + 24, u) r (|dy w| + |x| r^2 mean |dy w x|)           r = 1 / sqrt(mean(x^2) + eps)
        dweight   g(n + D + 16, u) sum |dy x r|                               n vectors on all ranks together

    then one rounding of `out`: sums of D terms twice, a root, a quotient and six products. What is exchanged is not rounded. inf where
    a square may overflow.

    >>> from oracles.properties import Arithmetic
    >>> one = np.ones((1, 1, 1, 2), np.float32)
    >>> list(exchanged_norm_backward_bound(Arithmetic().resolve("float32"), [one], [one], [1.0, 1.0]))
    ['dx.0', 'dweight']

    Source: derived here, after `rms_norm_backward`.
    """
    r, R, w = roundings(arithmetic), len(x_shards), np.asarray(weight, np.float64)
    x = np.concatenate([np.asarray(one, np.float64) for one in x_shards], axis=2)             # (B, H, L, D)
    dy = np.concatenate([np.asarray(one, np.float64) for one in dy_shards], axis=1)
    D, u = x.shape[-1], max(r.accumulate.u, r.elementwise.u)
    root = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    mean, size = (dy * w * x).mean(axis=-1, keepdims=True), np.abs(dy * w * x).mean(axis=-1, keepdims=True)
    dx, most = root * (dy * w - x * root**2 * mean), root * (np.abs(dy * w) + np.abs(x) * root**2 * size)
    n, etas = float(x.size // D), 8.0 * (r.accumulate.eta + r.elementwise.eta)
    terms = np.abs(dy * x * root).reshape(-1, D).sum(axis=0)
    dweight = (dy * x * root).reshape(-1, D).sum(axis=0)
    bounds = r.out.bound(dx, float(g(2.0 * D + 24.0, u)) * most + etas * (1.0 + root) ** 3 * (1.0 + np.abs(x)))
    weights = r.out.bound(dweight, float(g(n + D + 16.0, u)) * terms + etas * n * (1.0 + float(root.max(initial=1.0))))
    if float((x * x).sum(axis=-1).max(initial=0.0)) * 2.0 > r.accumulate.largest:
        bounds, weights = np.full(bounds.shape, np.inf), np.full(weights.shape, np.inf)
    return checked({**spread("dx", np.split(bounds, R, axis=2)), "dweight": weights})
