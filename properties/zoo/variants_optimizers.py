"""Legal variants of the optimizer family: other orders of the same step, moments as interpolations, in place, uncorrected."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from .optimizer import moments
from .specimen import variant
from .textbook_decoding import working
from .textbook_losses import Array

FAMILY = "optimizer"
IN_FLOAT64 = Arithmetic(accumulate="float64", elementwise="float64")


def _safe(d: Array) -> Array:
    return np.where(d > 0, d, 1)


@variant("adamw_step", id="adamw-textbook", family=FAMILY)
def step_as_in_the_book(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Moments, their corrections, the quotient, the decay of the old parameter."""
    g, m, v = moments(grad, m, v, beta1, beta2)
    f = g.dtype.type
    d = np.sqrt(v / f(1 - beta2**step)) + f(eps)
    new = working(param) * f(1 - lr * weight_decay) - f(lr) * (m / f(1 - beta1**step)) / _safe(d)
    return new.astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


@variant("adamw_step", id="adamw-corrected-step-size", family=FAMILY,
         source="https://github.com/pytorch/pytorch/blob/main/torch/optim/adam.py")
def step_as_in_pytorch(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The decay first, the first moment as an interpolation, lr / (1 - beta1^t) as the step size, sqrt(v) / sqrt(1 - beta2^t)."""
    f = working(param).dtype.type
    p, g = working(param) * f(1 - lr * weight_decay), working(grad)
    m = working(m) + f(1 - beta1) * (g - working(m))
    v = working(v) * f(beta2) + f(1 - beta2) * (g * g)
    d = np.sqrt(v) / f(np.sqrt(1 - beta2**step)) + f(eps)
    return (p - f(lr / (1 - beta1**step)) * (m / _safe(d))).astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


@variant("adamw_step", id="adamw-all-scalars-in-the-format", family=FAMILY)
def step_of_a_kernel(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Every number arrives in the format of the parameters, and 1 - beta and its powers are computed there."""
    f = working(param).dtype.type
    rate, b1, b2, e, decay, one = f(lr), f(beta1), f(beta2), f(eps), f(weight_decay), f(1)
    p, g = working(param), working(grad)
    m, v = b1 * working(m) + (one - b1) * g, b2 * working(v) + (one - b2) * g * g
    c1, c2 = one - b1 ** f(step), one - b2 ** f(step)
    d = np.sqrt(v / c2) + e
    return ((p - rate * decay * p) - rate * (m / c1 / _safe(d))).astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


@variant("adamw_step", id="adamw-one-division", family=FAMILY)
def step_by_one_division(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """lr m / (c1 (root + eps)): one quotient of two products."""
    g, m, v = moments(grad, m, v, beta1, beta2)
    f = g.dtype.type
    d = f(1 - beta1**step) * (np.sqrt(v * f(1 / (1 - beta2**step))) + f(eps))
    new = working(param) * f(1 - lr * weight_decay) - f(lr) * m / _safe(d)
    return new.astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


@variant("adamw_step", id="adamw-in-float64", family=FAMILY, arithmetic=IN_FLOAT64)
def step_in_float64(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Computed in float64 and rounded once."""
    arrays = [np.asarray(x, np.float64) for x in (param, grad, m, v)]
    new, new_m, new_v = step_as_in_the_book(*arrays, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
    return new.astype(param.dtype), new_m.astype(param.dtype), new_v.astype(param.dtype)


@variant("adamw_step", id="adamw-in-place", family=FAMILY, in_place=["param", "m", "v"])
def step_in_place(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> None:  # fmt: skip
    """Parameters and moments are overwritten, element by element."""
    stepped = step_as_in_the_book(param, grad, m, v, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
    for old, new in zip((param, m, v), stepped):
        old[...] = new


@variant("adamw_step", id="adamw-not-corrected", family=FAMILY, conventions={"bias_correction": "off"},
         source="https://ml-explore.github.io/mlx/build/html/python/optimizers/_autosummary/mlx.optimizers.AdamW.html")
def step_without_correction(
    param: Any, grad: Any, m: Any, v: Any, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The moments are used as they are, as MLX has it by default, and this says so."""
    g, m, v = moments(grad, m, v, beta1, beta2)
    f = g.dtype.type
    new = working(param) * f(1 - lr * weight_decay) - f(lr) * m / _safe(np.sqrt(v) + f(eps))
    return new.astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


@variant("adamw_step", id="adamw-eps-inside", family=FAMILY, conventions={"adam_eps": "inside"},
         source="https://optax.readthedocs.io/en/latest/api/optimizers.html#optax.adamw")
def step_with_eps_inside(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """eps is added to the corrected second moment, before the root is taken, as optax has its eps_root, and this says so."""
    g, m, v = moments(grad, m, v, beta1, beta2)
    f = g.dtype.type
    d = np.sqrt(v / f(1 - beta2**step) + f(eps))
    new = working(param) * f(1 - lr * weight_decay) - f(lr) * (m / f(1 - beta1**step)) / _safe(d)
    return new.astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


@variant("adamw_step", id="adamw-epsilon-hat", family=FAMILY, conventions={"adam_eps": "uncorrected"},
         source="https://keras.io/api/optimizers/adam/")
def step_with_epsilon_hat(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Both corrections are taken into the learning rate, in the format of the parameters, and eps is added to the bare root; it says so."""
    g, m, v = moments(grad, m, v, beta1, beta2)
    f = g.dtype.type
    rate = f(lr) * np.sqrt(f(1) - f(beta2) ** f(step)) / (f(1) - f(beta1) ** f(step))
    new = working(param) * f(1 - lr * weight_decay) - rate * m / _safe(np.sqrt(v) + f(eps))
    return new.astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


@variant("adamw_step", id="adamw-decay-of-the-new-parameter", family=FAMILY, conventions={"decay": "new"},
         source="https://github.com/huggingface/transformers/issues/14539")
def step_that_decays_afterwards(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The decay multiplies what the move left, as transformers had it, and this says so."""
    wide = [np.asarray(x, working(param).dtype) for x in (param, grad, m, v)]
    new, new_m, new_v = step_as_in_the_book(*wide, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=0.0)
    new = new * new.dtype.type(1 - lr * weight_decay)
    return new.astype(param.dtype), new_m.astype(param.dtype), new_v.astype(param.dtype)


@variant("adamw_step", id="adamw-decay-without-lr", family=FAMILY, conventions={"decay": "without_lr"},
         source="https://arxiv.org/abs/1711.05101")
def step_that_decays_by_itself(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The decay is not multiplied by the learning rate, as the paper has it with a schedule of 1, and this says so."""
    wide = [np.asarray(x, working(param).dtype) for x in (param, grad, m, v)]
    new, new_m, new_v = step_as_in_the_book(*wide, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=0.0)
    new = new - new.dtype.type(weight_decay) * wide[0]
    return new.astype(param.dtype), new_m.astype(param.dtype), new_v.astype(param.dtype)


@variant("adamw_step", id="adamw-16-bit-parameters", family=FAMILY, dtypes=("bfloat16", "float16"),
         arithmetic=Arithmetic(moments="float32"))
def step_of_16_bit_parameters(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Parameters and gradients of 16 bits, moments of float32: the step is made in float32 and the parameters rounded once."""
    new, new_m, new_v = step_as_in_the_book(param.astype(np.float32), grad.astype(np.float32), m, v, step=step, lr=lr, beta1=beta1,
                                            beta2=beta2, eps=eps, weight_decay=weight_decay)  # fmt: skip
    return new.astype(param.dtype), new_m, new_v


# The clip ----------------------------------------------------------------------------------------------------------------

def _clipped(grads: Any, max_norm: float, norm: Array, added: float) -> tuple[list[Array], Array]:
    """All arrays times min(1, max_norm / (norm + added)), the factor in their format."""
    f = working(grads[0]).dtype.type
    factor = f(min(1.0, max_norm / (float(norm) + added))) if norm > 0 else f(1)
    return [(working(g) * factor).astype(g.dtype) for g in grads], np.asarray(norm).astype(grads[0].dtype)


@variant("clip_grad_norm", id="clip-flattened", family=FAMILY)
def clip_of_one_vector(grads: Any, *, max_norm: float) -> tuple[list[Array], Array]:
    """The norm of all gradients as one long vector."""
    flat = np.concatenate([working(g).reshape(-1) for g in grads])
    return _clipped(grads, max_norm, np.sqrt((flat * flat).sum(dtype=flat.dtype)), 0.0)


@variant("clip_grad_norm", id="clip-norm-of-norms", family=FAMILY, conventions={"clip_denominator": "norm_plus_1e-6"},
         source="https://github.com/pytorch/pytorch/blob/main/torch/nn/utils/clip_grad.py")
def clip_by_the_norm_of_norms(grads: Any, *, max_norm: float) -> tuple[list[Array], Array]:
    """The norm of each array, the norm of these, and 1e-6 added to it, as PyTorch has it, and this says so."""
    norms = np.array([np.sqrt((working(g) ** 2).sum(dtype=working(g).dtype)) for g in grads])
    return _clipped(grads, max_norm, np.sqrt((norms * norms).sum(dtype=norms.dtype)), 1e-6)
