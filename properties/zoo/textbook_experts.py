"""Textbook forms of routing and of layers of experts, in float32 (float64 for float64): what mutants and variants are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .textbook_decoding import working

Array = NDArray[Any]
# Probabilities (T, E), bias, experts (T, k), whether over their sum -> gates (T, k).
Gates = Callable[[Array, Any, Array, bool], Array]
# Experts (T, k), number of experts -> places (T, k).
Places = Callable[[Array, int], Array]


def softmax(z: Array) -> Array:
    """e^(z - m) over their sum along the last axis."""
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True, dtype=z.dtype))


def plain_gates(p: Array, bias: Any, ids: Array, normalize: bool) -> Array:
    """Probabilities of the chosen, over their sum where asked."""
    gates = np.take_along_axis(p, ids, axis=-1)
    return np.asarray(gates / gates.sum(axis=-1, keepdims=True, dtype=p.dtype) if normalize else gates)


def choose(logits: Any, k: int, bias: Any) -> tuple[Array, Array]:
    """Probabilities (T, E) and the k experts with the largest sum of probability and bias."""
    p = softmax(working(logits))
    s = p if bias is None else p + working(bias).astype(p.dtype)
    return p, np.argsort(-s, axis=-1, kind="stable")[:, :k]


def route(logits: Any, *, k: int, normalize: bool, bias: Any = None, gates: Gates = plain_gates) -> tuple[Array, Array]:
    """Experts, and gates in the format of the logits."""
    p, ids = choose(logits, k, bias)
    return ids, gates(p, bias, ids, normalize).astype(logits.dtype)


def places_by_choice(ids: Array, experts: int) -> Array:
    """One counter for each expert, which goes on from choice to choice."""
    count, places = np.zeros(experts, np.int64), np.zeros(ids.shape, np.int64)
    for j in range(ids.shape[1]):
        for t, e in enumerate(ids[:, j]):
            places[t, j] = count[e]
            count[e] += 1
    return places


def within(places: Array, capacity: int | None) -> Array:
    """-1 where the place is past the capacity."""
    return places if capacity is None else np.where(places < capacity, places, -1)


def moe_layer(x: Any, logits: Any, weights: Any, *, k: int, normalize: bool, bias: Any = None, capacity: int | None = None,
              gates: Gates = plain_gates, places: Places = places_by_choice) -> tuple[Array, Array]:
    """Tokens added into buffers of places, a product for each expert, and what stands at a token's places times its gates."""
    p, ids = choose(logits, k, bias)
    g, E = gates(p, bias, ids, normalize), logits.shape[1]
    slots = within(places(ids, E), capacity)
    a, w = working(x), working(weights)
    buffer = np.zeros((E, int(slots.max(initial=0)) + 1, a.shape[1]), a.dtype)
    t, j = np.nonzero(slots >= 0)
    np.add.at(buffer, (ids[t, j], slots[t, j]), a[t])
    out = np.zeros((len(a), w.shape[2]), a.dtype)
    np.add.at(out, t, g[t, j][:, None] * (buffer @ w)[ids[t, j], slots[t, j]])
    return out.astype(x.dtype), slots


def expert_parallel_backward(
    x: Any, logits: Any, weights: Any, dout: Any, *, k: int, normalize: bool, bias: Any = None, capacity: int | None = None,
    gates: Gates = plain_gates,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """All ranks' tokens and experts in one, expert by expert."""
    a, z, d, w = (working(y).reshape(-1, *y.shape[2:]) for y in (x, logits, dout, weights))
    p, ids = choose(z, k, bias)
    g, E = gates(p, bias, ids, normalize), z.shape[1]
    kept = within(places_by_choice(ids, E), capacity) >= 0
    dx, dw, dg = np.zeros_like(a), np.zeros_like(w), np.zeros_like(g)
    for e in range(E):
        t, j = np.nonzero((ids == e) & kept)
        through = d[t] @ w[e].T
        np.add.at(dx, t, g[t, j][:, None] * through)
        dw[e] = (a[t] * g[t, j][:, None]).T @ d[t]
        dg[t, j] = (through * a[t]).sum(axis=-1, dtype=a.dtype)
    dz = router_gradient(p, ids, dg, normalize)
    return dx.reshape(x.shape).astype(x.dtype), dz.reshape(logits.shape).astype(x.dtype), dw.reshape(weights.shape).astype(x.dtype)


def router_gradient(p: Array, ids: Array, dg: Array, normalize: bool) -> Array:
    """Through the gates to the logits."""
    if normalize:
        own = plain_gates(p, None, ids, True)
        dz = np.zeros_like(p)
        np.put_along_axis(dz, ids, own * (dg - (own * dg).sum(axis=-1, keepdims=True, dtype=p.dtype)), axis=-1)
        return dz
    dp = np.zeros_like(p)
    np.put_along_axis(dp, ids, dg, axis=-1)
    return np.asarray(p * (dp - (p * dp).sum(axis=-1, keepdims=True, dtype=p.dtype)))


def shares(ids: Array, experts: int, real: Array, like: Array) -> Array:
    """The share of each expert in the assignments of real tokens."""
    counts = np.bincount(ids[real].ravel(), minlength=experts)
    return np.asarray(counts / max(counts.sum(), 1), like.dtype)


def real_tokens(mask: Any, T: int) -> Array:
    """Which tokens are real."""
    return np.ones(T, np.bool_) if mask is None else np.asarray(mask)


def balance_loss(probs: Any, ids: Any, *, mask: Any = None) -> Array:
    """E times the sum of f P, in the format of the probabilities."""
    p, real = working(probs), real_tokens(mask, len(probs))
    P = p[real].sum(axis=0, dtype=p.dtype) / p.dtype.type(max(int(real.sum()), 1))
    return np.asarray(p.dtype.type(p.shape[1]) * (shares(ids, p.shape[1], real, p) * P).sum(dtype=p.dtype)).astype(probs.dtype)


def balance_loss_backward(probs: Any, ids: Any, dloss: Any, *, mask: Any = None) -> Array:
    """dloss E f / T at real tokens, in the format of the probabilities."""
    p, real = working(probs), real_tokens(mask, len(probs))
    factor = working(dloss).astype(p.dtype) * p.dtype.type(p.shape[1]) / p.dtype.type(max(int(real.sum()), 1))
    row = factor * shares(ids, p.shape[1], real, p)
    return np.asarray(np.where(real[:, None], row, p.dtype.type(0)).astype(probs.dtype))
