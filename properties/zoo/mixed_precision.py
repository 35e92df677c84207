"""Mutants of the mixed-precision family that one step shows: an update in the narrow format, a master made from the weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.reference import FloatFormat

from . import variants_optimizers
from .specimen import mutant
from .textbook_decoding import working
from .textbook_losses import Array

FAMILY = "mixed-precision"


def rounded(x: Array, fmt: str) -> Array:
    """x as a number of fmt, in its own dtype."""
    return FloatFormat(fmt).round(np.asarray(x, np.float64)).astype(x.dtype)


def master_step(grad: Any, master: Any, m: Any, v: Any, *, loss_scale: float, max_norm: float | None, fmt: str,
                **options: Any) -> tuple[Array, Array, Array, Array]:
    """Unscale, look for what is no number, clip, step, round."""
    g = working(grad) / working(grad).dtype.type(loss_scale)
    if not np.isfinite(g).all():
        return rounded(master, fmt), master.copy(), m.copy(), v.copy()
    if max_norm is not None:
        norm = np.sqrt((g * g).sum(dtype=g.dtype))
        g = g * g.dtype.type(min(1.0, max_norm / norm)) if norm > 0 else g
    new = variants_optimizers.step_as_in_the_book(master, g, m, v, **options)
    return rounded(new[0], fmt), *new


def _one(**options: Any) -> dict[str, Any]:
    arrays = {name: np.array([x], np.float32) for name, x in (("grad", 0.0), ("master", 1.0), ("m", 0.0), ("v", 0.0))}
    return {**arrays, "loss_scale": 1.0, "max_norm": None, "step": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
            "weight_decay": 0.01, "fmt": "bfloat16", **options}


@mutant(
    "master_weight_step", id="update-lost-in-bf16", family=FAMILY,
    source="https://github.com/Nerogar/OneTrainer/issues/996 https://github.com/TensorAuto/OpenTau/pull/182", trigger=_one,
)  # fmt: skip
def master_kept_narrow(
    grad: Any, master: Any, m: Any, v: Any, *, loss_scale: float, max_norm: float | None, step: int, lr: float, beta1: float, beta2: float,
    eps: float, weight_decay: float, fmt: str,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """What is kept is the weight in its narrow format: a decay of lr weight_decay below half a unit rounds to nothing."""
    weights, _, m, v = master_step(grad, master, m, v, loss_scale=loss_scale, max_norm=max_norm, fmt=fmt, step=step, lr=lr, beta1=beta1,
                                   beta2=beta2, eps=eps, weight_decay=weight_decay)  # fmt: skip
    return weights, weights.copy(), m, v


@mutant(
    "master_weight_step", id="master-rebuilt-from-rounded-weights", family=FAMILY,
    source="https://github.com/TensorAuto/OpenTau/issues/185 https://github.com/NVIDIA/Megatron-LM/issues/1359",
    trigger=lambda: _one(master=np.array([1 + 2.0**-12], np.float32)),
)  # fmt: skip
def master_from_the_weights(
    grad: Any, master: Any, m: Any, v: Any, *, loss_scale: float, max_norm: float | None, step: int, lr: float, beta1: float, beta2: float,
    eps: float, weight_decay: float, fmt: str,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """The master that is stepped is made anew from the rounded weights, as after a resume that saved these alone."""
    return master_step(grad, rounded(master, fmt), m, v, loss_scale=loss_scale, max_norm=max_norm, fmt=fmt, step=step, lr=lr, beta1=beta1,
                       beta2=beta2, eps=eps, weight_decay=weight_decay)  # fmt: skip
