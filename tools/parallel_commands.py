"""`oracles check parallel`: a decoder over simulated ranks, one layout, a sweep of them, or a training run, as tables and JSON."""

from __future__ import annotations

import json
import time
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from oracles.properties.declaration import UsageError
from oracles.properties.parallel_layouts import SWEEP, LayoutReport, TrainingReport, check_layout, train
from oracles.properties.report import FAILED
from oracles.reference.parallel_layout import ParallelLayout

from .rendering import console, ratio


def check_parallel(*, layout: str | None, zero: int | None, sweep: bool, training: int | None, model: str | None, steps: int, seed: int,
                   forget: str, as_json: bool) -> bool:
    """Run what was asked for and print it; whether all of it held.

    layout     such as dp2.cp2:zigzag.tp2.sp.pp2:1f1b.zero3; zero: the stage, where the layout does not say it
    sweep      all layouts of the sweep instead;  training: so many steps of a two-layer decoder, printed to 6 digits
    forget     a layer whose all-reduce over tp is left out: the check must fail by its name

    Raises UsageError for a layout that is none, or that the decoder and its batch do not divide into.
    """
    if sweep:
        if layout is not None or zero is not None or training is not None or forget or model is not None:
            raise UsageError("--sweep: goes through layouts and models of its own; want no --layout, --zero, --train, --model or --forget")
        return _swept(steps, seed, as_json)
    if layout is None:
        raise UsageError("--layout: not given; want one such as dp2.tp2.pp2, or --sweep")
    try:
        chosen = ParallelLayout.read(layout if zero is None else f"{layout}.zero{zero}")
        if training is not None:
            if forget:
                raise UsageError("--forget: says nothing of a training run; want it with --layout alone")
            return _trained(train(chosen, model=model or "two-layers", steps=training, seed=seed), as_json)
        report = check_layout(chosen, model=model, steps=steps, seed=seed, forget=forget)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        console().print(_view(report))
        _print_failures(report)
    return report.held


def _swept(steps: int, seed: int, as_json: bool) -> bool:
    start, reports = time.monotonic(), []
    table = _table("layout", "model", "ranks", "", "worst / bound", "sees from", "s")
    for layout, model in SWEEP:
        report = check_layout(ParallelLayout.read(layout), model=model, steps=steps, seed=seed)
        reports.append(report)
        worst = max(verdict.worst_ratio for verdict in report.verdicts)
        table.add_row(report.layout, model, str(report.ranks), _status(report.held), ratio(worst), f"{report.finest:.1g}",
                      f"{report.seconds:.2f}")  # fmt: skip
    held, seconds = all(report.held for report in reports), time.monotonic() - start
    if as_json:
        print(json.dumps({"operation": "parallel", "held": held, "layouts": len(reports), "seconds": seconds,
                          "reports": [report.to_json() for report in reports]}, indent=1))
    else:
        console().print(table)
        for report in reports:
            _print_failures(report)
        console().print(f"{sum(r.held for r in reports)} of {len(reports)} layouts hold, {steps} of one rank's steps each; {seconds:.1f} s")
    return held


def _trained(report: TrainingReport, as_json: bool) -> bool:
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
        return report.held
    table = _table("step", report.layout, "one rank", "")
    for step, (many, one) in enumerate(zip(report.losses, report.one_rank_losses), start=1):
        if step == 1 or step % 10 == 0 or many != one or step == len(report.losses):
            table.add_row(str(step), many, one, _status(many == one))
    console().print(table)
    console().print(f"{len(report.losses)} steps of {report.model} over {report.ranks} ranks: the loss curves "
                  f"{'are the same to 6 digits' if report.held else 'differ'}; {report.seconds:.1f} s")  # fmt: skip
    return report.held


def _view(report: LayoutReport) -> Table:
    table = _table(f"{report.layout}, {report.model}, {report.ranks} ranks", "", "elements", "worst / bound", "where")
    for verdict in report.verdicts:
        table.add_row(verdict.law, _status(verdict.status != FAILED), f"{verdict.compared:,}", ratio(verdict.worst_ratio),
                      verdict.worst_at)  # fmt: skip
    seen = f"would have seen a gradient off by {report.finest:.1g} of its largest element" if report.held else "does not hold"
    table.caption = f"{seen}; {report.bytes_sent:,} bytes sent by a rank in collectives; {report.seconds:.1f} s"
    return table


def _print_failures(report: LayoutReport) -> None:
    for verdict in report.verdicts:
        if verdict.status == FAILED:
            console().print(Text.assemble((f"{report.layout}: {verdict.law}: ", "bold red"), verdict.reason))


def _status(held: bool) -> Text:
    return Text("held", "green") if held else Text("failed", "bold red")


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        options: dict[str, Any] = {"overflow": "fold"} if column == columns[0] else {}
        table.add_column(column, **options)
    return table
