"""Arguments of the decoding ports, uniforms and parameters of rows: what they refuse, said by name. As `arguments`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def uniforms(name: str, u: Any, shape: tuple[int, ...]) -> Any:
    """Numbers in [0, 1) of a shape, in whatever float they came."""
    u = u if hasattr(u, "dtype") else np.asarray(u)
    if u.dtype.kind != "f" and u.dtype.name != "bfloat16":
        raise TypeError(f"{name}: got dtype {u.dtype}; want floats")
    if tuple(u.shape) != shape:
        raise ValueError(f"{name}: got shape {tuple(u.shape)}; want {shape}")
    if u.size and not (float(u.min()) >= 0.0 and float(u.max()) < 1.0):
        raise ValueError(f"{name}: got numbers outside [0, 1); want uniforms in [0, 1)")
    return u


def per_row(name: str, x: Any, rows: tuple[int, ...], *, least: float = -math.inf, most: float = math.inf,
            above: float = -math.inf) -> NDArray[np.float64]:
    """One finite number for each row on the host, float64, in least..most and above a border."""
    values = np.asarray(x.get() if hasattr(x, "get") else x)
    if values.dtype.kind not in "iuf" and values.dtype.name != "bfloat16":
        raise TypeError(f"{name}: got dtype {values.dtype}; want numbers")
    values = _over_rows(name, values.astype(np.float64), rows)
    good = np.isfinite(values) & (values >= least) & (values <= most) & (values > above)
    if not good.all():
        signs = ((">", above), (">=", least), ("<=", most))
        want = " and ".join(f"{sign} {border:g}" for sign, border in signs if math.isfinite(border))
        raise ValueError(f"{name}: got {values[~good][0]}; want a finite number {want}".rstrip())
    return values


def counts_per_row(name: str, x: Any, rows: tuple[int, ...]) -> NDArray[np.int64]:
    """One whole number >= 1 for each row on the host, int64."""
    values = np.asarray(x.get() if hasattr(x, "get") else x)
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name}: got dtype {values.dtype}; want integers")
    if values.size and values.min() < 1:
        raise ValueError(f"{name}: got {values.min()}; want a whole number >= 1")
    return _over_rows(name, values.astype(np.int64), rows)


def _over_rows(name: str, x: NDArray[Any], rows: tuple[int, ...]) -> NDArray[Any]:
    try:
        return np.ascontiguousarray(np.broadcast_to(x, rows))
    except ValueError:
        raise ValueError(f"{name}: got shape {x.shape}; want one that broadcasts to {rows}") from None
