"""`oracles costs scaling` and `facts`: what a training run takes, and every published figure beside ours."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from oracles import reference
from oracles.properties.declaration import UsageError
from oracles.reference.costs_scaling import TOKENS_PER_PARAMETER

from .costs_options import Config, DeviceName, Devices, Json, Model, accelerator, chosen, print_json, print_table
from .costs_published import figures
from .published_figure import CONTRADICTED, Figure
from .rendering import console

DAY = 86400.0


def scaling(
    model: Model = None, config: Config = None,
    tokens: Annotated[float | None, typer.Option(min=1.0, help="Training tokens; by default 20 for each parameter.")] = None,
    sequence: Annotated[int, typer.Option(min=1, help="Tokens of a training sequence, for attention's quadratic part.")] = 4096,
    device: DeviceName = "h100", devices: Devices = 1,
    utilisation: Annotated[float, typer.Option(min=1e-6, max=1.0, help="Share of the peak reached while no stage is idle.")] = 0.4,
    stages: Annotated[int, typer.Option(min=1, help="Stages of a pipeline.")] = 1,
    microbatches: Annotated[int, typer.Option(min=1, help="Micro-batches of a step.")] = 1,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Training compute of a model and the laws of scaling: Chinchilla's tokens and loss, Kaplan's exponents, time on devices."""
    meant, chip = chosen(model, config), accelerator(device)
    count = meant.parameters
    data = float(tokens) if tokens is not None else reference.chinchilla_tokens(count.active)
    per_sequence = int(reference.model_flops(sequence, config=meant.config, pairs="causal", backward=True))
    flops = per_sequence / sequence * data
    bubble = reference.pipeline_bubble(stages, microbatches)
    seconds = flops / (chip.flops_per_second * utilisation * float(1 - bubble))
    found: dict[str, Any] = {
        "tokens": data, "words": reference.words(data), "tokens_per_parameter": data / count.active,
        "chinchilla_tokens": reference.chinchilla_tokens(count.active), "flops_6nd": reference.training_flops(count.active, data),
        "flops": flops, "device_seconds": seconds, "days": seconds / devices / DAY, "bubble": float(bubble),
        "chinchilla_loss": None if count.idle else reference.chinchilla_loss(count.total, data),
        "kaplan_ratio_ten_times": {name: reference.kaplan_ratio(10.0, name) for name in "NDC"},
    }  # fmt: skip
    if as_json:
        print_json({**meant.to_json(), "device": device, "devices": devices, "utilisation": utilisation, "sequence": sequence, **found,
                    "left_out": "restarts, evaluation, loading of data, recomputation"})
        return
    loss = found["chinchilla_loss"]
    rows = [
        ["training tokens", f"{data:.4g}"], ["English words, at 0.75 a token", f"{found['words']:.4g}"],
        ["tokens for each active parameter", f"{found['tokens_per_parameter']:.1f}"],
        [f"Chinchilla's tokens, D = {TOKENS_PER_PARAMETER} N", f"{found['chinchilla_tokens']:.4g}"],
        ["Chinchilla's fitted loss, nats a token", "not fitted to mixtures" if loss is None else f"{loss:.3f}"],
        ["loss x, ten times N, D or C (Kaplan)", ", ".join(f"{name} {x:.3f}" for name, x in found["kaplan_ratio_ten_times"].items())],
        ["FLOPs, 6 N D", f"{found['flops_6nd']:.4g}"], [f"FLOPs with causal attention over {sequence:,} tokens", f"{flops:.4g}"],
        ["idle share of the pipeline", f"{100 * float(bubble):.1f} %"],
        [f"{device}-seconds at {100 * utilisation:g} % of peak", f"{seconds:.4g}"],
        [f"days on {devices:,} x {device}", f"{found['days']:,.1f}"],
    ]  # fmt: skip
    print_table(("", ""), rows, meant.remark(), "N counts active parameters. 6 N D charges the input table, the other line does not. "
                "The loss is the fit of one paper's runs: no promise for other data, vocabularies or models.",
                "Left out: restarts, evaluation, loading of data, recomputation.")


def facts(
    section: Annotated[str | None, typer.Option(help="One section only.")] = None,
    as_json: Json = False,
) -> None:
    """Every published figure beside ours: derived digit for digit, or quoted or contradicted with the reason. Exit 1 where one is not."""
    found = figures()
    names = list(dict.fromkeys(figure.section for figure in found))
    if section is not None and section not in names:
        raise UsageError(f"section: got {section!r}; want one of {', '.join(names)}")
    shown = [figure for figure in found if section in (None, figure.section)]
    bad = [figure for figure in shown if not figure.good]
    if as_json:
        print_json({"figures": [asdict(figure) for figure in shown], "bad": [figure.what for figure in bad]})
    else:
        for name in dict.fromkeys(figure.section for figure in shown):
            console().print(Text(name, "bold"))
            print_table(("", "published", "ours", ""), [_row(figure) for figure in shown if figure.section == name], right=(1, 2))
        kinds = ", ".join(f"{sum(f.kind == kind for f in shown)} {kind}" for kind in dict.fromkeys(f.kind for f in shown))
        summary = f"{len(shown)} figures: {kinds}; {len(bad)} that are not what they should be"
        console().print(Text(summary, "bold red" if bad else "bold green"))
    if bad:
        raise typer.Exit(1)


def _row(figure: Figure) -> list[str]:
    style = "" if figure.good and figure.kind != CONTRADICTED else "yellow" if figure.good else "bold red"
    kind = figure.kind if figure.good else f"not so, {figure.kind} it was to be"
    told = f"{kind}: {figure.reason}" if figure.reason else kind
    return [figure.what, figure.published, figure.ours, f"[{style}]{told}[/]" if style else told]
