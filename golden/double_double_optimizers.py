"""A step of AdamW in double-double, by itself and on master weights, and gradients clipped by their norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.array_lists import spread
from oracles.reference import FloatFormat

from .double_double import DD, exact, sqrt, where

Results = dict[str, DD]


def adamw_step(param: ArrayLike, grad: DD | ArrayLike, m: ArrayLike, v: ArrayLike, *, step: int, lr: float, beta1: float, beta2: float,
               eps: float, weight_decay: float) -> Results:
    """param, m and v, each the shape of param."""
    b1, b2, g = exact(float(beta1)), exact(float(beta2)), exact(grad)
    first = exact(m) * b1 + g * (1.0 - b1)
    second = exact(v) * b2 + g * g * (1.0 - b2)
    root = sqrt(second / (1.0 - _power(b2, step)))
    moves = first.hi != 0.0
    move = where(moves, first / (1.0 - _power(b1, step)) / where(moves, root + float(eps), 1.0), 0.0)
    return {"param": exact(param) * (1.0 - exact(float(lr)) * float(weight_decay)) - move * float(lr), "m": first, "v": second}


def master_weight_step(grad: ArrayLike, master: ArrayLike, m: ArrayLike, v: ArrayLike, *, loss_scale: float, max_norm: float | None,
                       fmt: str, **options: Any) -> Results:
    """weights, master, m and v, each the shape of master; weights by the upper halves, since no golden case stands near a tie."""
    narrow, wide = FloatFormat(fmt), np.asarray(grad).astype(np.float64)
    if not np.isfinite(wide).all():
        return {"weights": exact(narrow.round(master)), "master": exact(master), "m": exact(m), "v": exact(v)}
    g = exact(wide) / float(loss_scale)
    norm = sqrt((g * g).sum())
    if max_norm is not None and norm.hi > max_norm:
        g = g * (float(max_norm) / norm)
    new = adamw_step(master, g, m, v, **options)
    return {"weights": exact(narrow.round(new["param"].hi)), "master": new["param"], "m": new["m"], "v": new["v"]}


def clip_grad_norm(grads: Sequence[ArrayLike], *, max_norm: float) -> Results:
    """grads.0, grads.1, … and norm, the norm of all over a power of two near the largest, so that no square overflows or vanishes."""
    wide = [exact(g) for g in grads]
    together = exact(np.concatenate([g.hi.reshape(-1) for g in wide]))
    exponent = int(np.frexp(np.abs(together.hi).max(initial=0.0))[1])
    x = together.scaled(-exponent)
    norm = sqrt((x * x).sum()).scaled(exponent)
    if norm.hi > max_norm:
        wide = [g * (float(max_norm) / norm) for g in wide]
    return {**spread("grads", wide), "norm": norm}


def _power(b: DD, t: int) -> DD:
    """b^t by squaring: t times the roundoff of a product at most, as in the bound."""
    result = exact(1.0)
    while t:
        if t % 2:
            result = result * b
        b, t = b * b, t // 2
    return result
