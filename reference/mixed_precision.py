"""A training step in mixed precision: gradients in a narrow format, master weights and moments in float32. The scale is loss_scaler's."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64
from .float_format import FloatFormat
from .optimizers import adamw_step, clip_grad_norm


def master_weight_step(
    grad: ArrayLike, master: ArrayLike, m: ArrayLike, v: ArrayLike, *, loss_scale: float, max_norm: float | None, step: int, lr: float,
    beta1: float, beta2: float, eps: float, weight_decay: float, fmt: str,
) -> tuple[Float64, Float64, Float64, Float64]:  # fmt: skip
    """One step of AdamW on the master weights, from the gradient of a scaled loss: weights, master, m, v, float64.

        g = grad / loss_scale           g' = g min(1, max_norm / |g|)           master', m', v' = AdamW(master, g', m, v)
        weights = master' rounded once to fmt

    The update happens on the master, never on the rounded weights: lr g below half a unit in the last place of a weight would be
    lost there at every step (Nerogar/OneTrainer#996). A gradient with a NaN or inf changes nothing: master, m and v come back as
    they were, and the caller must not count the step. max_norm None: no clipping. fmt: a name that `FloatFormat` knows.

    >>> options = {"step": 1, "lr": 2.0**-10, "beta1": 0.0, "beta2": 0.0, "eps": 0.0, "weight_decay": 0.0, "max_norm": None}
    >>> weights, master, _, _ = master_weight_step([1024.0], [1.0], [0.0], [0.0], loss_scale=1024.0, fmt="bfloat16", **options)
    >>> weights, master                                                         # the master has moved, the weight not yet
    (array([1.]), array([0.99902344]))

    Raises as `adamw_step`; ValueError for a loss_scale that is not above 0 and an unknown format.
    Error bound: that of `adamw_step`, 2 u for the unscaled gradient; of the weights one rounding to fmt more.
    Source: Micikevicius et al. 2018 (arXiv 1710.03740), sections 3.1 and 3.2.
    """
    scale = arguments.real_number("loss_scale", loss_scale, positive=True)
    format_of_weights = FloatFormat(fmt)
    w = arguments.widen("master", master)
    g, m, v = (arguments.widen(name, x, w.shape) for name, x in (("grad", grad), ("m", m), ("v", v)))
    g = g / scale
    if not np.isfinite(g).all():
        return format_of_weights.round(w), w, m, v
    if max_norm is not None:
        (g,), _ = clip_grad_norm([g], max_norm=max_norm)
    w, m, v = adamw_step(w, g, m, v, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
    return format_of_weights.round(w), w, m, v
