"""The zoo's objects: every report has a mutant that dies by a law, every legal form lives, and crashes do not count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oracles.properties.stateful.allocator_sequences import allocate, new
from oracles.properties.zoo import keeper
from oracles.properties.zoo.specimen import Specimen, mutant, specimens_in, variant
from oracles.properties.zoo.textbook_pool import Pool

IDS = {
    "paged-allocator": (
        "aborted-remote-load-leaks-blocks", "new-block-refcount-zero", "slot-freed-on-two-finish-paths", "freed-while-async-read-in-flight",
        "duplicate-or-null-block-in-free-call", "cross-kv-separate-blocks-per-beam", "swap-in-block-count-ignores-evictable",
        "last-block-length-zero-when-aligned", "cow-decrement-then-free-again",
    ),
    "prefix-cache": (
        "radix-lock-skips-own-node", "evicted-block-still-in-hash-table", "radix-split-accounting", "untagged-extra-keys-collide",
        "evictable-double-counts-shared-pages", "full-hit-leaves-nothing-to-compute", "adapter-keyed-by-name-not-id",
        "media-content-missing-from-block-hash", "adapter-missing-from-block-hash",
    ),
    "kv-cache": ("appended-length-computed-from-capacity", "values-split-from-the-keys", "cache-crop-copy-breaks-static-cache"),
}  # fmt: skip
OBJECTS = [s for s in keeper.inhabitants(tuple(IDS)) if s.operation in ("block_allocator", "kv_cache")]
MUTANTS = [s for s in OBJECTS if s.kind == "mutant"]
VARIANTS = [s for s in OBJECTS if s.kind == "variant"]
SOURCE = "https://github.com/owner/name/issues/1"


@pytest.mark.parametrize("family", IDS)
def test_every_report_of_a_family_has_one_mutant(family: str) -> None:
    assert sorted(s.id for s in MUTANTS if s.family == family) == sorted(IDS[family])


def test_there_are_many_legal_forms() -> None:
    assert len([s for s in VARIANTS if s.operation == "block_allocator"]) >= 12
    assert len([s for s in VARIANTS if s.operation == "kv_cache"]) >= 5


@pytest.mark.parametrize("specimen", MUTANTS, ids=[s.id for s in MUTANTS])
def test_designed_sequences_alone_kill_it(specimen: Specimen) -> None:
    found = keeper.fate_of(specimen, budget="quick")
    assert found.status == "killed", found.reason
    assert all(address.startswith("https://github.com/") for address in specimen.source.split())


@pytest.mark.parametrize("specimen", VARIANTS, ids=[s.id for s in VARIANTS])
def test_what_is_legal_lives(specimen: Specimen) -> None:
    found = keeper.fate_of(specimen, budget=5)
    assert (found.status, found.reason) == ("lives", "")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("specimen", VARIANTS, ids=[s.id for s in VARIANTS])
def test_what_is_legal_lives_long(specimen: Specimen, seed: int) -> None:
    assert keeper.fate_of(specimen, budget=200, seed=seed).reason == ""


def one_block() -> Any:
    return (new(1, 1), allocate("a", 1))


def fate(function: Any) -> keeper.Fate:
    (specimen,) = specimens_in(SimpleNamespace(function=function))
    return keeper.fate_of(specimen, budget="quick")


@mutant("block_allocator", id="crashes", source=SOURCE, trigger=one_block)
class Crashes(Pool):
    """It raises what nobody expects."""

    def allocate(self, seq: str, tokens: list[int], *, salt: bytes = b"") -> int:
        raise KeyError(seq) if tokens else super().allocate(seq, tokens)


@mutant("block_allocator", id="right", source=SOURCE, trigger=one_block)
class Right(Pool):
    """Nothing is wrong with it."""


@mutant("block_allocator", id="without-trigger", source=SOURCE)
class WithoutTrigger(Pool):
    """Nobody says when it fails."""


@variant("block_allocator", id="illegal")
class Illegal(Pool):
    """A variant that is none: one block is lost."""

    def put_away(self, block: int) -> None:
        if block:
            super().put_away(block)


@pytest.mark.parametrize(("function", "status", "reason"), [
    (Crashes, "invalid", "on its trigger: x.allocate('a', [1]) raised KeyError: 'a'; want OutOfBlocks"),
    (Right, "invalid", "it breaks no law on its own trigger"),
    (WithoutTrigger, "invalid", "it has no trigger"),
])  # fmt: skip
def test_a_mutant_that_shows_nothing_is_invalid(function: Any, status: str, reason: str) -> None:
    found = fate(function)
    assert (found.status, found.reason) == (status, reason)


def test_a_variant_that_breaks_a_law_is_a_false_alarm() -> None:
    assert fate(Illegal).status == "false alarm"


def test_a_class_does_not_inherit_the_mark_of_another() -> None:
    derived = type("Derived", (Illegal,), {})
    assert specimens_in(SimpleNamespace(derived=derived)) == ()


def test_objects_declare_nothing() -> None:
    with pytest.raises(ValueError, match="dtypes: declaring is an object of block_allocator, which declares nothing"):
        variant("block_allocator", id="declaring", dtypes=("float32",))
