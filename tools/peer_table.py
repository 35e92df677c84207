"""Peer table: every installed third-party implementation checked, one line each, and one for each library that is missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from oracles.properties import UsageError
from oracles.properties import check as run
from oracles.properties.operations import operation_named
from oracles.properties.peers import PEER_MODULES, WRONG
from oracles.properties.peers.offered import OFFERED
from oracles.properties.report import FAILED, Report
from oracles.properties.stateful.names import STATEFUL_NAMES

from .rendering import console, ratio

CALL_SECONDS = 300.0                                                            # a call may be a run of a C++ compiler
_CAPTION = (
    "What is known to be wrong stands in docs/findings.md under the name given. "
    "ggml is not among these libraries: its wheel is compiled for 24 minutes."
)


@dataclass(frozen=True)
class PeerRow:
    """One peer and operation: its report, or why there is none."""

    peer: str
    operation: str
    report: Report | None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The report, or the reason why there is none."""
        return {"peer": self.peer, "operation": self.operation, "reason": self.reason,
                "report": None if self.report is None else self.report.to_json()}  # fmt: skip


def run_peers(operations: list[str], *, budget: str, failures: Path, quiet: bool, max_cases: int | None = None) -> list[PeerRow]:
    """Check each peer on each operation it has, functions and objects, and say on the error channel which is under way.

    max_cases   cases that a function is given at most; an object is given all its designed sequences

    Raises UsageError for an unknown operation, and where no peer could be run at all.
    """
    for operation in operations:
        if operation not in STATEFUL_NAMES:
            operation_named(operation)
    rows = []
    for peer in PEER_MODULES:
        for operation in operations:
            if operation not in OFFERED[peer]:
                continue
            if not quiet:
                console(stderr=True).print(f"peers:{peer} {operation}", style="dim")
            most = None if operation in STATEFUL_NAMES else max_cases
            rows.append(_row(f"peers:{peer}", operation, budget, failures, most))
    if not any(row.report for row in rows):
        raise UsageError("no peer is installed that has such an operation; want one: pip install 'oracles[peers]'")
    if not quiet:
        console().print(_table(rows))
    return rows


def _row(peer: str, operation: str, budget: str, failures: Path, max_cases: int | None) -> PeerRow:
    try:
        report = run(operation, peer, budget=budget, failures=failures, max_cases=max_cases, call_seconds=CALL_SECONDS)
        return PeerRow(peer, operation, report)
    except UsageError as error:
        return PeerRow(peer, operation, None, str(error))


def _table(rows: list[PeerRow]) -> Table:
    """What came of each; a peer that is known to be wrong names its entry of docs/findings.md.

    A reason not to run is given once, with the operations that it kept from being run.
    """
    table = Table("peer", "version", "operation", "", "cases", "elements", "worst / bound", "laws broken, or why not run", "s",
                  box=box.SIMPLE, caption=_CAPTION, caption_justify="left")  # fmt: skip
    for row in rows:
        if row.report is None:
            continue
        broken = ", ".join(v.law for v in row.report.verdicts if v.status == FAILED) or row.report.stopped
        known = WRONG.get(row.peer.removeprefix("peers:"))
        agreement = [v.worst_ratio for v in row.report.verdicts if v.law.endswith("agrees_with_the_oracle") and v.compared]
        table.add_row(row.peer, row.report.version, row.operation, "holds" if row.report.held else "does not hold",
                      f"{row.report.designed + row.report.random}", f"{sum(v.compared for v in row.report.verdicts):,}",
                      ratio(max(agreement)) if agreement else "", f"{broken} (known: {known})" if known and broken else broken,
                      f"{row.report.seconds:.0f}")  # fmt: skip
    for reason in dict.fromkeys(row.reason for row in rows if row.report is None):
        idle = [row for row in rows if row.report is None and row.reason == reason]
        peers, operations = (list(dict.fromkeys(names)) for names in zip(*((row.peer, row.operation) for row in idle)))
        named = f"{peers[0]} and {len(peers) - 1} more" if len(peers) > 1 else peers[0]
        table.add_row(named, "", ", ".join(operations), "not run", "", "", "", Text(reason), "")                # its [extra] is no markup
    return table
