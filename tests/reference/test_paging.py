"""The allocator's conventions one by one, what raises, and how fast it is; beside a plain model next door."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import pytest

from oracles.reference import BlockAllocator, OutOfBlocks, paging

pytestmark = pytest.mark.filterwarnings("error")


def test_a_child_is_not_found_behind_a_parent_of_equal_hash(monkeypatch: Any) -> None:
    """The hash of a block's parent is equal, its tokens are too, and yet what stands before them is not."""
    monkeypatch.setattr(paging, "_chain_hash", lambda parent, tokens: 1 if tokens in ((1, 1), (2, 2)) else hash((parent, tokens)))
    pool = BlockAllocator(8, 2)
    pool.allocate("a", [1, 1, 3, 3])
    pool.commit("a", 4)
    pool.truncate("a", 1)
    pool.append("a", 9)                                                         # (1, 1) is published no more, (3, 3) behind it is
    pool.allocate("b", [2, 2])
    pool.commit("b", 2)
    assert len(pool.match_prefix([2, 2])) == 1
    assert len(pool.match_prefix([2, 2, 3, 3])) == 1
    pool.allocate("c", [1, 1])
    assert pool.match_prefix([1, 1, 3, 3]) == []


def everything(pool: BlockAllocator) -> Any:
    """The whole state, hidden parts included, in plain values."""
    names = ("_references", "_published", "_free", "_cached", "_hits", "_evictions", "_content")
    return [copy.copy(getattr(pool, name)) for name in names] + [
        {seq: (s.tokens.copy(), s.blocks.copy(), s.contents.copy(), s.committed) for seq, s in pool._sequences.items()}]


def full_pool() -> BlockAllocator:
    pool = BlockAllocator(4, 2)
    pool.allocate("a", [1, 2, 3, 4])
    pool.commit("a", 4)
    pool.allocate("b", [1, 2, 5])
    pool.fork("b", "c")
    pool.allocate("d", [6])
    return pool


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda p: p.allocate("e", [1, 2, 9]), OutOfBlocks, "seq: got a need of 1 blocks with 0 free and 0 cached ones to give; want no more"),
    (lambda p: p.append("a", 1), OutOfBlocks, "need of 1 blocks"),
    (lambda p: p.append("c", 1), OutOfBlocks, "need of 1 blocks"),
    (lambda p: p.allocate("a", []), ValueError, "seq: got 'a', which is in use; want a new one"),
    (lambda p: p.fork("a", "b"), ValueError, "seq: got 'b', which is in use"),
    (lambda p: p.fork("e", "f"), ValueError, "seq: got 'e', which is unknown; want one that was allocated or forked"),
    (lambda p: p.free("e"), ValueError, "seq: got 'e', which is unknown"),
    (lambda p: p.append("e", 1), ValueError, "seq: got 'e', which is unknown"),
    (lambda p: p.table("e"), ValueError, "seq: got 'e', which is unknown"),
    (lambda p: p.commit("a", 5), ValueError, r"n: got 5 for a sequence of 4 tokens; want 0\.\.4"),
    (lambda p: p.truncate("a", 5), ValueError, "n: got 5 for a sequence of 4 tokens"),
    (lambda p: p.truncate("a", -1), ValueError, "n: got -1; want a whole number >= 0"),
    (lambda p: p.evict(-1), ValueError, "n: got -1"),
    (lambda p: p.append("a", 1.5), TypeError, r"token: got 1\.5; want a whole number"),
    (lambda p: p.allocate("e", [1.5]), TypeError, "tokens: got dtype float64; want integers"),
    (lambda p: p.allocate("e", [[1]]), ValueError, r"tokens: got shape \(1, 1\); want one axis"),
    (lambda p: p.match_prefix([1], salt="x"), TypeError, "salt: got 'x'; want bytes"),
])
def test_what_raises_changes_nothing(call: Any, error: type[Exception], words: str) -> None:
    pool = full_pool()
    before = everything(pool)
    with pytest.raises(error, match=words):
        call(pool)
    assert everything(pool) == before


def test_a_freed_sequence_is_unknown_and_cannot_be_freed_again() -> None:
    pool = full_pool()
    pool.free("b")
    with pytest.raises(ValueError, match="seq: got 'b', which is unknown"):
        pool.free("b")


def test_a_hash_is_not_found_before_its_data_are_committed() -> None:
    pool = BlockAllocator(8, 2)
    pool.allocate("a", [1, 2, 3, 4])
    assert pool.match_prefix([1, 2, 3, 4]) == []
    pool.commit("a", 3)
    assert pool.match_prefix([1, 2, 3, 4]) == pool.table("a")[:1]


def test_a_full_hit_is_legal_and_found_again() -> None:
    """vllm-project/vllm#17999: who computes the last token again must find the same blocks the third time."""
    pool = BlockAllocator(8, 4)
    pool.allocate(0, range(8))
    pool.commit(0, 8)
    for seq in (1, 2):
        assert pool.allocate(seq, range(8)) == 8
        pool.commit(seq, 8)
        assert pool.table(seq) == pool.table(0)
    assert pool.stats()["hits"] == 4


def test_blocks_that_are_found_are_not_also_room() -> None:
    """vllm-project/vllm#6849: ten blocks wanted, eight of them cached, and no other block free."""
    pool = BlockAllocator(8, 1)
    pool.allocate("a", range(8))
    pool.commit("a", 8)
    pool.free("a")
    with pytest.raises(OutOfBlocks, match="a need of 2 blocks with 0 free and 0 cached ones to give"):
        pool.allocate("b", range(10))
    assert pool.allocate("c", range(8)) == 8


def test_a_block_taken_for_other_tokens_is_not_found_by_the_old_ones() -> None:
    """vllm-project/vllm#4764."""
    pool = BlockAllocator(2, 2)
    pool.allocate("a", [1, 2, 3, 4])
    pool.commit("a", 4)
    pool.free("a")
    pool.allocate("b", [5, 6, 7])
    assert pool.match_prefix([1, 2]) == []
    assert pool.stats()["evictions"] == 2


def test_of_blocks_freed_together_the_tail_is_evicted_first() -> None:
    pool = BlockAllocator(3, 1)
    pool.allocate("a", [1, 2, 3])
    pool.commit("a", 3)
    table = pool.table("a")
    pool.free("a")
    assert pool.evict(2) == table[:0:-1]
    assert pool.match_prefix([1, 2, 3]) == table[:1]


def test_a_salt_keeps_equal_tokens_apart() -> None:
    pool = BlockAllocator(4, 2)
    pool.allocate("a", [1, 2], salt=b"adapter 1")
    pool.commit("a", 2)
    assert pool.match_prefix([1, 2], salt=b"adapter 1") == pool.table("a")
    assert pool.match_prefix([1, 2], salt=b"adapter 2") == pool.match_prefix([1, 2]) == []


def test_a_block_is_found_again_when_what_stands_before_it_is_computed_again() -> None:
    """The chain is of values, not of blocks: a new copy of the first block leads to the old second one."""
    pool = BlockAllocator(4, 2)
    pool.allocate("a", [1, 1, 2, 2])
    pool.commit("a", 4)
    second = pool.table("a")[1]
    pool.truncate("a", 1)
    pool.append("a", 9)                                                         # the first block is written into
    assert pool.match_prefix([1, 1, 2, 2]) == []
    pool.allocate("b", [1, 1])
    pool.commit("b", 2)
    assert pool.match_prefix([1, 1, 2, 2]) == [*pool.table("b"), second]


def test_a_pin_keeps_blocks_from_being_given_away() -> None:
    """vllm-project/vllm#52360: freed while a copy still ran, and filled by another."""
    pool = BlockAllocator(2, 2)
    pool.allocate("a", [1, 2])
    pool.fork("a", ("store", 1))
    pool.free("a")
    pool.allocate("b", [3])
    assert not set(pool.table("b")) & set(pool.table(("store", 1)))
    pool.free(("store", 1))
    assert pool.stats()["free"] == 1


def test_an_empty_sequence_holds_no_block() -> None:
    pool = BlockAllocator(1, 4)
    assert pool.allocate("a", []) == 0
    assert pool.table("a") == []
    assert pool.append("a", 7) is None
    assert pool.table("a") == [0]


def test_tables_are_copies() -> None:
    pool = full_pool()
    pool.table("a").clear()
    assert len(pool.table("a")) == 2


def million_calls(calls: int = 1_000_000) -> float:
    """Seconds for that many calls in the mix of a server: 1 allocation, 1 release, 96 appended tokens, 6 commits, now and then a fork."""
    pool, r = BlockAllocator(4096, 16), np.random.default_rng(0)
    prompts = [[*range(64), *r.integers(0, 9, size=n).tolist()] for n in r.integers(1, 64, size=50)]
    live: list[int] = []
    start, done, seq = time.process_time(), 0, 0
    while done < calls:
        if len(live) >= 100:
            pool.free(live.pop(0))
        pool.allocate(seq, prompts[seq % 50])
        n = len(prompts[seq % 50])
        for i in range(96):
            pool.append(seq, i)
            if i % 16 == 15:
                pool.commit(seq, n + i + 1)
        live.append(seq)
        if seq % 8 == 0:
            pool.fork(seq, -seq - 1)
            pool.append(-seq - 1, 0)
            pool.free(-seq - 1)
        seq, done = seq + 1, done + 104
    return time.process_time() - start


@pytest.mark.long
def test_a_million_calls_take_less_than_ten_seconds() -> None:
    assert million_calls() < 10.0
