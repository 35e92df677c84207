"""A step of AdamW in ball arithmetic, by itself and on master weights, and gradients clipped by their norm.

A rounded weight is proven, or it stays open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.array_lists import spread
from oracles.reference import FloatFormat

from .balls import elementwise, exact, total
from .certified import Balls, flint


def adamw_step(param: ArrayLike, grad: ArrayLike, m: ArrayLike, v: ArrayLike, *, step: int, lr: float, beta1: float, beta2: float,
               eps: float, weight_decay: float) -> dict[str, Balls]:
    """param, m and v after the step: betas, lr and eps are the float64 numbers given, 1 - beta and beta^t exact."""
    return _stepped(exact(param), exact(grad), exact(m), exact(v), step, (lr, beta1, beta2, eps, weight_decay))


def _stepped(p: Balls, g: Balls, old_m: Balls, old_v: Balls, step: int, options: tuple[float, ...]) -> dict[str, Balls]:
    arb = flint().arb
    rate, b1, b2, small, decay = (arb(float(x)) for x in options)
    shape = p.shape
    results = {name: exact(np.zeros(shape)) for name in ("param", "m", "v")}
    for place in np.ndindex(*shape):
        first = b1 * old_m[place] + (1 - b1) * g[place]
        second = b2 * old_v[place] + (1 - b2) * g[place] ** 2
        move = arb(0)
        if not first.is_zero():                                                 # nothing over nothing does not move
            move = first / (1 - b1**step) / ((second / (1 - b2**step)).sqrt() + small)
        results["m"][place], results["v"][place] = first, second
        results["param"][place] = p[place] * (1 - rate * decay) - rate * move
    return results


def master_weight_step(grad: ArrayLike, master: ArrayLike, m: ArrayLike, v: ArrayLike, *, loss_scale: float, max_norm: float | None,
                       step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
                       fmt: str) -> dict[str, Balls]:
    """weights, master, m and v: g = grad / loss_scale, times max_norm / |g| where that is less than 1; nothing new for a g not finite."""
    old = {"master": exact(master), "m": exact(m), "v": exact(v)}
    wide = np.asarray(grad).astype(np.float64)
    if not np.isfinite(wide).all():
        return {"weights": elementwise(lambda x: _rounded(x, fmt), old["master"]), **old}
    g = exact(wide) / flint().arb(float(loss_scale))
    if max_norm is not None:
        g = g * _factor(total(g * g), flint().arb(float(max_norm)))
    new = _stepped(old["master"], g, old["m"], old["v"], step, (lr, beta1, beta2, eps, weight_decay))
    return {"weights": elementwise(lambda x: _rounded(x, fmt), new["param"]), "master": new["param"], "m": new["m"], "v": new["v"]}


def clip_grad_norm(grads: Sequence[ArrayLike], *, max_norm: float) -> dict[str, Balls]:
    """grads.0, grads.1, … and norm: each times max_norm / norm where that is less than 1, the norm of all of them together."""
    arb, wide = flint().arb, [exact(g) for g in grads]
    together = np.concatenate([g.reshape(-1) for g in wide])
    squares = total(together * together)
    factor = _factor(squares, arb(float(max_norm)))
    return {**spread("grads", [elementwise(lambda x: x * factor, g) for g in wide]),
            "norm": np.asarray(squares.item().sqrt(), dtype=object)}  # fmt: skip


def _factor(squares: Any, limit: Any) -> Any:
    """min(1, limit / norm); NaN, on which no two ends agree, where the ball does not say which is less."""
    square = squares.item()
    if square <= limit * limit:
        return flint().arb(1)
    return limit / square.sqrt() if square > limit * limit else flint().arb("nan")


def _rounded(x: Any, fmt: str) -> Any:
    """What both ends of a ball round to in a narrow format, for rounding never falls; NaN where they differ."""
    arb, narrow = flint().arb, FloatFormat(fmt)
    low, high = float(x.lower()), float(x.upper())
    low = low if arb(low) <= x.lower() else float(np.nextafter(low, -np.inf))
    high = high if arb(high) >= x.upper() else float(np.nextafter(high, np.inf))
    ends = [float(narrow.round(end)) for end in (low, high)]
    return arb(ends[0]) if ends[0] == ends[1] else arb("nan")
