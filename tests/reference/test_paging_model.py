"""The allocator beside a plain model: every call by what it may change, what it must find, and whose data a table leads to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import BlockAllocator, OutOfBlocks, paging

pytestmark = pytest.mark.filterwarnings("error")
SALTS = [b"", b"x"]
# All equal; equal for contents of equal depth; those told apart by one bit.
POOR_HASHES: list[Any] = [lambda parent, tokens: 0, lambda parent, tokens: parent + 1, lambda parent, tokens: 2 * parent + hash(tokens) % 2]


class Model:
    """What the pool must be, without hashes, free lists or counts: tokens of sequences, and a memory that the caller writes.

    memory[block][offset]   the data that stand there, or None: of keys and values, all that they depend on is the salt and
                            the tokens up to their own
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

    def data(self, seq: int, first: int = 0) -> list[Any]:
        return [(self.salt[seq], tuple(self.tokens[seq][: t + 1])) for t in range(first, len(self.tokens[seq]))]

    def write(self, seq: int, first: int) -> None:
        for t, data in enumerate(self.data(seq, first), start=first):
            self.memory[self.tables[seq][t // self.size]][t % self.size] = data

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
            assert [self.memory[table[t // self.size]][t % self.size] for t in range(len(tokens))] == self.data(seq)
        for block, (salt, tokens) in self.kept.items():                         # what may be found holds what it is found by
            assert self.memory[block] == [(salt, tokens[: len(tokens) - left]) for left in reversed(range(self.size))]


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
    """Hashes that tell next to nothing: less is found, but never anything wrong."""
    monkeypatch.setattr(paging, "_chain_hash", POOR_HASHES[seed % 3])
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
