"""Call: one port on arrays of a device, beside what PyTorch has for the same job, as device_timing times it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """One port on one set of arrays. work: bytes it must move, or floating-point operations, as `unit` says."""

    name: str
    port: Callable[[], Any]
    torch: Callable[[], Any] | None
    work: float
    unit: str
