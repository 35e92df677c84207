"""Filtered probabilities and the loss of several heads in ball arithmetic. A filter's decision is proven, or the row stays open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .balls import exact
from .certified import Balls, flint


class _Open(Exception):
    """Two balls overlap: which number is larger is not known at this precision."""


def filter_probabilities(logits: ArrayLike, *, temperature: ArrayLike = 1.0, top_k: ArrayLike | None = None,
                         top_p: ArrayLike | None = None, min_p: ArrayLike | None = None) -> dict[str, Balls]:
    """probabilities, the shape of logits: e^((z - m) / T) of what every filter keeps, over their sum; 0 for the rest."""
    z = np.asarray(logits).astype(np.float64)
    rows, V = z.shape[:-1], z.shape[-1]
    t, k, p, least = (np.broadcast_to(np.asarray(none if x is None else x), rows) for x, none in
                      ((temperature, 1.0), (top_k, V), (top_p, 1.0), (min_p, 0.0)))
    result = exact(np.zeros(z.shape))
    for row in np.ndindex(*rows):
        try:
            result[row] = _filtered(z[row], float(t[row]), int(k[row]), float(p[row]), float(least[row]))
        except _Open:
            result[row] = flint().arb("nan")                                    # no two ends agree on it: more bits
    return {"probabilities": result}


def _filtered(z: Any, T: float, top_k: int, top_p: float, min_p: float) -> list[Any]:
    """One row. Candidates stand in descending order, ties by lowest index; what is left out of one filter enters no later one's sum."""
    arb = flint().arb
    order = sorted((i for i in range(len(z)) if not np.isneginf(z[i])), key=lambda i: (-z[i], i))
    result = [arb(0)] * len(z)
    if T == 0.0:
        result[order[0]] = arb(1)
        return result
    weights = {i: ((arb(float(z[i])) - arb(float(z[order[0]]))) / arb(T)).exp() for i in order}
    kept = order[:top_k]
    if top_p < 1.0:
        border, before = arb(top_p) * sum((weights[i] for i in kept), arb(0)), arb(0)
        prefix: list[int] = []
        for i in kept:
            if prefix and not _less(before, border):
                break
            prefix.append(i)
            before = before + weights[i]
        kept = prefix
    kept = [i for i in kept if i == order[0] or not _less(weights[i], arb(min_p))]
    l = sum((weights[i] for i in kept), arb(0))
    for i in kept:
        result[i] = weights[i] / l
    return result


def _less(a: Any, b: Any) -> bool:
    """a < b, proven one way or the other."""
    if a < b:
        return True
    if a >= b:
        return False
    raise _Open


def mtp_loss(logits: ArrayLike, tokens: ArrayLike, *, weights: ArrayLike | None = None, segments: ArrayLike | None = None,
             ignore_index: int = -100) -> dict[str, Balls]:
    """loss: sum over heads j = 1 … K of w_j times the mean of -ln p(tokens[t + j]) over the positions that count."""
    arb = flint().arb
    z, ids = np.asarray(logits).astype(np.float64), [int(token) for token in np.asarray(tokens)]
    K, T = z.shape[:2]
    w = [1.0] * K if weights is None else [float(one) for one in np.asarray(weights).astype(np.float64)]
    documents = [0] * T if segments is None else [int(one) for one in np.asarray(segments)]
    loss = arb(0)
    for j in range(1, K + 1):
        scored = [t for t in range(T - j) if documents[t] == documents[t + j] and ids[t + j] != ignore_index]
        terms = [_surprise(z[j - 1, t], ids[t + j]) for t in scored]
        if terms:
            loss = loss + arb(w[j - 1]) * sum(terms, arb(0)) / len(terms)
    return {"loss": np.asarray(loss, dtype=object)}


def _surprise(z: Sequence[float], target: int) -> Any:
    """ln of sum e^(z - z[target]): relative to the target, so that one word alone has the exact 0."""
    arb = flint().arb
    others = sum(((arb(float(x)) - arb(float(z[target]))).exp() for i, x in enumerate(z) if i != target and not np.isneginf(x)), arb(0))
    return others.log1p()
