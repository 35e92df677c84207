"""Mutants of the paged-allocator family: references counted wrongly, blocks leaked, freed twice, or given while they are read."""

from __future__ import annotations

from typing import Any

from ..stateful.allocator_sequences import allocate, append, commit, fork, free, kept, match, new, truncate
from .specimen import mutant
from .textbook_pool import OutOfBlocks, Pool, Record

FAMILY = "paged-allocator"


@mutant(
    "block_allocator", id="aborted-remote-load-leaks-blocks", family=FAMILY,
    source="https://github.com/vllm-project/vllm/issues/46283 https://github.com/vllm-project/vllm-ascend/issues/16662",
    trigger=lambda: (new(2, 2), allocate("a", 1, 2, 3, 4), free("a"), allocate("b", 5, 6)),
)  # fmt: skip
class WaitsForALoadThatWasAborted(Pool):
    """A sequence freed before its data have arrived keeps its blocks until they do, and nobody tells that they never will."""

    def free(self, seq: str) -> None:
        if self.record(seq).tokens and self.record(seq).committed == 0:
            del self.records[seq]
        else:
            super().free(seq)


@mutant(
    "block_allocator", id="new-block-refcount-zero", family=FAMILY, source="https://github.com/Wenyueh/MinivLLM/pull/87",
    trigger=lambda: (new(2, 2), allocate("a", 1, 2, 3, 4), free("a"), allocate("b", 5, 6, 7, 8), free("b")),
)  # fmt: skip
class NewBlocksWithoutAReference(Pool):
    """A fresh block has count 0: freeing it makes that -1, which is not 0, and it never comes back."""

    def take(self) -> int:
        block = super().take()
        self.references[block] = 0
        return block


@mutant(
    "block_allocator", id="slot-freed-on-two-finish-paths", family=FAMILY, source="https://github.com/sgl-project/sglang-jax/pull/982",
    trigger=lambda: (new(3, 1), allocate("a", 1), append("a", 2), append("a", 3), free("a"), allocate("b", 4, 5, 6)),
)  # fmt: skip
class LastBlockFreedTwice(Pool):
    """The cache frees what was not committed when a sequence ends, and the scheduler frees the last block again."""

    def free(self, seq: str) -> None:
        record = self.record(seq)
        super().free(seq)
        if record.committed < len(record.tokens):
            self.free_blocks.append(record.blocks[-1])


@mutant(
    "block_allocator", id="freed-while-async-read-in-flight", family=FAMILY, source="https://github.com/vllm-project/vllm/issues/52360",
    trigger=lambda: (new(1, 2), allocate("a", 1, 2), fork("a", "store"), free("a"), allocate("b", 5, 6), free("store")),
)  # fmt: skip
class ReadersThatDoNotHold(Pool):
    """Who reads along, as a copy to another memory does, holds no reference: preempted blocks are given while they are still read."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.readers: set[str] = set()

    def fork(self, parent: str, child: str) -> object:
        super().fork(parent, child)
        for block in self.records[child].blocks:
            self.references[block] -= 1
        self.readers.add(child)
        return None

    def free(self, seq: str) -> None:
        if seq in self.readers:
            self.readers.remove(seq)
            del self.records[seq]
        else:
            super().free(seq)


@mutant(
    "block_allocator", id="duplicate-or-null-block-in-free-call", family=FAMILY,
    source="https://github.com/ModelEngine-Group/unified-cache-management/pull/1053",
    trigger=lambda: (new(2, 2), allocate("a", 1, 2, 3), truncate("a", 2), free("a"), allocate("b", 5, 6, 7, 8)),
)  # fmt: skip
class BlocksListedTwiceInFree(Pool):
    """free is handed the blocks that truncate has given back already, and every block whose count is not above 0 is appended again."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.listed: dict[str, list[int]] = {}

    def truncate(self, seq: str, n: int) -> None:
        before = self.table(seq)
        super().truncate(seq, n)
        self.listed.setdefault(seq, []).extend(before[self.blocks_of(n) :])

    def free(self, seq: str) -> None:
        super().free(seq)
        self.let_go(self.listed.pop(seq, []))

    def let_go(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] <= 0:
                self.put_away(block)


@mutant(
    "block_allocator", id="cross-kv-separate-blocks-per-beam", family=FAMILY, source="https://github.com/NVIDIA/TensorRT-LLM/pull/15444",
    trigger=lambda: (new(4, 2), allocate("a", 1, 2, 3), fork("a", "b")),
)  # fmt: skip
class BeamsWithBlocksNobodyWrote(Pool):
    """A fork gets blocks of its own, and nothing is copied into them: only the first beam's were written."""

    def fork(self, parent: str, child: str) -> object:
        record = self.record(parent)
        if child in self.records:
            raise ValueError(f"{child} is in use")
        self.must_have(len(record.blocks))
        self.records[child] = Record(list(record.tokens), record.salt, [self.take() for _ in record.blocks], record.committed)
        return None


@mutant(
    "block_allocator", id="swap-in-block-count-ignores-evictable", family=FAMILY, source="https://github.com/vllm-project/vllm/pull/6849",
    trigger=lambda: (new(3, 1), *kept("a", 1, 2, 3), allocate("b", 1, 2, 3, 4), match(1, 2, 3, 0)),
)  # fmt: skip
class FoundBlocksCountedAsFreeToo(Pool):
    """Cached blocks that the prompt finds are counted among those to give as well: the blocks run out in the middle."""

    def there_are(self, need: int, found: list[int]) -> bool:
        return need <= len(self.free_blocks) + len(self.cached)

    def take(self) -> int:
        if not self.free_blocks and not self.cached:
            raise OutOfBlocks("1 block")
        return super().take()


@mutant(
    "block_allocator", id="last-block-length-zero-when-aligned", family=FAMILY, source="https://github.com/Wenyueh/MinivLLM/pull/87",
    trigger=lambda: (new(2, 4), allocate("a", 1, 2, 3, 4, 5, 6, 7, 8), commit("a", 8), match(1, 2, 3, 4, 5, 6, 7, 8, 9)),
)  # fmt: skip
class ExactlyFullLastBlock(Pool):
    """Of n tokens the last block holds n % block_size, which is 0 when it is full, and tokens[-0:] are all of them."""

    def publish(self, record: Record, i: int) -> None:
        if (i + 1) * self.size < len(record.tokens):
            super().publish(record, i)
            return
        last = record.tokens[-(len(record.tokens) % self.size) :]
        key = self.key(record.tokens[: i * self.size] + last, record.salt)
        if key not in self.published:
            self.published[key], self.keys[record.blocks[i]] = record.blocks[i], key


@mutant(
    "block_allocator", id="cow-decrement-then-free-again", family=FAMILY, source="https://github.com/vllm-project/vllm/pull/3347",
    trigger=lambda: (new(4, 4), allocate("a", 1, 2), fork("a", "b"), append("b", 3), free("b"), allocate("c", 5)),
)  # fmt: skip
class CopiedBlockGivenBackTwice(Pool):
    """The block that is copied away from is given back at once, and again with the table, whose window still lists it."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.windows: dict[int, list[int]] = {}

    def copy_on_write(self, record: Record) -> tuple[int, int]:
        copy = super().copy_on_write(record)
        self.windows.setdefault(id(record), []).append(copy[0])
        return copy

    def free(self, seq: str) -> None:
        record: Any = self.record(seq)
        super().free(seq)
        self.let_go(self.windows.pop(id(record), []))
