"""Rendering: reports and replays on a terminal. What is in them is decided elsewhere."""

from __future__ import annotations

import math

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from oracles.properties.power import describe
from oracles.properties.report import ERROR, FAILED, HELD, NOT_COVERED, Report

_STYLE = {HELD: "green", FAILED: "bold red", ERROR: "bold red", NOT_COVERED: "dim"}


def report_view(report: Report) -> Group:
    """One report: a line a law, what failed in full, what was not covered."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("law", overflow="fold")
    for column in ("", "cases", "elements", "worst / bound"):
        table.add_column(column, justify="left" if column == "" else "right")
    table.add_column("where", overflow="fold")
    for verdict in report.verdicts:
        if verdict.status != NOT_COVERED:
            table.add_row(verdict.law, Text(verdict.status, _STYLE[verdict.status]), f"{verdict.cases:,}", f"{verdict.compared:,}",
                          ratio(verdict.worst_ratio), verdict.worst_at)  # fmt: skip
    parts: list[Text | Table] = [Text.assemble((f"{report.operation}  ", "bold"), report.subject, f"  {report.version}"), table]
    for verdict in report.verdicts:
        if verdict.status in (FAILED, ERROR):
            parts.append(Text.assemble((f"{verdict.law}: ", "bold red"), verdict.reason))
            if verdict.hint:
                parts.append(Text(f"  looks like {verdict.hint}", "yellow"))
            if verdict.case:
                parts.append(Text(f"  on {verdict.case}"))
            if verdict.counterexample:
                parts.append(Text(f"  again: python {verdict.counterexample}/repro.py, or oracles replay {verdict.counterexample}"))
    parts += [Text(f"warning: {v.law}: {v.warning}", "yellow") for v in report.verdicts if v.warning]
    unbound = [f"{v.law}: {v.reason}" for v in report.verdicts if v.status == NOT_COVERED]
    if unbound or report.not_covered:
        parts.append(Text("not covered", "dim"))
        parts += [Text(f"  {line}", "dim") for line in (*unbound, *report.not_covered)]
    if report.stopped:
        parts.append(Text(report.stopped, "bold red"))
    if report.held and report.power:
        parts += [Text(line) for line in describe(report.power)]
    parts.append(_conclusion(report))
    return Group(*parts)


def _conclusion(report: Report) -> Text:
    failed, unjudged = (sum(v.status == status for v in report.verdicts) for status in (FAILED, ERROR))
    compared = sum(v.compared for v in report.verdicts)
    left_out = sum(v.left_out for v in report.verdicts if v.law.endswith("agrees_with_the_oracle"))
    told = [f"{failed} {'law' if failed == 1 else 'laws'} broken"] if failed else []
    told += [f"{unjudged} could not be judged"] if unjudged else []
    broken = "does not hold" + (": " + ", ".join(told) if told else "")
    outcome = ("holds", "bold green") if report.held else (broken, "bold red")
    spent = f"  {report.designed} designed and {report.random} random cases, {compared:,} elements compared"
    no_promise = f", {left_out:,} left out where the declared arithmetic leaves the answer open" if left_out else ""
    return Text.assemble(outcome, f"{spent}{no_promise}, {report.seconds:.1f} s, seed {report.seed}\n")


def ratio(value: float) -> str:
    """A worst error / bound for people: no bound but 0 shows as such."""
    return f"{value:.3g}" if math.isfinite(value) else "no error allowed"


def console(stderr: bool = False) -> Console:
    """A console that never breaks a line of ours in the middle of a path when it is not a terminal."""
    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=200)
