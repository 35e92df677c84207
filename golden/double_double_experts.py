"""Mixtures of experts in double-double: choices by both limbs, one product an assignment, gradients gathered and put back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oracles.reference import expert_slots

from .double_double import DD, exact, where
from .double_double_rows import softmax

Results = dict[str, DD]
Int64 = NDArray[np.int64]


def route(logits: ArrayLike, *, k: int, normalize: bool, bias: ArrayLike | None = None) -> Results:
    """ids and gates (T, k)."""
    _, ids, gates = _routed(logits, k, normalize, bias)
    return {"ids": exact(ids), "gates": gates}


def balance_loss(probs: ArrayLike, ids: ArrayLike, *, mask: ArrayLike | None = None) -> Results:
    """loss ()."""
    p, counts, real = _counted(probs, ids, mask)
    T, assigned = float(max(real.sum(), 1)), float(max(counts.sum(), 1))
    means = p[real].sum(axis=0) / T
    return {"loss": (exact(counts) / assigned * means).sum() * float(len(counts))}


def balance_loss_backward(probs: ArrayLike, ids: ArrayLike, dloss: ArrayLike, *, mask: ArrayLike | None = None) -> Results:
    """dprobs (T, E)."""
    p, counts, real = _counted(probs, ids, mask)
    row = exact(counts) / float(max(counts.sum(), 1)) * float(len(counts)) * exact(dloss) / float(max(real.sum(), 1))
    whole = exact(np.zeros(p.shape))
    whole.hi[real], whole.lo[real] = row.hi, row.lo
    return {"dprobs": whole}


def moe_layer(x: ArrayLike, logits: ArrayLike, weights: ArrayLike, *, k: int, normalize: bool, bias: ArrayLike | None = None,
              capacity: int | None = None) -> Results:
    """out (T, F), slots (T, k)."""
    w = np.asarray(weights).astype(np.float64)
    _, ids, gates = _routed(logits, k, normalize, bias)
    slots = expert_slots(ids, experts=len(w), capacity=capacity)
    y = (exact(np.asarray(x).astype(np.float64)[:, None, None]) @ exact(w[ids]))[..., 0, :]                 # (T, k, F)
    return {"out": (where(slots >= 0, gates, 0.0)[..., None] * y).sum(axis=1), "slots": exact(slots)}


def expert_parallel_backward(x: ArrayLike, logits: ArrayLike, weights: ArrayLike, dout: ArrayLike, *, k: int, normalize: bool,
                             bias: ArrayLike | None = None, capacity: int | None = None) -> Results:
    """dx (R, T, D), dlogits (R, T, E), dweights (R, E/R, D, F)."""
    a, z, d = (np.asarray(one).astype(np.float64).reshape(-1, np.shape(one)[-1]) for one in (x, logits, dout))
    w = np.asarray(weights).astype(np.float64).reshape(-1, *np.shape(weights)[2:])
    p, ids, gates = _routed(z, k, normalize, bias)
    kept = expert_slots(ids, experts=len(w), capacity=capacity) >= 0
    gate, chosen = where(kept, gates, 0.0)[..., None], exact(w[ids])            # (T, k, 1), (T, k, D, F)
    y = (exact(a[:, None, None]) @ chosen)[..., 0, :]                           # (T, k, F)
    back = (exact(d[:, None, None]) @ chosen.T)[..., 0, :]                      # (T, k, D)
    dw = exact(np.zeros(w.shape))
    for e in range(len(w)):
        t, j = np.nonzero(kept & (ids == e))
        each = DD(gate.hi[t, j], gate.lo[t, j])[..., None] * (exact(a[t][..., None]) * exact(d[t][:, None]))
        part = each.sum(axis=0)
        dw.hi[e], dw.lo[e] = part.hi, part.lo
    dgates = where(kept, (y * exact(d[:, None])).sum(), 0.0)
    results = {"dx": (gate * back).sum(axis=1), "dlogits": _logit_gradients(p, ids, gates, dgates, normalize), "dweights": dw}
    shapes = {"dx": np.shape(x), "dlogits": np.shape(logits), "dweights": np.shape(weights)}
    return {name: DD(one.hi.reshape(shapes[name]), one.lo.reshape(shapes[name])) for name, one in results.items()}


def _routed(logits: ArrayLike, k: int, normalize: bool, bias: ArrayLike | None) -> tuple[DD, Int64, DD]:
    """p (T, E), ids and gates (T, k); of equal sums the lowest index."""
    p = softmax(logits)["p"]
    s = p if bias is None else p + exact(bias)
    ids = np.lexsort((-s.lo, -s.hi), axis=-1)[:, :k].astype(np.int64)
    chosen = _taken(p, ids)
    return p, ids, chosen / chosen.sum(keepdims=True) if normalize else chosen


def _taken(x: DD, ids: Int64) -> DD:
    return DD(np.take_along_axis(x.hi, ids, axis=-1), np.take_along_axis(x.lo, ids, axis=-1))


def _put(x: DD, ids: Int64, values: DD) -> DD:
    np.put_along_axis(x.hi, ids, values.hi, axis=-1)
    np.put_along_axis(x.lo, ids, values.lo, axis=-1)
    return x


def _logit_gradients(p: DD, ids: Int64, gates: DD, dgates: DD, normalize: bool) -> DD:
    zero = exact(np.zeros(p.shape))
    if normalize:
        return _put(zero, ids, gates * (dgates - (gates * dgates).sum(keepdims=True)))
    dp = _put(zero, ids, dgates)
    return p * (dp - (p * dp).sum(keepdims=True))


def _counted(probs: ArrayLike, ids: ArrayLike, mask: ArrayLike | None) -> tuple[DD, Any, Any]:
    p, chosen = exact(probs), np.asarray(ids)
    real = np.ones(len(chosen), dtype=bool) if mask is None else np.asarray(mask)
    return p, np.bincount(chosen[real].reshape(-1), minlength=p.shape[1]), real
