"""Every law of a block allocator turns red on an allocator that breaks what it states, and stays green on a right one."""

from __future__ import annotations

from typing import Any

import pytest

from oracles.properties.stateful.allocator_laws import ALLOCATOR_LAWS
from oracles.properties.stateful.block_allocator import BLOCK_ALLOCATOR
from oracles.properties.zoo import paged_allocator, prefix_cache
from oracles.properties.zoo.textbook_pool import OutOfBlocks, Pool, Record

from .law_alone import broken_alone


class NoAnswer(Pool):
    def append(self, seq: str, token: int) -> Any:
        raise KeyError(seq) if seq in self.records and len(self.records[seq].tokens) == 3 else super().append(seq, token)

    def fork(self, parent: str, child: str) -> object:
        return object()


class TakesAnyName(Pool):
    def allocate(self, seq: str, tokens: list[int], *, salt: bytes = b"") -> int:
        if seq in self.records:
            self.free(seq)
        return super().allocate(seq, tokens, salt=salt)


class AlwaysOneInReserve(Pool):
    def there_are(self, need: int, found: list[int]) -> bool:
        return super().there_are(need + 1, found)


class OneBlockAhead(Pool):
    def blocks_of(self, n: int) -> int:
        return n // self.size + 1


class MovesOthers(Pool):
    def free(self, seq: str) -> None:
        super().free(seq)
        for record in self.records.values():
            record.blocks.reverse()


class GivesTheLastAgain(Pool):
    def take(self) -> int:
        block = super().take()
        self.free_blocks.append(block)
        return block


class WritesInPlace(Pool):
    def append(self, seq: str, token: int) -> Any:
        record = self.record(seq)
        if len(record.tokens) % self.size == 0:
            return super().append(seq, token)
        record.tokens.append(token)
        return None


class CountsTables(Pool):
    def stats(self) -> dict[str, int]:
        stats = super().stats()
        used = sum(len(record.blocks) for record in self.records.values())
        return {**stats, "used": used, "free": self.num_blocks - used - stats["cached"]}


class CountsCachedAsFree(Pool):
    def stats(self) -> dict[str, int]:
        stats = super().stats()
        return {**stats, "free": stats["free"] + stats["cached"]}


class ForgetsToCount(Pool):
    def drop(self, block: int) -> int:
        self.evictions -= 1
        return super().drop(block)


class FoundInTokens(Pool):
    def allocate(self, seq: str, tokens: list[int], *, salt: bytes = b"") -> int:
        return super().allocate(seq, tokens, salt=salt) + len(tokens) % self.size


class PublishesWhenGiven(Pool):
    def allocate(self, seq: str, tokens: list[int], *, salt: bytes = b"") -> int:
        found = super().allocate(seq, tokens, salt=salt)
        super().commit(seq, len(tokens))
        return found

    def commit(self, seq: str, n: int) -> None:
        self.in_range(self.record(seq), n)


class OrderDoesNotMatter(Pool):
    def key(self, tokens: list[int], salt: bytes) -> Any:
        return salt, tuple(sorted(tokens))


class FindsTheFirstAlone(Pool):
    def find(self, tokens: list[int], salt: bytes) -> list[int]:
        return super().find(tokens, salt)[:1]


class CachesAllTheSame(Pool):
    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        super().__init__(num_blocks, block_size)


class EvictsWhatIsUsed(Pool):
    def evict(self, n: int) -> list[int]:
        used = [block for record in self.records.values() for block in record.blocks]
        return used[:n] or super().evict(n)


class NewestFirst(Pool):
    def take(self) -> int:
        block = self.free_blocks.pop(0) if self.free_blocks else self.drop(next(reversed(self.cached)))
        self.references[block] = 1
        return block


class CachedFirst(Pool):
    def take(self) -> int:
        block = self.drop(next(iter(self.cached))) if self.cached else self.free_blocks.pop(0)
        self.references[block] = 1
        return block


class LosesOne(Pool):
    def put_away(self, block: int) -> None:
        if block:
            super().put_away(block)


class CopiesTheWrongWay(Pool):
    def copy_on_write(self, record: Record) -> tuple[int, int]:
        source, target = super().copy_on_write(record)
        return target, source


class ForgetsTheCopy(Pool):
    def copy_on_write(self, record: Record) -> Any:
        super().copy_on_write(record)
        return None


class ChangesBeforeItRaises(Pool):
    def must_have(self, need: int) -> None:
        if not self.there_are(need, []):
            self.hits += 1
            raise OutOfBlocks


BREAKS: dict[str, type[Any]] = {
    "answers": NoAnswer,
    "a_wrong_call_is_refused": TakesAnyName,
    "out_of_blocks_only_where_there_are_none": AlwaysOneInReserve,
    "what_raises_changes_nothing": ChangesBeforeItRaises,
    "a_table_names_a_block_for_every_started_block_of_tokens": OneBlockAhead,
    "a_call_changes_no_other_table": MovesOthers,
    "no_block_is_owned_twice": GivesTheLastAgain,
    "shared_blocks_hold_equal_tokens": WritesInPlace,
    "a_write_is_never_seen_by_a_sibling": CopiesTheWrongWay,
    "used_counts_the_blocks_in_tables": CountsTables,
    "used_cached_and_free_are_all_blocks": CountsCachedAsFree,
    "found_tokens_are_whole_blocks": FoundInTokens,
    "hits_and_evictions_are_counted": ForgetsToCount,
    "published_only_by_commit": PublishesWhenGiven,
    "the_salt_separates": prefix_cache.AdapterNotInTheKey,
    "an_equal_hash_with_other_tokens_is_never_a_hit": OrderDoesNotMatter,
    "a_block_given_anew_is_found_no_more": prefix_cache.EvictedAndStillFound,
    "what_was_committed_is_found": FindsTheFirstAlone,
    "without_prefix_caching_nothing_is_found": CachesAllTheSame,
    "a_block_in_use_is_never_evicted": EvictsWhatIsUsed,
    "eviction_takes_the_least_recent": NewestFirst,
    "free_blocks_are_taken_before_cached_ones": CachedFirst,
    "everything_freed_is_the_initial_state": LosesOne,
    "attention_through_the_table_is_attention_over_the_tokens": ForgetsTheCopy,
}


def test_there_is_a_breaker_of_every_law() -> None:
    assert list(BREAKS) == [law.name for law in ALLOCATOR_LAWS]


@pytest.mark.parametrize("law", BREAKS)
def test_the_law_can_fail(law: str) -> None:
    assert broken_alone(BLOCK_ALLOCATOR, law, BREAKS[law]) != ""


@pytest.mark.parametrize("law", BREAKS)
def test_the_law_holds_of_a_right_pool(law: str) -> None:
    assert broken_alone(BLOCK_ALLOCATOR, law, Pool) == ""


class WithoutCounts:
    """A pool of the zoo that tells nothing of its counts."""

    stats: Any = None


@pytest.mark.parametrize("mutant", [
    paged_allocator.WaitsForALoadThatWasAborted, paged_allocator.NewBlocksWithoutAReference, paged_allocator.LastBlockFreedTwice,
    paged_allocator.ReadersThatDoNotHold, paged_allocator.BlocksListedTwiceInFree, paged_allocator.BeamsWithBlocksNobodyWrote,
    paged_allocator.CopiedBlockGivenBackTwice, prefix_cache.LockWithoutTheNodeItself, prefix_cache.EvictedAndStillFound,
])  # fmt: skip
def test_a_lost_or_doubled_block_is_found_without_any_counts(mutant: type[Any]) -> None:
    silent = type("Silent", (WithoutCounts, mutant), {})
    laws = [law.name for law in ALLOCATOR_LAWS if "stats" not in law.needs and law.name != "answers"]
    assert [law for law in laws if broken_alone(BLOCK_ALLOCATOR, law, silent, may_not_cover=True)]
