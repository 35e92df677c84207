"""Sequence shards: which tokens of a sequence each rank holds, and which of them see each other. What is computed is left to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Bool, Causal, Int64

Order = Literal["contiguous", "zigzag"]


def shard_positions(ranks: int, length: int, *, order: Order = "contiguous") -> list[Int64]:
    """The places in the sequence of the tokens that each rank holds, `length` of them on every rank.

        contiguous   rank r holds part r of R
        zigzag       rank r holds parts r and 2 R - 1 - r of 2 R: under a causal mask all ranks have the same work

    >>> [part.tolist() for part in shard_positions(2, 4, order="zigzag")]
    [[0, 1, 6, 7], [2, 3, 4, 5]]

    Raises ValueError for an unknown order, and for an odd length in zig-zag order. Exact.
    Source: Brandon et al. 2023 (arXiv 2311.09431) for the imbalance; the zig-zag: zhuzilin/ring-flash-attention#2.
    """
    R, n = arguments.whole_number("ranks", ranks, least=1), arguments.whole_number("length", length, least=0)
    if order not in ("contiguous", "zigzag"):
        raise ValueError(f"order: got {order!r}; want contiguous or zigzag")
    place = np.arange(R * n, dtype=np.int64)
    if order == "contiguous":
        return list(place.reshape(R, n))
    if n % 2:
        raise ValueError(f"order: got 'zigzag' for {n} tokens on each rank; want an even number of them, two parts of equal length")
    parts = place.reshape(2 * R, n // 2)
    return [np.concatenate([parts[r], parts[2 * R - 1 - r]]) for r in range(R)]


@dataclass(frozen=True)
class Shards:
    """The arguments of attention over R shards, checked: q (B, Hq, n, D), k (B, Hkv, n, D), v (B, Hkv, n, Dv) on each rank."""

    q: list[Array]
    k: list[Array]
    v: list[Array]
    positions: list[Int64]
    segments: Int64
    causal: Causal

    @classmethod
    def of(cls, q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike], *, causal: Causal,
           order: Order, segments: ArrayLike | None) -> Shards:
        """Raises ValueError or TypeError that names the argument, the rank, what came and what is wanted."""
        R, wide = len(q_shards), []
        for name, shards in (("q_shards", q_shards), ("k_shards", k_shards), ("v_shards", v_shards)):
            if len(shards) != R or R == 0:
                raise ValueError(f"{name}: got {len(shards)} shards beside {R} of q_shards; want one for every rank, at least one")
            wide.append([arguments.float_array(f"{name}[{r}]", x, ndim=4) for r, x in enumerate(shards)])
            for r, x in enumerate(wide[-1]):
                if x.shape != wide[-1][0].shape:
                    raise ValueError(f"{name}[{r}]: got shape {x.shape}; want {wide[-1][0].shape}, that of rank 0")
        q, k, _ = arguments.query_key_value(*(shards[0] for shards in wide))
        if q.shape[2] != k.shape[2]:
            raise ValueError(f"k_shards: got {k.shape[2]} tokens on each rank beside {q.shape[2]} of q_shards; want as many")
        positions = shard_positions(R, q.shape[2], order=order)
        shape = (q.shape[0], R * q.shape[2])
        one = np.zeros(shape, dtype=np.int64) if segments is None else arguments.integers(
            "segments", segments, shape, least=-1, most=2**62)  # fmt: skip
        return cls(wide[0], wide[1], wide[2], positions, one, arguments.causal_rule(causal))

    def visible(self, i: int, j: int) -> Bool:
        """Which keys of rank j the queries of rank i see: (B, 1, n, n)."""
        p, place = self.positions[i], self.positions[j]
        mine, theirs = self.segments[:, p], self.segments[:, place]             # (B, n)
        seen = (mine[:, :, None] == theirs[:, None, :]) & (mine >= 0)[:, :, None]
        if self.causal is not None:
            seen = seen & (place[None, :] <= p[:, None])
        return np.asarray(seen[:, None])


def gathered_sequence(shards: Sequence[Array], positions: Sequence[Int64], *, axis: int = 2) -> Array:
    """The whole sequence from its shards.

    >>> gathered_sequence([np.array([0, 1, 6, 7]), np.array([2, 3, 4, 5])], shard_positions(2, 4, order="zigzag"), axis=0)
    array([0, 1, 2, 3, 4, 5, 6, 7])
    """
    return np.take(np.concatenate(shards, axis=axis), np.argsort(np.concatenate(positions)), axis=axis)


def scattered_sequence(whole: Array, positions: Sequence[Int64], *, axis: int = 2) -> list[Array]:
    """The shards of a sequence: the inverse of `gathered_sequence`."""
    return [np.take(whole, part, axis=axis) for part in positions]
