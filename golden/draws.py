"""Draws: numbers for golden inputs made of a generator's raw integers alone, so that any machine draws the same bits."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.reference import FloatFormat

Array = NDArray[Any]
Int64 = NDArray[np.int64]
DTYPES = ("float64", "float32", "bfloat16", "float16")


def raw(name: str, count: int) -> NDArray[np.uint64]:
    """`count` integers of 64 bits: PCG64 seeded with the first 16 bytes of the SHA-256 of `name`."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    return np.asarray(np.random.PCG64(seed).random_raw(count), dtype=np.uint64)


def bell(name: str, shape: tuple[int, ...]) -> Int64:
    """Integers about 0 with standard deviation 37,837: the sum of the four 16-bit parts of a raw integer, less its mean rounded down."""
    r = raw(name, int(np.prod(shape)))
    parts = sum((r >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4))
    return (np.asarray(parts, dtype=np.int64) - 131070).reshape(shape)


def whole(name: str, shape: tuple[int, ...], low: int, high: int) -> Int64:
    """Integers from low to high - 1; the remainder of a raw integer, which leans by less than 2^-40 for ranges below 2^24."""
    r = raw(name, int(np.prod(shape))) % np.uint64(high - low)
    return r.astype(np.int64).reshape(shape) + low


def normal(name: str, shape: tuple[int, ...], dtype: str, *, exponent: int = 0) -> Array:
    """Numbers about 0 with standard deviation 1.15 * 2^exponent, rounded once to the format: `bell` times 2^(exponent - 15).

    In float64 a second draw fills the lower half of the significand.
    """
    x = np.ldexp(bell(name, shape).astype(np.float64), exponent - 15)
    if dtype == "float64":
        x = x + np.ldexp(bell(f"{name} low", shape).astype(np.float64), exponent - 50)
    return np.asarray(FloatFormat(dtype).cast(x))
