"""Mixture of experts on one rank: places for tokens, what the experts make of them, and the way back. Many ranks: expert_parallel."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Int64
from .routing import expert_ids, route, route_backward


def expert_slots(ids: ArrayLike, *, experts: int, capacity: int | None = None, taken: ArrayLike | None = None) -> Int64:
    """The place of each assignment among those of its expert: int64 (T, k), -1 where the expert is full.

        the first choices of all tokens in their order, then the second ones, and so on; each takes the next place of its expert

    ids (T, k). capacity: places of each expert, None: as many as needed. The count goes on from choice to choice: it starts
    from all earlier choices, not from the one before alone (lucidrains/st-moe-pytorch#13), so that no two assignments share a
    place. taken (k, E): the first free place of each expert in each choice, where these tokens are a part of a larger batch.

    >>> expert_slots([[0, 1], [0, 1], [1, 0]], experts=2).tolist()
    [[0, 1], [1, 2], [0, 2]]
    >>> expert_slots([[0, 1], [0, 1], [1, 0]], experts=2, capacity=2).tolist()
    [[0, 1], [1, -1], [0, -1]]

    Exact. Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Source: Lepikhin et al. 2020 (arXiv 2006.16668), algorithm 1.
    """
    experts = arguments.whole_number("experts", experts, least=1)
    chosen = expert_ids(ids, experts)
    k = chosen.shape[1]
    before = np.zeros((k, experts), np.int64) if taken is None else arguments.integers("taken", taken, (k, experts), least=0, most=2**53)
    one_hot = chosen.T[..., None] == np.arange(experts)                         # (k, T, E)
    own = one_hot.sum(axis=1)                                                   # (k, E)
    start = before if taken is not None else np.cumsum(own, axis=0) - own       # all earlier choices
    places = start[:, None] + np.cumsum(one_hot, axis=1) - 1                    # (k, T, E)
    slots = np.take_along_axis(places, chosen.T[..., None], axis=-1)[..., 0].T.astype(np.int64)
    if capacity is None:
        return slots
    return np.where(slots < arguments.whole_number("capacity", capacity, least=0), slots, -1)


def dispatch(x: ArrayLike, ids: ArrayLike, slots: ArrayLike, *, experts: int, places: int | None = None) -> Float64:
    """The tokens at their places: float64 (E, C, D), zeros where nobody is.

        buffer[ids_tj, slots_tj] = x_t   for slots_tj >= 0

    x (T, D), ids and slots (T, k). places: C, None: one more than the largest slot.

    >>> dispatch([[1.0], [2.0]], [[0], [0]], [[0], [1]], experts=2).tolist()
    [[[1.0], [2.0]], [[0.0], [0.0]]]

    Exact. Raises ValueError where two assignments share a place. Source: as `expert_slots`.
    """
    x = arguments.widen("x", x, ndim=2)
    chosen = expert_ids(ids, arguments.whole_number("experts", experts, least=1), tokens=len(x))
    at = arguments.integers("slots", slots, chosen.shape, least=-1, most=2**31)
    C = int(at.max(initial=-1)) + 1 if places is None else arguments.whole_number("places", places, least=int(at.max(initial=-1)) + 1)
    t, j = np.nonzero(at >= 0)
    if len(np.unique(chosen[t, j] * max(C, 1) + at[t, j])) != len(t):
        raise ValueError("slots: got one place of an expert twice; want each at most once")
    buffer = np.zeros((experts, C, x.shape[1]))
    buffer[chosen[t, j], at[t, j]] = x[t]
    return buffer


def combine(buffer: ArrayLike, ids: ArrayLike, slots: ArrayLike, gates: ArrayLike) -> Float64:
    """What the experts made of the tokens, back at the tokens and weighted: float64 (T, F).

        out_t = sum over j with slots_tj >= 0 of gates_tj buffer[ids_tj, slots_tj]

    buffer (E, C, F), ids, slots and gates (T, k). A token that was dropped by one expert loses that part: gates of the others
    are not raised to make up for it; dropped by all it is 0, and the residual stream carries it.

    >>> combine([[[2.0], [4.0]]], [[0], [0]], [[1], [-1]], [[0.5], [1.0]]).tolist()
    [[2.0], [0.0]]

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: k u sum |gates| |buffer|. Source: Lepikhin et al. 2020 (arXiv 2006.16668), equation 3.
    """
    return np.asarray((arguments.widen("gates", gates)[..., None] * gathered(buffer, ids, slots)).sum(axis=1))


def gathered(buffer: ArrayLike, ids: ArrayLike, slots: ArrayLike) -> Float64:
    """What stands at the places of the assignments: float64 (T, k, F), 0 for those that were dropped.

    >>> gathered([[[2.0], [4.0]]], [[0], [0]], [[1], [-1]]).tolist()
    [[[4.0]], [[0.0]]]
    """
    y = arguments.widen("buffer", buffer, ndim=3)
    chosen = expert_ids(ids, len(y))
    at = arguments.integers("slots", slots, chosen.shape, least=-1, most=y.shape[1] - 1)
    rows = np.zeros((*chosen.shape, y.shape[2]))
    t, j = np.nonzero(at >= 0)
    rows[t, j] = y[chosen[t, j], at[t, j]]
    return rows


def moe_layer(
    x: ArrayLike, logits: ArrayLike, weights: ArrayLike, *, k: int, normalize: bool, bias: ArrayLike | None = None,
    capacity: int | None = None,
) -> tuple[Float64, Int64]:  # fmt: skip
    """The layer whose experts are one matrix each: out float64 (T, F), slots int64 (T, k), -1 where a token was dropped.

        ids, gates = route(logits),   slots = expert_slots(ids)
        out_t = sum over j with slots_tj >= 0 of gates_tj x_t weights[ids_tj]

    x (T, D), logits (T, E), weights (E, D, F). Without capacity it is the sum over all experts, gates 0 for those not chosen.

    >>> out, slots = moe_layer([[1.0], [2.0]], [[0.0, -9.0], [0.0, -9.0]], [[[3.0]], [[5.0]]], k=1, normalize=True, capacity=1)
    >>> out.tolist(), slots.tolist()
    ([[3.0], [0.0]], [[0], [-1]])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: sum over j of (error of the gate + (D + k + 2) u gate) |x| |weights|: `properties.bounds.moe_layer_bound`.
    Source: Shazeer et al. 2017 (arXiv 1701.06538), equation 1; capacity: Lepikhin et al. 2020 (arXiv 2006.16668), algorithm 1.
    """
    x, w = _layer(x, logits, weights)
    ids, gates = route(logits, k=k, normalize=normalize, bias=bias)
    slots = expert_slots(ids, experts=len(w), capacity=capacity)
    return combine(dispatch(x, ids, slots, experts=len(w)) @ w, ids, slots, gates), slots


def moe_layer_backward(
    x: ArrayLike, logits: ArrayLike, weights: ArrayLike, dout: ArrayLike, *, k: int, normalize: bool, bias: ArrayLike | None = None,
    capacity: int | None = None,
) -> dict[str, Float64]:  # fmt: skip
    """The gradients of sum(dout * moe_layer(x, logits, weights).out): "dx" (T, D), "dlogits" (T, E), "dweights" (E, D, F).

        dx_t = sum_j gates_tj dout_t weights[ids_tj]^T
        dweights[e] = sum over its assignments of gates_tj x_t^T dout_t
        dgates_tj = dout_t . (x_t weights[ids_tj])                    0 for what was dropped
        dlogits = route_backward(dgates)

    The choice of experts has no gradient, nor has the bias.

    >>> got = moe_layer_backward([[1.0]], [[0.0, 0.0]], [[[3.0]], [[5.0]]], [[1.0]], k=1, normalize=False)
    >>> got["dx"].tolist(), got["dlogits"].tolist(), got["dweights"].tolist()
    ([[1.5]], [[0.75, -0.75]], [[[0.5]], [[0.0]]])

    Raises as `moe_layer`. Error bound: `properties.bounds.expert_parallel_backward_bound`. Source: as `moe_layer`.
    """
    x, w = _layer(x, logits, weights)
    dout = arguments.widen("dout", dout, (len(x), w.shape[2]))
    ids, gates = route(logits, k=k, normalize=normalize, bias=bias)
    slots = expert_slots(ids, experts=len(w), capacity=capacity)
    sent = dispatch(x, ids, slots, experts=len(w))                              # (E, C, D)
    dgates = (gathered(sent @ w, ids, slots) * dout[:, None]).sum(axis=-1)      # (T, k)
    dy = dispatch_weighted(dout, ids, slots, gates, experts=len(w))             # (E, C, F)
    dx = gathered(dy @ w.swapaxes(-1, -2), ids, slots).sum(axis=1)
    return {"dx": dx, "dlogits": route_backward(logits, ids, dgates, normalize=normalize), "dweights": sent.swapaxes(-1, -2) @ dy}


def dispatch_weighted(dout: Float64, ids: Int64, slots: Int64, gates: Float64, *, experts: int, places: int | None = None) -> Float64:
    """The gradient of `combine` with respect to the buffer: gates_tj dout_t at the place of each assignment, (E, C, F).

    >>> dispatch_weighted(np.ones((1, 1)), np.array([[1]]), np.array([[0]]), np.array([[0.5]]), experts=2).tolist()
    [[[0.0]], [[0.5]]]
    """
    C = int(slots.max(initial=-1)) + 1 if places is None else places
    rows = (gates[..., None] * dout[:, None]).reshape(-1, dout.shape[-1])       # (T k, F)
    return dispatch(rows, ids.reshape(-1, 1), slots.reshape(-1, 1), experts=experts, places=C)


def _layer(x: ArrayLike, logits: ArrayLike, weights: ArrayLike) -> tuple[Float64, Float64]:
    """x (T, D) and weights (E, D, F) that fit together and to the logits."""
    x, w = arguments.widen("x", x, ndim=2), arguments.widen("weights", weights, ndim=3)
    if np.shape(logits) != (len(x), len(w)):
        raise ValueError(f"logits: got shape {np.shape(logits)}; want ({len(x)}, {len(w)}), tokens of x and experts of weights")
    if w.shape[1] != x.shape[1]:
        raise ValueError(f"weights: got shape {w.shape} for x {x.shape}; want (E, {x.shape[1]}, F)")
    return x, w
