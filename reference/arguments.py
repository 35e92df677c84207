"""Arguments: what the oracles and the tiled ports refuse, said by name. No arithmetic lives here.

Every function returns its argument in the one form the caller computes with, or raises ValueError (a value or a shape)
or TypeError (a kind of data) that names the argument, what came and what is wanted.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Bool = NDArray[np.bool_]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Causal = Literal["bottom_right", "top_left"] | None
Window = Sequence[int | None] | None
Shape = tuple[int, ...]

_FLOATS = {np.dtype(t) for t in (np.float16, np.float32, np.float64)} | {
    np.dtype(getattr(ml_dtypes, name)) for name in dir(ml_dtypes) if name.startswith(("bfloat", "float"))
}


def float_array(name: str, x: ArrayLike, shape: Shape | None = None, *, ndim: int | None = None) -> Array:
    """x as an array of its own dtype, a float of at most 64 bits, of the shape or number of axes asked for."""
    x = np.asarray(x)
    if x.dtype not in _FLOATS:
        raise TypeError(f"{name}: got dtype {x.dtype}; want a float of at most 64 bits (float64, float32, float16, bfloat16, float8_…)")
    if ndim is not None and x.ndim != ndim:
        raise ValueError(f"{name}: got shape {x.shape}; want {ndim} axes")
    if shape is not None and x.shape != shape:
        raise ValueError(f"{name}: got shape {x.shape}; want {shape}")
    return x


def widen(name: str, x: ArrayLike, shape: Shape | None = None, *, ndim: int | None = None) -> Float64:
    """`float_array` in float64, which holds every number of every narrower float exactly."""
    return float_array(name, x, shape, ndim=ndim).astype(np.float64)


def query_and_key(q: ArrayLike, k: ArrayLike) -> tuple[Array, Array]:
    """q (B, Hq, Lq, D) and k (B, Hkv, Lk, D), each in its own dtype, Hq a multiple of Hkv."""
    q, k = float_array("q", q, ndim=4), float_array("k", k, ndim=4)
    (B, Hq, _, D), Hkv = q.shape, k.shape[1]
    if D == 0 or Hq == 0:
        raise ValueError(f"q: got shape {q.shape}; want at least one head and a head size of at least 1")
    if Hkv == 0 or Hq % Hkv:
        raise ValueError(f"k: got {Hkv} key/value heads for {Hq} query heads; want a divisor of {Hq}")
    if k.shape[0] != B or k.shape[3] != D:
        raise ValueError(f"k: got shape {k.shape} beside q {q.shape}; want ({B}, Hkv, Lk, {D})")
    return q, k


def query_key_value(q: ArrayLike, k: ArrayLike, v: ArrayLike) -> tuple[Array, Array, Array]:
    """`query_and_key`, and v (B, Hkv, Lk, Dv)."""
    q, k = query_and_key(q, k)
    v = float_array("v", v, ndim=4)
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v: got shape {v.shape} beside k {k.shape}; want ({k.shape[0]}, {k.shape[1]}, {k.shape[2]}, Dv)")
    return q, k, v


def causal_rule(causal: Causal) -> Causal:
    """None, "bottom_right" or "top_left"; a boolean would leave the alignment open."""
    if causal is not None and causal not in ("bottom_right", "top_left"):
        raise ValueError(f"causal: got {causal!r}; want None, 'bottom_right' or 'top_left'")
    return causal


def window_sides(window: Window) -> tuple[int | None, int | None]:
    """(left, right), each None or a whole number >= 0."""
    if window is None:
        return None, None
    if isinstance(window, str) or not isinstance(window, Sequence | np.ndarray) or len(window) != 2:
        raise ValueError(f"window: got {window!r}; want None or a pair (left, right) of None or whole numbers >= 0")
    left, right = (None if side is None else whole_number("window", side, least=0) for side in window)
    return left, right


def whole_number(name: str, n: Any, *, least: int) -> int:
    """n as an int >= least; booleans and floats are no whole numbers."""
    if isinstance(n, bool | np.bool_):
        raise TypeError(f"{name}: got {n!r}; want a whole number >= {least}")
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"{name}: got {n!r}; want a whole number >= {least}") from None
    if n < least:
        raise ValueError(f"{name}: got {n}; want a whole number >= {least}")
    return int(n)


def real_number(name: str, x: Any, *, positive: bool = False) -> float:
    """x as a finite Python float, above 0 where that is asked for."""
    want = f"a finite number{' > 0' if positive else ''}"
    if isinstance(x, bool | np.bool_ | str | bytes) or np.ndim(x) != 0:
        raise TypeError(f"{name}: got {x!r}; want {want}")
    try:
        number = float(x)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: got {x!r}; want {want}") from None
    if not math.isfinite(number) or (positive and number <= 0.0):
        raise ValueError(f"{name}: got {number}; want {want}")
    return number


def score_scale(scale: float | None, D: int) -> float:
    """The factor on q k^T: the one given, of either sign, else 1/sqrt(D)."""
    return 1.0 / math.sqrt(D) if scale is None else real_number("scale", scale)


def key_lengths(kv_lengths: ArrayLike | None, B: int, Lk: int) -> Int64:
    """(B,) numbers of keys in 0..Lk; all Lk where none are given."""
    if kv_lengths is None:
        return np.full(B, Lk, dtype=np.int64)
    return integers("kv_lengths", kv_lengths, (B,), least=0, most=Lk)


def integers(name: str, x: ArrayLike, shape: Shape | None = None, *, least: int, most: int) -> Int64:
    """x as int64 of the shape asked for, every number in least..most."""
    x = np.asarray(x)
    if x.size == 0 and x.dtype.kind == "f":
        x = x.astype(np.int64)                                                  # an empty list arrives as float64
    if x.dtype.kind not in "iu":
        raise TypeError(f"{name}: got dtype {x.dtype}; want integers")
    if shape is not None and x.shape != shape:
        raise ValueError(f"{name}: got shape {x.shape}; want {shape}")
    if x.size and (x.min() < least or x.max() > most):
        raise ValueError(f"{name}: got numbers from {x.min()} to {x.max()}; want {least}..{most}")
    return x.astype(np.int64)


def broadcast(name: str, x: Array, shape: Shape) -> Array:
    """A view of x of that shape, without a copy."""
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        raise ValueError(f"{name}: got shape {x.shape}; want one that broadcasts to {shape}") from None


def additive_bias(bias: ArrayLike, shape: Shape) -> Array:
    """A float bias as a view of the shape of the scores, in its own dtype."""
    return broadcast("bias", float_array("bias", bias), shape)


def boolean_mask(name: str, mask: ArrayLike, shape: Shape) -> Bool:
    """A boolean mask as a view of the shape of the scores."""
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise TypeError(f"{name}: got dtype {mask.dtype}; want bool")
    return broadcast(name, mask, shape)


def dropout(dropout_mask: ArrayLike | None, dropout_p: float, shape: Shape) -> tuple[Bool | None, float]:
    """The mask of kept probabilities as a view of the shape of the scores, and the factor 1 / (1 - p) on them."""
    p = real_number("dropout_p", dropout_p)
    if not 0.0 <= p < 1.0:
        raise ValueError(f"dropout_p: got {p}; want 0 <= dropout_p < 1")
    if dropout_mask is None:
        if p > 0.0:
            raise ValueError(f"dropout_mask: got None with dropout_p = {p}; want the mask of kept probabilities")
        return None, 1.0
    if p == 0.0:
        raise ValueError("dropout_p: got 0 with a dropout_mask; want the probability it was drawn with, above 0")
    return boolean_mask("dropout_mask", dropout_mask, shape), 1.0 / (1.0 - p)


def offsets(name: str, cu: ArrayLike, total: int) -> Int64:
    """(n + 1,) offsets of n packed sequences: 0 first, never falling, the number of tokens last."""
    cu = integers(name, cu, least=0, most=total)
    if cu.ndim != 1 or cu.size == 0 or cu[0] != 0 or cu[-1] != total or (np.diff(cu) < 0).any():
        raise ValueError(f"{name}: got {cu.tolist()}; want offsets that start at 0, never fall and end at {total}")
    return cu
