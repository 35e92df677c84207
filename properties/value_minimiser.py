"""Value minimiser: plainer numbers in a case that fails, its structure left as it is. Structure is `shrinking`'s business."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.reference import FloatFormat

from .case import Case
from .case_source import unchanged
from .regimes import in_format
from .shrinking import Deadline

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Region = tuple[slice, ...]


def minimise_values(case: Case, fails: Callable[[Case], bool], *, until: Deadline, complete: Callable[[Case], Case] = unchanged) -> Case:
    """A case of the same structure with plainer numbers that still fails, found in time.

    Each of these is kept where `fails` still holds, first on whole arrays, then on halves, quarters, ... down to
    elements: zero; the nearest integer; the nearest power of two; three significant bits. `complete` computes anew what
    follows from the other arrays (out and lse of a backward pass) before `fails` is asked.

    Integers, booleans, NaN and infinities are never touched; strides and offsets stay. The result depends on the clock
    only where the time is over.
    """
    for whole in (True, False):
        for plainer in (_zero, _integer, _power_of_two, _three_bits):
            everything = [(name, region) for name in sorted(case.arrays) for region in _everything(case.arrays[name])]
            regions = deque(everything if whole else [(name, half) for name, region in everything for half in _halves(region)])
            while regions:
                name, region = regions.popleft()
                array = _replaced(case.arrays[name], region, plainer)
                if array is None:
                    continue
                candidate = complete(case.with_arrays(**{name: array}))
                if candidate.hash == case.hash:
                    continue                                       # `complete` has put back what was changed
                if until.over():
                    return case
                if fails(candidate):
                    case = candidate
                elif not whole:
                    regions.extend((name, half) for half in _halves(region))
    return case


def _zero(x: Float64) -> Float64:
    return np.zeros_like(x)


def _integer(x: Float64) -> Float64:
    return np.rint(x)


def _power_of_two(x: Float64) -> Float64:
    fraction, exponent = np.frexp(x)                               # |fraction| in [1/2, 1)
    return np.asarray(np.ldexp(np.sign(fraction) * np.where(np.abs(fraction) < 0.75, 0.5, 1.0), exponent))


def _three_bits(x: Float64) -> Float64:
    fraction, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(8 * fraction) / 8, exponent))


def _everything(array: Array) -> Iterator[Region]:
    """The one region that is all of a floating-point array; none for integers and booleans."""
    if array.dtype.kind not in "biu" and array.size:
        yield tuple(slice(0, n) for n in array.shape)


def _halves(region: Region) -> Iterator[Region]:
    """A region cut in two along its first axis of more than one entry; nothing for a single element."""
    for axis, part in enumerate(region):
        if part.stop - part.start > 1:
            middle = (part.start + part.stop) // 2
            yield (*region[:axis], slice(part.start, middle), *region[axis + 1:])
            yield (*region[:axis], slice(middle, part.stop), *region[axis + 1:])
            return


def _replaced(array: Array, region: Region, plainer: Callable[[Float64], Float64]) -> Array | None:
    """A copy with plainer finite numbers in a region, or None where that changes nothing."""
    old = array[region].astype(np.float64)
    finite = np.isfinite(old)
    with np.errstate(over="ignore"):
        numbers = plainer(np.where(finite, old, 0.0))
    new = np.where(finite, in_format(numbers, FloatFormat(array.dtype.name)).astype(np.float64), old)
    if np.array_equal(new, old, equal_nan=True):
        return None
    copy = _copy_in_place(array)
    copy[region] = new.astype(array.dtype)
    return copy


def _copy_in_place(array: Array) -> Array:
    """A copy with the same strides and the same surroundings in memory, where those are one contiguous block."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if root is array or not root.flags.c_contiguous:
        return array.copy()
    offset = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    memory = np.frombuffer(bytearray(root.tobytes()), dtype=np.uint8)
    return np.ndarray(array.shape, array.dtype, memory, offset, array.strides)
