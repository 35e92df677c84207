"""Experts spread over ranks: tokens go to the ranks that hold their experts and come back, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Int64
from .collectives import Traffic, all_gather, all_to_all
from .experts import combine, dispatch, dispatch_weighted, expert_slots, gathered
from .routing import route, route_backward


def expert_parallel_layer(
    x: Sequence[ArrayLike], logits: Sequence[ArrayLike], weights: Sequence[ArrayLike], *, k: int, normalize: bool,
    bias: ArrayLike | None = None, capacity: int | None = None,
) -> tuple[list[Float64], list[Int64], Traffic]:  # fmt: skip
    """`moe_layer` of the tokens of R ranks, each of which holds E / R experts: lists of R arrays out and slots, and the traffic.

        each rank routes its own tokens,  all_to_all sends them to their experts,  all_to_all brings back what those made of them

    x R arrays (T_r, D), logits (T_r, E), weights (E / R, D, F): rank r holds the experts from r E / R on. bias (E,) is the same on
    all. The same numbers as one rank has with all tokens, those of rank 0 first: capacity counts the places of an expert over all
    ranks, whose counts are gathered for it. slots are those places.

    >>> x, logits, weights = [[[1.0]], [[2.0]]], [[[0.0, 1.0]], [[1.0, 0.0]]], [[[[3.0]]], [[[5.0]]]]
    >>> out, slots, traffic = expert_parallel_layer(x, logits, weights, k=1, normalize=True)
    >>> [y.tolist() for y in out], traffic.sent
    ([[[5.0]], [[6.0]]], (32, 32))

    Raises ValueError or TypeError that names the argument, what came and what is wanted. Error bound: as `moe_layer`.
    Source: Lepikhin et al. 2020 (arXiv 2006.16668), section 3.2.
    """
    ranks = _Ranks.of(x, logits, weights, k=k, normalize=normalize, bias=bias, capacity=capacity)
    sent, there = ranks.to_experts([dispatch(a, *at, experts=ranks.experts, places=ranks.places) for a, at in zip(ranks.x, ranks.at)])
    done, back = ranks.to_tokens([tokens @ w for tokens, w in zip(sent, ranks.weights)])
    out = [combine(y, *at, gates) for y, at, gates in zip(done, ranks.at, ranks.gates)]
    return out, ranks.slots, ranks.traffic + there + back


def expert_parallel_backward(
    x: Sequence[ArrayLike], logits: Sequence[ArrayLike], weights: Sequence[ArrayLike], dout: Sequence[ArrayLike], *, k: int,
    normalize: bool, bias: ArrayLike | None = None, capacity: int | None = None,
) -> dict[str, list[Float64]]:  # fmt: skip
    """The gradients of the sum over ranks of sum(dout * expert_parallel_layer(x, …).out): "dx", "dlogits", "dweights", R arrays each.

        gates dout goes to the experts as the tokens did, dy w^T comes back
        dweights of an expert = x^T dy over the tokens of all ranks

    so that it is whole already: whoever averages gradients over data-parallel ranks divides it by all of them as any other
    gradient, and adds nothing up over those that share the experts (NVIDIA/Megatron-LM#5956, databricks/megablocks#20,
    deepspeedai/DeepSpeed#6546). The gradients of one rank with all tokens, whatever R is.

    >>> x, logits, weights = [[[1.0]], [[2.0]]], [[[0.0, 1.0]], [[0.0, 1.0]]], [[[[3.0]]], [[[5.0]]]]
    >>> got = expert_parallel_backward(x, logits, weights, [[[1.0]], [[1.0]]], k=1, normalize=True)
    >>> [w.ravel().tolist() for w in got["dweights"]], [d.ravel().tolist() for d in got["dx"]]
    ([[0.0], [3.0]], [[5.0], [5.0]])

    Raises as `expert_parallel_layer`. Error bound: `properties.bounds.expert_parallel_backward_bound`. Source: as there.
    """
    ranks = _Ranks.of(x, logits, weights, k=k, normalize=normalize, bias=bias, capacity=capacity)
    E, C = ranks.experts, ranks.places
    _as_many("dout", dout, len(ranks.x))
    d = [arguments.widen(f"dout[{r}]", a, (len(ranks.x[r]), ranks.weights[0].shape[2])) for r, a in enumerate(dout)]
    sent, _ = ranks.to_experts([dispatch(a, *at, experts=E, places=C) for a, at in zip(ranks.x, ranks.at)])
    done, _ = ranks.to_tokens([tokens @ w for tokens, w in zip(sent, ranks.weights)])
    dy, _ = ranks.to_experts([dispatch_weighted(a, *at, gates, experts=E, places=C) for a, at, gates in zip(d, ranks.at, ranks.gates)])
    dback, _ = ranks.to_tokens([a @ w.swapaxes(-1, -2) for a, w in zip(dy, ranks.weights)])
    dgates = [(gathered(y, *at) * a[:, None]).sum(axis=-1) for y, at, a in zip(done, ranks.at, d)]
    return {
        "dx": [np.asarray(gathered(a, *at).sum(axis=1)) for a, at in zip(dback, ranks.at)],
        "dlogits": [route_backward(z, at[0], g, normalize=normalize) for z, at, g in zip(ranks.logits, ranks.at, dgates)],
        "dweights": [a.swapaxes(-1, -2) @ b for a, b in zip(sent, dy)],
    }


@dataclass(frozen=True)
class _Ranks:
    """What each rank knows once all have routed: its arrays, its gates, where its tokens go, and the places of a buffer.

    at: ids, and each assignment's place among those that its own rank sends to the expert, -1 where dropped. slots: its place
    among those of all ranks.
    """

    x: list[Float64]
    logits: list[Float64]
    weights: list[Float64]
    gates: list[Float64]
    at: list[tuple[Int64, Int64]]
    slots: list[Int64]
    places: int
    traffic: Traffic

    @property
    def experts(self) -> int:
        return len(self.weights) * len(self.weights[0])

    @classmethod
    def of(cls, x: Sequence[ArrayLike], logits: Sequence[ArrayLike], weights: Sequence[ArrayLike], *, k: int, normalize: bool,
           bias: ArrayLike | None, capacity: int | None) -> _Ranks:
        w = [arguments.widen(f"weights[{r}]", a, ndim=3) for r, a in enumerate(weights)]
        if not w:
            raise ValueError("weights: got no ranks; want at least one")
        for name, given in (("x", x), ("logits", logits)):
            _as_many(name, given, len(w))
        E, D = len(w) * len(w[0]), w[0].shape[1]
        for r, a in enumerate(w):
            if a.shape != w[0].shape:
                raise ValueError(f"weights[{r}]: got shape {a.shape}; want that of rank 0, {w[0].shape}")
        rows = [arguments.widen(f"x[{r}]", a, ndim=2) for r, a in enumerate(x)]
        z = [arguments.widen(f"logits[{r}]", a, (len(rows[r]), E)) for r, a in enumerate(logits)]
        for r, a in enumerate(rows):
            if a.shape[1] != D:
                raise ValueError(f"x[{r}]: got shape {a.shape} for weights {w[0].shape}; want (T, {D})")
        routed = [route(a, k=k, normalize=normalize, bias=bias) for a in z]
        ids, gates = [one[0] for one in routed], [one[1] for one in routed]
        slots, traffic = _slots_over_ranks(ids, E, capacity)
        own = [np.where(all_of_them >= 0, expert_slots(a, experts=E), -1) for a, all_of_them in zip(ids, slots)]
        return cls(rows, z, w, gates, list(zip(ids, own)), slots, max(int(a.max(initial=-1)) for a in own) + 1, traffic)

    def to_experts(self, buffers: list[Float64]) -> tuple[list[Float64], Traffic]:
        """(E, C, N) of each rank's tokens -> (E / R, R C, N) of each rank's experts."""
        received, traffic = all_to_all(buffers)
        R, n = len(self.weights), len(self.weights[0])
        return [a.reshape(R, n, *a.shape[1:]).swapaxes(0, 1).reshape(n, R * a.shape[1], a.shape[2]) for a in received], traffic

    def to_tokens(self, buffers: list[Float64]) -> tuple[list[Float64], Traffic]:
        """The way back."""
        R, n, C = len(self.weights), len(self.weights[0]), self.places
        received, traffic = all_to_all([a.reshape(n, R, C, a.shape[2]).swapaxes(0, 1).reshape(R * n, C, a.shape[2]) for a in buffers])
        return received, traffic


def _slots_over_ranks(ids: list[Int64], experts: int, capacity: int | None) -> tuple[list[Int64], Traffic]:
    """Each assignment's place among those of all ranks: all first choices, rank by rank, then all second ones."""
    k = ids[0].shape[1]
    counts = [np.stack([np.bincount(a[:, j], minlength=experts) for j in range(k)]).astype(np.int64) for a in ids]         # (k, E)
    tables, traffic = all_gather([a[None] for a in counts])
    table = tables[0]                                                           # (R, k, E), the same on every rank
    earlier_choices = np.cumsum(table.sum(axis=0), axis=0) - table.sum(axis=0)  # (k, E)
    earlier_ranks = np.cumsum(table, axis=0) - table                            # (R, k, E)
    taken = earlier_choices + earlier_ranks
    return [expert_slots(a, experts=experts, capacity=capacity, taken=taken[r]) for r, a in enumerate(ids)], traffic


def _as_many(name: str, given: Sequence[ArrayLike], ranks: int) -> None:
    if len(given) != ranks:
        raise ValueError(f"{name}: got {len(given)} arrays; want {ranks}, one for every rank that holds experts")
