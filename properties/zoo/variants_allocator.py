"""Legal variants of block allocators: other orders, other hashes, other times to copy, other data structures, fewer methods."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Hashable
from typing import Any

import numpy as np

from oracles.reference import BlockAllocator

from .radix_pool import RadixPool
from .specimen import variant
from .textbook_pool import OutOfBlocks, Pool, Record

PAGED, PREFIX = "paged-allocator", "prefix-cache"


@variant("block_allocator", id="oracle-allocator", family=PAGED)
class Oracle(BlockAllocator):
    """The oracle itself: hashes chained by Python's own, compared with the tokens."""


@variant("block_allocator", id="contents-as-keys", family=PREFIX)
class ContentsAsKeys(Pool):
    """No hash at all: a dict whose keys are the salt and all tokens."""


@variant("block_allocator", id="free-list-last-in-first-out", family=PAGED)
class LastFreedFirst(Pool):
    """The block that was freed last is given first."""

    def take(self) -> int:
        block = self.free_blocks.pop() if self.free_blocks else self.drop(next(iter(self.cached)))
        self.references[block] = 1
        return block


@variant("block_allocator", id="free-list-lowest-number-first", family=PAGED)
class LowestFirst(Pool):
    """The free block of the lowest number is given first."""

    def take(self) -> int:
        self.free_blocks.sort()
        return super().take()


@variant("block_allocator", id="sha256-of-the-chain", family=PREFIX, source="https://github.com/vllm-project/vllm")
class CryptographicHash(Pool):
    """Blocks are found by SHA-256 over the hash before them and their tokens, which nobody has to compare."""

    def key(self, tokens: list[int], salt: bytes) -> Hashable:
        digest = hashlib.sha256(salt).digest()
        for start in range(0, len(tokens), self.size):
            digest = hashlib.sha256(digest + np.array(tokens[start : start + self.size], dtype="<i8").tobytes()).digest()
        return digest


@variant("block_allocator", id="short-hash-compared", family=PREFIX)
class ShortHashCompared(Pool):
    """Blocks are found by a CRC of 32 bits, and taken only if salt and tokens are equal; of two with one CRC the first stays."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.contents: dict[Hashable, tuple[bytes, list[int]]] = {}

    def key(self, tokens: list[int], salt: bytes) -> Hashable:
        return zlib.crc32(repr((salt, tokens)).encode())

    def publish(self, record: Record, i: int) -> None:
        tokens = record.tokens[: (i + 1) * self.size]
        if self.key(tokens, record.salt) not in self.published:
            self.contents[self.key(tokens, record.salt)] = record.salt, tokens
        super().publish(record, i)

    def find(self, tokens: list[int], salt: bytes) -> list[int]:
        found = super().find(tokens, salt)
        prefixes = [tokens[: i * self.size] for i in range(1, len(found) + 1)]
        equal = [self.contents[self.key(prefix, salt)] == (salt, prefix) for prefix in prefixes]
        return found[: equal.index(False)] if False in equal else found


@variant("block_allocator", id="head-first-among-equals", family=PREFIX)
class HeadFirst(Pool):
    """Of blocks let go together the head is evicted first, and what was behind it is found no more."""

    def let_go(self, blocks: list[int]) -> None:
        super().let_go(blocks[::-1])


@variant("block_allocator", id="looking-up-is-use", family=PREFIX)
class LookingUpIsUse(Pool):
    """match_prefix makes what it finds the most recently used."""

    def match_prefix(self, tokens: list[int], *, salt: bytes = b"") -> list[int]:
        found = super().match_prefix(tokens, salt=salt)
        for block in reversed(found):
            if block in self.cached:
                del self.cached[block]
                self.cached[block] = None
        return found


@variant("block_allocator", id="copy-on-fork", family=PAGED)
class CopyOnFork(Pool):
    """A fork shares nothing: all blocks are copied at once."""

    def fork(self, parent: str, child: str) -> object:
        record = self.record(parent)
        if child in self.records:
            raise ValueError(f"{child} is in use")
        self.must_have(len(record.blocks))
        blocks = [self.take() for _ in record.blocks]
        self.records[child] = Record(list(record.tokens), record.salt, blocks, record.committed)
        return list(zip(record.blocks, blocks))


@variant("block_allocator", id="last-block-copied-on-fork", family=PAGED)
class LastBlockCopiedOnFork(Pool):
    """A fork shares the full blocks; the last one, which both would write into, is copied at once."""

    def fork(self, parent: str, child: str) -> object:
        record = self.record(parent)
        if len(record.tokens) % self.size == 0:
            return super().fork(parent, child)
        self.must_have(1)
        super().fork(parent, child)
        return self.copy_on_write(self.records[child])


@variant("block_allocator", id="last-block-of-a-hit-computed-again", family=PREFIX, source="https://github.com/vllm-project/vllm/pull/17999")
class LastBlockComputedAgain(Pool):
    """Of a prompt that would be found whole the last block is not, so that its logits can be computed."""

    def allocate(self, seq: str, tokens: list[int], *, salt: bytes = b"") -> int:
        self.asking = len(tokens)
        return super().allocate(seq, tokens, salt=salt)

    def match_prefix(self, tokens: list[int], *, salt: bytes = b"") -> list[int]:
        self.asking = len(tokens)
        return super().match_prefix(tokens, salt=salt)

    def find(self, tokens: list[int], salt: bytes) -> list[int]:
        return super().find(tokens, salt)[: max(0, self.asking - 1) // self.size]


@variant("block_allocator", id="published-blocks-are-copied", family=PREFIX)
class PublishedBlocksAreCopied(Pool):
    """A token appended to a published block goes to a copy, and the block stays published, cached for others."""

    def append(self, seq: str, token: int) -> tuple[int, int] | None:
        record = self.record(seq)
        if len(record.tokens) % self.size and self.references[record.blocks[-1]] == 1 and self.keys[record.blocks[-1]] is not None:
            self.must_have(1)
            source = record.blocks[-1]
            record.blocks[-1] = self.take()
            self.let_go([source])
            record.tokens.append(token)
            return source, record.blocks[-1]
        return super().append(seq, token)


@variant("block_allocator", id="equal-blocks-merged-at-commit", family=PREFIX)
class EqualBlocksMerged(Pool):
    """A block that turns out equal to a published one is given back at commit, and the table names the published one."""

    def publish(self, record: Record, i: int) -> None:
        known = self.published.get(self.key(record.tokens[: (i + 1) * self.size], record.salt))
        if known is None or known == record.blocks[i]:
            super().publish(record, i)
            return
        own, record.blocks[i] = record.blocks[i], known
        self.hold(known)
        self.let_go([own])


@variant("block_allocator", id="radix-tree", family=PREFIX, source="https://github.com/sgl-project/sglang")
class Radix(RadixPool):
    """Published blocks hang in a tree by their tokens; leaves are evicted, the longest unused first."""


@variant("block_allocator", id="no-prefix-cache", family=PAGED)
class NoPrefixCache:
    """On demand, shared and copied on write; nothing is kept, and there is no commit, no look-up and no eviction."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._pool = Pool(num_blocks, block_size, prefix_caching=False)
        self.append, self.fork, self.truncate = self._pool.append, self._pool.fork, self._pool.truncate
        self.free, self.table, self.stats = self._pool.free, self._pool.table, self._pool.stats

    def allocate(self, seq: str, tokens: list[int]) -> None:
        self._pool.allocate(seq, tokens)


@variant("block_allocator", id="stretches-of-a-stack", family=PAGED)
class Stack:
    """No more than a stack of free blocks: allocate, append, free, table."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._stack, self._size = list(range(num_blocks)), block_size
        self._tables: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}

    def allocate(self, seq: str, tokens: list[int]) -> None:
        if seq in self._tables:
            raise ValueError(f"{seq} is in use")
        need = -(-len(tokens) // self._size)
        if need > len(self._stack):
            raise OutOfBlocks(f"{need} blocks")
        self._tables[seq], self._lengths[seq] = [self._stack.pop() for _ in range(need)], len(tokens)

    def append(self, seq: str, token: int) -> None:
        table = self.table(seq)
        if self._lengths[seq] % self._size == 0:
            if not self._stack:
                raise OutOfBlocks("1 block")
            self._tables[seq] = [*table, self._stack.pop()]
        self._lengths[seq] += 1

    def free(self, seq: str) -> None:
        self._stack += self.table(seq)
        del self._tables[seq]

    def table(self, seq: str) -> list[int]:
        if seq not in self._tables:
            raise ValueError(f"{seq} is unknown")
        return self._tables[seq]


@variant("block_allocator", id="arrays-instead-of-lists", family=PAGED)
class Arrays(Pool):
    """Tables and look-ups come as int32 arrays, counts as NumPy's numbers."""

    def table(self, seq: str) -> Any:
        return np.array(super().table(seq), dtype=np.int32)

    def match_prefix(self, tokens: list[int], *, salt: bytes = b"") -> Any:
        return np.array(super().match_prefix(tokens, salt=salt), dtype=np.int32)

    def stats(self) -> Any:
        return {name: np.int64(count) for name, count in super().stats().items()}


@variant("block_allocator", id="published-when-data-are-added", family=PREFIX)
class PublishedWhenAdded(Pool):
    """Without commit: the caller writes the data of a call before the next, and full blocks are published at once."""

    commit: Any = None

    def allocate(self, seq: str, tokens: list[int], *, salt: bytes = b"") -> int:
        found = super().allocate(seq, tokens, salt=salt)
        Pool.commit(self, seq, len(tokens))
        return found

    def append(self, seq: str, token: int) -> tuple[int, int] | None:
        copy = super().append(seq, token)
        Pool.commit(self, seq, len(self.records[seq].tokens))
        return copy
