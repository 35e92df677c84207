"""Attention over keys and values that stand in pages: what a block table leads to. Who owns which page is paging's business."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Causal, Float64, Int64, Window
from .attention import attention


def paged_attention(q: ArrayLike, k_pages: ArrayLike, v_pages: ArrayLike, block_tables: ArrayLike, kv_lengths: ArrayLike, *,
                    causal: Causal, query_lengths: ArrayLike | None = None, window: Window = None, scale: float | None = None,
                    softcap: float | None = None, sinks: ArrayLike | None = None) -> tuple[Float64, Float64]:
    """Attention of each sequence over its own pages: out (B, Hq, Lq, Dv), lse (B, Hq, Lq), float64.

        k_b[t] = k_pages[block_tables[b, t // S], t % S]   for t < kv_lengths[b],  S the block size;  v_b alike
        out_b, lse_b = attention of the first query_lengths[b] queries of b over k_b, v_b

    q (B, Hq, Lq, D), k_pages (N, S, Hkv, D), v_pages (N, S, Hkv, Dv), block_tables (B, max_blocks) in -1 .. N - 1, filled
    up with -1; kv_lengths (B,) counts the queries' own tokens, already written; query_lengths (B,), None: all Lq. Each
    sequence has its own lengths and so its own positions, p = i + kv_lengths[b] - query_lengths[b] at the bottom right
    (microsoft/onnxruntime#27992 took one past for all). Queries from query_lengths[b] on are padding: out 0, lse -inf, with
    sinks too. Pages no table leads to, slots past a sequence's length and entries past its last block never matter, NaN
    included. Other conventions as in `attention`.

    >>> v_pages = np.array([[1.0, 3.0], [5.0, np.nan]]).reshape(2, 2, 1, 1)
    >>> paged_attention(np.zeros((1, 1, 1, 1)), np.zeros((2, 2, 1, 1)), v_pages, [[1, 0]], [1], causal=None)[0]
    array([[[[5.]]]])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: that of `attention` for each sequence. Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.1.
    """
    q = arguments.float_array("q", q, ndim=4)
    k_pages, v_pages = arguments.widen("k_pages", k_pages, ndim=4), arguments.widen("v_pages", v_pages, ndim=4)
    if v_pages.shape[:3] != k_pages.shape[:3]:
        want = ", ".join(str(n) for n in k_pages.shape[:3])
        raise ValueError(f"v_pages: got shape {v_pages.shape} beside k_pages {k_pages.shape}; want ({want}, Dv)")
    (B, Hq, Lq, _), (N, S, Hkv, D) = q.shape, k_pages.shape
    tables = arguments.integers("block_tables", block_tables, least=-1, most=N - 1)
    if tables.ndim != 2 or len(tables) != B:
        raise ValueError(f"block_tables: got shape {tables.shape} beside q {q.shape}; want ({B}, max_blocks)")
    n_k = arguments.integers("kv_lengths", kv_lengths, (B,), least=0, most=tables.shape[1] * S)
    n_q = np.full(B, Lq) if query_lengths is None else arguments.integers("query_lengths", query_lengths, (B,), least=0, most=Lq)
    arguments.query_key_value(q, np.zeros((B, Hkv, 0, D)), np.zeros((B, Hkv, 0, v_pages.shape[3])))
    arguments.causal_rule(causal)
    out, lse = np.zeros((B, Hq, Lq, v_pages.shape[3])), np.full((B, Hq, Lq), -np.inf)
    for b in range(B):
        slots = slot_mapping(tables[b], np.arange(n_k[b]), block_size=S)
        if (slots < 0).any():
            raise ValueError(f"block_tables: got {tables[b].tolist()} for sequence {b} of {n_k[b]} tokens; "
                             f"want {-(-n_k[b] // S)} blocks before the first -1")
        k, v = (pages[slots // S, slots % S].swapaxes(0, 1)[None] for pages in (k_pages, v_pages))     # (1, Hkv, n_k, D or Dv)
        rows = slice(0, n_q[b])
        out[b, :, rows], lse[b, :, rows] = (x[0] for x in attention(q[b : b + 1, :, rows], k, v, causal=causal, window=window,
                                                                    scale=scale, softcap=softcap, sinks=sinks))
    return out, lse


def slot_mapping(table: ArrayLike, positions: ArrayLike, *, block_size: int) -> Int64:
    """The slot of each position of one sequence in pages laid end to end: int64, the shape of positions.

        slot = table[position // block_size] block_size + position % block_size

    table (max_blocks,), filled up with -1. A position of -1 (nothing) has slot -1, and so has one whose block is -1: never
    that of slot 0, which is somebody's (vllm-project/vllm#45324). `write_kv` skips it.

    >>> slot_mapping([4, 2, -1], [0, 3, 5, 9, -1], block_size=4)
    array([16, 19,  9, -1, -1])

    Raises ValueError for a position past the table. Exact. Source: slot_mapping of vLLM (arXiv 2309.06180, section 4.3).
    """
    block_size = arguments.whole_number("block_size", block_size, least=1)
    table = arguments.integers("table", table, least=-1, most=2**63 // block_size - 1)
    if table.ndim != 1:
        raise ValueError(f"table: got shape {table.shape}; want one axis")
    positions = arguments.integers("positions", positions, least=-1, most=len(table) * block_size - 1)
    blocks = np.append(table, -1)[positions // block_size]                      # -1 reads the -1 behind the table
    return np.where(blocks < 0, -1, blocks * block_size + positions % block_size)
