"""Optimizers of optax, on arrays of JAX.

Nothing but NumPy and the libraries is imported, these inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _adamw(param: Any, grad: Any, m: Any, v: Any, step: int, lr: float, weight_decay: float, **options: float) -> Any:
    """One update from the state that the moments and the number of steps make."""
    import jax.numpy as jnp

    optax: Any = import_module("optax")
    optimizer = optax.adamw(lr, weight_decay=weight_decay, **options)
    first, *rest = optimizer.init(param)
    state = (first._replace(count=jnp.asarray(step - 1, jnp.int32), mu=m, nu=v), *rest)
    updates, (adam, *_) = optimizer.update(grad, state, param)
    return optax.apply_updates(param, updates), adam.mu, adam.nu


def adamw(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> Any:  # fmt: skip
    """optax.adamw, whose eps stands outside the root."""
    return _adamw(param, grad, m, v, step, lr, weight_decay, b1=beta1, b2=beta2, eps=eps)


def adamw_eps_root(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> Any:  # fmt: skip
    """optax.adamw with its eps_root, inside the root."""
    return _adamw(param, grad, m, v, step, lr, weight_decay, b1=beta1, b2=beta2, eps=0.0, eps_root=eps)


def clip_by_global_norm(grads: Any, *, max_norm: float) -> Any:
    """optax.clip_by_global_norm, and optax's norm."""
    if max_norm == 0:
        raise NotImplementedError("gradients of 0 become NaN by it (docs/findings.md)")
    optax: Any = import_module("optax")
    clip = optax.clip_by_global_norm(max_norm)
    clipped, _ = clip.update(list(grads), clip.init(list(grads)))
    norm = getattr(getattr(optax, "tree", None), "norm", None) or optax.global_norm
    return clipped, norm(list(grads))
