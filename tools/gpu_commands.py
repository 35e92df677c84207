"""`oracles gpu`: the compile gate and the race check, neither of which needs a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from oracles.properties.declaration import UsageError

from .rendering import console

gpu_app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                      help="CUDA kernels with no GPU: compile, race check.")  # fmt: skip

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@gpu_app.command("compile")
def compile_command(
    sources: Annotated[list[str] | None, typer.Argument(
        metavar="[FILE]...", help="Files, or names of our kernels; all of ours by default.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="An instance, such as 'flash_fwd<64>'; repeatable. By default those of the file's "
                                                         "'// instances:' lines.")] = None,
    arch: Annotated[list[str] | None, typer.Option(help="Architecture; repeatable. By default sm_80, sm_90, sm_100.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Compile kernels to machine code and hold registers and spills against the budget in their header. Needs oracles[nvrtc]."""
    from oracles.gpu.kernel import KERNELS
    from oracles.gpu.nvrtc import ARCHITECTURES, CannotCompile, DoesNotCompile, compile_kernels

    files = sources or sorted(path.name for path in KERNELS.glob("*.cu"))
    try:
        found = compile_kernels(files, names=name or (), architectures=arch or ARCHITECTURES)
    except DoesNotCompile as error:
        print(json.dumps({"error": str(error)}, indent=1) if as_json else error)
        raise typer.Exit(1) from None
    except (CannotCompile, ValueError) as error:
        raise UsageError(str(error)) from None
    if as_json:
        print(json.dumps([one.to_json() for one in found], indent=1))
    else:
        table = Table(box=box.SIMPLE, pad_edge=False)
        for title in ("file", "kernel", "architecture", "registers", "spills", "shared", "verdict"):
            table.add_column(title, justify="right" if title in ("registers", "spills", "shared") else "left", overflow="fold")
        for one in found:
            table.add_row(one.file, one.kernel, one.architecture, str(one.registers), str(one.spills), str(one.shared),
                          one.over_budget or ("within budget" if one.budget else "no spills"))  # fmt: skip
        console().print(table)
    raise typer.Exit(1 if any(one.over_budget for one in found) else 0)


@gpu_app.command()
def race(
    kernel: Annotated[str, typer.Argument(help="FILE.cu:KERNEL, or the name or path of one of our kernel files.")],
    launch: Annotated[Path | None, typer.Option(help="Python file whose function launch(...) says how to launch the kernel.")] = None,
    operation: Annotated[str, typer.Option(help="Operation whose small cases are run.")] = "attention",
    cases: Annotated[int, typer.Option(help="How many cases of each operation.")] = 12,
    seed: Annotated[int | None, typer.Option(help="Seed of a random schedule, for our kernels; in order by default.")] = None,
    as_json: Json = False,
) -> None:
    """Run a kernel on the CPU and report races, accesses out of bounds, divergent barriers and the like. Needs oracles[emulate]."""
    from oracles.gpu.emulator.building import CannotEmulate, DoesNotCompile

    from .race_check import race_check

    try:
        report = race_check(kernel, launch, operation=operation, cases=cases, seed=seed)
    except (CannotEmulate, DoesNotCompile) as error:
        raise UsageError(str(error)) from None
    print(json.dumps(report.to_json(), indent=1) if as_json else report)
    raise typer.Exit(0 if report.clean else 1)
