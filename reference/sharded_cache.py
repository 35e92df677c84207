"""A cache over ranks: decoding from keys and values of which every rank holds the tokens of its turns. Whole sequences are the ring's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Float64, Int64
from .attention import attention
from .softmax import merge_attention


def cache_place(indices: ArrayLike, *, ranks: int, interleave: int) -> tuple[Int64, Int64]:
    """The rank that holds each token of a sequence, and its place there: tokens go to the ranks in turn, `interleave` at a time.

        rank = (g // interleave) mod R          place = (g // (interleave R)) interleave + g mod interleave

    >>> rank, place = cache_place([0, 1, 2, 3, 4, 5], ranks=2, interleave=2)
    >>> rank.tolist(), place.tolist()
    ([0, 0, 1, 1, 0, 0], [0, 1, 0, 1, 2, 3])

    Raises ValueError for a negative index. Exact. Source: vllm-project/vllm#54541 (decode context parallelism).
    """
    g = arguments.integers("indices", indices, least=0, most=2**62)
    R, size = (arguments.whole_number(name, n, least=1) for name, n in (("ranks", ranks), ("interleave", interleave)))
    return g // size % R, g // (size * R) * size + g % size


def sharded_cache_attention(q: ArrayLike, k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike], indices: ArrayLike, *,
                            interleave: int, scale: float | None = None) -> tuple[Float64, Float64]:
    """Attention of one query a sequence over chosen tokens of a cache that R ranks share out: out (B, Hq, Dv), lse (B, Hq).

        each rank    attention over those of the indices whose tokens it holds, at its own places (`cache_place`)
        merged       by their log-sum-exps, in the order of the ranks

    q (B, Hq, D), k_r (B, Hkv, S, D), v_r (B, Hkv, S, Dv), indices (B, N): places in the whole sequence, each at most once in a row,
    -1 for none. Every index is served by one rank alone, and each rank takes what is its own. No index: out 0, lse -inf.

    >>> v = np.array([[[[1.0], [3.0]]]])
    >>> out, _ = sharded_cache_attention([[[0.0]]], [0.0 * v, 0.0 * v], [v, 2.0 * v], [[0, 3]], interleave=1)
    >>> out
    array([[[3.5]]])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: that of attention, and a merge a rank. Source: vllm-project/vllm#54541; merging: Milakov and Gimelshein 2018
    (arXiv 1805.02867).
    """
    q = arguments.float_array("q", q, ndim=3)
    R, k, v = len(k_shards), list[Array](), list[Array]()
    if R == 0 or len(v_shards) != R:
        raise ValueError(f"v_shards: got {len(v_shards)} shards beside {R} of k_shards; want one for every rank, at least one")
    for r in range(R):
        _, key, value = arguments.query_key_value(q[:, :, None], k_shards[r], v_shards[r])
        if r and (key.shape != k[0].shape or value.shape != v[0].shape):
            raise ValueError(f"k_shards[{r}]: got shapes {key.shape}, {value.shape}; want {k[0].shape}, {v[0].shape}, those of rank 0")
        k.append(key)
        v.append(value)
    chosen = _chosen(indices, R, k[0].shape[2], interleave, len(q))             # (R, B, S)
    out, lse = np.zeros((*q.shape[:2], 1, v[0].shape[3])), np.full((*q.shape[:2], 1), -np.inf)
    for r in range(R):
        part = attention(q[:, :, None], k[r], v[r], causal=None, mask=chosen[r][:, None, None, :], scale=scale)
        out, lse = merge_attention(out, lse, *part)
    return out[:, :, 0], lse[:, :, 0]


def indices_of(indices: ArrayLike, R: int, S: int, B: int) -> Int64:
    """indices (B, N) in a cache of R ranks with S tokens each, -1 for none. Raises ValueError or TypeError for others."""
    found = arguments.integers("indices", indices, least=-1, most=max(R * S - 1, -1))
    if found.ndim != 2 or len(found) != B:
        raise ValueError(f"indices: got shape {found.shape}; want ({B}, N)")
    return found


def _chosen(indices: ArrayLike, R: int, S: int, interleave: int, B: int) -> np.ndarray:
    """Which places of which rank are asked for: bool (R, B, S)."""
    chosen = np.zeros((R, B, S), dtype=bool)
    for b, row in enumerate(indices_of(indices, R, S, B)):
        taken = row[row >= 0]
        rank, place = cache_place(taken, ranks=R, interleave=interleave)
        if place.max(initial=-1) >= S:
            raise ValueError(f"indices[{b}]: got {int(taken[place.argmax()])}, place {int(place.max())} of its rank; want places below {S}")
        if len(np.unique(taken)) != len(taken):
            raise ValueError(f"indices[{b}]: got {row.tolist()}; want no index twice")
        chosen[rank, b, place] = True
    return chosen
