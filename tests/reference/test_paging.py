"""The allocator beside a plain model: every call by what it may change, what it must find, and whose data a table leads to."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import pytest

from oracles.reference import BlockAllocator, OutOfBlocks, paging

pytestmark = pytest.mark.filterwarnings("error")
SALTS = [b"", b"x"]


class Model:
    """What the pool must be, without hashes, free lists or counts: tokens of sequences, and a memory that the caller writes.

    memory[block][offset]   the token whose data stand there, or None
    kept[block]             (salt, all tokens up to the end of the block) once published
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.pool = BlockAllocator(num_blocks, block_size, prefix_caching=prefix_caching)
        self.size = block_size
        self.tokens: dict[int, list[int]] = {}
        self.salt: dict[int, bytes] = {}
        self.committed: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.memory: list[list[Any]] = [[None] * block_size for _ in range(num_blocks)]
        self.kept: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        self.order: list[int] = []                                              # of blocks unused and kept, the oldest first

    def used(self) -> set[int]:
        return {block for table in self.tables.values() for block in table}

    def must_find(self, salt: bytes, tokens: list[int]) -> list[int]:
        found: list[int] = []
        for end in range(self.size, len(tokens) + 1, self.size):
            here = [block for block, content in self.kept.items() if content == (salt, tuple(tokens[:end]))]
            if not here:
                break
            found += here
        return found

    def took(self, before: set[int], new: list[int]) -> None:
        """New blocks came from the free ones first, then from the kept ones in order."""
        free = set(range(len(self.memory))) - before - set(self.order)
        assert len(set(new)) == len(new)
        expected = min(len(new), len(free))
        assert set(new[:expected]) <= free
        assert new[expected:] == self.order[: len(new) - expected]
        for block in new:
            self.memory[block] = [None] * self.size
            self.kept.pop(block, None)
            if block in self.order:
                self.order.remove(block)

    def let_go(self, blocks: list[int]) -> None:
        """Called after the tables changed, for blocks in table order: the tail is the older one."""
        self.order += [block for block in reversed(blocks) if block not in self.used() and block in self.kept]

    def write(self, seq: int, first: int) -> None:
        for t in range(first, len(self.tokens[seq])):
            self.memory[self.tables[seq][t // self.size]][t % self.size] = self.tokens[seq][t]

    def allocate(self, seq: int, tokens: list[int], salt: bytes) -> None:
        expected = self.must_find(salt, tokens)
        assert self.pool.match_prefix(tokens, salt=salt) == expected
        need = -(-len(tokens) // self.size) - len(expected)
        room = len(self.memory) - len(self.used() | set(expected))
        if need > room:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(seq, tokens, salt=salt)
            return
        before = self.used()
        assert self.pool.allocate(seq, tokens, salt=salt) == len(expected) * self.size
        table = self.pool.table(seq)
        assert table[: len(expected)] == expected
        self.order = [block for block in self.order if block not in expected]
        self.took(before | set(expected), table[len(expected) :])
        self.tokens[seq], self.salt[seq], self.tables[seq] = list(tokens), salt, table
        self.committed[seq] = len(expected) * self.size
        self.write(seq, len(expected) * self.size)

    def append(self, seq: int, token: int) -> None:
        n, table = len(self.tokens[seq]), self.tables[seq]
        shared = n % self.size and sum(table[-1] in other for other in self.tables.values()) > 1
        if (n % self.size == 0 or shared) and len(self.used()) == len(self.memory):
            with pytest.raises(OutOfBlocks):
                self.pool.append(seq, token)
            return
        before, moved = self.used(), self.pool.append(seq, token)
        new = self.pool.table(seq)
        assert (moved is not None) == bool(shared)
        if moved:
            assert moved == (table[-1], new[-1])
            assert new[:-1] == table[:-1]
            held = self.memory[moved[0]][: n % self.size]
            self.took(before, [new[-1]])
            self.memory[moved[1]][: n % self.size] = held
        elif n % self.size == 0:
            assert new[:-1] == table
            self.took(before, [new[-1]])
        else:
            assert new == table
            self.kept.pop(new[-1], None)                                        # written into: nobody may find it any more
        self.tokens[seq].append(token)
        self.tables[seq] = new
        self.write(seq, n)

    def commit(self, seq: int, n: int) -> None:
        self.pool.commit(seq, n)
        before, self.committed[seq] = self.committed[seq], max(self.committed[seq], n)
        for i in range(before // self.size, self.committed[seq] // self.size):
            content = (self.salt[seq], tuple(self.tokens[seq][: (i + 1) * self.size]))
            if content not in self.kept.values() and self.pool.prefix_caching:
                self.kept[self.tables[seq][i]] = content

    def fork(self, parent: int, child: int) -> None:
        self.pool.fork(parent, child)
        for values in (self.tokens, self.tables):
            values[child] = list(values[parent])
        self.salt[child], self.committed[child] = self.salt[parent], self.committed[parent]

    def truncate(self, seq: int, n: int) -> None:
        self.pool.truncate(seq, n)
        kept = -(-n // self.size)
        gone = self.tables[seq][kept:]
        self.tokens[seq], self.tables[seq] = self.tokens[seq][:n], self.tables[seq][:kept]
        self.committed[seq] = min(self.committed[seq], n)
        self.let_go(gone)

    def free(self, seq: int) -> None:
        self.pool.free(seq)
        gone = self.tables.pop(seq)
        del self.tokens[seq], self.salt[seq], self.committed[seq]
        self.let_go(gone)

    def evict(self, n: int) -> None:
        gone = self.pool.evict(n)
        assert gone == self.order[:n]
        self.order = self.order[n:]
        for block in gone:
            del self.kept[block]

    def check(self) -> None:
        """Counts, tables, and that every token of every sequence is what its table leads to."""
        stats = self.pool.stats()
        assert stats["used"] == len(self.used())
        assert stats["cached"] == len(self.order)
        assert stats["used"] + stats["cached"] + stats["free"] == stats["num_blocks"] == len(self.memory)
        for seq, tokens in self.tokens.items():
            table = self.pool.table(seq)
            assert table == self.tables[seq]
            assert len(table) == -(-len(tokens) // self.size)
            assert [self.memory[table[t // self.size]][t % self.size] for t in range(len(tokens))] == tokens
        for block, (_, tokens) in self.kept.items():                            # what may be found holds what it is found by
            assert self.memory[block] == list(tokens[-self.size :])


def run(seed: int, *, steps: int = 250, prefix_caching: bool = True) -> Model:
    r = np.random.default_rng(seed)
    model = Model(int(r.integers(0, 12)), int(r.integers(1, 5)), prefix_caching=prefix_caching)
    for _ in range(steps):
        live, call = list(model.tokens), r.integers(12)
        if call < 3 or not live:
            new = min(set(range(99)) - set(live))
            model.allocate(new, r.integers(0, 2, size=r.integers(0, 3 * model.size + 2)).tolist(), SALTS[int(r.integers(5) == 0)])
        else:
            seq = live[r.integers(len(live))]
            n = int(r.integers(len(model.tokens[seq]) + 1))
            if call < 6:
                model.append(seq, int(r.integers(2)))
            elif call < 8:
                model.commit(seq, n)
            elif call == 8:
                model.fork(seq, min(set(range(99)) - set(live)))
            elif call == 9:
                model.truncate(seq, n)
            elif call == 10:
                model.free(seq)
            else:
                model.evict(int(r.integers(3)))
        model.check()
    return model


@pytest.mark.parametrize("seed", range(60))
def test_every_call_does_what_the_model_does(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", range(20))
def test_everything_freed_is_the_initial_state(seed: int) -> None:
    model = run(seed)
    for seq in list(model.tokens):
        model.free(seq)
        model.check()
    model.pool.evict(model.pool.num_blocks)
    assert model.pool.stats()["free"] == model.pool.num_blocks
    for seq in range(model.pool.num_blocks):                                    # and all of it can be taken, by single blocks
        model.pool.allocate(seq, [seq])
    assert sorted(model.pool.table(seq)[0] for seq in range(model.pool.num_blocks)) == list(range(model.pool.num_blocks))


@pytest.mark.parametrize("seed", range(10))
def test_without_prefix_caching_nothing_is_found_or_kept(seed: int) -> None:
    assert run(seed, prefix_caching=False).pool.stats()["hits"] == 0


@pytest.mark.parametrize("seed", range(30))
def test_an_equal_hash_of_other_tokens_is_never_a_hit(seed: int, monkeypatch: Any) -> None:
    """All hashes equal: less is found, but never anything wrong."""
    monkeypatch.setattr(paging, "_chain_hash", lambda parent, tokens: seed % 3 and hash(tokens) % 2)
    monkeypatch.setattr(Model, "must_find", lambda self, salt, tokens: self.pool.match_prefix(tokens, salt=salt))
    monkeypatch.setattr(Model, "commit", commit_as_published)
    run(seed)


def commit_as_published(self: Model, seq: int, n: int) -> None:
    """As `Model.commit`, where a collision may keep a block from being published; reads which were from the pool."""
    self.pool.commit(seq, n)
    before, self.committed[seq] = self.committed[seq], max(self.committed[seq], n)
    for i in range(before // self.size, self.committed[seq] // self.size):
        block, tokens = self.tables[seq][i], tuple(self.tokens[seq][: (i + 1) * self.size])
        if self.pool._content[block] is not None:
            self.kept[block] = (self.salt[seq], tokens)


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
