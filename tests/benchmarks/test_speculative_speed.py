"""How long verification takes over a large vocabulary, and how long exact laws take.

Nothing here can fail for being slow. One thread, medians of 5:

    OPENBLAS_NUM_THREADS=1 python tests/benchmarks/test_speculative_speed.py

and under pytest-benchmark:

    OPENBLAS_NUM_THREADS=1 pytest tests/benchmarks/test_speculative_speed.py --benchmark-enable
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties.exact_law import chain, completed, exact_law
from oracles.properties.random_models import random_models
from oracles.reference import filter_probabilities, speculative_verify, verify_block

V = 32_000
BATCHES = [(256, 1), (64, 4), (256, 4)]                                         # rows, drafts in each
REPEATS = 5


def batch(B: int, K: int, dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
    r = np.random.default_rng(0)
    rows = filter_probabilities(r.normal(size=(8, V)) * 3).astype(dtype)
    q, p = rows[r.integers(0, 8, (B, K))], rows[r.integers(0, 8, (B, K + 1))]
    return r.integers(0, V, (B, K)), q, p, r.random((B, K)), r.random(B)


@pytest.mark.parametrize("verify", [speculative_verify, verify_block])
def test_speed_of_a_batch_over_a_large_vocabulary(benchmark: Any, verify: Callable[..., Any]) -> None:
    arrays = batch(16, 2)
    tokens, _ = benchmark(verify, *arrays)
    assert tokens.shape == (16, 3)


def test_speed_of_an_exact_law(benchmark: Any) -> None:
    draft, target = random_models(4, 0)
    law = benchmark(exact_law, draft, target, k=3)
    assert completed(law, target, 4) == chain(target, 4)


def median(call: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    for B, K in BATCHES:
        arrays = batch(B, K)
        for verify in (speculative_verify, verify_block):
            print(f"{verify.__name__:20s} {B} rows, {K} drafts, V = {V}, float32: {median(lambda v=verify, a=arrays: v(*a)):.3f} s")
    draft, target = random_models(4, 0)
    print(f"exact_law            V = 4, k = 3: {median(lambda: exact_law(draft, target, k=3)):.3f} s")


if __name__ == "__main__":
    main()
