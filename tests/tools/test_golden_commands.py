"""`oracles golden`: what it prints, its exit codes, and the page that a command writes."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oracles.golden import measuring, store
from oracles.golden import questions as asking
from oracles.golden.sets import SETS
from oracles.golden.trace_stream import stream_traces

PAGE = Path(__file__).parent.parent.parent / "docs" / "golden.md"


def test_the_list_has_every_operation_and_its_cases(oracles: Any) -> None:
    rows = oracles("golden", "list", "--json").data
    entries = store.read_manifest()
    assert {row["operation"] for row in rows} == {entry.operation for entry in entries}
    assert sum(len(row["cases"]) for row in rows) == len(entries)
    assert f"{len(entries)} files" in oracles("golden", "list").out


def test_verify_says_what_it_saw(oracles: Any) -> None:
    ended = oracles("golden", "verify", "--seconds", "1", "--json")
    assert ended.code == 0
    assert {"files", "values", "certified", "failed"} <= set(ended.data)
    assert (ended.data["files"], ended.data["failed"]) == (len(store.read_manifest()), [])


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """A copy of the golden folder with one byte changed."""
    shutil.copytree(store.DATA, tmp_path / "golden")
    path = tmp_path / "golden" / "softmax" / "pair.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    return tmp_path / "golden"


def test_a_changed_byte_is_a_failure_with_a_name(oracles: Any, spoilt: Path) -> None:
    ended = oracles("golden", "verify", "--folder", str(spoilt), "--seconds", "0", "--json")
    assert ended.code == 1
    assert ended.data["failed"] == ["softmax/pair.safetensors: changed bytes: its SHA-256 is another than the manifest's"]
    assert "FAILED softmax/pair.safetensors" in oracles("golden", "verify", "--folder", str(spoilt), "--seconds", "0").out


@pytest.mark.parametrize("manifest", ["", "{", None])
def test_a_damaged_package_is_made_anew(manifest: str | None, oracles: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manifest is empty, cut short or gone."""
    monkeypatch.setattr(store, "DATA", tmp_path / "data")
    monkeypatch.setattr(store, "make", partial(store.make, sets=(), questions=lambda: stream_traces()[:1]))
    (tmp_path / "data").mkdir()
    if manifest is not None:
        (tmp_path / "data" / store.MANIFEST).write_text(manifest)
    ended = oracles("golden", "make")
    assert (ended.code, "nothing to compare with: manifest.json: " in ended.out) == (0, True)
    assert "all as they were" in oracles("golden", "make").out
    (entry,) = store.read_manifest(tmp_path / "data")
    (tmp_path / "data" / entry.file).unlink()
    ended = oracles("golden", "make", "--json")
    assert (ended.data["changed"], ended.data["damaged"]) == ([entry.name], "")


@pytest.mark.certify
def test_another_manifest_is_told_where_all_files_are_the_same(oracles: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "DATA", tmp_path / "data")
    monkeypatch.setattr(store, "make", partial(store.make, sets=(replace(SETS[0], cases=lambda: SETS[0].cases()[:1]),), questions=list))
    assert "1 files in" in oracles("golden", "make").out
    (entry,) = store.read_manifest(tmp_path / "data")
    other = replace(entry, certified=dict(reversed(entry.certified.items())))
    (tmp_path / "data" / store.MANIFEST).write_bytes(store._canonical([other]))
    assert oracles("golden", "make", "--json").data["changed"] == ["manifest.json"]
    assert "all as they were" in oracles("golden", "make").out


@pytest.mark.parametrize("words", [("golden", "export", "cases"), ("grade", "."), ("golden", "measure")])
def test_nobody_is_judged_by_damaged_golden_files(words: tuple[str, ...], oracles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(folder: Path = store.DATA) -> None:
        raise store.GoldenFault("changed bytes", "manifest.json", "its digest is another")

    monkeypatch.setattr(asking, "read_manifest", damaged)
    monkeypatch.setattr(store, "read_manifest", damaged)
    ended = oracles(*words)
    assert (ended.code, ended.out.strip()) == (2, "")
    assert ended.err.startswith("oracles: golden files of this package are damaged: manifest.json: changed bytes: its digest is another; ")


def test_no_golden_folder_is_a_failure_of_verify_and_bad_usage_elsewhere(oracles: Any, tmp_path: Path) -> None:
    assert oracles("golden", "verify", "--folder", str(tmp_path)).code == 1
    assert oracles("golden", "list", "--folder", str(tmp_path)).code == 2
    assert oracles("golden", "diff", str(tmp_path)).code == 2


def test_a_folder_does_not_differ_from_itself(oracles: Any) -> None:
    ended = oracles("golden", "diff", str(store.DATA), "--json")
    assert (ended.code, ended.data["identical"], ended.data["different"]) == (0, len(store.read_manifest()), [])


def test_every_oracle_holds_and_the_page_has_every_result(oracles: Any) -> None:
    """The figures are those of one machine: another sums in another order. What is measured, and that it holds, is the same everywhere."""
    ended = oracles("golden", "measure", "--json")
    assert ended.code == 0
    page = PAGE.read_text().split(measuring.BEGIN)[1].split(measuring.END)[0]
    published = [re.split(r"\s*\|\s*", line.strip("| ")) for line in page.splitlines() if line.startswith("|")][2:]
    assert [row[:3] for row in published] == [[one["operation"], one["result"], f"{one['values']:,}"] for one in ended.data]
    assert all(float(row[3]) <= 1.0 for row in published)
    assert all(one["held"] for one in ended.data)


def test_an_oracle_that_is_off_is_seen(oracles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry for entry in store.read_manifest() if entry.operation == "log_sum_exp"]
    monkeypatch.setattr(store, "read_manifest", lambda folder=store.DATA: entries)
    right = measuring.operation_named("log_sum_exp")

    class Off:
        bound = staticmethod(right.bound)

        @staticmethod
        def answer(case: Any, conventions: Any) -> dict[str, Any]:
            return {"lse": right.answer(case, conventions)["lse"] * (1.0 + 2.0**-49)}

    monkeypatch.setattr(measuring, "operation_named", lambda name: Off)
    ended = oracles("golden", "measure", "--json")
    assert ended.code == 1
    assert ended.data[0]["worst_ulp"] > measuring.ULPS


def test_a_page_without_marks_is_refused(oracles: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "read_manifest", lambda folder=store.DATA: [])
    (tmp_path / "page.md").write_text("nothing")
    assert oracles("golden", "measure", "--page", str(tmp_path / "page.md")).code == 2
    assert (tmp_path / "page.md").read_text() == "nothing"
