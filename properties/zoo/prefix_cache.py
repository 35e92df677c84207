"""Mutants of the prefix-cache family: what a block is found by, how long, and how what is kept is counted."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from oracles.reference import prefix_salt

from ..stateful.allocator_sequences import allocate, commit, evict, free, kept, match, new
from .specimen import mutant
from .textbook_pool import Pool, Record

FAMILY = "prefix-cache"


@mutant(
    "block_allocator", id="radix-lock-skips-own-node", family=FAMILY, source="https://github.com/sgl-project/mini-sglang/pull/52",
    trigger=lambda: (new(3, 1), *kept("a", 1, 2), allocate("b", 1, 2, 3), evict(3)),
)  # fmt: skip
class LockWithoutTheNodeItself(Pool):
    """The walk that locks what was matched steps to the parent first: the last block found stays evictable."""

    def lock(self, found: list[int]) -> None:
        super().lock(found[:-1])
        for block in found[-1:]:
            self.references[block] += 1


@mutant(
    "block_allocator", id="evicted-block-still-in-hash-table", family=FAMILY, source="https://github.com/vllm-project/vllm/pull/4764",
    trigger=lambda: (new(1, 2), *kept("a", 1, 2), allocate("b", 5, 6), match(1, 2, 0)),
)  # fmt: skip
class EvictedAndStillFound(Pool):
    """A block taken from the cache to be filled anew stays in the map from hashes to blocks."""

    def drop(self, block: int) -> int:
        del self.cached[block]
        self.keys[block] = None
        self.evictions += 1
        return block


@mutant(
    "block_allocator", id="radix-split-accounting", family=FAMILY, source="https://github.com/UbiquitousLearning/mllm/pull/656",
    trigger=lambda: (new(6, 1), *kept("a", 1, 2, 3, 4), *kept("b", 1, 2, 5)),
)  # fmt: skip
class SplitNotMirrored(Pool):
    """A new leaf takes its parent's tokens off the evictable count, and the split that made the parent did not put them there."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.astray = 0

    def publish(self, record: Record, i: int) -> None:
        behind = {key[1][: i * self.size] for key in self.published if isinstance(key, tuple) and len(key[1]) > i * self.size}
        if i and tuple(record.tokens[: i * self.size]) in behind:
            self.astray += 1
        super().publish(record, i)

    def stats(self) -> dict[str, int]:
        stats = super().stats()
        return {**stats, "cached": stats["cached"] - self.astray}


@mutant(
    "block_allocator", id="untagged-extra-keys-collide", family=FAMILY,
    source="https://github.com/vllm-project/vllm/issues/44701 https://github.com/vllm-project/vllm/pull/44706",
    trigger=lambda: (new(4, 2), *kept("a", 5, 6, 7, 8), match(7, 8, 0, salt=np.array([5, 6]).tobytes())),
)  # fmt: skip
class SaltAndTokensRunTogether(Pool):
    """The bytes of the salt and those of the tokens are joined without a tag: a salt that reads like tokens stands for them."""

    def key(self, tokens: list[int], salt: bytes) -> Hashable:
        return salt + np.array(tokens, dtype=np.int64).tobytes()


@mutant(
    "block_allocator", id="evictable-double-counts-shared-pages", family=FAMILY,
    source="https://github.com/sgl-project/sglang/issues/35270",
    trigger=lambda: (new(4, 1), *kept("a", 1, 2), *kept("b", 1, 3)),
)  # fmt: skip
class SharedPagesCountedTwice(Pool):
    """The evictable pages are summed over the sequences that left them, so that a page of two counts twice."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.left: list[list[int]] = []

    def free(self, seq: str) -> None:
        self.left.append(self.table(seq))
        super().free(seq)

    def stats(self) -> dict[str, int]:
        stats = super().stats()
        return {**stats, "cached": sum(block in self.cached for blocks in self.left for block in dict.fromkeys(blocks))}


@mutant(
    "block_allocator", id="full-hit-leaves-nothing-to-compute", family=FAMILY,
    source="https://github.com/vllm-project/vllm/pull/17999 https://github.com/vllm-project/vllm/pull/11186",
    trigger=lambda: (new(4, 4), *kept("a", 1, 2, 3, 4, 5, 6, 7, 8), allocate("b", 1, 2, 3, 4, 5, 6, 7, 8)),
)  # fmt: skip
class FullHitLessOne(Pool):
    """Of a prompt that is found whole all tokens but the last are said to be computed, which is no number of blocks."""

    def allocate(self, seq: str, tokens: list[int], *, salt: bytes = b"") -> int:
        found = super().allocate(seq, tokens, salt=salt)
        return found - 1 if 0 < found == len(tokens) else found


def fields_of(salt: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Name, kind and value of each part of a salt made by `prefix_salt`; nothing for any other."""
    read, place = [], 0
    while place < len(salt):
        length = int.from_bytes(salt[place : place + 8], "big")
        read.append(salt[place + 8 : place + 8 + length])
        place += 8 + length
    return list(zip(read[::3], read[1::3], read[2::3])) if place == len(salt) and len(read) % 3 == 0 else []


@mutant(
    "block_allocator", id="adapter-keyed-by-name-not-id", family=FAMILY, source="https://github.com/vllm-project/vllm/issues/30931",
    trigger=lambda: (new(4, 2), *kept("a", 1, 2, salt=prefix_salt(adapter="a", id=1)), match(1, 2, 0, salt=prefix_salt(adapter="a", id=2))),
)  # fmt: skip
class KeyedByTheAdaptersName(Pool):
    """Of an adapter its name enters the key, and not its id: two of one name share blocks."""

    def key(self, tokens: list[int], salt: bytes) -> Hashable:
        fields = fields_of(salt)
        named = any(name == b"adapter" for name, _, _ in fields)
        return tuple(field for field in fields if field[0] != b"id") if named else salt, tuple(tokens)


@mutant(
    "block_allocator", id="media-content-missing-from-block-hash", family=FAMILY,
    source="https://github.com/LMCache/LMCache/issues/4086 https://github.com/vllm-project/vllm/issues/20261",
    trigger=lambda: (new(4, 2), *kept("a", 1, 2, salt=prefix_salt(image=0x1_5A5A)), match(1, 2, 0, salt=prefix_salt(image=0x2_5A5A))),
)  # fmt: skip
class ImageHashCutToSixteenBits(Pool):
    """Of the hash of an image the low 16 bits enter the key: placeholder tokens of two images are taken for each other."""

    def key(self, tokens: list[int], salt: bytes) -> Hashable:
        fields = [(name, int(value) & 0xFFFF if kind == b"int" else value) for name, kind, value in fields_of(salt)]
        return tuple(fields) or salt, tuple(tokens)


@mutant(
    "block_allocator", id="adapter-missing-from-block-hash", family=FAMILY, source="https://github.com/vllm-project/vllm/pull/3263",
    trigger=lambda: (new(4, 2), allocate("a", 1, 2, 3, 4, salt=b"1"), commit("a", 4), match(1, 2, 3, 4, 0, salt=b"2"), free("a")),
)  # fmt: skip
class AdapterNotInTheKey(Pool):
    """The adapter does not enter the key: the same prompt with another one finds its keys and values."""

    def key(self, tokens: list[int], salt: bytes) -> Hashable:
        return tuple(tokens)
