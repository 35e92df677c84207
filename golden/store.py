"""Store: the folder of golden files and its manifest, written whole or not at all, and read only after every byte was checked."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oracles.properties import safetensors_file
from oracles.properties.case import Case
from oracles.properties.declaration import UsageError
from oracles.properties.safetensors_file import Array

from . import traces
from .certified import Limbs, certified
from .sets import SETS, GoldenSet, trace_questions
from .trace_answers import answers
from .traces import Trace

DATA = Path(__file__).with_name("data")
MANIFEST = "manifest.json"
VERSION = 1                                                                     # of the form of files and manifest
NAME = re.compile("[a-z0-9][a-z0-9_-]{0,80}")                                   # of operations and cases: any file system tells them apart
EXACT, ROUNDED = {"by": "exact"}, {"by": "ball arithmetic", "rounding": "hi = RN64(x), lo = RN64(x - hi)"}


class GoldenFault(ValueError):
    """Something about a golden file is not as it must be. `kind` names it, `file` says where."""

    def __init__(self, kind: str, file: str, message: str) -> None:
        super().__init__(f"{file}: {kind}: {message}")
        self.kind, self.file = kind, file


@dataclass(frozen=True)
class Entry:
    """One golden file as the manifest describes it; `inputs` and `results` are name -> {"dtype", "shape"}.

    certified: how the values are known, "by" ball arithmetic (with the prover, the bits that were needed, the rounding) or "exact".
    The file of a trace describes itself: its options, inputs and results here are empty.
    """

    operation: str
    case: str
    file: str
    options: Mapping[str, Any]
    inputs: Mapping[str, Any]
    results: Mapping[str, Any]
    certified: Mapping[str, Any]
    bytes: int
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.operation}/{self.case}"

    @property
    def is_trace(self) -> bool:
        """Whether the file is JSON, for `read_trace`, and not safetensors, for `read`."""
        return self.file.endswith(".json")


def make(folder: Path, *, sets: tuple[GoldenSet, ...] = SETS, questions: Callable[[], list[Trace]] = trace_questions,
         progress: Callable[[str], None] = lambda name: None) -> list[Entry]:
    """Draw, prove and write all cases into `folder`, which is replaced as a whole at the end. The same bytes every time.

    Under another version of the prover the files are the same to the last byte, and so is the manifest but for `certified`.
    Raises UsageError for a folder that holds anything else than golden files, ImportError without python-flint, `certified.Unproven`
    where a value cannot be rounded with proof.
    """
    _check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".writing-"))
    try:
        entries = []
        for one in sets:
            for case in one.cases():
                progress(f"{one.operation}/{case.origin}")
                limbs, bits = certified(lambda one=one, case=case: one.balls(**case.arguments()))  # type: ignore[misc]
                entries.append(_written(temporary, case, limbs, bits))
        for trace in questions():
            progress(f"{trace.operation}/{trace.case}")
            entries.append(_written_trace(temporary, trace.answered(answers)))
        (temporary / MANIFEST).write_bytes(_canonical(entries))
        os.chmod(temporary, 0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
        return entries
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_replaceable(folder: Path) -> None:
    """Raises UsageError where writing into a folder would remove what `make` has not written."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"--out: {folder} is no folder; want one that is not there yet, or one of golden files")
    if folder.resolve() == DATA.resolve() or not folder.exists() or not any(folder.iterdir()):
        return
    try:
        others = strangers(read_manifest(folder), folder)
    except GoldenFault as fault:
        raise UsageError(f"--out: {folder} would be replaced and is no golden folder ({fault}); want one that is not there yet") from None
    if others:
        raise UsageError(f"--out: {folder} would be replaced and holds {others[0]} too; want one that is not there yet")


def _written(folder: Path, case: Case, limbs: Mapping[str, Limbs], bits: int) -> Entry:
    data = _bytes(case, limbs)
    how = {"by": ROUNDED["by"], "prover": prover(), "bits": bits, "rounding": ROUNDED["rounding"]}        # in the order of the manifest
    entry = _entry(case, limbs, how, data)
    _put(folder / entry.file, data)
    return entry


def _bytes(case: Case, limbs: Mapping[str, Limbs]) -> bytes:
    """A golden file, in the one way that it is written."""
    expected: dict[str, Array] = {}
    for name, value in limbs.items():
        expected |= {f"{name}.hi": value.hi, f"{name}.lo": value.lo}
    return safetensors_file.dumps(*case.to_tensors(expected))


def _entry(case: Case, limbs: Mapping[str, Limbs], how: Mapping[str, Any], data: bytes) -> Entry:
    """A golden file as the manifest is to describe it."""
    results = {name: {"dtype": "float64", "shape": list(value.hi.shape)} for name, value in limbs.items()}
    options = json.loads(case.to_tensors()[1]["options"])
    return Entry(case.operation, case.origin, f"{case.operation}/{case.origin}.safetensors", options, _described(case.arrays), results,
                 how, len(data), hashlib.sha256(data).hexdigest())  # fmt: skip


def _written_trace(folder: Path, trace: Trace) -> Entry:
    file, data = f"{trace.operation}/{trace.case}.json", traces.dumps(trace)
    _put(folder / file, data)
    return Entry(trace.operation, trace.case, file, {}, {}, {}, EXACT, len(data), hashlib.sha256(data).hexdigest())


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def prover() -> str:
    """The prover and its version, as it stands in an entry."""
    return f"python-flint {importlib.metadata.version('python-flint')}"


def _described(arrays: Mapping[str, Array]) -> dict[str, Any]:
    return {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in arrays.items()}


def _canonical(entries: list[Entry]) -> bytes:
    """The manifest's bytes, an entry a line; the digest is over everything else in it, so that no byte of it can change unseen."""
    listed = ",\n".join(json.dumps(dict(sorted(vars(entry).items()))) for entry in entries)
    digest = hashlib.sha256(f"{VERSION}{listed}".encode()).hexdigest()
    return f'{{"version": {VERSION}, "digest": "{digest}", "entries": [\n{listed}\n]}}\n'.encode()


def read_manifest(folder: Path = DATA) -> list[Entry]:
    """The entries of a folder. Raises GoldenFault for a manifest that is missing, changed, of another version, or names foreign paths."""
    path = folder / MANIFEST
    if path.is_symlink() or not path.is_file():
        raise GoldenFault("missing file", MANIFEST, f"no such file in {folder}; want a folder written by `oracles golden make`")
    return entries_of(path.read_bytes())


def entries_of(data: bytes) -> list[Entry]:
    """The entries in the bytes of a manifest. Raises GoldenFault."""
    try:
        content = json.loads(data)
        version, entries = content["version"], [Entry(**entry) for entry in content["entries"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise GoldenFault("unreadable manifest", MANIFEST, f"{type(error).__name__}: {error}") from None
    if version != VERSION:
        raise GoldenFault("stale manifest", MANIFEST, f"version {version}; want {VERSION}")
    names = set()
    for entry in entries:
        _check_entry(entry)
        if entry.name in names:
            raise GoldenFault("doubled case", MANIFEST, f"{entry.name} stands there twice")
        names.add(entry.name)
    if data != _canonical(entries):
        raise GoldenFault("changed bytes", MANIFEST, "its digest is another; want the manifest as it was written")
    return entries


def _check_entry(entry: Entry) -> None:
    """What an entry says without its file. Raises GoldenFault."""
    named = [isinstance(name, str) and NAME.fullmatch(name) for name in (entry.operation, entry.case)]
    if not all(named) or entry.file not in (f"{entry.name}.safetensors", f"{entry.name}.json"):
        raise GoldenFault("foreign path", str(entry.file), "leaves its place; want operation/case.safetensors, or .json")
    descriptions = (entry.options, entry.inputs, entry.results)
    if not all(isinstance(one, dict) for one in descriptions) or (entry.is_trace and any(descriptions)):
        want = "empty ones, since a trace describes itself" if entry.is_trace else "names and what each is"
        raise GoldenFault("wrong description", entry.file, f"options, inputs, results are {descriptions}; want {want}")
    how = entry.certified if isinstance(entry.certified, dict) else {}
    proven = ROUNDED.items() <= how.items() and how.keys() == {*ROUNDED, "prover", "bits"} and type(how["bits"]) is int
    if not (how == EXACT if entry.is_trace else proven):
        want = str(EXACT) if entry.is_trace else f"{ROUNDED} with prover and bits"
        raise GoldenFault("not certified", entry.file, f"its values are known {entry.certified}; want {want}")


def read(entry: Entry, folder: Path = DATA) -> tuple[Case, dict[str, Limbs]]:
    """One golden case and its values, after all checks that need no arithmetic. Raises GoldenFault."""
    return case_of(entry, _checked_bytes(entry, folder))


def read_trace(entry: Entry, folder: Path = DATA) -> Trace:
    """One trace with its answers, after all checks that need no arithmetic. Raises GoldenFault."""
    data = _checked_bytes(entry, folder)
    try:
        trace = traces.loads(data)
    except ValueError as error:
        raise GoldenFault("unreadable file", entry.file, str(error)) from None
    if (trace.operation, trace.case) != (entry.operation, entry.case):
        raise GoldenFault("wrong inputs", entry.file, f"holds {trace.operation}/{trace.case}; want {entry.name}")
    if traces.dumps(trace) != data:
        raise GoldenFault("unreadable file", entry.file, "is not written as traces are")
    return trace


def _checked_bytes(entry: Entry, folder: Path) -> bytes:
    """The bytes of a file, which are those that the manifest means."""
    path = folder / entry.file
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        raise GoldenFault("missing file", entry.file, "want the file that the manifest names, no link")
    data = path.read_bytes()
    check_digest(entry, data)
    return data


def check_digest(entry: Entry, data: bytes) -> None:
    """Raises GoldenFault where the bytes of a file are not those that the manifest means."""
    if len(data) != entry.bytes:
        raise GoldenFault("wrong length", entry.file, f"{len(data)} bytes; want {entry.bytes}")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise GoldenFault("changed bytes", entry.file, "its SHA-256 is another than the manifest's")


def case_of(entry: Entry, data: bytes) -> tuple[Case, dict[str, Limbs]]:
    """The case and the values in the bytes of a golden file, as its entry describes them. Raises GoldenFault."""
    try:
        case, expected = Case.from_tensors(*safetensors_file.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GoldenFault("unreadable file", entry.file, str(error)) from None
    if _described(case.arrays) != entry.inputs:
        raise GoldenFault("wrong inputs", entry.file, f"holds {_described(case.arrays)}; want {dict(entry.inputs)}")
    wanted = {f"{name}.{limb}": about for name, about in entry.results.items() for limb in ("hi", "lo")}
    if _described(expected) != wanted:
        raise GoldenFault("wrong results", entry.file, f"holds {_described(expected)}; want {wanted}")
    limbs = {name: Limbs(expected[f"{name}.hi"], expected[f"{name}.lo"]) for name in entry.results}
    for name, value in limbs.items():
        _check_limbs(entry.file, name, value)
    held = _entry(case, limbs, entry.certified, data)
    if held != entry:
        about = next(name for name in vars(entry) if vars(held)[name] != vars(entry)[name])
        raise GoldenFault("wrong description", entry.file, f"holds {about} {vars(held)[about]}; the manifest has {vars(entry)[about]}")
    if _bytes(case, limbs) != data:
        raise GoldenFault("unreadable file", entry.file, "is not written as golden files are")
    return case, limbs


def _check_limbs(file: str, name: str, value: Limbs) -> None:
    """lo is no larger than half a unit in the last place of hi, and 0 beside inf; NaN is never expected, and 0 has no sign."""
    finite = np.isfinite(value.hi)
    half = np.spacing(np.where(finite, np.abs(value.hi), 0.0)) / 2.0
    wrong = np.isnan(value.hi) | ~np.isfinite(value.lo) | (np.abs(value.lo) > np.where(finite, half, 0.0))
    wrong |= ((value.hi == 0.0) & np.signbit(value.hi)) | ((value.lo == 0.0) & np.signbit(value.lo))
    if wrong.any():
        at = np.argwhere(wrong)[0].tolist()
        pair = f"{value.hi[tuple(at)]} and {value.lo[tuple(at)]}"
        raise GoldenFault("no rounded pair", file, f"{name}{at} is {pair}; want lo within half a unit of hi, and 0 without a sign")


def strangers(entries: list[Entry], folder: Path = DATA) -> list[str]:
    """Files and folders in the folder that the manifest does not name. No link is followed."""
    known = {MANIFEST, *(entry.file for entry in entries), *(entry.operation for entry in entries)}
    return sorted(name for path in folder.rglob("*") if (name := path.relative_to(folder).as_posix()) not in known)


def redrawn(entries: list[Entry], folder: Path = DATA, *, sets: tuple[GoldenSet, ...] = SETS,
            questions: Callable[[], list[Trace]] = trace_questions) -> Iterator[GoldenFault]:
    """What the files hold against what the generator draws today: every difference, missing and surplus case, another order."""
    named = {entry.name: entry for entry in entries}
    drawn = []
    for one in sets:
        for case in one.cases():
            drawn.append(f"{one.operation}/{case.origin}")
            entry = named.pop(f"{one.operation}/{case.origin}", None)
            if entry is None:
                yield GoldenFault("stale manifest", MANIFEST, f"{one.operation}/{case.origin} is drawn today and not there")
            elif not _alike(read(entry, folder)[0], case):
                yield GoldenFault("stale manifest", entry.file, "its inputs are others than those drawn today")
    for trace in questions():
        drawn.append(f"{trace.operation}/{trace.case}")
        entry = named.pop(f"{trace.operation}/{trace.case}", None)
        if entry is None:
            yield GoldenFault("stale manifest", MANIFEST, f"{trace.operation}/{trace.case} is drawn today and not there")
        elif traces.dumps(read_trace(entry, folder).questions) != traces.dumps(trace):
            yield GoldenFault("stale manifest", entry.file, "its calls are others than those drawn today")
    for entry in named.values():
        yield GoldenFault("stale manifest", entry.file, "is there and not drawn today")
    there = {entry.name for entry in entries}
    if [name for name in drawn if name in there] != [entry.name for entry in entries if entry.name in set(drawn)]:
        yield GoldenFault("stale manifest", MANIFEST, "its entries stand in another order than they are drawn in today")


def _alike(held: Case, drawn: Case) -> bool:
    """Whether two cases are the same to the last byte of a file: what is received, strides, notes."""
    return held.hash == drawn.hash and held.to_tensors()[1] == drawn.to_tensors()[1]
