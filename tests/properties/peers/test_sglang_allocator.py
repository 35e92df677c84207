"""What SGLang's RadixCache needs to keep the laws of an allocator, with -m more_peers where SGLang is installed; its pages everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from oracles.properties import check
from oracles.properties.peers.calls.sglang_tree import OutOfBlocks, Pages, RadixPool

CALL_SECONDS = 300.0                                                            # the import takes up to 40 s


def broken(subject: Any) -> list[str]:
    report = check("block_allocator", subject, budget=0, call_seconds=CALL_SECONDS)
    return [verdict.law for verdict in report.verdicts if verdict.status == "failed"]


class Slots:
    """A tensor of slots, as far as the pages read one."""

    def __init__(self, *slots: int) -> None:
        self.slots = list(slots)

    def tolist(self) -> list[int]:
        return self.slots


def test_slots_given_back_are_pages_that_are_free() -> None:
    pages = Pages(2, 2)
    pages.free_segment(Slots(6, 7, 10, 11), start_pos=0)
    assert pages.free == [0, 1, 3, 5]


# What goes through the tree's own calls is seen by the laws --------------------------------------------------------------


class WithoutLocks(RadixPool):
    """The tree is never told that a prefix is in use."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.tree.inc_lock_ref = self.tree.dec_lock_ref = lambda node: None


class WithoutSalt(RadixPool):
    """The key carries no namespace."""

    def _key(self, tokens: list[int], salt: bytes) -> Any:
        return super()._key(tokens, b"")


class KeepsEqualPages(RadixPool):
    """Pages that the tree holds already are not given back."""

    def commit(self, seq: str, n: int) -> None:
        before = list(self.pages.free)
        super().commit(seq, n)
        self.pages.free = before


class EvictsWholeLeaves(RadixPool):
    """Nodes keep the pages that were published together."""

    def free(self, seq: str) -> None:
        s = self._known(seq)
        self._match(s.tokens[: len(s.locked) * self.size], s.salt)
        self.tree.dec_lock_ref(s.node)
        self.pages.free += s.own
        del self.sequences[seq]


SEEN = {
    WithoutLocks: "a_block_in_use_is_never_evicted",
    WithoutSalt: "the_salt_separates",
    KeepsEqualPages: "used_cached_and_free_are_all_blocks",
    EvictsWholeLeaves: "free_blocks_are_taken_before_cached_ones",
}


@pytest.mark.more_peers
@pytest.mark.parametrize("pool", SEEN, ids=lambda pool: pool.__name__)
def test_a_wrong_use_of_the_tree_is_seen(pool: type[RadixPool]) -> None:
    assert SEEN[pool] in broken(pool)


@pytest.mark.more_peers
def test_a_leaf_of_several_pages_is_evicted_whole() -> None:
    """Asked for one page of three it gives all three: `evict` of SGLang counts whole leaves."""
    pool = EvictsWholeLeaves(3, 1)
    pool.allocate("a", [1, 2, 3])
    pool.commit("a", 3)
    pool.free("a")
    assert sorted(pool.evict(1)) == [0, 1, 2]
    finest = RadixPool(3, 1)
    finest.allocate("a", [1, 2, 3])
    finest.commit("a", 3)
    finest.free("a")
    assert finest.evict(1) == [2]
    with pytest.raises(OutOfBlocks):
        finest.allocate("b", [4, 5, 6, 7])
