"""Textbook forms of the losses, in float32 (float64 for float64): what mutants and variants are made of, and no oracle is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .textbook_decoding import working

Array = NDArray[Any]


def log_softmax(z: Array) -> Array:
    """z - m - ln sum e^(z - m) along the last axis."""
    m = z.max(axis=-1, keepdims=True)
    return np.asarray(z - m - np.log(np.exp(z - m).sum(axis=-1, keepdims=True, dtype=z.dtype)))


def counted(logits: Any, targets: Any, ignore_index: int) -> tuple[Array, Array, Array]:
    """Logits of the rows that count (n, V), their targets, and which rows of all count."""
    z, y = working(logits).reshape(-1, logits.shape[-1]), np.asarray(targets).reshape(-1)
    counts = y != ignore_index
    return z[counts], y[counts], counts


def row_losses(z: Array, y: Array, w: Array, label_smoothing: float, z_loss: float) -> Array:
    """Each row: the label's part, the smoothed part, the z-loss."""
    logp, e = log_softmax(z), z.dtype.type(label_smoothing)
    loss = -(1 - e) * w[y] * np.take_along_axis(logp, y[:, None], axis=-1)[:, 0]
    if label_smoothing:
        loss = loss - e * (w * logp).sum(axis=-1, dtype=z.dtype) / z.dtype.type(z.shape[-1])
    if z_loss:
        m = z.max(axis=-1, keepdims=True)
        lse = (m + np.log(np.exp(z - m).sum(axis=-1, keepdims=True, dtype=z.dtype)))[:, 0]
        loss = loss + z.dtype.type(z_loss) * w[y] * lse**2
    return np.asarray(loss)


def reduced(loss: Array, w: Array, counts: Array, shape: tuple[int, ...], reduction: str) -> Array:
    """Rows at their places, their sum, or their mean by weight, 0 where there is no weight."""
    if reduction == "none":
        whole = np.zeros(counts.shape, dtype=loss.dtype)
        whole[counts] = loss
        return whole.reshape(shape)
    total = loss.sum(dtype=loss.dtype)
    if reduction == "sum":
        return np.asarray(total)
    weight = w.sum(dtype=loss.dtype)
    return np.asarray(total / weight if weight > 0 else loss.dtype.type(0))


def cross_entropy(logits: Any, targets: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0,
                  z_loss: float = 0.0, reduction: str, rows: Callable[..., Array] = row_losses) -> Array:
    """The loss in the format of the logits."""
    z, y, counts = counted(logits, targets, ignore_index)
    w = np.ones(logits.shape[-1], dtype=z.dtype) if weights is None else working(weights).astype(z.dtype)
    loss = rows(z, y, w, label_smoothing, z_loss)
    return reduced(loss, w[y], counts, np.shape(targets), reduction).astype(logits.dtype)


def cross_entropy_backward(logits: Any, targets: Any, dloss: Any, *, weights: Any = None, ignore_index: int = -100,
                           label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str) -> Array:
    """The gradient in the format of the logits."""
    z, y, counts = counted(logits, targets, ignore_index)
    w = np.ones(logits.shape[-1], dtype=z.dtype) if weights is None else working(weights).astype(z.dtype)
    e, V, f = z.dtype.type(label_smoothing), logits.shape[-1], z.dtype.type
    m = z.max(axis=-1, keepdims=True)
    exp = np.exp(z - m)
    l = exp.sum(axis=-1, keepdims=True, dtype=z.dtype)
    a = w * e / f(V)
    a = np.broadcast_to(a, z.shape).copy()
    a[np.arange(len(y)), y] += (1 - e) * w[y]
    pull = a.sum(axis=-1, keepdims=True, dtype=z.dtype)
    if z_loss:
        pull = pull + 2 * f(z_loss) * w[y][:, None] * (m + np.log(l))
    g = np.broadcast_to(working(dloss).astype(z.dtype).reshape(-1), counts.shape)[counts][:, None]
    if reduction == "mean":
        weight = w[y].sum(dtype=z.dtype)
        g = g / weight if weight > 0 else np.zeros_like(g)
    whole = np.zeros((counts.size, V), dtype=z.dtype)
    whole[counts] = g * (exp / l * pull - a)
    return whole.reshape(logits.shape).astype(logits.dtype)


def log_mixture(log_t: Array, log_s: Array, b: Any) -> Array:
    """ln(b t + (1 - b) s); NaN logits, which the caller may have, without a word."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.logaddexp(np.log(b) + log_t, np.log(1 - b) + log_s))


def apart(log_p: Array, log_q: Array) -> Array:
    """ln p - ln q, and 0 where p is."""
    return np.asarray(np.subtract(log_p, log_q, out=np.zeros_like(log_p), where=~np.isneginf(log_p)))


def divergence_of(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
    """Each row: KL(t, s), KL(s, t), or the mixture's two parts."""
    def kl(log_p: Array, log_q: Array) -> Array:
        return np.asarray((np.exp(log_p) * apart(log_p, log_q)).sum(axis=-1, dtype=log_p.dtype))

    if divergence != "jsd":
        return kl(log_t, log_s) if divergence == "forward_kl" else kl(log_s, log_t)
    b = log_t.dtype.type(beta)
    log_m = log_mixture(log_t, log_s, b)
    return np.asarray(b * kl(log_t, log_m) + (1 - b) * kl(log_s, log_m))


def distillation_loss(student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
                      ignore_index: int = -100, rows: Callable[..., Array] = divergence_of) -> Array:
    """Both terms in the format of the student."""
    s, y, counts = counted(student, targets, ignore_index)
    t = working(teacher).reshape(counts.size, teacher.shape[-1])[counts]
    f = s.dtype.type
    if not y.size:
        return np.zeros((), dtype=student.dtype)
    hard = row_losses(s, y, np.ones(s.shape[-1], dtype=s.dtype), 0.0, 0.0).sum(dtype=s.dtype) / f(y.size)
    log_t, log_s = log_softmax(t / f(temperature)), log_softmax(s / f(temperature))
    soft = rows(log_t, log_s, divergence, beta).sum(dtype=s.dtype) / f(y.size)
    return np.asarray(f(alpha) * f(temperature) ** 2 * soft + (1 - f(alpha)) * hard).astype(student.dtype)


def slopes_of(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
    """The derivative of each row's divergence with respect to the student's logits over T: (n, V)."""
    s, share, log_q = np.exp(log_s), log_s.dtype.type(1), log_t
    if divergence == "forward_kl":
        return np.asarray(s - np.exp(log_t))
    if divergence == "jsd":
        b = log_t.dtype.type(beta)
        share, log_q = 1 - b, log_mixture(log_t, log_s, b)
    d = apart(log_s, log_q)
    return np.asarray(share * s * (d - (s * d).sum(axis=-1, keepdims=True, dtype=s.dtype)))


def distillation_loss_backward(student: Any, teacher: Any, targets: Any, dloss: Any, *, temperature: float, alpha: float, divergence: str,
                               beta: float = 0.5, ignore_index: int = -100, slopes: Callable[..., Array] = slopes_of) -> Array:
    """The gradient in the format of the student: T times the slopes of the divergence, and softmax less label."""
    s, y, counts = counted(student, targets, ignore_index)
    t, f, n = working(teacher).reshape(counts.size, teacher.shape[-1])[counts], s.dtype.type, max(len(y), 1)
    label = (np.arange(student.shape[-1]) == y[:, None]).astype(s.dtype)
    soft = slopes(log_softmax(t / f(temperature)), log_softmax(s / f(temperature)), divergence, beta)
    mixed = f(alpha) * f(temperature) * soft + (1 - f(alpha)) * (np.exp(log_softmax(s)) - label)
    whole = np.zeros((counts.size, student.shape[-1]), dtype=s.dtype)
    whole[counts] = f(dloss) / f(n) * mixed
    return whole.reshape(student.shape).astype(student.dtype)


def next_token_targets(tokens: Any, *, prompt_lengths: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """Row by row, place by place."""
    B, T = tokens.shape
    target = np.full((B, T), ignore_index, dtype=np.int64)
    for b in range(B):
        for t in range(T - 1):
            in_prompt = prompt_lengths is not None and t + 1 < prompt_lengths[b]
            if not in_prompt and (segments is None or segments[b, t + 1] == segments[b, t]):
                target[b, t] = tokens[b, t + 1]
    return target
