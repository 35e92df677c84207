"""Commands of graders: questions out, without answers; answers in, judged against certified values."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from oracles.properties.declaration import UsageError

from .rendering import console

if TYPE_CHECKING:
    from oracles.golden.grade import Grade

Operations = Annotated[list[str] | None, typer.Option("--operation", help="This operation only; repeatable. All by default.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
MOST_LINES = 20                                                                 # of lost points on a screen


def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make; it must not be there yet.")],
    operation: Operations = None,
    as_json: Json = False,
) -> None:
    """Write the inputs of golden cases, without an answer, for programs in any language; `oracles grade` judges what they answer."""
    from oracles.golden.export import export

    with whole_golden_files():
        asked = export(folder, operation or ())
    counts: dict[str, int] = {}
    for question in asked:
        counts[question.case.operation] = counts.get(question.case.operation, 0) + 1
    if as_json:
        print(json.dumps({"folder": str(folder), "cases": len(asked), "operations": counts}, indent=1))
    else:
        print(f"{folder}: {len(asked)} cases of {len(counts)} operations, no answers; {folder / 'README.md'} says how to answer")


def grade_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders with answers/ for exported inputs.")],
    operation: Operations = None,
    declaration: Annotated[Path | None, typer.Option(help=(
        "A declaration.json that stands for those of all folders; one with {} holds everybody to the defaults."))] = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write a report for people to this file.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write one line a folder to this file.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Judge answers that any program wrote for exported inputs. Nothing of a folder is run. Exit code 0: full marks everywhere.

    Which cases count is said by --operation, never by a folder: what is not there is missing, and earns nothing.
    """
    from oracles.golden.grade import grade
    from oracles.golden.grade_report import csv_of, junit_of, markdown_of

    with _progress(quiet=as_json) as progress, whole_golden_files():
        task = progress.add_task("grading", total=None)
        grades = grade(folders, operation or (), declaration=declaration,
                       progress=lambda done, total: progress.update(task, completed=done, total=total))  # fmt: skip
    for path, text in ((junit_file, junit_of), (markdown_file, markdown_of), (csv_file, csv_of)):
        if path is not None:
            _write(path, text(grades))
    if as_json:
        data = [one.to_json() for one in grades]
        print(json.dumps(data[0] if len(data) == 1 else data, indent=1))
    else:
        console().print(grades_view(grades))
    raise typer.Exit(0 if all(one.full for one in grades) else 1)


@contextmanager
def whole_golden_files() -> Iterator[None]:
    """Golden files of this package that are damaged are said to be so, whatever they were wanted for."""
    from oracles.golden.store import GoldenFault

    try:
        yield
    except GoldenFault as fault:
        raise UsageError(f"golden files of this package are damaged: {fault}; `oracles golden verify` lists all, "
                         "`oracles golden make` writes them anew") from None  # fmt: skip


def grades_view(grades: Sequence[Grade]) -> Group:
    """One submission in full; of several a line each, and their flags."""
    return _one(grades[0]) if len(grades) == 1 else _many(grades)


def _one(grade: Grade) -> Group:
    from oracles.golden.grade_report import lost

    table = _table("operation", "points", "of")
    for name, (points, most) in grade.operations().items():
        table.add_row(name, Text(str(points), "green" if points == most else "bold red"), str(most))
    parts: list[Text | Table] = [table]
    losses = lost(grade)
    parts += [Text.assemble((f"{c.name}: ", "bold red"), f"{c.points} of {c.max_points}: {c.reason}") for c in losses[:MOST_LINES]]
    if len(losses) > MOST_LINES:
        parts.append(Text(f"and {len(losses) - MOST_LINES} cases more: --json or --markdown FILE has them all", "dim"))
    parts += [Text(f"flag: {flag}", "yellow") for flag in grade.flags]
    unjudged = [one.name for one in grade.criteria if one.max_points == 0]
    if unjudged:
        parts.append(Text(f"without a point, since the defaults promise nothing there: {', '.join(unjudged)}", "dim"))
    parts.append(Text(f"{grade.submission}: {grade.score} of {grade.max_score} points", "bold green" if grade.full else "bold red"))
    return Group(*parts)


def _many(grades: Sequence[Grade]) -> Group:
    table = _table("submission", "points", "of", "share", "missing", "wrong")
    table.add_column("less than full marks in", overflow="fold")
    for one in grades:
        missing = sum(criterion.missing for criterion in one.criteria)
        wrong = sum(criterion.points < criterion.max_points for criterion in one.criteria) - missing
        short = [name for name, (points, most) in one.operations().items() if points < most]
        where = "" if one.full else "everything" if len(short) == len(one.operations()) else ", ".join(short)
        share = f"{100 * one.score // max(one.max_score, 1)} %"
        table.add_row(Text(one.submission), Text(str(one.score), "green" if one.full else "bold red"), str(one.max_score), share,
                      str(missing), str(wrong), where)  # fmt: skip
    flags = [Text(f"flag: {one.submission}: {flag}", "yellow") for one in grades for flag in one.flags]
    full = sum(one.full for one in grades)
    return Group(table, *flags, Text(f"{full} of {len(grades)} have full marks", "bold green" if full == len(grades) else "bold"))


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(first, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _progress(*, quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty())


def _write(path: Path, text: str) -> None:
    """All or nothing: a temporary file beside it, then renamed. Raises UsageError where there is no such folder."""
    temporary = path.with_name(path.name + ".writing")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; want a file that can be written") from None
