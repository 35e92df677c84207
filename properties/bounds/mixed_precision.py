"""Error bounds of a step on master weights: the unscaled and clipped gradient, the step, the weights rounded once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import FloatFormat, adamw_step, arguments, clip_grad_norm
from oracles.reference.arguments import Float64

from .optimizers import adamw_step_bound, clip_grad_norm_bound
from .sums import checked, roundings


def master_weight_step_bound(
    arithmetic: ResolvedArithmetic, grad: ArrayLike, master: ArrayLike, m: ArrayLike, v: ArrayLike, *, loss_scale: float,
    max_norm: float | None, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, fmt: str,
) -> dict[str, Float64]:  # fmt: skip
    """How far a legal step may be from the exact one: {"weights", "master", "m", "v"}.

        gradient    3 u, and the largest relative error of `clip_grad_norm_bound` where it is clipped
        master      `adamw_step_bound` of such a gradient
        weights     b + 2 u_fmt (|master| + b) + the smallest number of fmt,  b the bound of the master: either neighbour

    Where the gradient holds a NaN or inf nothing changes: 0, or what a narrower format of the results costs. inf where the weight may
    pass the largest number of fmt.

    >>> from oracles.properties import Arithmetic
    >>> options = {"step": 1, "lr": 0.1, "beta1": 0.5, "beta2": 0.5, "eps": 1e-8, "weight_decay": 0.0, "max_norm": None}
    >>> a = Arithmetic().resolve("float32")
    >>> bool(master_weight_step_bound(a, [2.0], [1.0], [0.0], [0.0], loss_scale=2.0, fmt="bfloat16", **options)["master"] < 1e-6)
    True
    """
    r = roundings(arithmetic)
    old = {name: arguments.widen(name, x) for name, x in (("master", master), ("m", m), ("v", v))}
    g = arguments.widen("grad", grad) / loss_scale
    if not np.isfinite(g).all():
        kept = {"weights": FloatFormat(fmt).round(old["master"]), **old}
        return {name: np.abs(FloatFormat(arithmetic.out).round(x) - x) for name, x in kept.items()}
    error = 3.0 * (r.elementwise.u + 2.0**-53)
    if max_norm is not None:
        allowed = clip_grad_norm_bound(arithmetic, [g], max_norm=max_norm)["grads.0"]
        (g,), _ = clip_grad_norm([g], max_norm=max_norm)
        size = np.abs(g)
        error += float((allowed[size > 0.0] / size[size > 0.0]).max(initial=0.0))
        if not np.isfinite(error):
            return {name: np.full(g.shape, np.inf) for name in ("weights", "master", "m", "v")}
    stepped = adamw_step_bound(arithmetic, old["master"], g, old["m"], old["v"], step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps,
                               weight_decay=weight_decay, grad_error=error)  # fmt: skip
    narrow, b = FloatFormat(fmt), stepped["param"]
    new, _, _ = adamw_step(old["master"], g, old["m"], old["v"], step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps,
                           weight_decay=weight_decay)  # fmt: skip
    most = np.abs(new)
    near = b + 2.0 * narrow.unit_roundoff * (most + b) + narrow.smallest
    weights = np.where(np.isfinite(most) & ((most + b) * (1.0 + narrow.eps) <= narrow.max), near, np.inf)
    return checked({"weights": weights, "master": b, "m": stepped["m"], "v": stepped["v"]})
