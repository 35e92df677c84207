"""Replaying: a saved counterexample put to its subject again, and a look at where it goes wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from oracles.properties.case import Case
from oracles.properties.checker import describe
from oracles.properties.comparison import ratios
from oracles.properties.declaration import UsageError
from oracles.properties.law import Judgement, Law
from oracles.properties.operation import Operation
from oracles.properties.operations import operation_named
from oracles.properties.subjects import open_subject
from oracles.properties.trial import Trial

from .key_weights import key_weight_errors
from .rendering import ratio

SHOWN = 6                                                                       # elements shown of each result
TILE = 64                                                                       # rows counted together, when rows are many


@dataclass(frozen=True)
class Row:
    """One element outside its interval."""

    name: str
    index: tuple[int, ...]
    got: float
    wanted: float
    allowed: float
    ratio: float


@dataclass(frozen=True)
class Replay:
    """What a counterexample shows today."""

    operation: Operation
    subject: str
    law: Law
    case: Case
    judgement: Judgement
    rows: tuple[Row, ...]
    wrong: int
    first: str
    keys: str

    @property
    def failed(self) -> bool:
        return self.judgement.failed

    def to_json(self) -> dict[str, Any]:
        """Plain data; infinities as null."""
        def number(x: float) -> float | None:
            return x if np.isfinite(x) else None

        return {
            "operation": self.operation.name, "subject": self.subject, "law": self.law.name, "failed": self.failed,
            "reason": self.judgement.reason, "case": describe(self.case), "elements_wrong": self.wrong, "first": self.first,
            "keys": self.keys,
            "worst": [{"at": f"{r.name}[{','.join(map(str, r.index))}]", "got": number(r.got), "low": number(r.wanted - r.allowed),
                       "high": number(r.wanted + r.allowed), "ratio": number(r.ratio)} for r in self.rows],
        }  # fmt: skip

    def view(self, *, explain: bool) -> Group:
        """The replay for a terminal."""
        state = ("still fails", "bold red") if self.failed else ("holds now", "bold green")
        parts: list[Text | Table] = [
            Text.assemble((f"{self.operation.name}  ", "bold"), self.subject, "  ", (self.law.name, "bold"), "  ", state),
            Text(" ".join(self.law.statement.split())),
            Text(f"on {describe(self.case)}"),
        ]
        if self.judgement.reason:
            parts.append(Text(self.judgement.reason))
        if self.rows:
            table = Table("element", "lowest allowed", "highest allowed", "got", "error / allowed", box=box.SIMPLE, pad_edge=False)
            for row in self.rows:
                place = f"{row.name}[{','.join(map(str, row.index))}]"
                low, high = row.wanted - row.allowed, row.wanted + row.allowed
                table.add_row(place, f"{low:.9g}", f"{high:.9g}", f"{row.got:.9g}", ratio(row.ratio))
            parts.append(table)
        if self.wrong:
            parts.append(Text(f"{self.wrong:,} {'element' if self.wrong == 1 else 'elements'} wrong; {self.first}"))
        if explain and self.keys:
            parts.append(Text(self.keys))
        return Group(*parts)


def replay(place: Path, *, subject: str | None = None, in_process: bool = False) -> Replay:
    """Run the counterexample in a folder again. Raises UsageError where there is none."""
    folder = place if place.is_dir() else place.parent
    case_file, report_file = folder / "case.safetensors", folder / "report.json"
    if not case_file.is_file() or not report_file.is_file():
        raise UsageError(f"FAILURE: {place} is no counterexample; want a folder with case.safetensors and report.json")
    try:
        report = json.loads(report_file.read_text())
        case, _ = Case.load(case_file)
        operation = operation_named(report["operation"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"FAILURE: {folder} cannot be read ({error}); want a folder that a check has written") from None
    law = next((law for law in operation.laws if law.name == report["law"]), None)
    if law is None:
        raise UsageError(f"FAILURE: {place} speaks of the law {report['law']}, which {operation.name} does not have")
    spec = subject or report["spec"]
    if not spec:
        raise UsageError(f"SUBJECT: the failure was of the Python object {report['subject']}; name it with --subject FILE.py:FUNCTION")
    opened = open_subject(spec, operation.name, in_process=in_process, declared=None if subject else report["declared"])
    try:
        trial = Trial(operation, opened, case)
        judgement = law.judge(trial)
        rows, wrong, first = _wrong_elements(trial, judgement)
        return Replay(operation, spec, law, case, judgement, rows, wrong, first, key_weight_errors(trial))
    finally:
        opened.close()


def _wrong_elements(trial: Trial, judgement: Judgement) -> tuple[tuple[Row, ...], int, str]:
    rows: list[Row] = []
    count, first = 0, ""
    for name, wanted in judgement.evidence.wanted.items():
        if name not in trial.answer:
            continue
        got, allowed = np.asarray(trial.answer[name], np.float64), judgement.evidence.allowed[name]
        ratio_of = ratios(trial.answer[name], wanted, allowed)
        wrong = np.argwhere(ratio_of > 1.0)
        count += len(wrong)
        if len(wrong) and not first:
            first = _first_place(name, wrong, in_rows=bool(trial.operation.signature.laid_out) and wanted.ndim >= 3)
        worst = wrong[np.argsort(-ratio_of[tuple(wrong.T)], kind="stable")][:SHOWN]
        for index in map(tuple, worst.tolist()):
            rows.append(Row(name, index, float(got[index]), float(wanted[index]), float(allowed[index]), float(ratio_of[index])))
    return tuple(rows), count, first


def _first_place(name: str, wrong: Any, *, in_rows: bool) -> str:
    """The first wrong element, and in results that are rows (B, H, L, ...) how the wrong rows lie among tiles of rows."""
    place = f"the first is {name}[{','.join(map(str, wrong[0]))}]"
    if not in_rows:
        return place
    rows = wrong[:, 2]
    b, h, i = (int(n) for n in wrong[0][:3])
    tiles = sorted({int(row) // TILE for row in rows})
    listed = ", ".join(f"{t * TILE}..{t * TILE + TILE - 1}" for t in tiles[:6]) + (", ..." if len(tiles) > 6 else "")
    return f"{place}: batch {b}, head {h}, row {i}; wrong rows lie in tiles {listed}"
