"""The bound for attention through block tables: that of attention over what each table leads to."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import slot_mapping
from oracles.reference.arguments import Causal, Float64, Window

from .attention import attention_bound


def paged_attention_bound(arithmetic: ResolvedArithmetic, q: ArrayLike, k_pages: ArrayLike, v_pages: ArrayLike, block_tables: ArrayLike,
                          kv_lengths: ArrayLike, *, causal: Causal, query_lengths: ArrayLike | None = None, window: Window = None,
                          scale: float | None = None, softcap: float | None = None,
                          sinks: ArrayLike | None = None) -> dict[str, Float64]:
    """`attention_bound` of each sequence over its own pages: {"out" (B, Hq, Lq, Dv), "lse" (B, Hq, Lq)}.

    Pages are copied, not computed with, so a table adds no rounding. Their order does not enter, nor does their size but
    for the rescalings of an online softmax: who rescales at pages smaller than `tile_min` declares that. Queries past
    query_lengths have the bound 0: they are 0 and -inf exactly.

    >>> from oracles.properties import Arithmetic
    >>> one = np.ones((1, 1, 1, 1), np.float32)
    >>> bound = paged_attention_bound(Arithmetic().resolve("float32"), one, one, one, [[0]], [1], causal=None, query_lengths=[0])
    >>> bound["out"].item(), bound["lse"].item()
    (0.0, 0.0)

    Source: as `attention_bound`.
    """
    q, k_pages, v_pages = np.asarray(q), np.asarray(k_pages), np.asarray(v_pages)
    B, Hq, Lq, _ = q.shape
    S, n_k = k_pages.shape[1], np.asarray(kv_lengths)
    n_q = np.full(B, Lq) if query_lengths is None else np.asarray(query_lengths)
    out, lse = np.zeros((B, Hq, Lq, v_pages.shape[3])), np.zeros((B, Hq, Lq))
    for b in range(B):
        slots = slot_mapping(np.asarray(block_tables)[b], np.arange(n_k[b]), block_size=S)
        k, v = (pages[slots // S, slots % S].swapaxes(0, 1)[None] for pages in (k_pages, v_pages))     # (1, Hkv, n_k, D or Dv)
        rows = slice(0, n_q[b])
        one = attention_bound(arithmetic, q[b : b + 1, :, rows], k, v, causal=causal, window=window, scale=scale, softcap=softcap,
                              sinks=sinks)
        out[b, :, rows], lse[b, :, rows] = one["out"][0], one["lse"][0]
    return {"out": out, "lse": lse}
