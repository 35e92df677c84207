"""Our own other forms of the training operations, which `oracles check` without a subject holds to the oracles."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles import reference
from oracles.properties import Arithmetic, subject

FLOAT64 = Arithmetic(out="float64", accumulate="float64", elementwise="float64", lse="float64")
FORMATS = ("float32", "float64", "float16", "bfloat16")


@subject("cross_entropy", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def cross_entropy_of_soft_labels(
    logits: Any, targets: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    reduction: str,
) -> Any:  # fmt: skip
    """A smoothed one-hot times all log-probabilities; rows that are ignored are set to 0 first, and weigh nothing."""
    V, keep = logits.shape[-1], targets != ignore_index
    z = np.where(keep[..., None], np.asarray(logits, np.float64), 0.0)
    w = np.ones(V) if weights is None else np.asarray(weights, np.float64)
    y = np.where(keep, targets, 0)
    lse = reference.log_sum_exp(z)
    soft = w * ((1.0 - label_smoothing) * np.eye(V)[y] + label_smoothing / V)
    above = np.where(soft > 0.0, soft * (lse[..., None] - z), 0.0)              # a class without weight may be -inf
    rows = keep * (above.sum(axis=-1) + z_loss * w[y] * lse**2)
    if reduction == "none":
        return rows
    total = (keep * w[y]).sum() if reduction == "mean" else 1.0
    return np.asarray(rows.sum() / total if total > 0.0 else 0.0)


@subject("cross_entropy_backward", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def cross_entropy_gradient_of_soft_labels(
    logits: Any, targets: Any, dloss: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    z_loss: float = 0.0, reduction: str,
) -> Any:  # fmt: skip
    """The softmax times the weight of the label, less the label."""
    V, keep = logits.shape[-1], targets != ignore_index
    z = np.where(keep[..., None], np.asarray(logits, np.float64), 0.0)
    w = np.ones(V) if weights is None else np.asarray(weights, np.float64)
    y = np.where(keep, targets, 0)
    soft = w * ((1.0 - label_smoothing) * np.eye(V)[y] + label_smoothing / V)
    pull = soft.sum(axis=-1) + 2.0 * z_loss * w[y] * reference.log_sum_exp(z)
    total = (keep * w[y]).sum() if reduction == "mean" else 1.0
    g = keep * np.asarray(dloss, np.float64) / (total if total > 0.0 else np.inf)
    return g[..., None] * (reference.softmax(z) * pull[..., None] - soft)


@subject("distillation_loss_backward", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def distillation_gradient_by_jacobian(
    student: Any, teacher: Any, targets: Any, dloss: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Any:  # fmt: skip
    """The slope of the divergence at each probability, through the softmax's own derivative diag(s) - s s^T."""
    keep = targets != ignore_index
    z, zt = (np.where(keep[..., None], np.asarray(x, np.float64), 0.0) for x in (student, teacher))
    log_s, log_t = (x / temperature - reference.log_sum_exp(x / temperature)[..., None] for x in (z, zt))
    s = np.exp(log_s)
    neither = np.isneginf(log_s) & np.isneginf(log_t)
    log_s, log_t = (np.where(neither, 0.0, x) for x in (log_s, log_t))          # of no consequence: s is 0
    if divergence == "forward_kl":
        slope = -np.exp(log_t - log_s)
    else:
        mixed = divergence == "jsd"
        log_q = np.logaddexp(np.log(beta) + log_t, np.log1p(-beta) + log_s) if mixed else log_t
        slope = (1.0 - beta if mixed else 1.0) * (log_s - log_q)
    through = s * slope - s * (s * slope).sum(axis=-1, keepdims=True)
    label = np.eye(student.shape[-1])[np.where(keep, targets, 0)]
    each = keep * float(dloss) / max(int(keep.sum()), 1)
    return each[..., None] * (alpha * temperature * through + (1.0 - alpha) * (reference.softmax(z) - label))


@subject("adamw_step", arithmetic=FLOAT64, promises=["deterministic"])
def adamw_by_interpolation(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> Any:  # fmt: skip
    """Moments as interpolations, their corrections in the step size and the root, as PyTorch has it."""
    p, g, m, v = (np.asarray(x, np.float64) for x in (param, grad, m, v))
    m, v = m + (1.0 - beta1) * (g - m), v + (1.0 - beta2) * (g * g - v)
    d = np.sqrt(v) / np.sqrt(1.0 - beta2**step) + eps
    return p * (1.0 - lr * weight_decay) - lr / (1.0 - beta1**step) * (m / np.where(d > 0.0, d, 1.0)), m, v
