"""Attention in tiles on a GPU, batched and packed, whole or split over the keys (kernels/flash_forward.cu)."""

from __future__ import annotations

from typing import Any

from . import arguments
from .attention_problem import BLOCK, FLOAT, QUERIES_A_BLOCK, Problem, batched, packed
from .launching import Backend, Launcher, ceil_div, cpp_type


def flash_attention(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: float | None = None, softcap: float | None = None,
                    bias: Any = None, mask: Any = None, kv_lengths: Any = None, sinks: Any = None, alibi_slopes: Any = None,
                    dropout_mask: Any = None, dropout_p: float = 0.0, splits: int = 1,
                    backend: str | Backend = "cuda") -> tuple[Any, Any]:
    """Attention without ever holding all scores: out (B, Hq, Lq, Dv) in the format of q, lse (B, Hq, Lq) in float32.

        m' = max(m, rowmax s),  p = e^(s - m'),  l = e^(m - m') l + rowsum p,  o = e^(m - m') o + p v
        out = o / l,  lse = m + ln l

    q (B, Hq, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv), all float32, float16 or bfloat16, D and Dv up to 256; everything is
    computed in float32. Scores, visibility, sinks and dropout as in the contract of attention; nothing visible gives 0 and -inf.
    What a query does not see never matters, NaN and inf included. splits: the keys of each query are cut into that many shares,
    computed by blocks of their own and merged through their lse in a fixed order: for few queries and many keys.
    The same bits each time, and whatever else is in the batch.

    >>> q = k = np.zeros((1, 1, 3, 2), np.float32)
    >>> v = np.arange(3, dtype=np.float32).reshape(1, 1, 3, 1)
    >>> flash_attention(q, k, v, causal="top_left", backend="emulated")[0].ravel()
    array([0. , 0.5, 1. ], dtype=float32)

    Raises ValueError or TypeError that names the argument, NotImplementedError for a format or head size the kernels are not built
    for, RuntimeError where there is no device. Error bound: `properties.bounds.attention_bound` under the default Arithmetic
    (with `merges_lse` for splits > 1). Source: Dao 2023 (arXiv 2307.08691), algorithm 1.
    """
    splits = arguments.whole_number("splits", splits, least=1)
    problem = batched(q, k, v, causal=causal, window=window, scale=scale, softcap=softcap, bias=bias, mask=mask, kv_lengths=kv_lengths,
                      sinks=sinks, alibi_slopes=alibi_slopes, dropout_mask=dropout_mask, dropout_p=dropout_p)
    B, Hq, Lq = q.shape[:3]
    return _forward(problem, (B, Hq, Lq, v.shape[3]), (B, Hq, Lq), splits, backend)


def flash_attention_packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, window: Any = None, scale: float | None = None,
                           softcap: float | None = None, splits: int = 1, backend: str | Backend = "cuda") -> tuple[Any, Any]:
    """`flash_attention` of n sequences packed end to end: out (Tq, Hq, Dv), lse (Hq, Tq), read and written where they lie.

    q (Tq, Hq, D), k (Tk, Hkv, D), v (Tk, Hkv, Dv); cu_q, cu_k (n + 1,) int, 0 first, never falling, Tq and Tk last; empty sequences
    are legal. Positions start anew in each sequence. Everything else as in `flash_attention`.

    >>> q, k, v = np.zeros((2, 1, 1), np.float32), np.zeros((3, 1, 1), np.float32), np.array([1, 3, 7], np.float32).reshape(3, 1, 1)
    >>> flash_attention_packed(q, k, v, [0, 1, 2], [0, 2, 3], causal=None, backend="emulated")[0].ravel()
    array([2., 7.], dtype=float32)
    """
    splits = arguments.whole_number("splits", splits, least=1)
    problem = packed(q, k, v, cu_q, cu_k, causal=causal, window=window, scale=scale, softcap=softcap)
    Tq, Hq = q.shape[:2]
    return _forward(problem, (Tq, Hq, v.shape[2]), (Hq, Tq), splits, backend)


def _forward(problem: Problem, out_shape: tuple[int, ...], lse_shape: tuple[int, ...], splits: int,
             backend: str | Backend) -> tuple[Any, Any]:
    run, dtype, rows, Dv = Launcher(backend, **problem.tensors), problem.dtype, problem.rows, out_shape[-1]
    out, lse = run.new(out_shape, dtype), run.new(lse_shape, "float32")
    parts = (out, lse) if splits == 1 else (run.new((splits, *out_shape), "float32"), run.new((splits, *lse_shape), "float32"))
    cpp, C = cpp_type(problem.tensors["q"]), problem.padded
    kind = cpp if splits == 1 else "float"
    sinks = None if problem.sinks is None else run.take(problem.sinks, "float32")
    run.launch("flash_forward.cu", f"flash_forward<{cpp}, {kind}, {C}>",
               (ceil_div(problem.longest_q, QUERIES_A_BLOCK), problem.Hq, problem.sequences * splits), BLOCK,
               [*(run.take(problem.tensors[name]) for name in ("q", "k", "v")), *parts, sinks, *problem.arrays(run), splits, rows,
                *problem.numbers], shared_mem=FLOAT * (16 * C + 32 * (C + 1) + 32 * C + 512), outputs=("out", "lse"))
    if splits > 1:
        run.launch("merge_attention.cu", f"merge_splits<{cpp}>", (ceil_div(rows, 4),), BLOCK,
                   [*parts, out, lse, splits, rows, problem.Hq, problem.lengths[0], Dv, int(problem.is_packed)], outputs=("out", "lse"))
    return run.give(out, dtype), run.give(lse, "float32")
