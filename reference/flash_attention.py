"""Attention in tiles with an online softmax: our port of FlashAttention to NumPy, in the dtype of its input.

It shares what it refuses with the oracles (`arguments`), and no arithmetic: where it looks, how it hides and what it sums
are written here in terms of tiles. Extra memory grows with the lengths, not with their product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import arguments
from .arguments import Array, Bool, Causal, Window


@dataclass(frozen=True)
class Tiles:
    """What is added, hidden and dropped, and where: everything a tile of scores needs besides q and k."""

    causal: Causal
    left: int | None
    right: int | None
    scale: float
    softcap: float | None
    kv_lengths: NDArray[np.int64]                                               # (B,)
    bias: Array | None                                                          # views (B, Hq, Lq, Lk), no copies
    mask: Bool | None
    slopes: Array | None                                                        # (Hq,)
    kept: Bool | None
    factor: float
    Lq: int
    work: np.dtype[Any]

    @classmethod
    def of(cls, q: Array, k: Array, *, causal: Causal, window: Window, scale: float | None, softcap: float | None, bias: ArrayLike | None,
           mask: ArrayLike | None, kv_lengths: ArrayLike | None, alibi_slopes: ArrayLike | None, dropout_mask: ArrayLike | None,
           dropout_p: float) -> Tiles:
        """The validated options of one call."""
        (B, Hq, Lq, D), Lk = q.shape, k.shape[2]
        shape, work = (B, Hq, Lq, Lk), working_dtype(q)
        left, right = arguments.window_sides(window)
        return cls(arguments.causal_rule(causal), left, right, arguments.score_scale(scale, D),
                   None if softcap is None else arguments.real_number("softcap", softcap, positive=True),
                   arguments.key_lengths(kv_lengths, B, Lk),
                   None if bias is None else arguments.additive_bias(bias, shape),
                   None if mask is None else arguments.boolean_mask("mask", mask, shape),
                   None if alibi_slopes is None else arguments.widen("alibi_slopes", alibi_slopes, (Hq,)).astype(work),
                   *arguments.dropout(dropout_mask, dropout_p, shape), Lq, work)

    def shift(self, b: int) -> int:
        """p - i: how far query i of sequence b stands from key i."""
        return 0 if self.causal == "top_left" else int(self.kv_lengths[b]) - self.Lq

    def limits(self) -> tuple[int | None, int | None]:
        """(behind, ahead): keys p - behind .. p + ahead are the ones the positions let a query see."""
        return self.left, self.right if self.causal is None else 0

    def key_tiles(self, b: int, i0: int, i1: int, block_k: int) -> Iterator[tuple[int, int]]:
        """The key tiles (j0, j1) that some query of i0..i1 can see; the others are never touched."""
        (behind, ahead), shift = self.limits(), self.shift(b)
        start = 0 if behind is None else max(0, i0 + shift - behind)
        stop = int(self.kv_lengths[b]) if ahead is None else min(int(self.kv_lengths[b]), i1 + shift + ahead)
        for j0 in range(start - start % block_k, stop, block_k):
            yield j0, min(j0 + block_k, stop)

    def scale_and_cap(self, s: Array) -> None:
        """s = q k^T into scale s, and that into softcap tanh(s / softcap) where there is a cap; in place."""
        s *= self.scale
        if self.softcap is not None:
            s /= self.softcap
            np.tanh(s, out=s)
            s *= self.softcap

    def add_and_hide(self, b: int, h: int, i0: int, j0: int, s: Array) -> None:
        """Bias and ALiBi onto the scores of the tile whose corner is (i0, j0), then -inf where a key is hidden; in place."""
        i1, j1 = i0 + s.shape[0], j0 + s.shape[1]
        tile = (b, h, slice(i0, i1), slice(j0, j1))
        p, j = np.arange(i0, i1)[:, None] + self.shift(b), np.arange(j0, j1)
        if self.bias is not None:
            s += self.bias[tile].astype(self.work)
        if self.slopes is not None:
            s -= self.slopes[h] * np.abs(p - j).astype(self.work)
        if self.bias is not None:
            s[self.bias[tile] == -np.inf] = -np.inf                             # by itself: NaN + -inf is NaN
        if self.mask is not None:
            s[~self.mask[tile]] = -np.inf
        behind, ahead = self.limits()
        if ahead is not None and j[-1] > p[0, 0] + ahead:                       # the first query does not see the last key
            s[j > p + ahead] = -np.inf
        if behind is not None and p[-1, 0] - j[0] > behind:                     # the last query does not see the first key
            s[p - j > behind] = -np.inf


def working_dtype(q: Array) -> np.dtype[Any]:
    """float64 for float64, float32 for everything narrower."""
    return np.dtype(np.float64 if q.dtype == np.float64 else np.float32)


def add_product(into: Array, a: Array, b: Array, odd: Array, seen: Bool | None) -> None:
    """into += a b, the rows `odd` of b (those with NaN or inf) entering only where seen (None: everywhere)."""
    if len(odd) == 0:
        into += a @ b
        return
    into += a @ np.where(np.isfinite(b), b, 0)
    for j in odd:
        special = ~np.isfinite(b[j]) & (True if seen is None else seen[:, j, None])
        into += np.where(special, a[:, j, None] * b[j], 0)


def flash_attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, *, causal: Causal, block_q: int = 256, block_k: int = 256,
                    window: Window = None, scale: float | None = None, softcap: float | None = None, bias: ArrayLike | None = None,
                    mask: ArrayLike | None = None, kv_lengths: ArrayLike | None = None, sinks: ArrayLike | None = None,
                    alibi_slopes: ArrayLike | None = None, dropout_mask: ArrayLike | None = None,
                    dropout_p: float = 0.0) -> tuple[Array, Array]:
    """`attention` without ever holding all scores: out (B, Hq, Lq, Dv) in the dtype of q, lse (B, Hq, Lq).

    For each tile of block_q queries, over the tiles of block_k keys that one of them can see:

        m' = max(m, rowmax s)
        p = e^(s - m')
        l = e^(m - m') l + rowsum p
        o = e^(m - m') o + p v
        m = m'

    and at the end out = o / l, lse = m + ln l. float64 computes in float64, all else in float32, lse in that type too.
    Arguments and conventions are those of `attention`; block_q and block_k change the order of additions alone.
    A sink enters as the first m, with l = 1 and o = 0.

    >>> q = k = np.zeros((1, 1, 3, 2), np.float32)
    >>> out, lse = flash_attention(q, k, np.arange(3, dtype=np.float32).reshape(1, 1, 3, 1), causal="top_left", block_k=2)
    >>> out.ravel()
    array([0. , 0.5, 1. ], dtype=float32)

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: `properties.bounds` under the default Arithmetic.
    Source: Dao 2023 (arXiv 2307.08691), algorithm 1. "Exact" there means in real arithmetic: the bits differ.
    """
    q, k, v = arguments.query_key_value(q, k, v)
    block_q, block_k = (arguments.whole_number(name, n, least=1) for name, n in (("block_q", block_q), ("block_k", block_k)))
    block_k = min(block_k, max(k.shape[2], 1))                                  # no buffer beyond the keys there are
    tiles = Tiles.of(q, k, causal=causal, window=window, scale=scale, softcap=softcap, bias=bias, mask=mask, kv_lengths=kv_lengths,
                     alibi_slopes=alibi_slopes, dropout_mask=dropout_mask, dropout_p=dropout_p)
    (B, Hq, Lq, _), Hkv, Dv = q.shape, k.shape[1], v.shape[3]
    first = None if sinks is None else arguments.widen("sinks", sinks, (Hq,)).astype(tiles.work)
    out, lse = np.zeros((B, Hq, Lq, Dv), q.dtype), np.empty((B, Hq, Lq), tiles.work)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        for b, hkv in np.ndindex(B, Hkv):
            keys, values = (x[b, hkv].astype(tiles.work, copy=False) for x in (k, v))
            odd = np.flatnonzero(~np.isfinite(values).all(axis=1))              # keys whose values hold NaN or inf
            for h in range(hkv * (Hq // Hkv), (hkv + 1) * (Hq // Hkv)):
                for i0 in range(0, Lq, block_q):
                    rows = slice(i0, min(i0 + block_q, Lq))
                    queries = q[b, h, rows].astype(tiles.work, copy=False)
                    m = np.full((queries.shape[0], 1), -np.inf if first is None else first[h], tiles.work)
                    out[b, h, rows], lse[b, h, rows] = _one_tile(tiles, b, h, i0, queries, keys, values, odd, m, block_k)
    return out, lse


def _one_tile(tiles: Tiles, b: int, h: int, i0: int, q: Array, k: Array, v: Array, odd: NDArray[np.intp], m: Array,
              block_k: int) -> tuple[Array, Array]:
    """out (n, Dv) and lse (n,) of the n queries from i0 on; m (n, 1) holds the sink or -inf."""
    i1 = i0 + len(q)
    l, o = (m > -np.inf).astype(q.dtype), np.zeros((len(q), v.shape[1]), q.dtype)
    buffer = np.empty(len(q) * block_k, q.dtype)                                # one tile of scores, used again and again
    for j0, j1 in tiles.key_tiles(b, i0, i1, block_k):
        s = np.matmul(q, k[j0:j1].T, out=buffer[: len(q) * (j1 - j0)].reshape(len(q), j1 - j0))
        tiles.scale_and_cap(s)
        tiles.add_and_hide(b, h, i0, j0, s)
        m_new = np.maximum(m, s.max(axis=1, keepdims=True))
        odd_here = odd[(odd >= j0) & (odd < j1)] - j0
        seen = s != -np.inf if len(odd_here) else None                          # NaN is seen
        shift = np.where(m_new == -np.inf, 0, m_new)                            # nothing seen yet: avoid -inf - -inf
        s -= shift
        p = np.exp(s, out=s)
        alpha = np.exp(m - shift)
        l *= alpha
        l += p.sum(axis=1, keepdims=True)
        o *= alpha
        if tiles.kept is not None:                                              # the sum above is that of the row before dropout
            p *= tiles.kept[b, h, i0:i1, j0:j1]
            p *= tiles.factor
        add_product(o, p, v[j0:j1], odd_here, seen)
        m = m_new
    return o / np.where(l == 0, 1, l), (np.where(m == np.inf, np.nan, m) + np.log(l))[:, 0]
