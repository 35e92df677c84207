"""Difference: two golden folders compared case by case and value by value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import store
from .certified import Limbs
from .store import Entry


@dataclass
class Difference:
    """identical: cases with equal bytes. lines: one for each difference, for people. provers: where they are two."""

    identical: int = 0
    lines: list[str] = field(default_factory=list)
    provers: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"identical": self.identical, "different": self.lines, "provers": self.provers}


def differences(a: Path, b: Path, *, progress: Callable[[str], None] = lambda name: None) -> Difference:
    """Compare folder a with folder b. Raises GoldenFault where one of them is not whole."""
    of_a, of_b = ({entry.name: entry for entry in store.read_manifest(folder)} for folder in (a, b))
    found = Difference(provers=of_provers(list(of_a.values()), list(of_b.values())))
    found.lines += [f"{name}: only in {a if name in of_a else b}" for name in sorted(set(of_a) ^ set(of_b))]
    for name in (name for name in of_a if name in of_b):
        progress(name)
        lines = _of_case(of_a[name], a, of_b[name], b)
        found.identical += not lines
        found.lines += [f"{name}: {line}" for line in lines]
    return found


def of_provers(a: list[Entry], b: list[Entry]) -> list[str]:
    """The provers that two manifests name, where these are not the same: the only difference a version makes."""
    named = [", ".join(sorted({str(entry.certified["prover"]) for entry in entries if "prover" in entry.certified})) for entries in (a, b)]
    return named if all(named) and named[0] != named[1] else []


def _of_case(entry_a: Entry, a: Path, entry_b: Entry, b: Path) -> list[str]:
    if entry_a.is_trace or entry_b.is_trace:
        steps_a, steps_b = (store.read_trace(entry, folder).steps for entry, folder in ((entry_a, a), (entry_b, b)))
        if entry_a.sha256 == entry_b.sha256:
            return []
        return [f"{len(steps_a)} calls and {len(steps_b)}, other questions or answers"]
    (case_a, limbs_a), (case_b, limbs_b) = store.read(entry_a, a), store.read(entry_b, b)
    if entry_a.sha256 == entry_b.sha256:
        return []
    lines = [] if case_a.hash == case_b.hash else ["other inputs"]
    lines += [f"{result}: only in one" for result in sorted(set(limbs_a) ^ set(limbs_b))]
    for result in sorted(set(limbs_a) & set(limbs_b)):
        lines += _of_values(result, limbs_a[result], limbs_b[result])
    return lines or ["other bytes, the same values"]


def _of_values(name: str, a: Limbs, b: Limbs) -> list[str]:
    if a.hi.shape != b.hi.shape:
        return [f"{name}: shapes {list(a.hi.shape)} and {list(b.hi.shape)}"]
    other = (a.hi.view(np.int64) != b.hi.view(np.int64)) | (a.lo.view(np.int64) != b.lo.view(np.int64))
    if not other.any():
        return []
    with np.errstate(invalid="ignore"):
        apart = np.abs((a.hi - b.hi) + (a.lo - b.lo)) / np.spacing(np.where(np.isfinite(a.hi), np.abs(a.hi), 1.0))
    apart = np.where(other, np.where(np.isnan(apart), np.inf, apart), -1.0)
    at = tuple(int(i) for i in np.unravel_index(int(apart.argmax()), apart.shape))
    return [f"{name}: {int(other.sum())} of {other.size} values have other bits, at most {apart[at]:.3g} ulp apart, at {list(at)}"]
