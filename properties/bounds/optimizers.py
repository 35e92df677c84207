"""Error bounds of a step of AdamW and of the clipping of gradients: every rounding of the moments, the root, the quotient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import adamw_step, arguments
from oracles.reference.arguments import Float64
from oracles.reference.optimizers import global_norm

from .sums import checked, g, roundings

_OWN = 2.0**-53


def adamw_step_bound(
    arithmetic: ResolvedArithmetic, param: ArrayLike, grad: ArrayLike, m: ArrayLike, v: ArrayLike, *, step: int, lr: float, beta1: float,
    beta2: float, eps: float, weight_decay: float, grad_error: float = 0.0, eps_corrected: bool = False,
) -> dict[str, Float64]:  # fmt: skip
    """How far a legal step may be from the exact one: {"param", "m", "v"}, the shape of param.

        a moment   M = u (4 (b |m| + (1 - b) |g|) + (b + 3 (1 - b)) (|m| + |g|)),  of v with g^2 for g, then one rounding of `moments`
        1 - b^t    C = (b (1 + u))^t - b^t + 4 u b^t + u (1 - b^t)
        m^, v^     (M + |m'| C / c) / (c - C) + 4 u |m^|,   c = 1 - b^t
        the root   R = min(sqrt(V), V / sqrt(v^)) + 3 u sqrt(v^)
        the move   Q = (M^ + |q| R_d) / (d - R_d) + 8 u |q|,   d = sqrt(v^) + eps,  R_d = R + u eps + 2 u d
        param      (1 + 6 u) lr Q + 6 u lr |q| + 6 u |param| (1 + lr weight_decay) + L, then one rounding of `out`
        underflow  L = 4 eta (1 + |q|) + eta (1 + lr |q|) / ((c - C) (d - R_d)):  of lr m and of c d, before one is divided by the other

    The numbers lr, betas, eps, weight_decay may be rounded to the format that is computed in, as kernels take them: 1 - beta
    then has an absolute error of u, which is the large term for beta2 near 1. The moment as lerp, m + (1 - b)(g - m), is
    covered, and so are lr / c, sqrt(v) / sqrt(c) + eps, and one division by the product. inf where v may overflow, for the parameter
    where a corrected moment may.
    grad_error: how far, relative to themselves, the gradients that are stepped with may be from those given. eps_corrected: eps is
    what becomes of another eps when it is divided by the root of 1 - b2^t, whose error C / (c - C) it shares.

    >>> from oracles.properties import Arithmetic
    >>> options = {"step": 1, "lr": 0.1, "beta1": 0.5, "beta2": 0.5, "eps": 1e-8, "weight_decay": 0.0}
    >>> bool(adamw_step_bound(Arithmetic().resolve("float32"), [1.0], [1.0], [0.0], [0.0], **options)["param"] < 1e-6)
    True
    """
    r = roundings(arithmetic)
    u, eta = r.elementwise.u + _OWN, r.elementwise.eta
    p, grad, m, v = (arguments.widen(name, x) for name, x in (("param", param), ("grad", grad), ("m", m), ("v", v)))
    new_p, new_m, new_v = adamw_step(p, grad, m, v, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        m_error = r.moments.bound(new_m, _moment(u, eta, beta1, np.abs(m), np.abs(grad)) + (1.0 - beta1) * grad_error * np.abs(grad))
        square = grad * grad
        squared = (2.0 * u + grad_error * (2.0 + grad_error)) * square + eta
        v_error = r.moments.bound(new_v, _moment(u, eta, beta2, np.abs(v), square) + (1.0 - beta2) * squared)
        fits = (square < r.elementwise.largest) & (np.abs(new_v) < r.elementwise.largest)
        m_hat, m_hat_error = _corrected(u, eta, new_m, m_error, beta1, step)
        v_hat, v_hat_error = _corrected(u, eta, new_v, v_error, beta2, step)
        corrected = np.maximum(v_hat + v_hat_error, np.abs(m_hat) + m_hat_error) < r.elementwise.largest
        root = np.sqrt(v_hat)
        root_error = np.minimum(np.sqrt(v_hat_error), v_hat_error / np.where(root > 0.0, root, 1e-300)) + 3.0 * u * root
        d = root + eps
        d_error = root_error + u * eps + 2.0 * u * d + eta
        if eps_corrected:
            d_error = d_error + eps * (_correction_error(u, beta2, step) + 2.0 * u)
        left = d - d_error
        q = np.where(d > 0.0, np.abs(m_hat) / np.where(d > 0.0, d, 1.0), 0.0)
        q_error = np.where(left > 0.0, (m_hat_error + q * d_error) / np.where(left > 0.0, left, 1.0) + 8.0 * u * q + 2.0 * eta, np.inf)
        lost = 4.0 * eta * (1.0 + q) + _quotient_lost(u, eta, beta1, step, lr * q, left)
        error = (1.0 + 6.0 * u) * lr * q_error + 6.0 * u * lr * q + 6.0 * u * np.abs(p) * (1.0 + lr * weight_decay) + lost
        still = (np.abs(m_hat) + m_hat_error == 0.0) | (lr == 0.0)              # nothing moves, whatever the quotient says
        error = np.where(still, 6.0 * u * np.abs(p) * (1.0 + lr * weight_decay), error)
        bounds = {"param": np.where(corrected, r.out.bound(new_p, error), np.inf), "m": m_error, "v": v_error}
    known = np.isfinite(new_p) & np.isfinite(new_m) & np.isfinite(new_v) & fits
    return checked({name: np.where(known & ~np.isnan(bound), bound, np.inf) for name, bound in bounds.items()})


def _moment(u: float, eta: float, b: float, old: Float64, new: Float64) -> Float64:
    """The error of b old + (1 - b) new, both >= 0 in size; exactly 0 where both are 0."""
    error = u * (4.0 * (b * old + (1.0 - b) * new) + (b + 3.0 * (1.0 - b)) * (old + new)) * (1.0 + 16.0 * u)
    return np.asarray(error + np.minimum(4.0 * eta, 4.0 * (old + new)))


def _corrected(u: float, eta: float, moment: Float64, error: Float64, b: float, step: int) -> tuple[Float64, Float64]:
    """The bias-corrected moment and its error."""
    c = 1.0 - b**step
    relative = _correction_error(u, b, step)
    hat = moment / c
    if np.isinf(relative):
        return hat, np.full_like(hat, np.inf)
    hat_error = error * (1.0 + relative) / c + np.abs(hat) * (relative + 4.0 * u)
    return hat, hat_error + np.minimum(eta, np.abs(hat) + hat_error)


def _quotient_lost(u: float, eta: float, b: float, step: int, move: Float64, left: Float64) -> Float64:
    """What underflow of lr m and of c d may take from (lr m) / (c d): divided by what may be far below 1, an eta is no longer small."""
    surely = (1.0 - b**step) / (1.0 + _correction_error(u, b, step)) * left - eta
    return np.asarray(np.where(surely > 0.0, eta * (1.0 + move) / np.where(surely > 0.0, surely, 1.0), np.inf))


def _correction_error(u: float, b: float, step: int) -> float:
    """C / (c - C): the relative error of a quotient by c = 1 - b^step; inf where nothing is known of it."""
    power = b**step
    c = 1.0 - power
    with np.errstate(over="ignore"):
        grown = float(np.exp(step * (np.log(b) + np.log1p(u)))) - power if b > 0.0 else 0.0
    c_error = max(grown, 0.0) + 4.0 * u * power + u * c
    return c_error / (c - c_error) if c_error < c else float("inf")


def decayed_bound(arithmetic: ResolvedArithmetic, error: Float64, param: Float64, taken: Float64) -> Float64:
    """What a decay after the step adds to the error of a parameter: 4 u (|param| + 2 taken), taken the size of what is taken off.

    The error holds one rounding of `out` already.
    """
    r = roundings(arithmetic)
    return np.asarray(error + 4.0 * (r.elementwise.u + _OWN) * (np.abs(param) + 2.0 * taken) + 2.0 * r.elementwise.eta)


def clip_grad_norm_bound(
    arithmetic: ResolvedArithmetic, grads: Sequence[ArrayLike], *, max_norm: float, added: float = 0.0
) -> dict[str, Float64]:
    """How far legally clipped gradients may be from the exact ones: {"grads.0", "grads.1", …, "norm"}.

        norm    N = (sqrt((1 + u_a)^(n + 4)) - 1 + 4 u) norm,  u_a of `accumulate`, n the number of elements, then one rounding of `out`
        g'      |g'| (N / (norm - N) + 4 u) + eta, then one rounding of `out`;   0 where the norm is surely within the limit

    Where the norm may fall on either side of the limit, both answers are allowed: they differ by that much. inf where squares
    may overflow the format they are added up in, or vanish from it. added: what a declared convention adds to the norm it divides by.

    >>> from oracles.properties import Arithmetic
    >>> clip_grad_norm_bound(Arithmetic().resolve("float32"), [np.ones(2), np.ones(2)], max_norm=4.0)["grads.0"]
    array([0., 0.])
    """
    r = roundings(arithmetic)
    wide = [arguments.widen(f"grads[{i}]", x) for i, x in enumerate(grads)]
    u, n, norm = r.elementwise.u + _OWN, sum(x.size for x in wide), global_norm(wide)
    top = max((float(np.abs(x).max(initial=0.0)) for x in wide), default=0.0)
    if not np.isfinite(norm):
        return {**{f"grads.{i}": np.full(x.shape, np.inf) for i, x in enumerate(wide)}, "norm": np.asarray(np.inf)}
    if norm == 0.0:
        return {**{f"grads.{i}": np.zeros(x.shape) for i, x in enumerate(wide)}, "norm": np.zeros(())}
    lost = float(n) * (r.accumulate.eta + r.elementwise.eta)                    # of squares that underflow
    share = lost / norm / norm                                                  # norm**2 may overflow here, or be 0
    open_norm = max(norm, top) > np.sqrt(r.accumulate.largest) or share >= 0.25
    growth = float(g((n + 4.0) / 2.0, r.accumulate.u + _OWN)) + 4.0 * u + share
    N = np.inf if open_norm or growth >= 1.0 else growth * norm
    bounds = {"norm": np.asarray(r.out.bound(np.asarray(norm), np.asarray(N)))}
    factor = min(1.0, max_norm / (norm + added))
    relative = 0.0 if norm + N + added * (1.0 + 4.0 * u) < max_norm else N / (norm - N) + 4.0 * u if np.isfinite(N) else np.inf
    for i, x in enumerate(wide):
        size = np.abs(x) * factor
        error = size * relative + (r.elementwise.eta * 2.0 if relative else 0.0) if np.isfinite(relative) else np.full(x.shape, np.inf)
        bounds[f"grads.{i}"] = np.zeros(x.shape) if relative == 0.0 else np.asarray(r.out.bound(size, error))
    return checked(bounds)
