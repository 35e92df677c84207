"""How long the oracle's allocator takes for a million operations of a serving trace.

Nothing here can fail for being slow. Prints operations, seconds on the clock and of one processor:

    OPENBLAS_NUM_THREADS=1 python tests/benchmarks/test_paging_speed.py

and under pytest-benchmark:

    OPENBLAS_NUM_THREADS=1 pytest tests/benchmarks/test_paging_speed.py --benchmark-enable
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np

from oracles.reference import BlockAllocator, OutOfBlocks

OPERATIONS = 1_000_000
RUNNING = 64                                                                    # sequences decoded side by side


def serve(operations: int, *, num_blocks: int = 4096, block_size: int = 16, seed: int = 0) -> Counter[str]:
    """Requests with shared system prompts, decoded token by token, committed, forked, cut, freed: how often each operation came."""
    r = np.random.default_rng(seed)
    prompts = [r.integers(0, 32_000, 128) for _ in range(8)]
    pool, counts = BlockAllocator(num_blocks, block_size), Counter[str]()
    lengths: dict[int, int] = {}
    names = iter(range(operations))
    while counts.total() < operations:
        while len(lengths) < RUNNING:
            seq, tokens = next(names), np.concatenate([prompts[int(r.integers(8))], r.integers(0, 32_000, int(r.integers(1, 64)))])
            pool.allocate(seq, tokens)
            pool.commit(seq, len(tokens))
            lengths[seq] = len(tokens)
            counts.update(["allocate", "commit"])
        for seq in list(lengths):
            try:
                pool.append(seq, int(seq) % 32_000)
                lengths[seq] += 1
            except OutOfBlocks:
                lengths[seq] = 10**9                                            # preempted below
            counts["append"] += 1
            if lengths[seq] % block_size == 0:
                pool.commit(seq, lengths[seq])
                counts["commit"] += 1
            if lengths[seq] > 256:
                pool.free(seq)
                del lengths[seq]
                counts["free"] += 1
        chosen = next(iter(lengths), None)
        if chosen is not None and counts["fork"] * 200 < counts.total():
            child = next(names)
            pool.fork(chosen, child)
            pool.truncate(child, lengths[chosen] - 1)
            lengths[child] = lengths[chosen] - 1
            counts.update(["fork", "truncate"])
    return counts


def test_speed_of_a_serving_trace(benchmark: Any) -> None:
    assert benchmark.pedantic(serve, (20_000,), rounds=3).total() >= 20_000


if __name__ == "__main__":
    start, cpu = time.perf_counter(), time.process_time()
    done = serve(OPERATIONS)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"{done.total():,} operations in {seconds:.2f} s ({cpu:.2f} s of one processor), {done.total() / cpu:,.0f} a second: "
          + ", ".join(f"{name} {count:,}" for name, count in done.most_common()))  # fmt: skip
