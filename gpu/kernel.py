"""Kernel: one CUDA C++ function, called the same way on a device (CuPy arrays) and emulated on the CPU (NumPy arrays)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).parent / "kernels"
BACKENDS = ("cuda", "emulated")
Schedule = str | int


class Kernel:
    """A `__global__` function of a source file.

    >>> softmax = Kernel("online_softmax.cu", "online_softmax<float, 128>")
    >>> softmax((rows,), (128,), (x, out, columns), backend="emulated", outputs=("out",))

    source      a path of a .cu file, or the name of one in gpu/kernels
    name        a function, or an instance of a template, such as "flash_forward<float, 64>"
    options     compiler options of both back ends: -D… and -I… alone
    parameters  the parameter list, where the source hides it behind macros: "const float* q, int n"
    max_shared_mem   dynamic shared memory it may ask for: over 48 KB is the opt-in that a device wants, up to 227 KB

    A call takes the arguments in the order of the C++ parameters, converted by `packing`: NumPy arrays (emulated) or CuPy arrays
    (cuda), Python or NumPy numbers, None for a null pointer. Arrays are passed by address and results are written in place.
    """

    def __init__(
        self, source: str | Path, name: str, *, options: Sequence[str] = (), parameters: str | None = None, max_shared_mem: int = 48 * 1024
    ) -> None:
        raise NotImplementedError

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_mem: int = 0, backend: str = "cuda",
        schedule: Schedule = "in_order", check: bool = False, outputs: Sequence[str] = (), seconds: float = 60.0,
    ) -> None:  # fmt: skip
        """Launch it and wait. The last four arguments are the emulator's; "cuda" takes no notice of them.

        shared_mem  bytes of dynamic shared memory
        schedule    order in which threads and blocks take turns: "in_order", "reversed", or the seed of a random order
        check       also look for races, accesses out of bounds, reads of memory nobody wrote, …
        outputs     names of parameters whose arrays hold nothing yet: they are filled with 0xFF bytes (NaN) before the launch
        seconds     time limit of the launch

        Raises TypeError or ValueError for arguments that do not fit, KernelFault for what the kernel did wrong, RuntimeError where
        there is no device (cuda), no g++ or no CUDA headers (emulated).
        """
        raise NotImplementedError
