"""Mutants of the optimizer family: where eps stands, what decays, and when."""

from __future__ import annotations

from typing import Any

import numpy as np

from .specimen import mutant
from .textbook_decoding import working
from .textbook_losses import Array

FAMILY = "optimizer"


def _one(**options: Any) -> dict[str, Any]:
    """One parameter of 1 at its first step."""
    arrays = {name: np.array([x], np.float32) for name, x in (("param", 1.0), ("grad", 1.0), ("m", 0.0), ("v", 0.0))}
    return {**arrays, "step": 1, "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.5, **options}


def moments(grad: Any, m: Any, v: Any, beta1: float, beta2: float) -> tuple[Array, Array, Array]:
    """g, and both new moments."""
    g, f = working(grad), working(grad).dtype.type
    return g, f(beta1) * working(m) + f(1 - beta1) * g, f(beta2) * working(v) + f(1 - beta2) * g * g


@mutant("adamw_step", id="epsilon-scaled-by-bias-correction", family=FAMILY, source="https://github.com/aiqm/torchani/pull/261",
        trigger=lambda: _one(grad=np.array([1e-8], np.float32)))
def eps_before_the_correction(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """eps is added before the root is divided by sqrt(1 - beta2^t): it acts 31 times larger at the first step."""
    g, m, v = moments(grad, m, v, beta1, beta2)
    f = g.dtype.type
    d = (np.sqrt(v) + f(eps)) / f(np.sqrt(1 - beta2**step))
    new = working(param) * f(1 - lr * weight_decay) - f(lr) * (m / f(1 - beta1**step)) / np.where(d > 0, d, 1)
    return new.astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


@mutant(
    "adamw_step", id="adam-l2-vs-decoupled-swapped", family=FAMILY,
    source="https://github.com/flagos-ai/FlagGems/issues/4988 https://github.com/nntrainer/nntrainer/pull/3527",
    trigger=lambda: _one(grad=np.zeros(1, np.float32), weight_decay=0.1),
)  # fmt: skip
def decay_in_the_gradient(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The decay is added to the gradient, as in Adam with L2: it enters both moments, and is divided by the root."""
    f = working(param).dtype.type
    _, m, v = moments(working(grad) + f(weight_decay) * working(param), m, v, beta1, beta2)
    d = np.sqrt(v / f(1 - beta2**step)) + f(eps)
    new = working(param) - f(lr) * (m / f(1 - beta1**step)) / np.where(d > 0, d, 1)
    return new.astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


@mutant(
    "adamw_step", id="decay-applied-to-updated-parameter", family=FAMILY,
    source="https://github.com/huggingface/transformers/issues/14539 "
    "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2010", trigger=_one,
)  # fmt: skip
def decay_after_the_move(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The decay multiplies the parameter after the move: .855 in place of .85 where lr = .1, decay .5, and the move is lr."""
    g, m, v = moments(grad, m, v, beta1, beta2)
    f = g.dtype.type
    d = np.sqrt(v / f(1 - beta2**step)) + f(eps)
    moved = working(param) - f(lr) * (m / f(1 - beta1**step)) / np.where(d > 0, d, 1)
    return (moved * f(1 - lr * weight_decay)).astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)
