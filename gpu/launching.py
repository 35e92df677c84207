"""Launching: arrays of NumPy or CuPy taken to where a kernel runs, and its results back to the library they came from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from .kernel import KERNELS, Kernel, Schedule, device

# Formats of the ports: the name of the dtype, and what C++ calls it.
CPP_TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
DEFAULT_SHARED = 48 * 1024                                                      # bytes; a kernel that wants more opts in
MOST_BLOCKS = (2**31 - 1, 65535, 65535)                                         # along x, y, z


@dataclass(frozen=True)
class Backend:
    """Where the kernels run: "cuda", or "emulated" with the emulator's own settings. Ports take the bare name too.

    name      "cuda" or "emulated"
    schedule  emulated: order of the threads, "in_order", "reversed" or a seed
    check     emulated: look for races, accesses out of bounds and so on; raises KernelFault
    kernels   folder of the .cu files
    """

    name: str = "cuda"
    schedule: Schedule = "in_order"
    check: bool = False
    kernels: Path = field(default=KERNELS)

    def __post_init__(self) -> None:
        if self.name not in ("cuda", "emulated"):
            raise ValueError(f"backend: got {self.name!r}; want 'cuda' or 'emulated'")


@lru_cache(maxsize=256)
def _kernel(path: Path, name: str, shared_mem: int) -> Kernel:
    return Kernel(path, name, max_shared_mem=max(shared_mem, DEFAULT_SHARED))


class Launcher:
    """One call of a port: the library its arrays came from, the one its kernels work on, and launches between the two.

    Raises RuntimeError for "cuda" without a device, ValueError for arrays of another library or of two.
    """

    def __init__(self, backend: str | Backend, **arrays: Any) -> None:
        self.backend = Backend(backend) if isinstance(backend, str) else backend
        cupy = sys.modules.get("cupy")
        self.from_cupy = {name for name, x in arrays.items() if cupy is not None and isinstance(x, cupy.ndarray)}
        if self.from_cupy and len(self.from_cupy) < len(arrays):
            raise ValueError(f"{', '.join(sorted(set(arrays) - self.from_cupy))}: got NumPy beside CuPy arrays; want one library")
        if self.backend.name == "emulated" and self.from_cupy:
            raise ValueError(f"{', '.join(sorted(self.from_cupy))}: got CuPy arrays; want NumPy arrays for backend='emulated'")
        self.library: Any = np if self.backend.name == "emulated" else device()

    def take(self, x: Any, dtype: str | None = None) -> Any:
        """x, contiguous, where the kernels run, in a dtype if one is asked for. bfloat16 from NumPy travels as its bits."""
        if isinstance(x, np.ndarray | np.generic | list | tuple):
            x = np.ascontiguousarray(x, None if dtype is None else np.dtype(getattr(ml_dtypes, dtype, dtype)))
            if self.library is np:
                return x
            return self.library.asarray(x.view(np.uint16) if x.dtype.name == "bfloat16" else x)
        return self.library.ascontiguousarray(x if dtype is None else x.astype(dtype))

    def new(self, shape: Sequence[int], dtype: str, fill: float | None = None) -> Any:
        """A new array where the kernels run; its content is open unless a fill is given."""
        as_bits = dtype == "bfloat16" and self.library is not np and not self.from_cupy
        kind = np.dtype(np.uint16) if as_bits else np.dtype(getattr(ml_dtypes, dtype, dtype))
        if fill is None:
            return self.library.empty(tuple(shape), kind)
        return self.library.full(tuple(shape), fill, kind)

    def give(self, x: Any, dtype: str) -> Any:
        """A result in the library of the caller's arrays."""
        if self.library is np or self.from_cupy:
            return x
        x = x.get()
        return x.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else x

    def launch(self, source: str, name: str, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], *, shared_mem: int = 0,
               outputs: Sequence[str] = ()) -> None:
        """Run a kernel on arrays of `take` and `new`; a grid without blocks is no launch. outputs: see `Kernel`."""
        if 0 in grid:
            return
        for axis, (count, most) in enumerate(zip(grid, MOST_BLOCKS)):
            if count > most:
                raise NotImplementedError(f"{name}: got {count} blocks along axis {axis} of the grid; a device has at most {most}")
        kernel = _kernel(self.backend.kernels / source, name, shared_mem)
        kernel(grid, block, args, shared_mem=shared_mem, backend=self.backend.name, schedule=self.backend.schedule,
               check=self.backend.check, outputs=outputs)


def ceil_div(n: int, d: int) -> int:
    """How many parts of size d cover n."""
    return -(-n // d)


def cpp_type(x: Any) -> str:
    """What C++ calls the format of an array that `arguments.floats` has passed."""
    return CPP_TYPES[x.dtype.name]
