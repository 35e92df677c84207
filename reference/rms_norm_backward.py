"""The gradient of root-mean-square normalisation, by hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64


def rms_norm_backward(x: ArrayLike, weight: ArrayLike, dy: ArrayLike, *, eps: float = 1e-6) -> tuple[Float64, Float64]:
    """The gradients of sum(dy * rms_norm(x, weight)): dx of the shape of x, dweight (D,), float64.

        r = 1 / sqrt(mean(x^2) + eps)
        dx = r (dy weight - x r^2 mean(dy weight x))
        dweight = sum over vectors of dy x r

    x and dy (..., D), weight (D,). dx is at a right angle to x where eps is 0.

    >>> dx, dweight = rms_norm_backward([3.0, 4.0, 0.0, 0.0], np.ones(4), [1.0, 0.0, 0.0, 0.0], eps=0.0)
    >>> dx, dweight
    (array([ 0.256, -0.192,  0.   ,  0.   ]), array([1.2, 0. , 0. , 0. ]))

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: with n vectors, (2 D + 12) u r (|dy weight| + |x| r^2 mean |dy weight x|) and (n + D / 2 + 5) u sum |dy x r|.
    Source: Zhang and Sennrich 2019 (arXiv 1910.07467), section 3, equation 4 differentiated.
    """
    x = arguments.widen("x", x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x: got shape {x.shape}; want a last axis of at least 1")
    w, dy = arguments.widen("weight", weight, x.shape[-1:]), arguments.widen("dy", dy, x.shape)
    r = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + arguments.real_number("eps", eps))    # (..., 1)
    dx = r * (dy * w - x * r * r * (dy * w * x).mean(axis=-1, keepdims=True))
    return dx, np.asarray((dy * x * r).reshape(-1, x.shape[-1]).sum(axis=0))
