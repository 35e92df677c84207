"""`oracles golden`: the golden files listed, verified, made, compared and measured against. Exit codes 0 held, 1 not, 2 bad usage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from oracles.properties.declaration import UsageError

from .grading_commands import export_command, whole_golden_files
from .rendering import console

golden_app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                         help="Golden files: inputs and what is expected of them, proven to 106 bits or exact.")  # fmt: skip

golden_app.command("export")(export_command)
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Folder = Annotated[Path | None, typer.Option("--folder", help="A golden folder; that of this package by default.")]


@golden_app.command("list")
def list_command(folder: Folder = None, as_json: Json = False) -> None:
    """What there is: cases, values, bytes of each operation, and how they are known."""
    from oracles.golden import store

    rows: dict[str, dict[str, Any]] = {}
    for entry in _entries(folder or store.DATA):
        row = rows.setdefault(entry.operation, {"operation": entry.operation, "cases": [], "values": 0, "bytes": 0, "known": ""})
        row["cases"].append(entry.case)
        row["values"] += sum(_size(result["shape"]) for result in entry.results.values())
        row["bytes"] += entry.bytes
        row["known"] = entry.certified["by"]
    if as_json:
        print(json.dumps(list(rows.values()), indent=1))
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("operation", "cases", "values", "KiB", "known by"):
        table.add_column(title, justify="left" if title in ("operation", "known by") else "right")
    for row in rows.values():
        table.add_row(row["operation"], str(len(row["cases"])), f"{row['values']:,}" if row["values"] else "trace",
                      f"{row['bytes'] / 1024:.0f}", row["known"])  # fmt: skip
    total = sum(row["bytes"] for row in rows.values())
    console().print(table)
    console().print(f"{sum(len(row['cases']) for row in rows.values())} files, {total / 2**20:.1f} MiB")


def _size(shape: list[int]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def _entries(folder: Path) -> Any:
    from oracles.golden import store

    try:
        return store.read_manifest(folder)
    except store.GoldenFault as fault:
        raise UsageError(f"--folder: {fault}") from None


@golden_app.command()
def verify(
    folder: Folder = None,
    everything: Annotated[bool, typer.Option("--all", help="Hold every value against double-double, however long it takes.")] = False,
    certify: Annotated[bool, typer.Option("--certify", help="Prove every value again by ball arithmetic. Needs oracles[certify].")] = False,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time for double-double; small cases go first.")] = 20.0,
    as_json: Json = False,
) -> None:
    """Check every byte, every draw and every trace, and hold values against double-double arithmetic while time lasts."""
    from oracles.golden import store
    from oracles.golden.verifying import verify as verified

    with _progress(quiet=as_json) as show:
        try:
            seen = verified(folder or store.DATA, seconds=None if everything else seconds, certify=certify,
                            progress=lambda stage, name: show(f"{stage} {name}"))  # fmt: skip
        except ImportError as error:
            raise UsageError(f"--certify: {error}") from None
    if as_json:
        print(json.dumps(seen.to_json(), indent=1))
    else:
        console().print(f"{seen.files} files whole, {seen.traces} of them traces answered alike by two routes; {seen.values:,} values, "
                        f"{seen.certified:,} of them certified.")  # fmt: skip
        console().print(f"Held against double-double: {seen.rechecked:,}, of which {seen.to_an_ulp:,} to one unit in the last place; worst "
                        f"{seen.worst_ratio:.2g} of what is allowed; {seen.left_out:,} for which no bound is promised, "
                        f"{seen.values - seen.rechecked - seen.left_out:,} not reached.")  # fmt: skip
        if certify:
            console().print(f"Proven again by ball arithmetic: {seen.reproven:,}; by the second route too: {seen.second:,}.")
        for line in seen.failed[:50]:
            console().print(f"FAILED {line}", markup=False)
        if len(seen.failed) > 50:
            console().print(f"and {len(seen.failed) - 50} more; --json lists all")
        console().print(f"{'held' if not seen.failed else f'{len(seen.failed)} failed'} in {seen.seconds:.1f} s")
    raise typer.Exit(1 if seen.failed else 0)


@golden_app.command()
def make(
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write, replaced as a whole; that of this package by default.")]
    = None,
    as_json: Json = False,
) -> None:
    """Draw, prove and write everything anew, and say what differs from the golden files of this package. Needs oracles[certify]."""
    from oracles.golden import store
    from oracles.golden.difference import of_provers

    target, damage = out or store.DATA, ""
    try:
        before = store.read_manifest(store.DATA)
    except store.GoldenFault as fault:                                          # no reason not to make them anew
        before, damage = [], str(fault)
    held = {entry.name: (store.DATA / entry.file).read_bytes() for entry in before if (store.DATA / entry.file).is_file()}
    manifest = (store.DATA / store.MANIFEST).read_bytes() if before else b""
    with _progress(quiet=as_json) as show:
        try:
            entries = store.make(target, progress=show)
        except ImportError as error:
            raise UsageError(str(error)) from None
    changed = [entry.name for entry in entries if held.get(entry.name) != (target / entry.file).read_bytes()]
    gone = sorted(set(held) - {entry.name for entry in entries})
    provers = of_provers(before, entries)
    if not provers and not changed and not gone and (target / store.MANIFEST).read_bytes() != manifest:
        changed = [store.MANIFEST]
    if as_json:
        print(json.dumps({"files": len(entries), "changed": changed, "gone": gone, "provers": provers, "damaged": damage}, indent=1))
        return
    if damage:
        console().print(f"nothing to compare with: {damage}", markup=False)
    console().print(f"{len(entries)} files in {target}: " + ("all as they were" if not changed and not gone else
                    f"{len(changed)} other than they were, {len(gone)} gone: {', '.join([*changed, *gone][:10])}"))  # fmt: skip
    if provers:
        console().print(f"only the prover's version differs: {provers[0]}, here {provers[1]}" if not changed else f"provers: {provers}")


@golden_app.command()
def diff(
    folder: Annotated[Path, typer.Argument(help="A golden folder.")],
    other: Annotated[Path | None, typer.Argument(help="Another; that of this package by default.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two golden folders case by case and value by value: identical, other bits and how far, missing, surplus."""
    from oracles.golden import store
    from oracles.golden.difference import differences

    with _progress(quiet=as_json) as show:
        try:
            found = differences(folder, other or store.DATA, progress=show)
        except store.GoldenFault as fault:
            raise UsageError(f"folder: {fault}") from None
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        for line in found.lines:
            console().print(line, markup=False)
        console().print(f"{found.identical} cases identical, {len(found.lines)} different")
        if found.provers:
            console().print(f"provers: {found.provers[0]} and {found.provers[1]}")
    raise typer.Exit(1 if found.lines else 0)


@golden_app.command()
def measure(
    page: Annotated[Path | None, typer.Option("--page", help="Write the table into this page, between its marks.")] = None,
    as_json: Json = False,
) -> None:
    """Every oracle against the certified values: the worst error over the float64 bound, and in units in the last place."""
    from oracles.golden.measuring import measured, written

    with _progress(quiet=as_json) as show, whole_golden_files():
        rows = measured(progress=show)
    if page is not None:
        try:
            page.write_text(written(page.read_text(), rows))
        except (OSError, ValueError) as error:
            raise UsageError(f"--page: {error}") from None
    if as_json:
        print(json.dumps([row.to_json() for row in rows], indent=1))
    else:
        table = Table(box=box.SIMPLE, pad_edge=False)
        for title in ("operation", "result", "values", "of the bound", "at", "ulp", "at"):
            table.add_column(title, justify="left" if title in ("operation", "result", "at") else "right", overflow="fold")
        for row in rows:
            table.add_row(row.operation, row.result, f"{row.values:,}", f"{row.worst_ratio:.3f}", row.ratio_at,
                          f"{row.worst_ulp:.3g}" if row.promises_ulps else "", row.ulp_at if row.promises_ulps else "")  # fmt: skip
        console().print(table)
    raise typer.Exit(0 if all(row.held for row in rows) else 1)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line that says what is being done, gone at the end."""
    if quiet:
        yield lambda text: None
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True, console=console()) as bar:
        task = bar.add_task("")
        yield lambda text: bar.update(task, description=text)
