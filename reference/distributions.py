"""Distributions over a vocabulary and uniforms, as arguments of the decoding oracles: what they refuse, said by name."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Shape


def normalised(name: str, p: ArrayLike, shape: Shape | None = None) -> Float64:
    """Rows of probabilities along the last axis, each divided by its sum: float64 of the same shape.

        p_i / sum_j p_j,   every p_i >= 0,   |sum_j p_j - 1| <= V u

    V numbers a row, u the unit roundoff of the dtype that came: a softmax computed in that dtype passes, logits do not.

    >>> normalised("p", np.float32([[0.25, 0.75]]))
    array([[0.25, 0.75]])

    Raises TypeError for anything but floats, ValueError for another shape, for a NaN, a negative number or another sum.
    Error bound: (V + 1) u p_i in float64; exact where the sum is.
    """
    given = arguments.float_array(name, p, shape)
    p = weights(name, given)
    total = p.sum(axis=-1, keepdims=True)
    off = np.abs(total - 1.0)
    u, V = float(ml_dtypes.finfo(given.dtype).eps) / 2, p.shape[-1]             # type: ignore[no-untyped-call]
    if not (off <= V * u).all():
        raise ValueError(f"{name}: got a row that sums to {total.flat[off.argmax()]}; want 1 within {V} roundings of {given.dtype}")
    return np.asarray(p / total)


def weights(name: str, p: ArrayLike) -> Float64:
    """Rows of weights along the last axis, none negative, with a finite sum above 0: float64 of the same shape.

    >>> weights("p", [2.0, 0.0])
    array([2., 0.])

    Raises TypeError for anything but floats, ValueError for a row without a number, a NaN, a negative number or a zero row.
    Exact.
    """
    p = arguments.widen(name, p)
    if p.ndim == 0 or p.shape[-1] == 0:
        raise ValueError(f"{name}: got shape {p.shape}; want rows of at least one number")
    with np.errstate(over="ignore"):
        total = p.sum(axis=-1)                                                  # a NaN anywhere shows here: vllm-project/vllm#41834
    if not ((total > 0.0) & (total < np.inf)).all() or p.min(initial=0.0) < 0.0:
        raise ValueError(f"{name}: got a row with a NaN, a negative number or a sum of 0 or inf; want weights >= 0, one at least above 0")
    return p


def uniforms(name: str, u: ArrayLike, shape: Shape | None = None) -> Float64:
    """Numbers in [0, 1) of the shape asked for: float64.

    >>> uniforms("u", [0.0, 0.5])
    array([0. , 0.5])

    Raises TypeError for anything but floats, ValueError for another shape and for numbers outside [0, 1). Exact.
    """
    u = arguments.widen(name, u, shape)
    if not ((u >= 0.0) & (u < 1.0)).all():
        raise ValueError(f"{name}: got numbers outside [0, 1); want uniforms in [0, 1)")
    return u


def per_row(name: str, x: ArrayLike, rows: Shape, *, least: float = -np.inf, most: float = np.inf, above: float = -np.inf) -> Float64:
    """One finite number for each row, in least..most and above a border: float64 (*rows, 1), to meet the last axis.

    >>> per_row("top_p", 0.5, (2,), above=0.0, most=1.0)
    array([[0.5],
           [0.5]])

    Raises TypeError for what is no number, ValueError for one outside the range, naming it, or a shape that does not broadcast.
    """
    values: Any = np.asarray(x)
    if values.dtype.kind in "iu":
        values = values.astype(np.float64)
    values = arguments.broadcast(name, arguments.widen(name, values), rows)
    good = np.isfinite(values) & (values >= least) & (values <= most) & (values > above)
    if not good.all():
        want = " and ".join(f"{sign} {border:g}" for sign, border in ((">", above), (">=", least), ("<=", most)) if np.isfinite(border))
        raise ValueError(f"{name}: got {values[~good][0]}; want a finite number{' ' + want if want else ''}")
    return np.asarray(values[..., None])
