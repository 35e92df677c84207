"""Emulated device memory: copies of the arguments' arrays, aligned as cudaMalloc does, with a guarded gap around each."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

ALIGNMENT, GAP = 256, 4096                                                      # bytes
GUARD = 0xCB


class DeviceMemory:
    """Arrays that overlap stay overlapping, and a view keeps its offset within its allocation. On exit results are copied back."""

    def __init__(self, arrays: Sequence[Any], fill: Sequence[Any]) -> None:
        """fill: arrays that hold nothing yet: their copies are filled with 0xFF bytes, which are NaN in every float format."""
        self._arrays = [array for array in arrays if array.nbytes]
        self._runs = _merged([(array.ctypes.data, array.ctypes.data + array.nbytes) for array in self._arrays])
        total = sum(end - start + GAP + 2 * ALIGNMENT for start, end in self._runs) + 2 * GAP
        self._memory = np.full(total, GUARD, np.uint8)
        self._places: list[int] = []                                            # of each run, in self._memory
        at = GAP
        for start, end in self._runs:
            base = self._memory.ctypes.data
            at += -(base + at) % ALIGNMENT + self._offset_in_allocation(start)
            self._places.append(at)
            ctypes.memmove(base + at, start, end - start)
            at += end - start + GAP
        for array in fill:
            if array.nbytes:
                ctypes.memset(self.address(array), 0xFF, array.nbytes)

    def __enter__(self) -> DeviceMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        writeable = _merged([(a.ctypes.data, a.ctypes.data + a.nbytes) for a in self._arrays if a.flags.writeable])
        for start, end in writeable:
            ctypes.memmove(start, self._translated(start), end - start)

    def address(self, array: Any) -> int:
        """Where an array's copy lies; an empty array has an address nobody may read."""
        return self._translated(array.ctypes.data) if array.nbytes else self._memory.ctypes.data

    def overrun(self) -> Any:
        """The array beside which a guarded byte was changed, or None."""
        previous_end = 0
        for index, ((start, end), place) in enumerate(zip(self._runs, self._places)):
            following = self._places[index + 1] if index + 1 < len(self._places) else len(self._memory)
            gap_before, gap_after = self._memory[previous_end:place], self._memory[place + end - start : following]
            # A gap between two arrays is blamed on the nearer one.
            if np.any(gap_before[-GAP // 2 :] != GUARD) or np.any(gap_after[: GAP // 2] != GUARD):
                return next(a for a in self._arrays if start <= a.ctypes.data < end)
            previous_end = place + end - start
        return None

    def _translated(self, address: int) -> int:
        for (start, end), place in zip(self._runs, self._places):
            if start <= address < end:
                return int(self._memory.ctypes.data + place + address - start)
        raise KeyError(address)

    def _offset_in_allocation(self, start: int) -> int:
        array = next(a for a in self._arrays if a.ctypes.data == start)
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        return int((array.ctypes.data - root.ctypes.data) % ALIGNMENT)


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Overlapping spans joined, in order."""
    joined: list[list[int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([start, end])
    return [(start, end) for start, end in joined]
