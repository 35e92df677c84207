"""`oracles costs paging`: one simulated serving trace, in blocks of several sizes and in contiguous stretches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.progress import track
from rich.table import Table

from oracles.properties.declaration import UsageError
from oracles.reference.serving_trace import ServedTrace, draw_requests, serve_contiguous, serve_paged

from .costs_options import Json, Plot, new_figure, save_figure
from .rendering import console

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def paging(
    requests: Annotated[int, typer.Option(min=1, help="Requests in the trace.")] = 10_000,
    slots: Annotated[int, typer.Option(min=1, help="Room for the keys and values of so many tokens.")] = 65_536,
    max_length: Annotated[int, typer.Option(min=1, help="What contiguous preallocation reserves for each sequence.")] = 2048,
    block_size: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable; by default the powers of two from 1 to 256.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the trace.")] = 0,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """One simulated serving trace, paged in blocks of several sizes and in contiguous stretches: waste, hits, sequences at once.

    Shared system prompts under three tenants, forks, aborts, preemption with recomputation; the same requests for every row.
    """
    trace = draw_requests(requests, seed=seed)
    sizes = block_size or BLOCK_SIZES
    try:
        contiguous = serve_contiguous(trace, slots=slots, max_length=max_length)
        paged = [serve_paged(trace, slots=slots, block_size=size) for size in track(sizes, "serving", disable=as_json, transient=True)]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if plot is not None:
        _write_plot(plot, contiguous, paged)
    if as_json:
        settings = {"requests": requests, "slots": slots, "max_length": max_length, "seed": seed}
        print(json.dumps({**settings, "contiguous": asdict(contiguous), "paged": [asdict(served) for served in paged]}, indent=1))
        return
    console().print(_table(contiguous, paged))
    console().print(f"{requests:,} requests, {slots:,} slots, seed {seed}; contiguous: {max_length:,} slots a sequence. "
                    "Left out: the time that a step takes, which grows with the sequences in it and with the entries of their tables.")
    if plot is not None:
        console().print(f"plot: {plot}")


def _table(contiguous: ServedTrace, paged: Sequence[ServedTrace]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("block size", "waste %", "prefix hits %", "running, mean", "at most", "against contiguous", "steps", "preempted",
                  "evicted", "table entries"):
        table.add_column(title, justify="right")
    for served in (contiguous, *paged):
        table.add_row(
            "contiguous" if served.block_size is None else str(served.block_size), f"{100 * served.waste:.1f}",
            f"{100 * served.hit_rate:.1f}", f"{served.running:.1f}", f"{served.peak:,}", f"{served.running / contiguous.running:.2f}",
            f"{served.steps:,}", f"{served.preemptions:,}", f"{served.evictions:,}", f"{served.table_entries:.1f}",
        )  # fmt: skip
    return table


def _write_plot(path: Path, contiguous: ServedTrace, paged: Sequence[ServedTrace]) -> None:
    """Waste and sequences at once over the block size, contiguous preallocation as lines beside them."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    sizes = [served.block_size for served in paged]
    panels = ((left, "slots taken that hold nothing, %", "waste", 100), (right, "sequences at once, mean", "running", 1))
    for axes, title, name, factor in panels:
        axes.plot(sizes, [factor * getattr(served, name) for served in paged], marker="o", label="paged")
        axes.axhline(factor * getattr(contiguous, name), color="tab:red", linestyle="--", label="contiguous")
        axes.set(xscale="log", xlabel="block size, tokens", title=title, ylim=(0, None))
        axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
        axes.minorticks_off()
    entries = right.twinx()
    entries.plot(sizes, [served.table_entries for served in paged], color="tab:gray", marker=".", linestyle=":", label="table entries")
    entries.set(yscale="log", ylabel="table entries a sequence")
    handles = [*right.get_legend_handles_labels()[0], *entries.get_legend_handles_labels()[0]]
    right.legend(handles=handles)
    left.legend()
    save_figure(figure, path)
