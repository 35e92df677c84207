"""Legal variants of the mixed-precision family: the plain order, the scale taken into the clip, in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import variants_optimizers
from .mixed_precision import master_step, rounded
from .specimen import variant
from .textbook_decoding import working
from .textbook_losses import Array

FAMILY = "mixed-precision"


@variant("master_weight_step", id="master-step-textbook", family=FAMILY)
def master_step_as_in_the_book(
    grad: Any, master: Any, m: Any, v: Any, *, loss_scale: float, max_norm: float | None, step: int, lr: float, beta1: float, beta2: float,
    eps: float, weight_decay: float, fmt: str,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """Unscale, clip, step, round."""
    return master_step(grad, master, m, v, loss_scale=loss_scale, max_norm=max_norm, fmt=fmt, step=step, lr=lr, beta1=beta1, beta2=beta2,
                       eps=eps, weight_decay=weight_decay)  # fmt: skip


@variant("master_weight_step", id="master-step-one-factor", family=FAMILY)
def master_step_by_one_factor(
    grad: Any, master: Any, m: Any, v: Any, *, loss_scale: float, max_norm: float | None, step: int, lr: float, beta1: float, beta2: float,
    eps: float, weight_decay: float, fmt: str,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """The norm of the scaled gradient is taken, and 1 / loss_scale and the clip become one factor, as a fused kernel has it."""
    g, f = working(grad), working(grad).dtype.type
    if not np.isfinite(g).all():
        return rounded(master, fmt), master.copy(), m.copy(), v.copy()
    factor = 1 / loss_scale
    if max_norm is not None:
        norm = float(np.linalg.norm(g)) / loss_scale
        factor *= min(1.0, max_norm / norm) if norm > 0 else 1.0
    new = variants_optimizers.step_as_in_the_book(master, g * f(factor), m, v, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps,
                                                  weight_decay=weight_decay)  # fmt: skip
    return rounded(new[0], fmt), *new
