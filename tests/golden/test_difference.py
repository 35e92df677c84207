"""Two golden folders: identical, other bits and how far, missing, surplus, other provers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oracles.golden import store
from oracles.golden.certified import Limbs
from oracles.golden.difference import differences, of_provers

NAMES = ("softmax/pair", "sample/5-tokens-4-rows")


@pytest.fixture(autouse=True)
def any_prover(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are written here without proving anything."""
    monkeypatch.setattr(store, "prover", lambda: "python-flint 0.9.0")


def small(folder: Path, change=lambda name, value: value, names: tuple[str, ...] = NAMES) -> Path:
    """A golden folder of one numeric case and one trace, its limbs or steps changed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    entries = []
    for entry in (entry for entry in store.read_manifest() if entry.name in names):
        if entry.is_trace:
            trace = store.read_trace(entry)
            entries.append(store._written_trace(folder, change(entry.name, trace)))
        else:
            case, limbs = store.read(entry)
            entries.append(store._written(folder, case, change(entry.name, limbs), entry.certified["bits"]))
    (folder / store.MANIFEST).write_bytes(store._canonical(entries))
    return folder


def test_a_folder_is_identical_to_itself(tmp_path: Path) -> None:
    found = differences(small(tmp_path / "a"), small(tmp_path / "b"))
    assert (found.identical, found.lines, found.provers) == (2, [], [])


def test_other_bits_are_told_with_their_distance(tmp_path: Path) -> None:
    def up(name: str, value):
        if name != "softmax/pair":
            return replace(value, steps=(replace(value.steps[0], answer={"token": np.zeros(4, np.int64)}),))
        hi = value["p"].hi.copy()
        hi[2, 0] = np.nextafter(np.nextafter(hi[2, 0], 1.0), 1.0)
        return {"p": Limbs(hi, value["p"].lo)}

    found = differences(small(tmp_path / "a"), small(tmp_path / "b", up))
    assert found.lines == ["softmax/pair: p: 1 of 10 values have other bits, at most 2 ulp apart, at [2, 0]",
                           "sample/5-tokens-4-rows: 1 calls and 1, other questions or answers"]  # fmt: skip
    assert found.identical == 0


def test_missing_and_surplus_cases_are_told(tmp_path: Path) -> None:
    one, both = small(tmp_path / "a", names=NAMES[:1]), small(tmp_path / "b")
    assert differences(one, both).lines == [f"{NAMES[1]}: only in {both}"]
    assert differences(both, one).lines == [f"{NAMES[1]}: only in {both}"]


def test_another_prover_is_told_and_no_difference() -> None:
    entries = store.read_manifest()
    older = {"prover": "python-flint 0.7.1"}
    other = [entry if entry.is_trace else replace(entry, certified={**entry.certified, **older}) for entry in entries]
    assert of_provers(entries, entries) == []
    assert of_provers(entries, other) == ["python-flint 0.9.0", "python-flint 0.7.1"]
