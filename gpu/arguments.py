"""Arguments of the ports: what they refuse, said by name. Works on NumPy and CuPy arrays alike; no arithmetic lives here.

What is wrong raises ValueError (TypeError for a kind of data); what is right but not built raises NotImplementedError.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .launching import CPP_TYPES

CAUSAL = {None: 0, "bottom_right": 1, "top_left": 2}                            # as in kernels/attention.cuh
NO_LIMIT, FAR = -1, 2**30                                                       # of a window's side; FAR is past every length
MOST_COLUMNS = 256


def floats(name: str, x: Any, shape: tuple[int, ...] | None = None, *, ndim: int | None = None, like: Any = None) -> Any:
    """x as an array in a format of the ports: of that shape, number of axes, and the format of `like`."""
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        x = np.asarray(x)
    dtype = x.dtype.name
    if dtype not in CPP_TYPES:
        if x.dtype.kind in "biuUSO":
            raise TypeError(f"{name}: got dtype {dtype}; want {', '.join(CPP_TYPES)}")
        raise NotImplementedError(f"{name}: got dtype {dtype}; the kernels are built for {', '.join(CPP_TYPES)}")
    if ndim is not None and x.ndim != ndim:
        raise ValueError(f"{name}: got shape {x.shape}; want {ndim} axes")
    if shape is not None and tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name}: got shape {tuple(x.shape)}; want {tuple(shape)}")
    if like is not None and dtype != like.dtype.name:
        raise NotImplementedError(f"{name}: got dtype {dtype} beside {like.dtype.name}; the kernels are built for one format at a time")
    return x


def heads(q: Any, k: Any, v: Any, *, axis: int) -> None:
    """Head counts and sizes of q, k, v that fit one another; `axis` is that of the heads."""
    Hq, Hkv, D, Dv = q.shape[axis], k.shape[axis], q.shape[-1], v.shape[-1]
    if Hq == 0 or D == 0:
        raise ValueError(f"q: got shape {tuple(q.shape)}; want at least one head and a head size of at least 1")
    if Hkv == 0 or Hq % Hkv:
        raise ValueError(f"k: got {Hkv} key/value heads for {Hq} query heads; want a divisor of {Hq}")
    if k.shape[-1] != D:
        raise ValueError(f"k: got head size {k.shape[-1]}; want that of q, {D}")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v: got shape {tuple(v.shape)} beside k {tuple(k.shape)}; want the same but for the last axis")
    if max(D, Dv) > MOST_COLUMNS:
        raise NotImplementedError(f"q, v: got head sizes {D} and {Dv}; the kernels are built for at most {MOST_COLUMNS}")


def causal_rule(causal: Any) -> int:
    """The number of an alignment in the kernels."""
    if isinstance(causal, bool) or causal not in CAUSAL:
        raise ValueError(f"causal: got {causal!r}; want None, 'bottom_right' or 'top_left'")
    return CAUSAL[causal]


def window_sides(window: Any) -> tuple[int, int]:
    """(left, right), NO_LIMIT where a side is open."""
    if window is None:
        return NO_LIMIT, NO_LIMIT
    if isinstance(window, str) or not isinstance(window, Sequence | np.ndarray) or len(window) != 2:
        raise ValueError(f"window: got {window!r}; want None or a pair (left, right) of None or whole numbers >= 0")
    left, right = (NO_LIMIT if side is None else min(whole_number("window", side, least=0), FAR) for side in window)
    return left, right


def whole_number(name: str, n: Any, *, least: int) -> int:
    """n as an int >= least."""
    try:
        number = operator.index(n)
    except TypeError:
        raise TypeError(f"{name}: got {n!r}; want a whole number >= {least}") from None
    if isinstance(n, bool | np.bool_) or number < least:
        raise ValueError(f"{name}: got {n!r}; want a whole number >= {least}")
    return int(number)


def real_number(name: str, x: Any, *, positive: bool = False) -> float:
    """x as a finite float, above 0 where that is asked for."""
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


def integers(name: str, x: Any, *, least: int, most: int, shape: tuple[int, ...] | None = None) -> NDArray[np.int32]:
    """x on the host, int32, every number in least..most."""
    x = x.get() if hasattr(x, "get") else np.asarray(x)
    if x.size == 0 and x.dtype.kind == "f":
        x = x.astype(np.int64)                                                  # an empty list arrives as float64
    if x.dtype.kind not in "iu":
        raise TypeError(f"{name}: got dtype {x.dtype}; want integers")
    if shape is not None and x.shape != shape:
        raise ValueError(f"{name}: got shape {x.shape}; want {shape}")
    if x.size and (x.min() < least or x.max() > most):
        raise ValueError(f"{name}: got numbers from {x.min()} to {x.max()}; want {least}..{most}")
    return np.asarray(x, np.int32)


def offsets(name: str, cu: Any, total: int) -> NDArray[np.int32]:
    """(n + 1,) offsets on the host: 0 first, never falling, `total` last."""
    whole: NDArray[np.int32] = integers(name, cu, least=0, most=total)
    if whole.ndim != 1 or whole.size == 0 or whole[0] != 0 or whole[-1] != total or (np.diff(whole) < 0).any():
        raise ValueError(f"{name}: got {whole.tolist()}; want offsets that start at 0, never fall and end at {total}")
    return whole


def broadcast_steps(name: str, x: Any, shape: tuple[int, ...]) -> list[int]:
    """Elements between neighbours along each axis of `shape` in a contiguous x that broadcasts to it; 0 where it repeats."""
    own = (1,) * (len(shape) - x.ndim) + tuple(x.shape)
    if x.ndim > len(shape) or any(n not in (1, want) for n, want in zip(own, shape)):
        raise ValueError(f"{name}: got shape {tuple(x.shape)}; want one that broadcasts to {shape}")
    return [0 if n == 1 else math.prod(own[axis + 1 :]) for axis, n in enumerate(own)]


def booleans(name: str, x: Any) -> Any:
    """x as an array of bool."""
    x = x if hasattr(x, "dtype") else np.asarray(x)
    if x.dtype != np.bool_:
        raise TypeError(f"{name}: got dtype {x.dtype}; want bool")
    return x


def dropout(dropout_mask: Any, dropout_p: Any) -> float:
    """The factor 1 / (1 - p) on kept probabilities; a mask and a probability above 0 come together."""
    p = real_number("dropout_p", dropout_p)
    if not 0.0 <= p < 1.0:
        raise ValueError(f"dropout_p: got {p}; want 0 <= dropout_p < 1")
    if (dropout_mask is None) != (p == 0.0):
        raise ValueError(f"dropout_mask: got {'none' if dropout_mask is None else 'one'} with dropout_p = {p}; want both or neither")
    return 1.0 / (1.0 - p)
