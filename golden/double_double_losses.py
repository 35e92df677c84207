"""Losses over rows of logits in double-double: cross-entropy and distillation, their gradients, the form over a cut vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import double_double_functions as functions
from .double_double import DD, Float64, exact, where

Results = dict[str, DD]


@dataclass(frozen=True)
class _Scored:
    """The n rows that count: which of all (N,) they are, logits z (n, V), class weights a (n, V), target's weight w (n,)."""

    counts: NDArray[np.bool_]
    z: Float64
    a: DD
    w: Float64


def cross_entropy(logits: ArrayLike, targets: ArrayLike, *, reduction: str, z_loss: float = 0.0, **options: Any) -> Results:
    """loss, () or the shape of targets."""
    rows = _scored(logits, targets, **options)
    hidden = np.isneginf(rows.z)
    lse, _ = _log_sums(rows.z)
    apart = where(hidden, np.inf, lse - np.where(hidden, 0.0, rows.z))
    loss = where(rows.a.hi == 0.0, 0.0, rows.a * where(rows.a.hi == 0.0, 0.0, apart)).sum()
    loss = loss + (lse * lse)[:, 0] * rows.w * float(z_loss)
    if reduction == "none":
        return {"loss": _spread(loss, rows.counts, np.shape(targets))}
    total, weight = loss.sum(), exact(rows.w).sum()
    if reduction == "mean":
        total = total / weight if weight.hi > 0.0 else exact(0.0)
    return {"loss": total}


def cross_entropy_backward(logits: ArrayLike, targets: ArrayLike, dloss: ArrayLike, *, reduction: str, z_loss: float = 0.0,
                           **options: Any) -> Results:
    """dlogits, the shape of logits."""
    rows = _scored(logits, targets, **options)
    lse, p = _log_sums(rows.z)
    pull = rows.a.sum(keepdims=True) + lse * (2.0 * float(z_loss)) * rows.w[:, None]
    g = exact(np.broadcast_to(np.asarray(dloss).astype(np.float64), np.shape(targets)).reshape(-1)[rows.counts])
    weight = exact(rows.w).sum()
    if reduction == "mean":
        g = g / weight if weight.hi > 0.0 else exact(np.zeros(g.shape))
    return {"dlogits": _spread((p * pull - rows.a) * g[:, None], rows.counts, np.shape(logits))}


def vocab_parallel_cross_entropy(shards: ArrayLike, targets: ArrayLike, **options: Any) -> Results:
    """loss, () or the shape of targets."""
    return cross_entropy(np.concatenate(list(np.asarray(shards)), axis=-1), targets, **options)


def distillation_loss(student: ArrayLike, teacher: ArrayLike, targets: ArrayLike, *, temperature: float, alpha: float, divergence: str,
                      beta: float = 0.5, ignore_index: int = -100) -> Results:
    """loss, a single number."""
    hard = cross_entropy(student, targets, reduction="mean", ignore_index=ignore_index)["loss"]
    (t, log_t), (s, log_s) = (_softened(_scored(z, targets, ignore_index=ignore_index).z, temperature) for z in (teacher, student))
    b = exact(float(beta))
    if divergence == "forward_kl" or (divergence == "jsd" and beta == 0.0):
        each = t * (log_t - log_s)
    elif divergence == "reverse_kl" or (divergence == "jsd" and beta == 1.0):
        each = s * (log_s - log_t)
    else:
        log_m = _log_mixture(t, s, b)
        each = t * (log_t - log_m) * b + s * (log_s - log_m) * (1.0 - b)
    n = max(len(t.hi), 1)
    factor = exact(float(temperature)) * float(temperature) * float(alpha)
    return {"loss": each.sum().sum() / float(n) * factor + hard * (1.0 - exact(float(alpha)))}


def distillation_loss_backward(
    student: ArrayLike, teacher: ArrayLike, targets: ArrayLike, dloss: ArrayLike, *, temperature: float, alpha: float, divergence: str,
    beta: float = 0.5, ignore_index: int = -100,
) -> Results:  # fmt: skip
    """dstudent, the shape of student."""
    hard = cross_entropy_backward(student, targets, dloss, reduction="mean", ignore_index=ignore_index)["dlogits"]
    rows = _scored(student, targets, ignore_index=ignore_index)
    (t, log_t), (s, log_s) = (_softened(_scored(z, targets, ignore_index=ignore_index).z, temperature) for z in (teacher, student))
    b = exact(float(beta))
    if divergence == "forward_kl" or (divergence == "jsd" and beta == 0.0):
        slope = s - t
    else:
        mixed = divergence == "jsd" and beta != 1.0
        apart = log_s - (_log_mixture(t, s, b) if mixed else log_t)
        slope = s * (apart - (s * apart).sum(keepdims=True)) * (1.0 - b if mixed else 1.0)
    n = max(len(rows.z), 1)
    each = exact(float(np.asarray(dloss).astype(np.float64))) / float(n) * float(alpha) * float(temperature)
    return {"dstudent": _spread(slope * each, rows.counts, np.shape(student)) + hard * (1.0 - exact(float(alpha)))}


def _softened(z: Float64, temperature: float) -> tuple[DD, DD]:
    """p and ln p of logits over a temperature, (n, V) each."""
    x = exact(z) / float(temperature)
    top = x.hi.argmax(axis=-1)[:, None]
    above = x - DD(np.take_along_axis(x.hi, top, axis=-1), np.take_along_axis(x.lo, top, axis=-1))
    e = functions.exp(above)
    l = e.sum(keepdims=True)
    return e / l, above - functions.log(l)


def _log_mixture(t: DD, s: DD, b: DD) -> DD:
    """ln (b t + (1 - b) s); 0 where neither has any weight left, to which nothing is added."""
    m = t * b + s * (1.0 - b)
    return functions.log(where(m.hi == 0.0, 1.0, m))


def _scored(logits: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None, ignore_index: int = -100,
            label_smoothing: float = 0.0) -> _Scored:
    z, y = np.asarray(logits).astype(np.float64), np.asarray(targets).reshape(-1)
    V, counts, e = z.shape[-1], y != ignore_index, exact(float(label_smoothing))
    w = np.ones(V) if weights is None else np.asarray(weights).astype(np.float64)
    y = y[counts]
    a = (where(y[:, None] == np.arange(V), 1.0 - e, 0.0) + e / float(V)) * w
    return _Scored(counts, z.reshape(counts.size, V)[counts], a, w[y])


def _log_sums(z: Float64) -> tuple[DD, DD]:
    """lse (n, 1) and p (n, V); the sum of the others goes through log1p, so that a class that leads keeps what is left of it."""
    top = z.argmax(axis=-1)[:, None]
    m, hidden = np.take_along_axis(z, top, axis=-1), np.isneginf(z)
    e = where(hidden, 0.0, functions.exp(exact(np.where(hidden, m, z)) - m))
    others = where(np.arange(z.shape[-1]) == top, 0.0, e).sum(keepdims=True)
    return functions.log1p(others) + m, e / (others + 1.0)


def _spread(rows: DD, counts: NDArray[np.bool_], shape: tuple[int, ...]) -> DD:
    whole = exact(np.zeros((counts.size, *rows.shape[1:])))
    whole.hi[counts], whole.lo[counts] = rows.hi, rows.lo
    return DD(whole.hi.reshape(shape), whole.lo.reshape(shape))
