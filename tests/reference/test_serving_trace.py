"""A served trace: every figure counted a second time, and what must hold of any trace."""

from __future__ import annotations

import pytest

from oracles.reference import BlockAllocator
from oracles.reference.serving_trace import Request, draw_requests, serve_contiguous, serve_paged

TRACE = draw_requests(120, seed=1, system_prompts=3, system_length=20, prompt_length=10, output_length=12)
PLAIN = [Request(tuple(range(10 * i, 10 * i + 6)), b"", 4, 1, None) for i in range(5)]


def generated(trace: list[Request]) -> int:
    return sum(request.samples * request.generated for request in trace)


def test_the_same_seed_draws_the_same_requests_and_another_seed_others() -> None:
    assert draw_requests(120, seed=1, system_prompts=3, system_length=20, prompt_length=10, output_length=12) == TRACE
    assert draw_requests(120, seed=2, system_prompts=3, system_length=20, prompt_length=10, output_length=12) != TRACE
    assert {request.samples for request in TRACE} >= {1, 2}
    assert any(request.abort is not None for request in TRACE)


def test_a_trace_of_equal_requests_by_hand() -> None:
    """Five sequences of 6 + 4 tokens, 24 slots in blocks of 4: three prompts of 2 blocks fit at once, but only two whole sequences."""
    served = serve_paged(PLAIN, slots=24, block_size=4)
    assert served.peak == 3
    assert served.preemptions > 0
    contiguous = serve_contiguous(PLAIN, slots=24, max_length=12)
    assert (contiguous.peak, contiguous.steps) == (2, 15)                       # 3 rounds of 4 tokens and of a step to leave in
    assert contiguous.waste == (5 * (5 + 4 + 3 + 2)) / (5 * 4 * 12)             # 7 to 10 of 12 slots hold something


def test_no_block_size_wastes_as_much_as_a_stretch_and_single_slots_waste_nothing() -> None:
    served = [serve_paged(TRACE, slots=1024, block_size=size) for size in (1, 4, 16, 64)]
    contiguous = serve_contiguous(TRACE, slots=1024, max_length=256)
    assert served[0].waste == 0.0
    wastes = [one.waste for one in served]
    assert wastes == sorted(wastes)
    assert wastes[-1] < contiguous.waste
    assert all(one.running > contiguous.running for one in served)
    entries = [one.table_entries for one in served]
    assert entries == sorted(entries, reverse=True)


@pytest.mark.parametrize("block_size", [1, 16])
def test_every_token_is_generated_once_whatever_is_preempted(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens appended, counted at the allocator: a preempted sequence computes its tokens anew and does not draw them anew."""
    calls = []
    append = BlockAllocator.append
    monkeypatch.setattr(BlockAllocator, "append", lambda pool, seq, token: (append(pool, seq, token), calls.append(token))[0])
    served = serve_paged(TRACE, slots=512, block_size=block_size)
    assert served.preemptions > 0
    assert len(calls) == len(set(calls)) == generated(TRACE)


def test_a_pool_that_holds_everything_never_preempts_nor_evicts() -> None:
    served = serve_paged(TRACE, slots=2**16, block_size=16)
    assert (served.preemptions, served.evictions) == (0, 0)
    assert served.peak == sum(request.samples for request in TRACE if request.generated)


def test_blocks_come_back_when_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = []
    start = BlockAllocator.__init__
    monkeypatch.setattr(BlockAllocator, "__init__", lambda pool, *a, **k: (pools.append(pool), start(pool, *a, **k))[1])
    serve_paged(TRACE, slots=512, block_size=8)
    assert pools[0].stats()["used"] == 0


def test_salts_keep_tenants_apart() -> None:
    shared = [Request(tuple(range(16)), b"", 1, 1, None)] * 2
    apart = [Request(tuple(range(16)), salt, 1, 1, None) for salt in (b"a", b"b")]
    assert serve_paged(shared, slots=128, block_size=4).hit_rate == 0.5
    assert serve_paged(apart, slots=128, block_size=4).hit_rate == 0.0


def test_a_request_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slots: got 8 in blocks of 4; want room for the longest request, 10 tokens"):
        serve_paged(PLAIN, slots=8, block_size=4)
    with pytest.raises(ValueError, match="max_length: got 8 with 64 slots; want 10, the longest request, to 64"):
        serve_contiguous(PLAIN, slots=64, max_length=8)
