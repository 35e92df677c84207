"""The gradient of attention in tiles: our port of FlashAttention's backward pass to NumPy, in the dtype of its input.

Probabilities are made anew from the scores and the lse of the forward pass; no row of them is ever whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import arguments
from .arguments import Array, Bool, Causal, Window
from .flash_attention import Tiles, add_product


def flash_attention_backward(q: ArrayLike, k: ArrayLike, v: ArrayLike, out: ArrayLike, lse: ArrayLike, dout: ArrayLike, *, causal: Causal,
                             block_q: int = 256, block_k: int = 256, window: Window = None, scale: float | None = None,
                             softcap: float | None = None, bias: ArrayLike | None = None, mask: ArrayLike | None = None,
                             kv_lengths: ArrayLike | None = None, sinks: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None,
                             dropout_mask: ArrayLike | None = None, dropout_p: float = 0.0) -> dict[str, Array]:
    """The gradients of sum(dout * flash_attention(q, k, v).out), as `attention_backward` names them, in O(L) extra memory.

    For each tile of queries, delta = rowsum(dout out), then for each tile of keys that one of them can see:

        p = e^(s - lse)
        dv += (p kept / (1 - dropout_p))^T dout
        ds = p ((dout v^T) kept / (1 - dropout_p) - delta)
        dbias += ds,  ds *= 1 - tanh^2
        dq += scale ds k,  dk += scale ds^T q
        dsink = -sum e^(sink - lse) delta

    out and lse are those of the forward pass and are used: wrong ones give wrong gradients. Each gradient has the shape
    and the dtype of its argument; computed in float64 for float64 and in float32 for all else.

    >>> q, k, v = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.array([[[[1.0], [3.0]]]])
    >>> out, lse = np.full((1, 1, 1, 1), 2.0), np.full((1, 1, 1), np.log(2.0))
    >>> flash_attention_backward(q, k, v, out, lse, np.ones((1, 1, 1, 1)), causal=None)["dv"].ravel()
    array([0.5, 0.5])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: `properties.bounds` under the default Arithmetic. Source: Dao 2023 (arXiv 2307.08691), algorithm 2.
    """
    q, k, v = arguments.query_key_value(q, k, v)
    block_q, block_k = (arguments.whole_number(name, n, least=1) for name, n in (("block_q", block_q), ("block_k", block_k)))
    tiles = Tiles.of(q, k, causal=causal, window=window, scale=scale, softcap=softcap, bias=bias, mask=mask, kv_lengths=kv_lengths,
                     alibi_slopes=alibi_slopes, dropout_mask=dropout_mask, dropout_p=dropout_p)
    (B, Hq, Lq, _), (_, Hkv, _, Dv), work = q.shape, v.shape, tiles.work
    out, dout = (arguments.float_array(name, x, (B, Hq, Lq, Dv)) for name, x in (("out", out), ("dout", dout)))
    lse = arguments.float_array("lse", lse, (B, Hq, Lq)).astype(work)
    dq, dk, dv = (np.zeros(x.shape, x.dtype) for x in (q, k, v))
    added = None if bias is None else np.asarray(bias)
    dbias = None if added is None else np.zeros((1,) * (4 - added.ndim) + added.shape, work)
    first = None if sinks is None else arguments.widen("sinks", sinks, (Hq,)).astype(work)
    dsinks = np.zeros(Hq, work)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for b, hkv in np.ndindex(B, Hkv):
            pair = _KeyHead(tiles, b, *(x[b, hkv].astype(work, copy=False) for x in (k, v)))
            for h in range(hkv * (Hq // Hkv), (hkv + 1) * (Hq // Hkv)):
                for i0 in range(0, Lq, block_q):
                    rows = (b, h, slice(i0, min(i0 + block_q, Lq)))
                    do, o = dout[rows].astype(work), out[rows].astype(work)
                    delta = (do * o).sum(axis=1)                                # (n,) = sum_j p dp
                    dq[rows] = pair.one_tile(h, i0, q[rows].astype(work), do, lse[rows], delta, dbias, block_k)
                    if first is not None and first[h] != -np.inf:
                        alone = (lse[rows] == first[h]) & (o == 0).all(axis=1)  # no key seen: dout does not matter, be it NaN
                        dsinks[h] -= np.dot(np.exp(first[h] - lse[rows]), np.where(alone, 0, delta))
            dk[b, hkv], dv[b, hkv] = pair.dk, pair.dv
    gradients: dict[str, Array] = {"dq": dq, "dk": dk, "dv": dv}
    if added is not None and dbias is not None:
        gradients["dbias"] = dbias.reshape(added.shape).astype(added.dtype)
    if first is not None:
        gradients["dsinks"] = dsinks.astype(np.asarray(sinks).dtype)
    return gradients


class _KeyHead:
    """The keys and values of one head of one sequence, and their gradients so far."""

    def __init__(self, tiles: Tiles, b: int, k: Array, v: Array) -> None:
        self.tiles, self.b, self.k, self.v = tiles, b, k, v
        self.dk, self.dv = np.zeros_like(k), np.zeros_like(v)
        self.odd = _odd_rows(k)
        self.finite = len(self.odd) == 0 and len(_odd_rows(v)) == 0

    def one_tile(self, h: int, i0: int, q: Array, do: Array, lse: Array, delta: Array, dbias: Array | None, block_k: int) -> Array:
        """dq (n, D) of the n queries from i0 on; dk, dv and dbias get their share."""
        tiles, b = self.tiles, self.b
        i1 = i0 + len(q)
        dq = np.zeros_like(q)
        odd_q, odd_do = _odd_rows(q), _odd_rows(do)
        shift = np.where(lse == -np.inf, 0, lse)[:, None]                       # nothing seen: e^(-inf - 0) = 0
        careful = not (self.finite and len(odd_q) == len(odd_do) == 0 and np.isfinite(shift).all() and np.isfinite(delta).all())
        for j0, j1 in tiles.key_tiles(b, i0, i1, block_k):
            tile = (b, h, slice(i0, i1), slice(j0, j1))
            k, v = self.k[j0:j1], self.v[j0:j1]
            s = q @ k.T                                                         # (n, keys of the tile)
            tiles.scale_and_cap(s)
            slope = None if tiles.softcap is None else (1 - s / tiles.softcap) * (1 + s / tiles.softcap)
            tiles.add_and_hide(b, h, i0, j0, s)
            seen: Bool | None = s != -np.inf if careful else None               # NaN is seen
            p = np.exp(s - shift, out=s)
            dp = do @ v.T
            dropped = p
            if tiles.kept is not None:
                keep = tiles.kept[tile] * tiles.work.type(tiles.factor)
                dp *= keep
                dropped = p * keep
            ds = p * (dp - delta[:, None])
            if seen is not None:                                                # what is not seen gets 0, not 0 x NaN
                dropped, ds = np.where(seen, dropped, 0), np.where(seen, ds, 0)
            if dbias is not None:
                _add_to(dbias, tile, ds)
            if slope is not None:
                ds *= slope if seen is None else np.where(seen, slope, 0)
            ds *= tiles.work.type(tiles.scale)
            seen_by = None if seen is None else seen.T
            add_product(self.dv[j0:j1], dropped.T, do, odd_do, seen_by)
            add_product(dq, ds, k, self.odd[(self.odd >= j0) & (self.odd < j1)] - j0, seen)
            add_product(self.dk[j0:j1], ds.T, q, odd_q, seen_by)
        return dq


def _odd_rows(x: Array) -> NDArray[np.intp]:
    """The rows of x that hold NaN or inf."""
    return np.flatnonzero(~np.isfinite(x).all(axis=1))


def _add_to(total: Array, tile: tuple[Any, ...], part: Array) -> None:
    """Add a tile's part to a total of four axes, summed over those on which the total has length 1."""
    place = tuple(slice(0, 1) if n == 1 else slice(at, at + 1) if isinstance(at, int) else at for n, at in zip(total.shape, tile))
    over = tuple(axis for axis in (0, 1) if total.shape[2 + axis] == 1)
    total[place] += part.sum(axis=over, keepdims=True)
