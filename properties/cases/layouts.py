"""Layouts: the same values at other strides and offsets. Which values they are is not its business."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.reference import FloatFormat

LAYOUTS = ("contiguous", "transposed", "stepped", "offset")


def laid_out(x: NDArray[Any], layout: str) -> NDArray[Any]:
    """x `(..., H, L, D)`, its values unchanged, as a view into memory of another order.

        contiguous   rows one after another; x may have any shape, () too
        transposed   memory (..., L, H, D): what a projection leaves, seen with the heads in front
        stepped      every second row of a buffer twice as long
        offset       the middle columns of a wider buffer whose rows run backwards: an offset and a negative stride

    Whatever lies between is NaN (the largest number in a format without NaN): a kernel that ignores strides reads it.

    >>> laid_out(np.zeros((2, 3, 4), np.float32), "transposed").strides
    (16, 32, 4)

    Raises ValueError for a layout that is not in `LAYOUTS`. Exact.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout: got {layout!r}; want one of {', '.join(LAYOUTS)}")
    if layout == "contiguous":
        return np.asarray(x, order="C")                                         # ascontiguousarray would add an axis to a scalar
    if layout == "transposed":
        return np.ascontiguousarray(x.swapaxes(-3, -2)).swapaxes(-3, -2)
    *outer, L, D = x.shape
    fmt = FloatFormat(x.dtype.name)
    between = fmt.cast(np.nan if fmt.has_nan else fmt.max)
    if layout == "stepped":
        view = np.full((*outer, 2 * L + 1, D), between, dtype=x.dtype)[..., 1::2, :]
    else:
        view = np.full((*outer, L, D + 5), between, dtype=x.dtype)[..., ::-1, 3 : 3 + D]
    view[...] = x
    return view
