"""Slots reserved and not used, counted one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from oracles.reference import BlockAllocator, paging_waste

LENGTHS = np.random.default_rng(0).integers(0, 200, size=30)


@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_paged_slots_are_those_an_allocator_takes(block_size: int) -> None:
    pool = BlockAllocator(10_000, block_size, prefix_caching=False)
    for seq, n in enumerate(LENGTHS):
        pool.allocate(seq, np.zeros(n, np.int64))
    waste = paging_waste(LENGTHS, block_size=block_size, max_length=2048)
    assert waste.table_entries == pool.stats()["used"] == sum(len(pool.table(seq)) for seq in range(30))
    assert waste.paged_slots == waste.table_entries * block_size
    assert waste.tokens == LENGTHS.sum()
    assert waste.contiguous_slots == 30 * 2048


def test_waste_is_less_than_a_block_a_sequence_and_grows_with_the_block() -> None:
    wastes = [paging_waste(LENGTHS, block_size=2**e, max_length=2048) for e in range(9)]
    assert wastes[0].paged_waste == 0.0
    assert all(w.paged_slots - w.tokens < 30 * 2**e for e, w in enumerate(wastes))
    assert all(a.paged_waste <= b.paged_waste for a, b in itertools.pairwise(wastes))
    assert all(a.table_entries >= b.table_entries for a, b in itertools.pairwise(wastes))
    assert wastes[0].contiguous_waste == 1.0 - LENGTHS.sum() / (30 * 2048)


def test_no_sequences_waste_nothing() -> None:
    waste = paging_waste([], block_size=16, max_length=0)
    assert (waste.paged_waste, waste.contiguous_waste) == (0.0, 0.0)


def test_a_length_past_the_greatest_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lengths: got numbers from 3 to 9; want 0\.\.8"):
        paging_waste([3, 9], block_size=4, max_length=8)
