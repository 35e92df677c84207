"""The store: whatever is wrong with a file or the manifest has a name, and nothing is half-written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.golden import store
from oracles.golden.store import Entry, GoldenFault, make, read, read_manifest, redrawn, strangers
from oracles.properties import safetensors_file
from oracles.properties.declaration import UsageError

FILE = "attention/softcap.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the golden folder that may be spoilt."""
    shutil.copytree(store.DATA, tmp_path / "data")
    return tmp_path / "data"


def fault(folder: Path) -> GoldenFault:
    """The first fault found by reading everything."""
    def read_everything() -> None:
        for entry in read_manifest(folder):
            read(entry, folder)

    with pytest.raises(GoldenFault) as caught:
        read_everything()
    return caught.value


def relisted(folder: Path, change: Callable[[list[Entry]], list[Entry]]) -> None:
    """Other entries, in a manifest whose digest agrees."""
    (folder / store.MANIFEST).write_bytes(store._canonical(change(read_manifest(folder))))


def reworded(folder: Path, **fields: Any) -> None:
    """Other fields of one entry."""
    relisted(folder, lambda entries: [replace(e, **fields) if e.file == FILE else e for e in entries])


def rewritten(folder: Path, change: Callable[[dict[str, np.ndarray], dict[str, str]], object]) -> None:
    """One file with other tensors or metadata, and a manifest that agrees with its bytes but not with what they should be."""
    tensors, metadata = safetensors_file.read(folder / FILE)
    change(tensors, metadata)
    replaced(folder, safetensors_file.dumps(tensors, metadata))


def replaced(folder: Path, data: bytes) -> None:
    (folder / FILE).write_bytes(data)
    reworded(folder, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def test_the_folder_is_whole_and_as_it_is_drawn_today() -> None:
    entries = read_manifest()
    assert len(entries) >= 12 * len(store.SETS)
    assert strangers(entries) == []
    assert [str(f) for f in redrawn(entries)] == []
    assert sum(entry.bytes for entry in entries) < 30 * 2**20


def drop(folder: Path) -> None:
    (folder / FILE).unlink()


def link(folder: Path) -> None:
    (folder / FILE).rename(folder / "elsewhere")
    os.symlink(folder / "elsewhere", folder / FILE)


def truncate(folder: Path) -> None:
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-8])


def flip(folder: Path) -> None:
    data = bytearray((folder / FILE).read_bytes())
    data[-1] ^= 1
    (folder / FILE).write_bytes(bytes(data))


def wrong_dtype(folder: Path) -> None:
    rewritten(folder, lambda t, _: t.update({"out.hi": t["out.hi"].astype(np.float32)}))


def missing_tensor(folder: Path) -> None:
    rewritten(folder, lambda t, _: t.__delitem__("lse.lo"))


def extra_tensor(folder: Path) -> None:
    rewritten(folder, lambda t, _: t.update({"out.mid": t["out.hi"]}))


def wrong_shape(folder: Path) -> None:
    rewritten(folder, lambda t, _: t.update({"q": t["q"][:, :1]}))


def no_pair(folder: Path) -> None:
    rewritten(folder, lambda t, _: t.update({"out.lo": t["out.hi"] * 1e-3}))


def nan(folder: Path) -> None:
    rewritten(folder, lambda t, _: t.update({"lse.hi": t["lse.hi"] * np.nan}))


def linked_folder(folder: Path) -> None:
    (folder / "attention").rename(folder.parent / "elsewhere")
    os.symlink(folder.parent / "elsewhere", folder / "attention")


def one_name_twice(folder: Path) -> None:
    """The JSON reader keeps the last of two members of one name, others keep the first."""
    data = (folder / FILE).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip().replace(b'"out.hi":', b'"out.hi":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"out.hi":', 1)
    replaced(folder, len(header).to_bytes(8, "little") + header + data[8 + length :])


def moved(folder: Path) -> None:
    (folder / FILE).rename(folder / "softmax/softcap.safetensors")
    reworded(folder, file="softmax/softcap.safetensors")


def as_a_trace(folder: Path) -> None:
    reworded(folder, file="attention/softcap.json", certified=store.EXACT)


def edited(old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / store.MANIFEST
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return edit


SPOILERS: dict[str, Callable[[Path], None]] = {
    "missing file": drop,
    "missing file, a link": link,
    "wrong length": truncate,
    "changed bytes": flip,
    "wrong results, dtype": wrong_dtype,
    "wrong results, half a pair": missing_tensor,
    "wrong results, extra": extra_tensor,
    "wrong inputs": wrong_shape,
    "no rounded pair": no_pair,
    "no rounded pair, NaN": nan,
    "no rounded pair, -0": lambda f: rewritten(f, lambda t, _: t["out.lo"].fill(-0.0)),
    "changed bytes, manifest": edited('"bits": 192', '"bits": 193'),
    "changed bytes, blank": edited("\n", "\n "),
    "stale manifest": edited('"version": 1', '"version": 2'),
    "unreadable manifest": edited('"version"', "version"),
    "missing file, in a link": linked_folder,
    "unreadable file, a name twice": one_name_twice,
    "unreadable file, surplus metadata": lambda f: rewritten(f, lambda _, m: m.update(answer="42")),
    "unreadable file, an option that is none": lambda f: rewritten(f, lambda _, m: m.update(options='{"softcap": {"hex": 3}}')),
    "wrong description, case": lambda f: rewritten(f, lambda _, m: m.update(origin="another")),
    "wrong description, options": lambda f: reworded(f, options={"causal": "top_left"}),
    "wrong description, nothing": lambda f: reworded(f, results=None),
    "wrong description, a trace with inputs": as_a_trace,
    "not certified": lambda f: reworded(f, certified={"by": "a guess"}),
    "not certified, a list": lambda f: reworded(f, certified=[]),
    "not certified, rounded otherwise": edited("RN64(x - hi)", "RZ64(x - hi)"),
    "doubled case": lambda f: relisted(f, lambda entries: [*entries, entries[0]]),
    "unreadable manifest, deep": lambda f: (f / store.MANIFEST).write_text("[" * 200_000),
    "foreign path, no text": lambda f: reworded(f, file=None),
    "foreign path, of another operation": moved,
    "foreign path": edited('"file": "attention/softcap.safetensors"', '"file": "../attention/softcap.safetensors"'),
}


@pytest.mark.parametrize("what", SPOILERS)
def test_a_spoilt_folder_is_a_named_fault(what: str, folder: Path) -> None:
    SPOILERS[what](folder)
    found = fault(folder)
    assert found.kind == what.split(",")[0]
    places = {"missing file, in a link": "attention/", "foreign path, no text": "None", "foreign path, of another operation": "softmax/",
              "not certified, rounded otherwise": "softmax/"}
    assert found.file == store.MANIFEST or found.file.startswith(places.get(what, "attention/softcap" if what != "foreign path" else "../"))


@pytest.mark.parametrize("file", ["/etc/passwd", "a/../../b", "..", "", "a\\b"])
def test_a_path_that_leaves_the_folder_is_refused(file: str) -> None:
    with pytest.raises(GoldenFault, match="foreign path"):
        store._check_entry(replace(read_manifest()[0], file=file))


def test_what_the_manifest_does_not_name_is_seen(folder: Path) -> None:
    (folder / "attention" / "more.safetensors").write_bytes(b"")
    (folder / "nothing").mkdir()
    os.symlink("/", folder / "everything")
    assert strangers(read_manifest(folder), folder) == ["attention/more.safetensors", "everything", "nothing"]


def test_a_case_that_is_drawn_otherwise_today_makes_the_manifest_stale(folder: Path) -> None:
    rewritten(folder, lambda t, _: t.update({"q": t["q"] * np.float32(2)}))
    (found,) = redrawn(read_manifest(folder), folder)
    assert (found.kind, found.file) == ("stale manifest", FILE)


def test_entries_in_another_order_are_seen(folder: Path) -> None:
    relisted(folder, lambda entries: entries[::-1])
    (found,) = redrawn(read_manifest(folder), folder)
    assert "another order" in str(found)


def test_another_note_of_a_case_is_seen(folder: Path) -> None:
    rewritten(folder, lambda _, m: m.update(notes='{"poison": 1}'))
    (found,) = redrawn(read_manifest(folder), folder)
    assert found.file == FILE


def test_entries_are_written_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last byte of the manifest, the order of its words too."""
    entries = [entry for entry in read_manifest() if entry.operation in ("softmax", "all_reduce", "write_kv")]
    (recorded,) = {entry.certified["prover"] for entry in entries if not entry.is_trace}
    monkeypatch.setattr(store, "prover", lambda: recorded)
    written = [store._written_trace(tmp_path, store.read_trace(entry)) if entry.is_trace
               else store._written(tmp_path, *read(entry), entry.certified["bits"]) for entry in entries]  # fmt: skip
    assert store._canonical(written) == store._canonical(entries)
    assert {entry.is_trace for entry in entries} == {True, False}


@pytest.mark.parametrize("held", ["thesis.txt", "manifest.json", "softmax/pair.safetensors"])
def test_make_replaces_nothing_that_it_did_not_write(held: str, tmp_path: Path) -> None:
    (tmp_path / held).parent.mkdir(exist_ok=True)
    (tmp_path / held).write_text("dear")
    with pytest.raises(UsageError, match="is no golden folder"):
        make(tmp_path, sets=(), questions=list)
    assert (tmp_path / held).read_text() == "dear"


def test_make_leaves_a_golden_folder_with_something_else_in_it(tmp_path: Path) -> None:
    make(tmp_path / "set", sets=(), questions=list)
    make(tmp_path / "set", sets=(), questions=list)
    (tmp_path / "set" / "notes.txt").write_text("dear")
    os.symlink(tmp_path / "set", tmp_path / "link")
    for out, why in (("set", "holds notes.txt"), ("set/notes.txt", "is no folder"), ("link", "is no folder")):
        with pytest.raises(UsageError, match=why):
            make(tmp_path / out, sets=(), questions=list)
    assert (tmp_path / "set" / "notes.txt").read_text() == "dear"


def test_missing_and_surplus_cases_make_it_stale(folder: Path) -> None:
    entries = read_manifest(folder)
    assert [f.kind for f in redrawn(entries[1:], folder)] == ["stale manifest"]
    surplus = [entry for entry in entries if entry.operation == store.SETS[0].operation]
    assert [f.kind for f in redrawn(entries, folder, sets=store.SETS[1:])] == ["stale manifest"] * len(surplus)


def test_the_manifest_is_plain_json() -> None:
    content = json.loads((store.DATA / store.MANIFEST).read_text())
    assert set(content) == {"version", "digest", "entries"}
    assert {"operation", "case", "options", "inputs", "results", "sha256", "certified"} <= set(content["entries"][0])
