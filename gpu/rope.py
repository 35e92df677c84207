"""Rotary position embedding on a GPU (kernels/rope.cu). What stretches the frequencies stands in rope_frequencies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import arguments
from .launching import Backend, Launcher, ceil_div, cpp_type
from .rope_frequencies import frequencies

FARTHEST = 2**53                                                                # the last run of whole numbers that float64 holds


def rope(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
         scaling: Mapping[str, Any] | None = None, backend: str | Backend = "cuda") -> Any:
    """x (..., T, D) with each pair of its first rotary_dim coordinates turned by position x frequency, in the format of x.

        (a_i, b_i) -> m (a_i cos t_i - b_i sin t_i,  a_i sin t_i + b_i cos t_i),   t_i = position f_i

    positions: whole numbers of any shape that broadcasts to x.shape[:-1], negative ones legal; pairing "half" pairs coordinate i with
    i + R / 2, "interleaved" 2i with 2i + 1; rotary_dim None: D; scaling None or a record, see `rope_frequencies.frequencies`.
    float32, float16 or bfloat16. Angles, sines and cosines in float64, products in float32. backend as in `flash_attention`.

    >>> rope(np.array([[1, 2, 3, 4]], np.float32), [0], pairing="half", backend="emulated")
    array([[1., 2., 3., 4.]], dtype=float32)

    Raises ValueError or TypeError that names the argument, RuntimeError where there is no device.
    Error bound: `properties.bounds.rope_bound` under Arithmetic(phases="float64"): it does not grow with the position.
    Source: Su et al. 2021 (arXiv 2104.09864), equations 15 and 34.
    """
    x = arguments.floats("x", x)
    if x.ndim == 0:
        raise ValueError("x: got a number; want at least one axis")
    if pairing not in ("half", "interleaved"):
        raise ValueError(f"pairing: got {pairing!r}; want 'half' or 'interleaved'")
    D = x.shape[-1]
    R = D if rotary_dim is None else arguments.whole_number("rotary_dim", rotary_dim, least=2)
    if not 2 <= R <= D or R % 2:
        raise ValueError(f"rotary_dim: got {R} for x of shape {tuple(x.shape)}; want an even number in 2..{D}")
    f, m = frequencies(R, arguments.real_number("base", base, positive=True), scaling)
    run, dtype, rows = Launcher(backend, x=x), x.dtype.name, math.prod(x.shape[:-1])
    out = run.new(x.shape, dtype)
    run.launch("rope.cu", f"rope<{cpp_type(x)}>", (ceil_div(rows, 4),), (32, 4),
               [run.take(x), run.take(_places(positions, x.shape[:-1]), "int64"), run.take(f), out, rows, D, R,
                int(pairing == "interleaved"), m], outputs=("out",))
    return run.give(out, dtype)


def _places(positions: Any, shape: tuple[int, ...]) -> Any:
    """One position for each row of x."""
    places = positions.get() if hasattr(positions, "get") else np.asarray(positions)
    if places.size == 0 and places.dtype.kind == "f":
        places = places.astype(np.int64)                                        # an empty list arrives as float64
    if places.dtype.kind not in "iu":
        raise TypeError(f"positions: got dtype {places.dtype}; want integers")
    if places.size and (places.min() < -FARTHEST or places.max() > FARTHEST):
        raise ValueError(f"positions: got numbers from {places.min()} to {places.max()}; want {-FARTHEST}..{FARTHEST}")
    try:
        return np.broadcast_to(places, shape)
    except ValueError:
        raise ValueError(f"positions: got shape {places.shape}; want one that broadcasts to {tuple(shape)}") from None
