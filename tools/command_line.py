"""The command line: what is asked is put together here and done elsewhere. Exit codes: 0 held, 1 something failed, 2 bad usage."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from oracles.properties.declaration import UsageError
from oracles.properties.near_names import near_names
from oracles.properties.report import Report, junit
from oracles.properties.signatures import SIGNATURES
from oracles.properties.stateful.names import STATEFUL_NAMES

from .costs_commands import costs_app
from .golden_commands import golden_app
from .gpu_commands import gpu_app
from .grading_commands import grade_command
from .rendering import console, report_view
from .replaying_sequences import is_sequence
from .replaying_sequences import replay as replay_sequence

if TYPE_CHECKING:
    from oracles.properties.operation import Operation
    from oracles.properties.stateful.operation import StatefulOperation

app = typer.Typer(name="oracles", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
                  help="Give it a kernel, and it tells you, with evidence, whether the kernel computes what it claims to.")  # fmt: skip

app.add_typer(gpu_app, name="gpu")
app.add_typer(golden_app, name="golden")
app.add_typer(costs_app, name="costs")
app.command("grade")(grade_command)
KNOWN = (*SIGNATURES, *STATEFUL_NAMES)
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command("list")
def list_operations(as_json: Json = False) -> None:
    """What there is: every operation with its results."""
    from oracles.properties.operations import OPERATIONS
    from oracles.properties.stateful.operations import STATEFUL_OPERATIONS

    if as_json:
        print(json.dumps([*map(_summary, OPERATIONS), *map(_stateful_summary, STATEFUL_OPERATIONS)], indent=1))
        return
    told = [(o.name, o.summary) for o in OPERATIONS] + [(o.name, o.summary) for o in STATEFUL_OPERATIONS]
    width = max(len(name) for name, _ in told)
    for name, summary in told:
        print(f"{name:{width}s} {summary}")


def _summary(operation: Operation) -> dict[str, Any]:
    return {"operation": operation.name, "summary": operation.summary, "arguments": list(operation.signature.arguments),
            "results": list(operation.signature.results), "laws": [law.name for law in operation.laws]}  # fmt: skip


def _stateful_summary(operation: StatefulOperation) -> dict[str, Any]:
    return {"operation": operation.name, "summary": operation.summary, "arguments": [],
            "methods": [*operation.required, *operation.optional], "results": [], "laws": [law.name for law in operation.laws]}  # fmt: skip


@app.command()
def show(operation: Annotated[str | None, typer.Argument(help="Name of an operation.")] = None, as_json: Json = False) -> None:
    """One operation: signature, formula, conventions, bound, laws, source."""
    if operation in STATEFUL_NAMES:
        from .showing_objects import page, page_json
    else:
        from .showing import page, page_json

    if operation is None:
        raise UsageError("OPERATION: not given; want one of `oracles list`, such as softmax")
    print(json.dumps(page_json(operation), indent=1) if as_json else page(operation))


@app.command()
def check(
    what: Annotated[list[str] | None, typer.Argument(metavar="[OPERATION] [SUBJECT]...", help=(
        "file.py:function, module:function, peers:name, cmd:PROGRAM, FILE.cu:KERNEL or gpu:PORT. Without a subject: our own."))] = None,
    budget: Annotated[str, typer.Option(help="Random cases after the designed ones: a number, quick, default or full.")] = "default",
    seed: Annotated[int, typer.Option(help="Seed of the random cases.")] = 0,
    law: Annotated[list[str] | None, typer.Option(help="Judge this law only; repeatable.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Stop a subject's run after this time.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one call may take.")] = 30.0,
    in_process: Annotated[bool, typer.Option("--in-process", help="Call the subject in this process, for a debugger.")] = False,
    failures: Annotated[Path, typer.Option(help="Folder for counterexamples.")] = Path("failures"),
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")] = None,
    causal: Annotated[list[str] | None, typer.Option(help="Declare an alignment the subject takes: bottom_right, top_left, none.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Declare an input format, such as bfloat16; repeatable.")] = None,
    layout: Annotated[str | None, typer.Option(help=(
        "Declare the layout: bhld or blhd. For `parallel`: the ranks, such as dp2.cp2:zigzag.tp2.sp.pp2.zero3."))] = None,
    framework: Annotated[str | None, typer.Option(help="Declare the array type: numpy, torch, jax or cupy.")] = None,
    arithmetic: Annotated[str | None, typer.Option(help="Declare an arithmetic by the name of its preset.")] = None,
    takes: Annotated[list[str] | None, typer.Option(help="Declare an optional argument that a cmd: program takes; repeatable.")] = None,
    only: Annotated[list[str] | None, typer.Option(help=(
        "Declare values that an option takes, OPTION=VALUE or OPTION=VALUE,VALUE, such as pairing=half; repeatable."))] = None,
    emulate: Annotated[bool, typer.Option("--emulate", help="Run CUDA kernels, FILE.cu:KERNEL or gpu:PORT, on the CPU.")] = False,
    launch: Annotated[Path | None, typer.Option(help="For FILE.cu:KERNEL: a Python file whose launch(...) says how to launch it.")] = None,
    zero: Annotated[int | None, typer.Option(help="For `parallel`: the stage of ZeRO, 0 to 3.")] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="For `parallel`: all layouts of the sweep.")] = False,
    train: Annotated[int | None, typer.Option(min=1, help="For `parallel`: so many steps of training beside one rank's.")] = None,
    model: Annotated[str | None, typer.Option(help="For `parallel`: dense, tied, experts, plain-gates or two-layers.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="For `parallel`: steps, each from one rank's parameters.")] = 1,
    forget: Annotated[str, typer.Option(help="For `parallel`: leave out this layer's all-reduce, such as layers.0.w_o.")] = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Hold implementations to the laws of their operation. The declaring options are for subjects that do not declare themselves.

    `check parallel` holds our decoder over simulated ranks to that of one rank.

    This runs the subject's code with your rights: its worker process protects you from crashes, not from malice.
    """
    if what == ["parallel"]:
        from .parallel_commands import check_parallel

        raise typer.Exit(0 if check_parallel(layout=layout, zero=zero, sweep=sweep, training=train, model=model, steps=steps, seed=seed,
                                             forget=forget, as_json=as_json) else 1)  # fmt: skip
    if sweep or forget or zero is not None or train is not None or model is not None:
        raise UsageError("--zero, --sweep, --train, --model, --forget: are for `oracles check parallel`")
    declared = {"causal": [None if a == "none" else a for a in causal or []], "dtypes": dtype, "layout": layout, "framework": framework,
                "arithmetic": arithmetic, "takes": takes, "only": _values(only or [])}  # fmt: skip
    declared = {name: value for name, value in declared.items() if value}
    options = {"budget": budget, "seed": seed, "max_seconds": max_seconds, "call_seconds": timeout, "in_process": in_process,
               "failures": failures, "laws": tuple(law) if law else None, "declared": declared or None}  # fmt: skip
    jobs = [(operation, _on_the_cpu(subject, launch, emulate)) for operation, subject in _jobs(what or [])]
    reports = [_checked(operation, subject, options, quiet=as_json) for operation, subject in jobs]
    if junit_file is not None:
        _write(junit_file, junit(reports))
    if as_json:
        data = [report.to_json() for report in reports]
        print(json.dumps(data[0] if len(data) == 1 else data, indent=1))
    raise typer.Exit(0 if all(report.held for report in reports) else 1)


def _values(only: list[str]) -> dict[str, list[str]]:
    """{option: values} of words such as pairing=half; an option named twice takes the values of both."""
    values: dict[str, list[str]] = {}
    for word in only:
        option, equals, named = word.partition("=")
        if not (option and equals and named):
            raise UsageError(f"--only: got {word!r}; want OPTION=VALUE or OPTION=VALUE,VALUE")
        values.setdefault(option, []).extend(named.split(","))
    return values


def _jobs(what: list[str]) -> list[tuple[str, str]]:
    """(operation, subject) pairs: named, or told by the subject's name, or our own ports."""
    from .own_ports import OWN_PORTS

    if what and what[0] not in KNOWN and ":" not in what[0]:
        raise UsageError(f"OPERATION: got {what[0]!r}; want one of `oracles list`, such as {near_names(what[0], KNOWN)}, "
                         "or a subject such as my_file.py:attention")
    operation = what[0] if what and what[0] in KNOWN else None
    subjects = what[1:] if operation else what
    if not subjects and operation in STATEFUL_NAMES:
        return [(operation, _own_object(operation))]
    if not subjects:
        own = [(o, s) for o, s in OWN_PORTS if operation in (None, o)]
        if not own:
            raise UsageError(f"SUBJECT: not given, and we have no port of {operation}; want file.py:function, peers:name or cmd:PROGRAM")
        return own
    return [(operation or _operation_of(subject), subject) for subject in subjects]


def _own_object(operation: str) -> str:
    """The oracle of a stateful operation: it is the port we have."""
    from oracles.properties.stateful.operations import stateful_named

    oracle: Any = stateful_named(operation).oracle
    return f"{oracle.__module__}:{oracle.__qualname__}"


def _on_the_cpu(subject: str, launch: Path | None, emulate: bool) -> str:
    """CUDA kernels and ports as the Python functions that emulate them; every other subject as it is."""
    from .user_kernel import emulated_subject, is_kernel

    port = subject.startswith("gpu:")
    if not (port or is_kernel(subject)):
        return subject
    if not emulate:
        raise UsageError(f"SUBJECT: {subject} wants a GPU, which `check` does not use yet (gpu/device_run.sh does); want --emulate")
    return f"oracles.tools.gpu_ports:{subject.removeprefix('gpu:')}" if port else emulated_subject(subject, launch)


def _operation_of(subject: str) -> str:
    """The operation a subject declares, or whose name it bears."""
    from oracles.properties.subjects import open_subject

    name = subject.rpartition(":")[2]
    if name in KNOWN:
        return name
    opened = open_subject(subject, None)
    opened.close()
    return opened.declaration.operation


def _checked(operation: str, subject: str, options: dict[str, Any], *, quiet: bool) -> Report:
    from oracles.properties import check as run

    said = contextlib.redirect_stdout(sys.stderr) if quiet else contextlib.nullcontext()      # JSON and nothing else on the output
    with said, _progress(quiet=quiet) as progress:
        task = progress.add_task(f"{operation} {subject}", total=None)
        report = run(operation, subject, progress=lambda done, total: progress.update(task, completed=done, total=total), **options)
    if not quiet:
        console().print(report_view(report))
    return report


@app.command()
def replay(
    failure: Annotated[Path, typer.Argument(help="Folder of a counterexample, or a file in it.")],
    subject: Annotated[str | None, typer.Option(help="Another subject than the one that failed.")] = None,
    in_process: Annotated[bool, typer.Option("--in-process", help="Call the subject in this process, for a debugger.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Also show where the error lies: rows, tiles of keys.")] = False,
    as_json: Json = False,
) -> None:
    """Run a saved counterexample again: expected interval, what came, where it first goes wrong."""
    from .replaying import replay as replay_case

    result = (replay_sequence if is_sequence(failure) else replay_case)(failure, subject=subject, in_process=in_process)
    if as_json:
        print(json.dumps(result.to_json(), indent=1))
    else:
        console().print(result.view(explain=explain))
    raise typer.Exit(1 if result.failed else 0)


@app.command()
def peers(
    operation: Annotated[list[str] | None, typer.Argument(help="Operations; all that a peer has by default.")] = None,
    budget: Annotated[str, typer.Option(help="Random cases after the designed ones: a number, quick, default or full.")] = "default",
    max_cases: Annotated[int | None, typer.Option(min=1, help="So many cases a function at most, evenly out of all.")] = None,
    failures: Annotated[Path, typer.Option(help="Folder for counterexamples.")] = Path("failures"),
    as_json: Json = False,
) -> None:
    """Check every installed third-party implementation and print one table. Not among them: ggml, whose wheel takes 24 minutes."""
    from .peer_table import run_peers

    rows = run_peers(operation or list(KNOWN), budget=budget, failures=failures, quiet=as_json, max_cases=max_cases)
    if as_json:
        print(json.dumps([row.to_json() for row in rows], indent=1))
    raise typer.Exit(0 if rows and all(row.report is None or row.report.held for row in rows) else 1)


@app.command()
def zoo(
    family: Annotated[str | None, typer.Option(help="Families of faults, separated by commas; all by default.")] = None,
    extra: Annotated[Path | None, typer.Option(help="Also judge the mutants and variants marked in this folder's Python files.")] = None,
    budget: Annotated[str, typer.Option(help="Random cases after the designed ones: a number, quick, default or full.")] = "default",
    seed: Annotated[int, typer.Option(help="Seed of the random cases.")] = 0,
    as_json: Json = False,
) -> None:
    """Test the suite itself: real faults must die by a law, legal variants must live."""
    from .zoo_table import take_census

    wanted = tuple(name.strip().replace("_", "-") for name in family.split(",")) if family else None
    with _progress(quiet=as_json) as progress:
        task = progress.add_task("zoo", total=None)
        census = take_census(wanted, extra=extra, budget=budget, seed=seed,
                             progress=lambda done, total: progress.update(task, completed=done, total=total))  # fmt: skip
    if as_json:
        print(json.dumps(census.to_json(), indent=1))
    else:
        console().print(census.view())
    raise typer.Exit(0 if census.good else 1)


@app.command()
def prove(
    subject: Annotated[str, typer.Argument(help="What to prove about: speculative.")] = "speculative",
    as_json: Json = False,
) -> None:
    """Machine-checked lemmas, and a countermodel in numbers for every broken variant. Needs oracles[proofs]."""
    from .prove import prove as run

    raise typer.Exit(run(subject, as_json))


def _progress(*, quiet: bool) -> Progress:
    """A progress bar on the terminal's error channel, and nothing where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty())


def _write(path: Path, text: str) -> None:
    """All or nothing: a temporary file beside it, then renamed."""
    temporary = path.with_name(path.name + ".writing")
    temporary.write_text(text)
    temporary.replace(path)


def main() -> None:
    """The `oracles` program."""
    try:
        app()
    except UsageError as error:
        print(f"oracles: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
