"""Softmax and log-sum-exp along any axis by one online pass over each row (kernels/softmax.cu)."""

from __future__ import annotations

import math
from typing import Any

from . import arguments
from .launching import Backend, Launcher, cpp_type

LONG_ROW = 1024                                                                 # from here on 8 warps share a row


def softmax(x: Any, *, axis: int = -1, backend: str | Backend = "cuda") -> Any:
    """The softmax of x along one axis, in the format of x.

        p = e^(x - m) / sum e^(x - m),   m = max x

    An empty row gives an empty row; a row of nothing but -inf zeros; a NaN or a +inf makes its row NaN.
    float32, float16 or bfloat16, computed in float32. backend: "cuda" or "emulated", or a `Backend`.

    >>> softmax(np.array([0, 0, -np.inf], np.float32), backend="emulated")
    array([0.5, 0.5, 0. ], dtype=float32)

    Raises TypeError for integers, ValueError for an axis that x has not, RuntimeError where there is no device.
    Error bound: `properties.bounds.softmax_bound` under the default Arithmetic.
    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), algorithm 3.
    """
    return _rows(x, axis, backend)[0]


def log_sum_exp(x: Any, *, axis: int = -1, backend: str | Backend = "cuda") -> Any:
    """ln sum e^x along one axis, which goes; float32 for every format.

    An empty row, or one of nothing but -inf, gives -inf; a NaN or a +inf makes it NaN. Otherwise as `softmax`.

    >>> log_sum_exp(np.zeros((2, 1), np.float16), backend="emulated")
    array([0., 0.], dtype=float32)

    Error bound: `properties.bounds.log_sum_exp_bound` under the default Arithmetic.
    """
    return _rows(x, axis, backend, wanted="lse")[1]


def _rows(x: Any, axis: int, backend: str | Backend, wanted: str = "p") -> tuple[Any, Any]:
    x = arguments.floats("x", x)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis: got {axis} for x of shape {tuple(x.shape)}; want {-x.ndim}..{x.ndim - 1}")
    axis %= x.ndim
    before, n, behind = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    run, dtype = Launcher(backend, x=x), x.dtype.name
    p = run.new(x.shape, dtype) if wanted == "p" else None
    lse = run.new((*x.shape[:axis], *x.shape[axis + 1 :]), "float32") if wanted == "lse" else None
    warps = 8 if n >= LONG_ROW else 1
    run.launch("softmax.cu", f"online_softmax<{cpp_type(x)}, {warps}>", (before * behind,), (32, warps),
               [run.take(x), p, lse, n, behind], outputs=(wanted,))
    return None if p is None else run.give(p, dtype), None if lse is None else run.give(lse, "float32")
