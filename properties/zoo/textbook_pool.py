"""Textbook pool: a plain block allocator that mutants and variants of allocators are made from. It shares nothing with the oracle.

Contents are told apart by what they are, (salt, all tokens), without any hash. Each step that a report is about is a method.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


class OutOfBlocks(Exception):
    """The pool has too few blocks to give."""


@dataclass
class Record:
    """One sequence."""

    tokens: list[int]
    salt: bytes
    blocks: list[int] = field(default_factory=list)
    committed: int = 0


class Pool:
    """references: how many tables name a block. cached: unnamed and published, the least recently used first. keys: of published blocks."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.num_blocks, self.size, self.caching = num_blocks, block_size, prefix_caching
        self.records: dict[str, Record] = {}
        self.references = [0] * num_blocks
        self.free_blocks = list(range(num_blocks))
        self.cached: dict[int, None] = {}
        self.published: dict[Hashable, int] = {}
        self.keys: list[Hashable | None] = [None] * num_blocks
        self.hits = self.evictions = 0

    def allocate(self, seq: str, tokens: list[int], *, salt: bytes = b"") -> int:
        if seq in self.records:
            raise ValueError(f"{seq} is in use")
        found = self.find(tokens, salt)
        need = self.blocks_of(len(tokens)) - len(found)
        if not self.there_are(need, found):
            raise OutOfBlocks(f"{need} blocks")
        self.lock(found)
        record = self.records[seq] = Record(list(tokens), salt, found + [self.take() for _ in range(need)], len(found) * self.size)
        self.hits += len(found)
        return record.committed

    def append(self, seq: str, token: int) -> tuple[int, int] | None:
        record = self.record(seq)
        copy = None
        if len(record.tokens) % self.size == 0:
            self.must_have(1)
            record.blocks.append(self.take())
        elif self.references[record.blocks[-1]] > 1:
            self.must_have(1)
            copy = self.copy_on_write(record)
        else:
            self.write_into(record.blocks[-1])
        record.tokens.append(token)
        return copy

    def commit(self, seq: str, n: int) -> None:
        record = self.record(seq)
        self.in_range(record, n)
        first, record.committed = record.committed, max(record.committed, n)
        for i in range(first // self.size, record.committed // self.size if self.caching else 0):
            self.publish(record, i)

    def fork(self, parent: str, child: str) -> object:
        record = self.record(parent)
        if child in self.records:
            raise ValueError(f"{child} is in use")
        for block in record.blocks:
            self.hold(block)
        self.records[child] = Record(list(record.tokens), record.salt, list(record.blocks), record.committed)
        return None

    def truncate(self, seq: str, n: int) -> None:
        record = self.record(seq)
        self.in_range(record, n)
        kept = self.blocks_of(n)
        self.let_go(record.blocks[kept:])
        record.committed = min(record.committed, n)
        del record.tokens[n:], record.blocks[kept:]

    def free(self, seq: str) -> None:
        self.let_go(self.record(seq).blocks)
        del self.records[seq]

    def table(self, seq: str) -> list[int]:
        return list(self.record(seq).blocks)

    def match_prefix(self, tokens: list[int], *, salt: bytes = b"") -> list[int]:
        return self.find(tokens, salt)

    def evict(self, n: int) -> list[int]:
        gone = [self.drop(block) for block in list(self.cached)[:n]]
        self.free_blocks += gone
        return gone

    def stats(self) -> dict[str, int]:
        cached, free = len(self.cached), len(self.free_blocks)
        return {"num_blocks": self.num_blocks, "used": self.num_blocks - cached - free, "cached": cached, "free": free,
                "hits": self.hits, "evictions": self.evictions}  # fmt: skip

    # The steps ------------------------------------------------------------------------------------------------------------

    def record(self, seq: str) -> Record:
        if seq not in self.records:
            raise ValueError(f"{seq} is unknown")
        return self.records[seq]

    def in_range(self, record: Record, n: int) -> None:
        if not 0 <= n <= len(record.tokens):
            raise ValueError(f"n = {n} of {len(record.tokens)} tokens")

    def blocks_of(self, n: int) -> int:
        return -(-n // self.size)

    def key(self, tokens: list[int], salt: bytes) -> Hashable:
        """What the block that ends these tokens is found by."""
        return salt, tuple(tokens)

    def find(self, tokens: list[int], salt: bytes) -> list[int]:
        found: list[int] = []
        for end in range(self.size, len(tokens) + 1, self.size):
            block = self.published.get(self.key(tokens[:end], salt))
            if block is None or not self.caching:
                break
            found.append(block)
        return found

    def there_are(self, need: int, found: list[int]) -> bool:
        """Whether blocks are left when those that were found are not given as well."""
        return need <= len(self.free_blocks) + len(self.cached) - sum(block in self.cached for block in found)

    def must_have(self, need: int) -> None:
        if not self.there_are(need, []):
            raise OutOfBlocks(f"{need} blocks")

    def lock(self, found: list[int]) -> None:
        for block in found:
            self.hold(block)

    def hold(self, block: int) -> None:
        self.cached.pop(block, None)
        self.references[block] += 1

    def take(self) -> int:
        block = self.free_blocks.pop(0) if self.free_blocks else self.drop(next(iter(self.cached)))
        self.references[block] = 1
        return block

    def let_go(self, blocks: list[int]) -> None:
        """One table less names them; the tail goes first."""
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.put_away(block)

    def put_away(self, block: int) -> None:
        if self.keys[block] is None:
            self.free_blocks.append(block)
        else:
            self.cached[block] = None

    def copy_on_write(self, record: Record) -> tuple[int, int]:
        source, target = record.blocks[-1], self.take()
        self.references[source] -= 1
        record.blocks[-1] = target
        return source, target

    def write_into(self, block: int) -> None:
        self.forget(block)

    def publish(self, record: Record, i: int) -> None:
        key = self.key(record.tokens[: (i + 1) * self.size], record.salt)
        if key not in self.published:
            self.published[key], self.keys[record.blocks[i]] = record.blocks[i], key

    def drop(self, block: int) -> int:
        """A cached block loses its content."""
        del self.cached[block]
        self.forget(block)
        self.evictions += 1
        return block

    def forget(self, block: int) -> None:
        if self.keys[block] is not None:
            del self.published[self.keys[block]]
            self.keys[block] = None
