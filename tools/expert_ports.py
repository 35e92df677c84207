"""Our own other forms of the operations of experts, which `oracles check` without a subject holds to the oracles."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties import Arithmetic, subject

FLOAT64 = Arithmetic(out="float64", accumulate="float64", elementwise="float64", lse="float64")
FORMATS = ("float32", "float64", "float16", "bfloat16")


@subject("route", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def route_by_counting(logits: Any, *, k: int, normalize: bool, bias: Any = None) -> Any:
    """Every expert's rank is the number of those that come before it, without a sort."""
    z = np.asarray(logits, np.float64)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    s, i = p + (0.0 if bias is None else np.asarray(bias, np.float64)), np.arange(z.shape[-1])
    before = (s[:, None] > s[:, :, None]) | ((s[:, None] == s[:, :, None]) & (i < i[:, None]))     # (T, E, E): j before i
    at = before.sum(axis=-1)[..., None] == np.arange(k)                         # (T, E, k)
    gates = (p[..., None] * at).sum(axis=1)
    return at.argmax(axis=1), gates / gates.sum(axis=-1, keepdims=True) if normalize else gates


@subject("balance_loss", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def balance_of_one_hots(probs: Any, ids: Any, *, mask: Any = None) -> Any:
    """Means over tokens of one-hots and of probabilities, weighted by the mask."""
    share, p, weight = _balance(probs, ids, mask)
    return np.asarray(p.shape[1] * ((weight @ share) * (weight @ p)).sum())


@subject("balance_loss_backward", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def balance_gradient_of_one_hots(probs: Any, ids: Any, dloss: Any, *, mask: Any = None) -> Any:
    """The weights of the tokens times the shares of the experts."""
    share, p, weight = _balance(probs, ids, mask)
    return np.outer(weight * np.float64(dloss), p.shape[1] * (weight @ share))


@subject("moe_layer", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def moe_layer_dense(x: Any, logits: Any, weights: Any, *, k: int, normalize: bool, bias: Any = None, capacity: int | None = None) -> Any:
    """Every token through every expert, times gates that are mostly 0."""
    ids, _, slots, dense = _dense(logits, k, normalize, bias, capacity)
    return np.einsum("te,td,edf->tf", dense, np.asarray(x, np.float64), np.asarray(weights, np.float64)), slots.reshape(ids.shape)


@subject("expert_parallel_backward", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def expert_gradients_dense(
    x: Any, logits: Any, weights: Any, dout: Any, *, k: int, normalize: bool, bias: Any = None, capacity: int | None = None
) -> Any:  # fmt: skip
    """All ranks as one, every token through every expert, the softmax of all experts differentiated."""
    rows, z, d, w = (np.asarray(a, np.float64).reshape(-1, *np.shape(a)[2:]) for a in (x, logits, dout, weights))
    ids, p, slots, dense = _dense(z, k, normalize, bias, capacity)
    chosen = np.zeros(p.shape)
    np.put_along_axis(chosen, ids, 1.0, axis=-1)
    kept = np.zeros(p.shape)
    np.put_along_axis(kept, ids, (slots >= 0) * 1.0, axis=-1)
    dg = np.einsum("tf,td,edf->te", d, rows, w) * kept
    total = (p * chosen).sum(axis=-1, keepdims=True)
    gates = p * chosen / total
    dp = (dg - (gates * dg).sum(axis=-1, keepdims=True)) * chosen / total if normalize else dg * chosen
    dz = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    dx, dw = np.einsum("te,tf,edf->td", dense, d, w), np.einsum("te,td,tf->edf", dense, rows, d)
    return dx.reshape(np.shape(x)), dz.reshape(np.shape(logits)), dw.reshape(np.shape(weights))


def _balance(probs: Any, ids: Any, mask: Any) -> tuple[Any, Any, Any]:
    """Each token's share in the experts (T, E), its probabilities, and its weight in a mean (T,)."""
    p = np.asarray(probs, np.float64)
    real = np.ones(len(p)) if mask is None else mask.astype(np.float64)
    p = np.where(real[:, None] > 0, p, 0.0)
    share = (ids[..., None] == np.arange(p.shape[1])).mean(axis=1) if len(p) else np.zeros(p.shape)
    return share, p, real / max(real.sum(), 1.0)


def _dense(logits: Any, k: int, normalize: bool, bias: Any, capacity: int | None) -> tuple[Any, Any, Any, Any]:
    """Experts, all probabilities, places in the order of choices, and the gates of all experts (T, E)."""
    ids, gates = route_by_counting(logits, k=k, normalize=normalize, bias=bias)
    _, every = route_by_counting(logits, k=np.shape(logits)[1], normalize=False)
    order, _ = route_by_counting(logits, k=np.shape(logits)[1], normalize=False)
    p = np.zeros(np.shape(logits))
    np.put_along_axis(p, order, every, axis=-1)
    flat, slots = ids.T.reshape(-1), np.zeros(ids.size, np.int64)
    for expert in range(p.shape[1]):
        slots[flat == expert] = np.arange((flat == expert).sum())
    slots = np.where(slots < (ids.size + 1 if capacity is None else capacity), slots, -1).reshape(ids.shape[::-1]).T
    dense = np.zeros(p.shape)
    np.put_along_axis(dense, ids, np.where(slots >= 0, gates, 0.0), axis=-1)
    return ids, p, slots, dense
