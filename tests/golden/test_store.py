"""The store: whatever is wrong with a file or the manifest has a name, and nothing is half-written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from oracles.golden import store
from oracles.golden.store import GoldenFault, read, read_manifest, redrawn, strangers
from oracles.properties import safetensors_file

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


def rewritten(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """One file with other tensors, and a manifest that agrees with its bytes but not with what they should be."""
    tensors, metadata = safetensors_file.read(folder / FILE)
    change(tensors)
    data = safetensors_file.dumps(tensors, metadata)
    (folder / FILE).write_bytes(data)
    entries = [store.Entry(**{**vars(e), "bytes": len(data), "sha256": store.hashlib.sha256(data).hexdigest()}) if e.file == FILE else e
               for e in read_manifest(folder)]
    (folder / store.MANIFEST).write_bytes(store._canonical(entries))


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
    rewritten(folder, lambda t: t.update({"out.hi": t["out.hi"].astype(np.float32)}))


def missing_tensor(folder: Path) -> None:
    rewritten(folder, lambda t: t.__delitem__("lse.lo"))


def extra_tensor(folder: Path) -> None:
    rewritten(folder, lambda t: t.update({"out.mid": t["out.hi"]}))


def wrong_shape(folder: Path) -> None:
    rewritten(folder, lambda t: t.update({"q": t["q"][:, :1]}))


def no_pair(folder: Path) -> None:
    rewritten(folder, lambda t: t.update({"out.lo": t["out.hi"] * 1e-3}))


def nan(folder: Path) -> None:
    rewritten(folder, lambda t: t.update({"lse.hi": t["lse.hi"] * np.nan}))


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
    "changed bytes, manifest": edited('"bits": 192', '"bits": 193'),
    "changed bytes, blank": edited("\n", "\n "),
    "stale manifest": edited('"version": 1', '"version": 2'),
    "unreadable manifest": edited('"version"', "version"),
    "foreign path": edited('"file": "attention/softcap.safetensors"', '"file": "../attention/softcap.safetensors"'),
}


@pytest.mark.parametrize("what", SPOILERS)
def test_a_spoilt_folder_is_a_named_fault(what: str, folder: Path) -> None:
    SPOILERS[what](folder)
    found = fault(folder)
    assert found.kind == what.split(",")[0]
    assert found.file in (FILE, store.MANIFEST, "../" + FILE)


@pytest.mark.parametrize("file", ["/etc/passwd", "a/../../b", "..", "", "a\\b"])
def test_a_path_that_leaves_the_folder_is_refused(file: str) -> None:
    with pytest.raises(GoldenFault, match="foreign path"):
        store._inside(file)


def test_a_file_that_the_manifest_does_not_name_is_seen(folder: Path) -> None:
    (folder / "attention" / "more.safetensors").write_bytes(b"")
    assert strangers(read_manifest(folder), folder) == ["attention/more.safetensors"]


def test_a_case_that_is_drawn_otherwise_today_makes_the_manifest_stale(folder: Path) -> None:
    rewritten(folder, lambda t: t.update({"q": t["q"] * np.float32(2)}))
    (found,) = redrawn(read_manifest(folder), folder)
    assert (found.kind, found.file) == ("stale manifest", FILE)


def test_missing_and_surplus_cases_make_it_stale(folder: Path) -> None:
    entries = read_manifest(folder)
    assert [f.kind for f in redrawn(entries[1:], folder)] == ["stale manifest"]
    surplus = [entry for entry in entries if entry.operation == store.SETS[0].operation]
    assert [f.kind for f in redrawn(entries, folder, sets=store.SETS[1:])] == ["stale manifest"] * len(surplus)


def test_the_manifest_is_plain_json() -> None:
    content = json.loads((store.DATA / store.MANIFEST).read_text())
    assert set(content) == {"version", "digest", "entries"}
    assert {"operation", "case", "options", "inputs", "results", "sha256", "certified"} <= set(content["entries"][0])
