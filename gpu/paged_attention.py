"""Attention of few queries over keys and values in pages, split over the keys (kernels/paged_decode.cu, kernels/merge_attention.cu)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import arguments
from .attention_problem import BLOCK, FLOAT, PADDED, QUERIES_A_BLOCK
from .launching import Backend, Launcher, ceil_div, cpp_type


def paged_attention(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, query_lengths: Any = None,
                    window: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None, splits: int = 1,
                    backend: str | Backend = "cuda") -> tuple[Any, Any]:
    """Attention of each sequence over its own pages: out (B, Hq, Lq, Dv) in the format of q, lse (B, Hq, Lq) in float32.

        k_b[t] = k_pages[block_tables[b, t // S], t % S]   for t < kv_lengths[b],  S the block size;  v_b alike

    q (B, Hq, Lq, D), k_pages (N, S, Hkv, D), v_pages (N, S, Hkv, Dv), all float32, float16 or bfloat16, D and Dv up to 256;
    block_tables (B, max_blocks) filled up with -1, kv_lengths (B,), query_lengths (B,): queries from there on are padding, out 0 and
    lse -inf. Made for decoding and for chunks of a few queries: all heads of a group share one load of their keys. splits: the keys
    are cut into that many shares, computed by blocks of their own and merged through their lse in a fixed order. Conventions, NaN behind
    a mask and repeated bits as in `flash_attention`.

    >>> v_pages = np.array([[1, 3], [5, np.nan]], np.float32).reshape(2, 2, 1, 1)
    >>> q, k_pages = np.zeros((1, 1, 1, 1), np.float32), np.zeros((2, 2, 1, 1), np.float32)
    >>> paged_attention(q, k_pages, v_pages, [[1, 0]], [1], causal=None, backend="emulated")[0]
    array([[[[5.]]]], dtype=float32)

    Raises ValueError or TypeError that names the argument, NotImplementedError for a format or head size the kernels are not built
    for, RuntimeError where there is no device. Error bound: `properties.bounds.paged_attention_bound` under the default Arithmetic
    (with `merges_lse` for splits > 1). Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.3.
    """
    q = arguments.floats("q", q, ndim=4)
    k_pages, v_pages = (arguments.floats(name, x, ndim=4, like=q) for name, x in (("k_pages", k_pages), ("v_pages", v_pages)))
    (B, Hq, Lq, D), (N, S, Hkv, _), Dv = q.shape, k_pages.shape, v_pages.shape[3]
    if S == 0:
        raise ValueError(f"k_pages: got shape {tuple(k_pages.shape)}; want blocks of at least one token")
    _heads(q, k_pages, v_pages)
    tables, n_k = _tables(block_tables, kv_lengths, B, N, S)
    whole = np.full(B, Lq) if query_lengths is None else query_lengths
    n_q = arguments.integers("query_lengths", whole, least=0, most=Lq, shape=(B,))
    splits, rule, sides = arguments.whole_number("splits", splits, least=1), arguments.causal_rule(causal), arguments.window_sides(window)
    sinks = None if sinks is None else arguments.floats("sinks", sinks, (Hq,))
    scale = 1.0 / math.sqrt(D) if scale is None else arguments.real_number("scale", scale)
    cap = 0.0 if softcap is None else arguments.real_number("softcap", softcap, positive=True)              # 0 stands for none
    run, dtype, rows, C = Launcher(backend, q=q, k_pages=k_pages, v_pages=v_pages), q.dtype.name, B * Hq * Lq, _padded(max(D, Dv))
    parts = run.new((splits, rows, Dv), "float32"), run.new((splits, rows), "float32")
    out, lse = run.new((B, Hq, Lq, Dv), dtype), run.new((B, Hq, Lq), "float32")
    run.launch("paged_decode.cu", f"paged_decode<{cpp_type(q)}, {C}>", (ceil_div(Hq // Hkv * Lq, QUERIES_A_BLOCK), Hkv, B * splits), BLOCK,
               [*(run.take(x) for x in (q, k_pages, v_pages)), *parts, *(run.take(x) for x in (tables, n_k, n_q)),
                None if sinks is None else run.take(sinks, "float32"), splits, B, tables.shape[1], S, Hq, Hkv, Lq, D, Dv, rule, *sides,
                scale, cap],
               shared_mem=FLOAT * (16 * C + 32 * (C + 1) + 32 * C + 512), outputs=("outs", "lses"))
    run.launch("merge_attention.cu", f"merge_splits<{cpp_type(q)}>", (ceil_div(rows, 4),), BLOCK,
               [*parts, out, lse, splits, rows, Hq, Lq, Dv, 0], outputs=("out", "lse"))
    return run.give(out, dtype), run.give(lse, "float32")


def _heads(q: Any, k_pages: Any, v_pages: Any) -> None:
    """Head counts and sizes that fit one another."""
    (_, Hq, _, D), (N, S, Hkv, Dk) = q.shape, k_pages.shape
    if Hq == 0 or D == 0:
        raise ValueError(f"q: got shape {tuple(q.shape)}; want at least one head and a head size of at least 1")
    if Hkv == 0 or Hq % Hkv:
        raise ValueError(f"k_pages: got {Hkv} key/value heads for {Hq} query heads; want a divisor of {Hq}")
    if Dk != D:
        raise ValueError(f"k_pages: got head size {Dk}; want that of q, {D}")
    if tuple(v_pages.shape[:3]) != (N, S, Hkv):
        raise ValueError(f"v_pages: got shape {tuple(v_pages.shape)} beside k_pages {tuple(k_pages.shape)}; want ({N}, {S}, {Hkv}, Dv)")
    _padded(max(D, v_pages.shape[3]))


def _padded(columns: int) -> int:
    """Columns of a tile: the smallest instance that holds them."""
    fitting = [C for C in PADDED if columns <= C]
    if not fitting:
        raise NotImplementedError(f"q, v_pages: got a head size of {columns}; the kernels are built for at most {PADDED[-1]}")
    return fitting[0]


def _tables(block_tables: Any, kv_lengths: Any, B: int, N: int, S: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """block_tables (B, max_blocks), kv_lengths (B,), every table long enough for its sequence."""
    tables = arguments.integers("block_tables", block_tables, least=-1, most=N - 1)
    if tables.ndim != 2 or len(tables) != B:
        raise ValueError(f"block_tables: got shape {tables.shape}; want ({B}, max_blocks)")
    n_k = arguments.integers("kv_lengths", kv_lengths, least=0, most=tables.shape[1] * S, shape=(B,))
    there = np.minimum.accumulate(tables >= 0, axis=1).sum(axis=1) * S          # slots before the first -1
    short = np.flatnonzero(there < n_k)
    if short.size:
        b = int(short[0])
        raise ValueError(f"block_tables: got {tables[b].tolist()} for sequence {b} of {n_k[b]} tokens; "
                         f"want {ceil_div(int(n_k[b]), S)} blocks before the first -1")
    return tables, n_k
