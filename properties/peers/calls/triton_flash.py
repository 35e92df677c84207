"""A flash attention kernel of our own in Triton, on NumPy arrays, under Triton's interpreter.

Nothing but NumPy and triton is imported, so that this file runs alone. The interpreter is chosen before triton is loaded.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"
triton: Any = import_module("triton")
tl: Any = import_module("triton.language")
if TYPE_CHECKING:
    constexpr = Any
else:
    constexpr = tl.constexpr

BLOCK_Q, BLOCK_K = 16, 32


def flash_rows(Q: Any, K: Any, V: Any, Out: Any, Lse: Any, Lengths: Any, scale: Any, Lq: Any, Lk: Any, D: Any, Dv: Any, G: Any,
               CAUSAL: constexpr, LOWER_RIGHT: constexpr, M: constexpr, N: constexpr, E: constexpr, F: constexpr) -> None:
    """M query rows of one head: K and V in tiles of N keys, head sizes padded to E and F. m, l, acc as in Dao 2023, algorithm 1."""
    b, h = tl.program_id(2), tl.program_id(1)
    Hq, n = tl.num_programs(1), tl.load(Lengths + b)
    i, d, e = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, E), tl.arange(0, F)
    row, first = (b * Hq + h) * Lq + i, (b * (Hq // G) + h // G) * Lk
    place = i + n - Lq if LOWER_RIGHT else i
    q = tl.load(Q + row[:, None] * D + d[None, :], mask=(i < Lq)[:, None] & (d < D)[None, :], other=0.0)         # (M, E)
    m = tl.full((M,), float("-inf"), tl.float32)
    l = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, F), tl.float32)
    for start in range(0, Lk, N):
        j = start + tl.arange(0, N)
        k = tl.load(K + (first + j)[None, :] * D + d[:, None], mask=(j < n)[None, :] & (d < D)[:, None], other=0.0)     # (E, N)
        v = tl.load(V + (first + j)[:, None] * Dv + e[None, :], mask=(j < n)[:, None] & (e < Dv)[None, :], other=0.0)   # (N, F)
        seen = (j < n)[None, :] & ((j[None, :] <= place[:, None]) if CAUSAL else (i >= 0)[:, None])
        s = tl.where(seen, tl.dot(q, k, out_dtype=tl.float32) * scale, float("-inf"))                           # (M, N)
        m_new = tl.maximum(m, tl.max(s, axis=1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)                                                    # no key seen yet
        p, alpha = tl.exp(s - shift[:, None]), tl.exp(m - shift)
        l = l * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, out_dtype=tl.float32)
        m = m_new
    out = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(Out + row[:, None] * Dv + e[None, :], out, mask=(i < Lq)[:, None] & (e < Dv)[None, :])
    tl.store(Lse + row, m + tl.log(l), mask=i < Lq)


KERNEL = triton.jit(flash_rows)


class Memory:
    """A NumPy array as the interpreter wants tensors: what it asks of PyTorch's, on memory that stands on the host already."""

    def __init__(self, array: Any) -> None:
        self.array, self.dtype = array, array.dtype.name

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def stride(self) -> tuple[int, ...]:
        return tuple(n // self.array.itemsize for n in self.array.strides)

    def set_(self, *place: Any) -> None:
        """Already in its place."""

    def copy_(self, other: Any) -> None:
        """Already there."""

    def as_it_is(self, *size: Any, **options: Any) -> Memory:
        return self

    untyped_storage = cpu = new_empty = as_it_is


def attention(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, kv_lengths: Any = None) -> Any:
    """out and lse, the grid over tiles of queries, heads and batch items."""
    (B, Hq, Lq, D), (_, Hkv, Lk, Dv) = q.shape, v.shape
    out, lse = np.empty((B, Hq, Lq, Dv), q.dtype), np.empty((B, Hq, Lq), np.float32)
    lengths = np.full(B, Lk, np.int32) if kv_lengths is None else kv_lengths.astype(np.int32)
    arrays = [Memory(np.ascontiguousarray(x)) for x in (q, k, v)]
    E, F = (max(16, 1 << (n - 1).bit_length()) for n in (D, Dv))
    factor = float(D**-0.5 if scale is None else scale)
    if out.size:
        grid = (-(-Lq // BLOCK_Q), Hq, B)
        KERNEL[grid](*arrays, Memory(out), Memory(lse), Memory(lengths), factor, Lq, Lk, D, Dv, Hq // Hkv,
                     causal is not None, causal == "bottom_right", BLOCK_Q, BLOCK_K, E, F)  # fmt: skip
    return out, lse
