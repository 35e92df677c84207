"""Strides: copies of an array that keep, or take on, a given memory order, with poison in the gaps between elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .safetensors_file import Array


def in_elements(array: Array) -> tuple[int, ...] | None:
    """The strides in elements, or None for an array in plain C order."""
    return None if array.flags.c_contiguous else tuple(stride // array.itemsize for stride in array.strides)


def strided_copy(array: Array, strides: Sequence[int] | None) -> Array:
    """A copy with the given strides in elements (None: C order), negative ones allowed; floats have NaN in the gaps.

    Raises ValueError where the strides make elements overlap that differ (a broadcast array stays one).
    """
    if strides is None or array.size == 0:
        return np.array(array, order="C")
    reach = [(n - 1) * stride for n, stride in zip(array.shape, strides)]
    lowest, highest = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    base = np.zeros(highest - lowest + 1, array.dtype)
    if array.dtype.kind not in "biu":
        base[:] = np.nan
    # Not by as_strided, which knows no type of 8 bits: float8_e5m2 is '<f1' to it.
    offset, steps = -lowest * array.itemsize, [stride * array.itemsize for stride in strides]
    view: Array = np.ndarray(array.shape, array.dtype, base.view(np.uint8), offset, steps)
    view[...] = array
    if view.tobytes() != array.tobytes():
        raise ValueError(f"strides: got {tuple(strides)} for shape {array.shape}; want strides that keep different elements apart")
    return view
