"""Root-mean-square normalisation: vectors brought to a mean square of 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64


def rms_norm(x: ArrayLike, weight: ArrayLike, *, eps: float = 1e-6) -> Float64:
    """x over the root of its mean square, times a weight a coordinate: float64, the shape of x.

        y = x / sqrt(mean(x^2) + eps) weight

    x (..., D), weight (D,). eps stands inside the root and may be 0; a vector of zeros then gives NaN. NaN and infinity
    spread over their vector.

    >>> rms_norm([3.0, 4.0, 0.0, 0.0], np.ones(4), eps=0.0)
    array([1.2, 1.6, 0. , 0. ])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: (D / 2 + 5) u |y|, as long as no square overflows or underflows.
    Source: Zhang and Sennrich 2019 (arXiv 1910.07467), equation 4; eps: Llama.
    """
    x = arguments.widen("x", x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x: got shape {x.shape}; want a last axis of at least 1")
    weight = arguments.widen("weight", weight, x.shape[-1:])
    eps = arguments.real_number("eps", eps)
    if eps < 0.0:
        raise ValueError(f"eps: got {eps}; want a finite number >= 0")
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight)
