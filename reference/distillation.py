"""Distillation: a student's loss against a teacher's distribution, mixed with the cross-entropy of the targets; and its gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Bool, Float64
from .losses import cross_entropy
from .losses_backward import cross_entropy_backward
from .scored_rows import counted_targets, log_sums

DIVERGENCES = ("forward_kl", "reverse_kl", "jsd")


def distillation_loss(
    student: ArrayLike, teacher: ArrayLike, targets: ArrayLike, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Float64:  # fmt: skip
    """alpha T^2 D(teacher, student) + (1 - alpha) cross-entropy of the student: float64 ().

        t = softmax(teacher / T),   s = softmax(student / T),   m = beta t + (1 - beta) s
        D = KL(t, s) for "forward_kl",   KL(s, t) for "reverse_kl",   beta KL(t, m) + (1 - beta) KL(s, m) for "jsd"
        KL(p, q) = sum_c p_c (ln p_c - ln q_c)

    student, teacher (..., V), targets (...). Both terms are means over the rows whose target is not ignore_index (0 where all
    are), the cross-entropy at temperature 1; D is summed over classes, never averaged (HikariTJU/LD#74). beta is the share of
    the *teacher* in the mixture, as in the paper (huggingface/trl#3043); at beta 0 and 1, where the formula is 0, "jsd" means
    KL(t, s) and KL(s, t), its limits over beta and over 1 - beta. A class of probability 0 in p adds nothing; one of
    probability 0 in q alone makes the divergence inf.

    >>> s, t = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    >>> float(distillation_loss(s, t, [0], temperature=1.0, alpha=1.0, divergence="forward_kl").round(4))
    0.3681
    >>> float(distillation_loss(s, s, [0], temperature=2.0, alpha=0.5, divergence="jsd").round(6))       # half of ln 2
    0.346574

    Raises TypeError and ValueError for shapes that do not meet, T <= 0, alpha or beta outside 0..1, unknown divergences.
    Error bound: T^2 (V + 8 + spread of the logits / T) u sum_c (p + q) |ln p - ln q|: D loses digits where t and s meet.
    Source: Hinton, Vinyals and Dean 2015 (arXiv 1503.02531), section 2; Agarwal et al. 2024 (arXiv 2306.13649), equation 1.
    """
    z, zt, T, a, b, counts = _given(student, teacher, targets, temperature, alpha, divergence, beta, ignore_index)
    hard = float(cross_entropy(z, targets, ignore_index=ignore_index, reduction="mean")) if a < 1.0 else 0.0
    if a == 0.0 or not counts.any():
        return np.asarray((1.0 - a) * hard)
    log_s, log_t = (_log_softmax(x.reshape(counts.size, -1)[counts] / T) for x in (z, zt))          # (n, V)
    return np.asarray(a * T**2 * row_divergences(log_t, log_s, divergence, b).mean() + (1.0 - a) * hard)


def distillation_loss_backward(
    student: ArrayLike, teacher: ArrayLike, targets: ArrayLike, dloss: ArrayLike, *, temperature: float, alpha: float, divergence: str,
    beta: float = 0.5, ignore_index: int = -100,
) -> Float64:  # fmt: skip
    """dloss times the derivative of `distillation_loss` with respect to the student's logits: float64, their shape.

        dz = dloss / n (alpha T dD + (1 - alpha) (softmax(z) - [c = y]))      n rows that count
        dD_c = s_c - t_c                                        for "forward_kl"
               s_c (ln s_c - ln t_c - KL(s, t))                 for "reverse_kl"
               (1 - beta) s_c (ln s_c - ln m_c - KL(s, m))      for "jsd"

    t, s, m, beta as in `distillation_loss`: T^2 of the loss and 1 / T of z / T leave T, so that soft and hard gradients keep their
    proportion whatever T is. dloss () is one number. Each row sums to 0. Rows that are ignored have 0, whatever their logits hold.
    A teacher is given, not learnt from: it has no gradient. NaN in a row whose divergence is infinite.

    >>> s, t = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    >>> distillation_loss_backward(s, t, [0], 1.0, temperature=1.0, alpha=1.0, divergence="forward_kl").round(12)
    array([[-0.4,  0.4]])
    >>> distillation_loss_backward(2 * s, 2 * t, [0], 1.0, temperature=2.0, alpha=1.0, divergence="forward_kl").round(12)
    array([[-0.8,  0.8]])

    Raises as `distillation_loss`; ValueError for a dloss that is no single number.
    Error bound: `properties.bounds.distillation_loss_backward_bound`.
    Source: Hinton, Vinyals and Dean 2015 (arXiv 1503.02531), section 2, equation 2; Agarwal et al. 2024 (arXiv 2306.13649).
    """
    z, zt, T, a, b, counts = _given(student, teacher, targets, temperature, alpha, divergence, beta, ignore_index)
    g = float(arguments.widen("dloss", dloss, ()))
    dz = np.zeros(z.shape)
    if a < 1.0:
        dz = cross_entropy_backward(z, targets, g * (1.0 - a), ignore_index=ignore_index, reduction="mean")
    if a == 0.0 or not counts.any():
        return dz
    log_s, log_t = (_log_softmax(x.reshape(counts.size, -1)[counts] / T) for x in (z, zt))          # (n, V)
    soft = np.zeros((counts.size, z.shape[-1]))
    soft[counts] = g * a * T / len(log_s) * _row_slopes(log_t, log_s, divergence, b)
    return dz + soft.reshape(z.shape)


def _given(student: ArrayLike, teacher: ArrayLike, targets: ArrayLike, temperature: float, alpha: float, divergence: str, beta: float,
           ignore_index: int) -> tuple[Float64, Float64, float, float, float, Bool]:  # fmt: skip
    """Both arrays of logits, T, alpha, beta, and which rows count, flat."""
    z = arguments.widen("student", student)
    zt = arguments.widen("teacher", teacher, z.shape)
    if z.ndim == 0 or z.shape[-1] == 0:
        raise ValueError(f"student: got shape {z.shape}; want (..., V) with a vocabulary of at least 1")
    T = arguments.real_number("temperature", temperature, positive=True)
    a, b = (arguments.real_number(name, x) for name, x in (("alpha", alpha), ("beta", beta)))
    for name, x in (("alpha", a), ("beta", b)):
        if not 0.0 <= x <= 1.0:
            raise ValueError(f"{name}: got {x}; want a number in 0..1")
    if divergence not in DIVERGENCES:
        raise ValueError(f"divergence: got {divergence!r}; want one of {', '.join(DIVERGENCES)}")
    return z, zt, T, a, b, counted_targets(targets, z.shape[:-1], z.shape[-1], ignore_index)[1]


def _row_slopes(log_t: Float64, log_s: Float64, divergence: str, beta: float) -> Float64:
    """The derivative of each row's divergence with respect to the student's logits over T: (n, V)."""
    if divergence == "forward_kl" or (divergence == "jsd" and beta == 0.0):
        return np.asarray(np.exp(log_s) - np.exp(log_t))
    share, log_q = 1.0, log_t
    if divergence == "jsd" and beta < 1.0:
        share, log_q = 1.0 - beta, _log_mixture(log_t, log_s, beta)
    with np.errstate(invalid="ignore"):
        slope = np.exp(log_s) * (log_s - log_q - kl(log_s, log_q)[:, None])
    return np.asarray(share * np.where(np.isneginf(log_s), 0.0, slope))


def row_divergences(log_t: Float64, log_s: Float64, divergence: str, beta: float) -> Float64:
    """D of each row, from log-probabilities of teacher and student: (n,)."""
    if divergence == "forward_kl" or (divergence == "jsd" and beta == 0.0):
        return kl(log_t, log_s)
    if divergence == "reverse_kl" or (divergence == "jsd" and beta == 1.0):
        return kl(log_s, log_t)
    log_m = _log_mixture(log_t, log_s, beta)
    return beta * kl(log_t, log_m) + (1.0 - beta) * kl(log_s, log_m)


def _log_mixture(log_t: Float64, log_s: Float64, beta: float) -> Float64:
    """ln(beta t + (1 - beta) s), 0 < beta < 1."""
    with np.errstate(invalid="ignore"):                                         # NaN logits are the caller's
        return np.asarray(np.logaddexp(log_t + np.log(beta), log_s + np.log1p(-beta)))


def kl(log_p: Float64, log_q: Float64) -> Float64:
    """sum_c p_c (ln p_c - ln q_c) along the last axis; 0 where p_c is."""
    with np.errstate(invalid="ignore"):
        term = np.exp(log_p) * (log_p - log_q)
    return np.asarray(np.where(np.isneginf(log_p), 0.0, term).sum(axis=-1))


def _log_softmax(x: Float64) -> Float64:
    with np.errstate(invalid="ignore"):
        m, rest = log_sums(x)
        return (x - m) - rest
