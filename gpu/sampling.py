"""Filters on logits and the draw of a token on a GPU (kernels/sampling.cu)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import arguments, row_arguments
from .launching import Backend, Launcher, cpp_type

LONG_ROW = 1024                                                                 # from here on 8 warps share a row
LARGEST_SUM = 61                                                                # sums of weights stay below 2^62


def filter_probabilities(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None,
                         backend: str | Backend = "cuda") -> Any:
    """The distribution that is sampled from, (..., V) in the format of the logits.

        p = softmax(z / temperature);  keep the k largest;  of what is left, renormalised, the shortest prefix in descending order
        whose mass is >= top_p;  of what is left p_i >= min_p max p;  renormalise

    Ties by lowest index; the parameters broadcast to the rows; temperature 0: one-hot at the first of the largest logits, whatever the
    other filters. float32, float16 or bfloat16; weights in float32, sums of whole numbers: the same bits in whatever order.

    >>> filter_probabilities(np.zeros(8, np.float32), top_k=6, top_p=0.5, backend="emulated")
    array([0.33333334, 0.33333334, 0.33333334, 0.        , 0.        ,
           0.        , 0.        , 0.        ], dtype=float32)

    Raises TypeError or ValueError that names the argument, ValueError for a row with a NaN, a +inf or nothing but -inf, RuntimeError
    where there is no device. Error bound: `properties.bounds.filter_probabilities_bound` under the default Arithmetic.
    Source: Fan et al. 2018 (arXiv 1805.04833), Holtzman et al. 2020 (arXiv 1904.09751), Nguyen et al. 2024 (arXiv 2407.01082).
    """
    z = arguments.floats("logits", logits)
    shape, V = _rows("logits", z)
    run, dtype, rows = Launcher(backend, logits=z), z.dtype.name, math.prod(shape)
    parameters = [
        row_arguments.per_row("temperature", temperature, shape, least=0.0),
        None if top_k is None else np.minimum(row_arguments.counts_per_row("top_k", top_k, shape), V),
        None if top_p is None else row_arguments.per_row("top_p", top_p, shape, above=0.0, most=1.0),
        None if min_p is None else row_arguments.per_row("min_p", min_p, shape, least=0.0, most=1.0),
    ]
    p, valid = run.new(z.shape, dtype), run.new((rows,), "int32")
    run.launch("sampling.cu", f"filter_probabilities<{cpp_type(z)}, {warps_of(V)}>", (rows,), (32, warps_of(V)),
               [run.take(z), *(None if x is None else run.take(x) for x in parameters), p, valid, V, shift_of(V)], outputs=("p", "valid"))
    if rows and not bool((valid != 0).all()):
        raise ValueError("logits: got a row with a NaN, a +inf or nothing but -inf; want a largest finite number in every row")
    return run.give(p, dtype)


def sample(probabilities: Any, u: Any, *, backend: str | Backend = "cuda") -> Any:
    """The token that a uniform number stands for: int64 of the shape of u, that of probabilities (..., V) without V.

        the first i with u S < p_0 + … + p_i,   S = the sum of all

    Weights that do not sum to 1 are legal; never a token of weight 0. float32, float16 or bfloat16; u in [0, 1). A weight below 2^-59 V
    of the largest may count as 0.

    >>> sample(np.array([[0.5, 0, 0.5]] * 2, np.float32), np.array([0.25, 0.5], np.float32), backend="emulated")
    array([0, 2])

    Raises ValueError for weights that are negative, NaN, infinite or all 0, u outside [0, 1) and shapes that do not fit.
    Error bound: `properties.bounds.sample_bound` under the default Arithmetic. Source: Devroye 1986, section III.2.
    """
    p = arguments.floats("probabilities", probabilities)
    shape, V = _rows("probabilities", p)
    u = row_arguments.uniforms("u", u, shape)
    run = Launcher(backend, probabilities=p)
    tokens = run.new(shape, "int64")
    run.launch("sampling.cu", f"sample<{cpp_type(p)}, {warps_of(V)}>", (math.prod(shape),), (32, warps_of(V)),
               [run.take(p), run.take(u, "float64"), tokens, V, shift_of(V)], outputs=("tokens",))
    if bool((tokens < 0).any()):
        raise ValueError("probabilities: got a row with a NaN, a negative or infinite number, or a sum of 0; "
                         "want weights >= 0, one at least above 0")
    return run.give(tokens, "int64")


def warps_of(V: int) -> int:
    """How many warps share a row."""
    return 8 if V >= LONG_ROW else 1


def shift_of(V: int) -> int:
    """Weights below 1 in units of 2^-shift: V of them stay below 2^62."""
    return LARGEST_SUM - (V - 1).bit_length()


def _rows(name: str, x: Any) -> tuple[tuple[int, ...], int]:
    """The shape of the rows, and V."""
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name}: got shape {tuple(x.shape)}; want rows of at least one number")
    return tuple(x.shape[:-1]), x.shape[-1]
