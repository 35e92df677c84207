"""SwiGLU: the gated feed-forward layer. Experts and their routing are left to others."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64


def swiglu(x: ArrayLike, w_gate: ArrayLike, w_up: ArrayLike, w_down: ArrayLike) -> Float64:
    """The feed-forward layer of a decoder: float64 (..., E).

        y = (silu(x w_gate) * (x w_up)) w_down,   silu(g) = g / (1 + e^-g)

    x (..., E), w_gate and w_up (E, F), w_down (F, E). Where e^-g passes the largest number silu is -0, its limit.

    >>> swiglu([[0.0, 2.0]], np.eye(2), np.eye(2), np.eye(2)).round(4)
    array([[0.    , 3.5232]])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: with g, a the two products and d_g, d_a their errors, (E + 1) u |x| |w|: of h = silu(g) a it is
    1.1 d_g |a| + (|silu(g)| + 1.1 d_g) d_a + 8 u |h|, of y that times |w_down| and (F + 1) u |h| |w_down|.
    Source: Shazeer 2020 (arXiv 2002.05202), equation 6.
    """
    x = arguments.widen("x", x)
    if x.ndim == 0:
        raise ValueError("x: got a number; want at least one axis")
    E = x.shape[-1]
    w_gate = arguments.widen("w_gate", w_gate, ndim=2)
    if w_gate.shape[0] != E:
        raise ValueError(f"w_gate: got shape {w_gate.shape} for x {x.shape}; want ({E}, F)")
    F = w_gate.shape[1]
    w_up, w_down = arguments.widen("w_up", w_up, (E, F)), arguments.widen("w_down", w_down, (F, E))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((silu(x @ w_gate) * (x @ w_up)) @ w_down)


def silu(g: ArrayLike) -> Float64:
    """g / (1 + e^-g), float64, of any shape. Error bound: 6 u |silu(g)|; source: Hendrycks and Gimpel 2016 (arXiv 1606.08415).

    >>> float(silu(0.0)), float(silu(-1e4))
    (0.0, -0.0)
    """
    g = arguments.widen("g", g)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(g / (1.0 + np.exp(-g)))
