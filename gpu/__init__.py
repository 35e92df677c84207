"""CUDA kernels and what runs them: `Kernel` on a device (CuPy) or emulated on the CPU, from one source."""

from __future__ import annotations

from .emulator.faults import KernelFault
from .kernel import Kernel

__all__ = ["Kernel", "KernelFault"]
