"""How long tiled attention takes beside its own two matrix products, and how long the oracles take to import.

Nothing here can fail for being slow. The ratios, one thread, float64, one head, L = 2,048, D = 64, medians of 15:

    OPENBLAS_NUM_THREADS=1 python tests/benchmarks/test_flash_attention_speed.py

and under pytest-benchmark:

    OPENBLAS_NUM_THREADS=1 pytest tests/benchmarks/test_flash_attention_speed.py --benchmark-enable
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from oracles.reference import attention, flash_attention

L, D, REPEATS = 2048, 64, 15
TILES = [(64, 256), (128, 128), (128, 256), (128, 512), (256, 128), (256, 256)]
DTYPES = [np.float64, np.float32]


def arrays(dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r = np.random.default_rng(0)
    q, k, v = (r.normal(size=(1, 1, L, D)).astype(dtype) for _ in range(3))
    return q, k, v


def two_products(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """What no attention can do without: q k^T and p v."""
    return np.asarray((q[0, 0] @ k[0, 0].T) @ v[0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_time_of_the_two_products(benchmark: Any, dtype: Any) -> None:
    benchmark(two_products, *arrays(dtype))


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_time_of_flash_attention(benchmark: Any, dtype: Any, tiles: tuple[int, int]) -> None:
    benchmark(flash_attention, *arrays(dtype), causal=None, block_q=tiles[0], block_k=tiles[1])


def test_time_of_the_textbook_oracle(benchmark: Any) -> None:
    benchmark(attention, *arrays(np.float64), causal=None)


def test_time_to_import_the_oracles(benchmark: Any) -> None:
    benchmark(subprocess.run, [sys.executable, "-c", "import oracles.reference"], check=True)


def medians(calls: list[Callable[[], Any]]) -> list[float]:
    """Median seconds of each call, taken in turns so that a busy machine slows all of them alike."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for call, taken in zip(calls, seconds):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def import_seconds(before: str) -> float:
    """Median seconds of `import oracles.reference` in a fresh process that has imported the modules named."""
    program = f"import time, {before}; start = time.perf_counter(); import oracles.reference; print(time.perf_counter() - start)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True) for _ in range(5)]
    return statistics.median(float(run.stdout) for run in runs)


def main() -> None:
    for dtype in DTYPES:
        q, k, v = arrays(dtype)
        calls: list[Callable[[], Any]] = [partial(two_products, q, k, v), partial(attention, q, k, v, causal=None)]
        calls += [partial(flash_attention, q, k, v, causal=None, block_q=a, block_k=b) for a, b in TILES]
        products, naive, *tiled = medians(calls)
        print(f"{np.dtype(dtype)}: two products {products * 1e3:.1f} ms, textbook oracle {naive / products:.2f} times that")
        for (a, b), taken in zip(TILES, tiled):
            print(f"    flash_attention, tiles {a:3} x {b:3}: {taken * 1e3:6.1f} ms, {taken / products:.2f} times the two products")
    whole, own = import_seconds("sys"), import_seconds("numpy, ml_dtypes")
    print(f"import oracles.reference: {whole * 1e3:.0f} ms, {own * 1e3:.0f} of them not NumPy's or ml_dtypes'")


if __name__ == "__main__":
    main()
