"""Mixtures of experts in ball arithmetic: a choice is proven, or everything that follows from it stays open.

Expert i comes before j where the ball of p_i + bias_i lies above that of p_j + bias_j, or where both logits and both biases are equal
and i < j. What balls do not tell apart is NaN, on which no two ends agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import ball_rows
from .balls import exact, middles, product, total
from .certified import Balls, flint


def route(logits: ArrayLike, *, k: int, normalize: bool, bias: ArrayLike | None = None) -> dict[str, Balls]:
    """ids and gates (T, k)."""
    chosen = _Chosen.of(logits, k, normalize, bias)
    if chosen is None:
        return {name: _open((np.shape(logits)[0], k)) for name in ("ids", "gates")}
    return {"ids": exact(chosen.ids), "gates": chosen.gates}


def balance_loss(probs: ArrayLike, ids: ArrayLike, *, mask: ArrayLike | None = None) -> dict[str, Balls]:
    """loss: E sum_e n_e sum_t p_te / (T k T), n_e the assignments of an expert, T the real tokens."""
    p, counts, real = _counted(probs, ids, mask)
    if not counts.sum():
        return {"loss": exact(np.zeros(()))}
    sums = total(p[real] * exact(counts), axis=(0, 1))
    return {"loss": np.asarray(sums * p.shape[1] / (int(counts.sum()) * int(real.sum())), dtype=object)}


def balance_loss_backward(probs: ArrayLike, ids: ArrayLike, dloss: ArrayLike, *, mask: ArrayLike | None = None) -> dict[str, Balls]:
    """dprobs: dloss E n_e / (T k T) for real tokens, 0 for others."""
    p, counts, real = _counted(probs, ids, mask)
    row = exact(counts) * exact(dloss) * p.shape[1] / max(int(counts.sum()) * int(real.sum()), 1)
    return {"dprobs": np.where(real[:, None], row[None], flint().arb(0)).reshape(p.shape)}


def moe_layer(x: ArrayLike, logits: ArrayLike, weights: ArrayLike, *, k: int, normalize: bool, bias: ArrayLike | None = None,
              capacity: int | None = None) -> dict[str, Balls]:
    """out (T, F) and slots (T, k)."""
    (T, _), (_, _, F) = np.shape(x), np.shape(weights)
    chosen = _Chosen.of(logits, k, normalize, bias)
    if chosen is None:
        return {"out": _open((T, F)), "slots": _open((T, k))}
    slots, rows, w, out = chosen.slots(capacity), exact(x), exact(weights), exact(np.zeros((T, F)))
    for t, j in np.argwhere(slots >= 0):
        out[t] = out[t] + chosen.gates[t, j] * product(rows[t : t + 1], w[chosen.ids[t, j]])[0]
    return {"out": out, "slots": exact(slots)}


def expert_parallel_backward(x: ArrayLike, logits: ArrayLike, weights: ArrayLike, dout: ArrayLike, *, k: int, normalize: bool,
                             bias: ArrayLike | None = None, capacity: int | None = None) -> dict[str, Balls]:
    """dx (R, T, D), dlogits (R, T, E), dweights (R, E/R, D, F): those of one rank with all tokens and experts."""
    rows, z, up = (np.asarray(a).reshape(-1, np.shape(a)[-1]) for a in (x, logits, dout))
    w = np.asarray(weights).reshape(-1, *np.shape(weights)[2:])
    chosen = _Chosen.of(z, k, normalize, bias)
    shapes = {"dx": np.shape(x), "dlogits": np.shape(logits), "dweights": np.shape(weights)}
    if chosen is None:
        return {name: _open(shape) for name, shape in shapes.items()}
    slots, a, d, wide = chosen.slots(capacity), exact(rows), exact(up), exact(w)
    dx, dw, dgates = exact(np.zeros(rows.shape)), exact(np.zeros(w.shape)), exact(np.zeros(slots.shape))
    for t, j in np.argwhere(slots >= 0):
        e, gate = chosen.ids[t, j], chosen.gates[t, j]
        back = product(d[t : t + 1], wide[e].T)[0]                              # dout w^T, of which x takes dgate
        dx[t] = dx[t] + gate * back
        dw[e] = dw[e] + gate * product(a[t : t + 1].T, d[t : t + 1])
        dgates[t, j] = total(a[t] * back)
    results = {"dx": dx, "dlogits": chosen.logit_gradients(dgates, normalize), "dweights": dw}
    return {name: results[name].reshape(shape) for name, shape in shapes.items()}


@dataclass(frozen=True)
class _Chosen:
    """p (T, E) and gates (T, k) as balls, ids (T, k) for certain."""

    p: Balls
    ids: Any
    gates: Balls

    @classmethod
    def of(cls, logits: ArrayLike, k: int, normalize: bool, bias: ArrayLike | None) -> _Chosen | None:
        """None where some choice is open."""
        z = np.asarray(logits).astype(np.float64)
        T, E = z.shape
        b = np.zeros(E) if bias is None else np.asarray(bias).astype(np.float64)
        p = ball_rows.softmax(z)["p"].reshape(T, E)
        ids = np.zeros((T, k), dtype=np.int64)
        for t in range(T):
            order = _ranked(p[t] + exact(b), z[t], b)
            if order is None:
                return None
            ids[t] = order[:k]
        held = np.take_along_axis(z, ids, axis=-1)
        gates = ball_rows.softmax(held)["p"].reshape(T, k) if normalize else np.take_along_axis(p, ids, axis=-1)
        return cls(p, ids, gates)

    def slots(self, capacity: int | None) -> Any:
        """The place of each assignment, first choices first, -1 for none."""
        taken, places = dict[int, int](), np.full(self.ids.shape, -1, dtype=np.int64)
        for j in range(self.ids.shape[1]):
            for t, e in enumerate(self.ids[:, j].tolist()):
                place = taken.get(e, 0)
                taken[e] = place + 1
                if capacity is None or place < capacity:
                    places[t, j] = place
        return places

    def logit_gradients(self, dgates: Balls, normalize: bool) -> Balls:
        """gate (dgate - sum gate dgate) at the chosen; without normalize the same of p over all experts."""
        if normalize:
            dp, q = dgates, self.gates
        else:
            dp, q = exact(np.zeros(self.p.shape)), self.p
            np.put_along_axis(dp, self.ids, dgates, axis=-1)
        slopes = q * (dp - total(q * dp, axis=1)[:, None])
        if not normalize:
            return np.asarray(slopes, dtype=object)
        result = exact(np.zeros(self.p.shape))
        np.put_along_axis(result, self.ids, slopes, axis=-1)
        return result


def _ranked(s: Balls, z: Any, b: Any) -> list[int] | None:
    """The experts in their order, each proven to come before the next; None where one is not."""
    middle = middles(s)
    order = sorted(range(len(s)), key=lambda e: (-middle[e], e))
    for i, j in pairwise(order):
        if not (s[i] > s[j] or (z[i] == z[j] and b[i] == b[j] and i < j)):
            return None
    return order


def _counted(probs: ArrayLike, ids: ArrayLike, mask: ArrayLike | None) -> tuple[Balls, Any, Any]:
    p, chosen = exact(probs), np.asarray(ids)
    real = np.ones(len(p), dtype=bool) if mask is None else np.asarray(mask)
    return p, np.asarray([(chosen[real] == e).sum() for e in range(p.shape[1])], dtype=np.int64), real


def _open(shape: tuple[int, ...]) -> Balls:
    balls = exact(np.zeros(shape))
    balls[...] = flint().arb("nan")
    return balls
