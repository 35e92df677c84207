"""Single bytes of the golden set changed at random: every one is found, by name, or the run fails. Nothing here is timed.

    python tests/benchmarks/test_golden_corruption.py     # 10,000 bytes; the test takes a fifth of them

The bytes are drawn over the whole set, manifest included, and changed in memory; the checks are those of `oracles golden verify`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from oracles.golden import store
from oracles.golden.store import Entry, GoldenFault

CORRUPTIONS = 10_000


def golden_set() -> tuple[list[Entry], list[bytearray]]:
    """The entries, and the bytes of every file, the manifest's last."""
    entries = store.read_manifest()
    return entries, [bytearray((store.DATA / file).read_bytes()) for file in (*(entry.file for entry in entries), store.MANIFEST)]


def found(entries: list[Entry], files: list[bytearray], number: int) -> str:
    """The kind of fault that the checks of one file's bytes name, or "" where they name none."""
    try:
        if number == len(entries):
            store.entries_of(bytes(files[number]))
        else:
            store.check_digest(entries[number], bytes(files[number]))
    except GoldenFault as fault:
        return fault.kind
    return ""


def corrupted(corruptions: int, seed: int) -> Counter[str]:
    """How often each kind of fault was found; "" counts what was not."""
    entries, files = golden_set()
    ends = np.cumsum([len(data) for data in files])
    g, kinds = np.random.default_rng(seed), Counter[str]()
    for place in g.integers(0, ends[-1], corruptions).tolist():
        number = int(np.searchsorted(ends, place, side="right"))
        data, at = files[number], place - (int(ends[number - 1]) if number else 0)
        before = data[at]
        data[at] ^= int(g.integers(1, 256))
        kinds[found(entries, files, number)] += 1
        data[at] = before
    return kinds


def test_every_changed_byte_is_found() -> None:
    kinds = corrupted(CORRUPTIONS // 5, seed=0)
    assert kinds[""] == 0
    assert sum(kinds.values()) == CORRUPTIONS // 5


def test_every_byte_of_the_manifest_counts() -> None:
    """The first bytes and the last, each by its lowest bit: a digit may become another digit, a space a letter."""
    entries, files = golden_set()
    manifest, missed = files[-1], []
    for at in [*range(150), *range(len(manifest) - 50, len(manifest))]:
        manifest[at] ^= 1
        missed += [at] if not found(entries, files, len(entries)) else []
        manifest[at] ^= 1
    assert missed == []


def test_a_set_as_it_was_is_not_found_fault_with() -> None:
    entries, files = golden_set()
    assert [number for number in range(len(files)) if found(entries, files, number)] == []


if __name__ == "__main__":
    kinds = corrupted(CORRUPTIONS, seed=0)
    print(f"{sum(kinds.values()) - kinds['']:,} of {sum(kinds.values()):,} changed bytes found: {dict(kinds)}")
