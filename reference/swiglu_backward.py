"""The gradient of the gated feed-forward layer, by hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64


def swiglu_backward(x: ArrayLike, w_gate: ArrayLike, w_up: ArrayLike, w_down: ArrayLike, dy: ArrayLike) -> dict[str, Float64]:
    """The gradients of sum(dy * swiglu(x, …)): "dx" of the shape of x, "dw_gate", "dw_up" (E, F), "dw_down" (F, E), float64.

        g = x w_gate,   a = x w_up,   h = silu(g) a
        dh = dy w_down^T,   da = dh silu(g),   dg = dh a silu'(g),   silu'(g) = sigma(g) (1 + g (1 - sigma(g)))
        dx = dg w_gate^T + da w_up^T
        dw_gate = x^T dg,   dw_up = x^T da,   dw_down = h^T dy         summed over all vectors

    x and dy (..., E).

    >>> swiglu_backward([[0.0, 2.0]], np.eye(2), np.eye(2), np.eye(2), [[1.0, 0.0]])["dw_down"].round(4)
    array([[0.    , 0.    ],
           [3.5232, 0.    ]])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: that of the products carried through the formula: (E + F + n + 16) u of it in absolute values, n the vectors,
    and 1.1 |g|'s error of silu and silu'. Source: Shazeer 2020 (arXiv 2002.05202), equation 6 differentiated.
    """
    x = arguments.widen("x", x)
    w_gate, w_up, w_down = (arguments.widen(name, w, ndim=2) for name, w in (("w_gate", w_gate), ("w_up", w_up), ("w_down", w_down)))
    if x.ndim == 0 or w_gate.shape != w_up.shape or w_gate.shape[0] != x.shape[-1] or w_down.shape != w_up.shape[::-1]:
        raise ValueError(f"w_gate: got shapes {w_gate.shape}, w_up {w_up.shape}, w_down {w_down.shape} for x {x.shape}; "
                         "want (E, F), (E, F), (F, E)")  # fmt: skip
    dy = arguments.widen("dy", dy, x.shape)
    g, a = x @ w_gate, x @ w_up                                                 # (..., F)
    s, slope = silu_and_slope(g)
    dh = dy @ w_down.T
    da, dg = dh * s, dh * a * slope
    return {"dx": dg @ w_gate.T + da @ w_up.T, "dw_gate": _outer(x, dg), "dw_up": _outer(x, da), "dw_down": _outer(s * a, dy)}


def silu_and_slope(g: Float64) -> tuple[Float64, Float64]:
    """silu(g) and its derivative, of the shape of g. Error bound: 6 u and 12 u of the sums of absolute values.

    >>> [float(y) for y in silu_and_slope(np.zeros(()))]
    [0.0, 0.5]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        sigma = 1.0 / (1.0 + np.exp(-g))
        other = 1.0 / (1.0 + np.exp(g))                                         # 1 - sigma, without cancellation
    return g * sigma, sigma * (1.0 + g * other)


def _outer(x: Float64, d: Float64) -> Float64:
    """x^T d summed over all vectors: (E, F)."""
    return np.asarray(x.reshape(-1, x.shape[-1]).T @ d.reshape(-1, d.shape[-1]))
