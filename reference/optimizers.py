"""AdamW, one step, and the clipping of gradients by their global norm. Loss scaling and low precision are left to mixed_precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64


def adamw_step(
    param: ArrayLike, grad: ArrayLike, m: ArrayLike, v: ArrayLike, *, step: int, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float,
) -> tuple[Float64, Float64, Float64]:  # fmt: skip
    """One step of Adam with decoupled weight decay: the new param, m, v, each float64 of the shape of param.

        m' = beta1 m + (1 - beta1) g                 v' = beta2 v + (1 - beta2) g^2
        m^ = m' / (1 - beta1^t)                      v^ = v' / (1 - beta2^t),   t = step, from 1
        param' = param (1 - lr weight_decay) - lr m^ / (sqrt(v^) + eps)

    eps stands outside the root and is not scaled by the bias correction (aiqm/torchani#261); the decay multiplies the
    parameter as it was, not as it became (huggingface/transformers#14539), and enters neither m nor v. It is lr weight_decay, as
    PyTorch and optax have it; the paper's is weight_decay times the schedule alone. Where v^ and eps are both
    0 nothing moves: m^ / 0 counts as 0 for m^ = 0, as inf else. NaN in a gradient makes its element NaN.

    >>> p, m, v = adamw_step([1.0], [0.5], [0.0], [0.0], step=1, lr=0.125, beta1=0.5, beta2=0.75, eps=0.0, weight_decay=0.5)
    >>> p, m, v
    (array([0.8125]), array([0.25]), array([0.0625]))

    Raises ValueError for shapes that differ, step < 1, betas outside [0, 1), negative lr, eps or weight_decay, TypeError for
    integers. Error bound: 12 u (|param| + lr |m^| / (sqrt(v^) + eps)), where 1 - beta^t loses no more than a few u.
    Source: Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2 without the schedule; Kingma and Ba 2015 (arXiv 1412.6980).
    """
    p = arguments.widen("param", param)
    g, m, v = (arguments.widen(name, x, p.shape) for name, x in (("grad", grad), ("m", m), ("v", v)))
    t = arguments.whole_number("step", step, least=1)
    lr, eps, decay = (not_negative(name, x) for name, x in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)))
    b1, b2 = (_decay_rate(name, x) for name, x in (("beta1", beta1), ("beta2", beta2)))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        m = b1 * m + (1.0 - b1) * g
        v = b2 * v + (1.0 - b2) * g * g
        m_hat, v_hat = m / (1.0 - b1**t), v / (1.0 - b2**t)
        move = np.where(m_hat == 0.0, 0.0 * m_hat, m_hat / (np.sqrt(v_hat) + eps))
        return p * (1.0 - lr * decay) - lr * move, m, v


def clip_grad_norm(grads: Sequence[ArrayLike], *, max_norm: float) -> tuple[list[Float64], Float64]:
    """All gradients scaled by one factor so that their global norm is at most max_norm: the list of them, and the norm as it was.

        norm = sqrt(sum of all squares)          g' = g min(1, max_norm / norm)

    Gradients within the limit come back as they are. Of a norm that is inf or NaN nothing can be saved: all gradients become
    NaN, as the quotient says, and the caller sees it in the norm. Squares that overflow do not: the norm is taken of g / max |g|.

    >>> clip_grad_norm([[3.0], [0.0, 4.0]], max_norm=1.0)
    ([array([0.6]), array([0. , 0.8])], array(5.))

    Raises ValueError for max_norm < 0, TypeError for integers. Error bound: (n / 2 + 4) u of each element, n of them in all.
    Source: Pascanu, Mikolov and Bengio 2013 (arXiv 1211.5063), algorithm 1. PyTorch divides by norm + 1e-6: a convention.
    """
    wide = [arguments.widen(f"grads[{i}]", g) for i, g in enumerate(grads)]
    limit = not_negative("max_norm", max_norm)
    norm = global_norm(wide)
    if norm <= limit:
        return wide, np.asarray(norm)
    factor = limit / norm if np.isfinite(norm) else np.nan
    return [g * factor for g in wide], np.asarray(norm)


def global_norm(grads: Sequence[Float64]) -> float:
    """The 2-norm of all elements together, without overflow between.

    >>> global_norm([np.array([2.0**600]), np.array([2.0**600, 2.0**600, 2.0**600])]) == 2.0**601
    True
    """
    top = max((float(np.abs(g).max(initial=0.0)) for g in grads), default=0.0)  # NaN where one is
    if any(np.isnan(g).any() for g in grads):
        return float("nan")
    if top == 0.0 or np.isinf(top):
        return top
    scale = 2.0 ** np.floor(np.log2(top))                                       # exact to divide by
    return float(scale * np.sqrt(sum(float(((g / scale) ** 2).sum()) for g in grads)))


def not_negative(name: str, x: float) -> float:
    """A finite number >= 0."""
    number = arguments.real_number(name, x)
    if number < 0.0:
        raise ValueError(f"{name}: got {number}; want a finite number >= 0")
    return number


def _decay_rate(name: str, x: float) -> float:
    number = arguments.real_number(name, x)
    if not 0.0 <= number < 1.0:
        raise ValueError(f"{name}: got {number}; want a number in [0, 1)")
    return number
