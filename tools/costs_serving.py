"""`oracles costs roofline` and `serve`: how fast a model can decode, and what its users wait, by formula."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from oracles import reference
from oracles.properties.declaration import UsageError
from oracles.reference import DecodeStep
from oracles.reference.model_presets import Device

from .costs_options import (
    Chosen,
    Config,
    DeviceName,
    Devices,
    Json,
    KvBits,
    Model,
    Plot,
    WeightBits,
    accelerator,
    chosen,
    new_figure,
    print_json,
    print_table,
    save_figure,
)

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LEFT_OUT = "launches, communication between devices, what is written, the sampler, and whatever keeps a kernel from its peak"
Batches = Annotated[list[int] | None, typer.Option("--batch", min=1, help="Repeatable; by default the powers of two from 1 to 256.")]


def _decode_flops(meant: Chosen, context: int) -> int:
    """FLOPs of one more token behind `context` - 1 others: latent attention absorbed, as it is decoded."""
    sizes, count = meant.config, meant.parameters
    windowed = sizes.windowed_layers
    seen = (sizes.layers - windowed) * context + (windowed * min(context, sizes.window) if sizes.window is not None else 0)
    widths = sizes.score_dim + sizes.output_dim if sizes.latent is None else 2 * sizes.latent + sizes.rope_dim
    return 2 * count.multiplied + 2 * sizes.query_heads * widths * seen


def _steps(meant: Chosen, chip: Device, devices: int, context: int, batches: list[int], weight_bits: int, kv_bits: int) -> list[DecodeStep]:
    held = int(reference.kv_bytes(context, config=meant.config, element_bits=kv_bits)) + meant.row_bytes(weight_bits)
    return reference.decode_steps(
        batches, weight_bytes=meant.read_bytes(weight_bits), kv_bytes=held, bytes_per_second=devices * chip.bytes_per_second,
        flops_per_token=_decode_flops(meant, context), flops_per_second=devices * chip.flops_per_second,
    )  # fmt: skip


def roofline(
    model: Model = None, config: Config = None, device: DeviceName = "h100", devices: Devices = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens in the cache of each sequence.")] = 4096,
    batch: Batches = None, weight_bits: WeightBits = 16, kv_bits: KvBits = 16, plot: Plot = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Decoding on the roofline: FLOPs for each byte moved, which limit holds, and the time of a step, by batch."""
    meant, chip = chosen(model, config), accelerator(device)
    ridge = reference.ridge_point(chip.flops_per_second, chip.bytes_per_second)
    steps = _steps(meant, chip, devices, context, list(batch or BATCHES), weight_bits, kv_bits)
    if plot is not None:
        _plot_roofline(plot, meant, chip, device, steps)
    if as_json:
        print_json({**meant.to_json(), "device": device, "devices": devices, "context": context, "ridge": ridge,
                    "weight_bytes_read": meant.read_bytes(weight_bits),
                    "steps": [asdict(step) for step in steps], "left_out": LEFT_OUT})
        return
    flops = _decode_flops(meant, context)
    rows = [[f"{step.batch:,}", f"{step.intensity:.2f}", "bandwidth" if step.memory_bound else "arithmetic", f"{1e3 * step.seconds:.2f}",
             f"{100 * step.batch * flops / step.seconds / (devices * chip.flops_per_second):.2f}"] for step in steps]
    print_table(("batch", "FLOPs a byte", "limit", "step, ms", "% of peak"), rows, meant.remark(),
                f"{devices} x {device}: ridge at {ridge:.1f} FLOPs a byte ({chip.source}). Context {context:,}, weights of {weight_bits} "
                f"bits, cache of {kv_bits}.", _read(meant, weight_bits), _experts(meant),
                f"Left out: {LEFT_OUT}.", f"plot: {plot}" if plot else "")


def _read(meant: Chosen, bits: int) -> str:
    told = f"A step reads {reference.show_bytes(meant.read_bytes(bits), 'GB')} of weights"
    if not meant.parameters.looked_up:
        return f"{told}: all, the embedding being the head too."
    return f"{told}; of a table that is looked up, one row for each sequence."


def _experts(meant: Chosen) -> str:
    return "Every expert is taken to be read in every step: small batches may read fewer." if meant.config.experts else ""


def _plot_roofline(path: Path, meant: Chosen, chip: Device, name: str, steps: list[DecodeStep]) -> None:
    figure = new_figure()
    axes = figure.subplots()
    ridge = reference.ridge_point(chip.flops_per_second, chip.bytes_per_second)
    points = [(step.intensity, step.batch) for step in steps if step.intensity]
    low, high = min([0.25, *(x / 2 for x, _ in points)]), max([ridge * 8, *(x * 2 for x, _ in points)])

    def roof(x: float) -> float:
        return reference.attainable_flops(x, flops_per_second=chip.flops_per_second, bytes_per_second=chip.bytes_per_second) / 1e12

    axes.plot([low, ridge, high], [roof(x) for x in (low, ridge, high)], color="black", label=f"roofline of {name}")
    axes.scatter([x for x, _ in points], [roof(x) for x, _ in points], color="tab:blue", zorder=3, label=f"decoding {meant.name}, by batch")
    for index, (x, batch) in enumerate(points):                                 # large batches lie close: above and below in turn
        above = index % 2
        axes.annotate(str(batch), (x, roof(x)), textcoords="offset points", xytext=(-5, 8) if above else (5, -12), fontsize=8,
                      horizontalalignment="right" if above else "left")
    axes.axvline(ridge, color="tab:gray", linestyle=":", label=f"ridge, {ridge:.0f} FLOPs a byte")
    axes.set(xscale="log", yscale="log", xlabel="FLOPs for each byte moved", ylabel="attainable TFLOPS of one device", title="Roofline")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    save_figure(figure, path)


def serve(
    model: Model = None, config: Config = None, device: DeviceName = "h100", devices: Devices = 1,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 1024,
    output: Annotated[int, typer.Option(min=1, help="Tokens generated for a request.")] = 256,
    rate: Annotated[float, typer.Option(min=0.0, help="Requests a second, at random moments (Poisson).")] = 1.0,
    prefill_share: Annotated[float, typer.Option(min=1e-6, max=1.0, help="Share of the peak that a prefill reaches.")] = 0.5,
    acceptance: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Speculative decoding: chance that a draft token is accepted.")]
    = None,
    drafts: Annotated[int, typer.Option(min=1, help="Draft tokens of a verification.")] = 4,
    draft_cost: Annotated[float, typer.Option(min=0.0, help="Time of a draft's pass over that of the model's.")] = 0.1,
    batch: Batches = None, weight_bits: WeightBits = 16, kv_bits: KvBits = 16, plot: Plot = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Throughput against latency by batch, and what a load of requests waits: queue, prefill, first, each and last token."""
    meant, chip = chosen(model, config), accelerator(device)
    context = prompt + output // 2                                              # a sequence on average, while it is decoded
    room, weights = devices * chip.memory_bytes, meant.weight_bytes(weight_bits)
    most = reference.largest_batch(room, weights, int(reference.kv_bytes(prompt + output, config=meant.config, element_bits=kv_bits)))
    steps = _steps(meant, chip, devices, context, list(batch or BATCHES), weight_bits, kv_bits)
    if weights > room:
        raise UsageError(f"devices: got {devices} x {device} with {reference.show_bytes(room, 'GB')}; want room for weights of "
                         f"{reference.show_bytes(weights, 'GB')}, as --devices or fewer --weight-bits")
    load = _load(meant, chip, devices, prompt, output, rate, prefill_share, context, weight_bits, kv_bits)
    faster = None if acceptance is None else reference.speed_up(acceptance, drafts, draft_cost=draft_cost)
    if plot is not None:
        _plot_serving(plot, meant, f"{devices} x {device}", steps, most)
    if as_json:
        print_json({**meant.to_json(), "device": device, "devices": devices, "prompt": prompt, "output": output, "rate": rate,
                    "prefill_share": prefill_share, "largest_batch": most, "speculative_speed_up": faster, "load": load,
                    "weight_bytes_read": meant.read_bytes(weight_bits),
                    "steps": [{**asdict(step), "user_tokens": step.user_tokens, "total_tokens": step.total_tokens,
                               "seconds_per_million": step.seconds_per_million} for step in steps], "left_out": LEFT_OUT})
        return
    rows = [[f"{step.batch:,}", f"{1e3 * step.seconds:.2f}", f"{step.user_tokens:.1f}", f"{step.total_tokens:,.0f}",
             f"{step.seconds_per_million * devices:,.1f}", "" if step.batch <= most else "no room"] for step in steps]
    print_table(("batch", "step, ms", "tok/s a user", "tok/s in all", "device-seconds for 1M tokens", ""), rows, meant.remark(),
                f"{devices} x {device}, {context:,} tokens in a cache on average; at most {most:,} sequences find room beside the weights.",
                *_told_load(load, rate, prompt, output, prefill_share, most), _told_speed_up(faster, acceptance, drafts, draft_cost),
                _read(meant, weight_bits), _experts(meant), f"Left out: {LEFT_OUT}.", f"plot: {plot}" if plot else "")


def _load(meant: Chosen, chip: Device, devices: int, prompt: int, output: int, rate: float, share: float, context: int,
          weight_bits: int, kv_bits: int) -> dict[str, float]:
    flops = int(reference.model_flops(prompt, config=meant.config, pairs="causal"))
    prefill = flops / (share * devices * chip.flops_per_second)
    held = int(reference.kv_bytes(context, config=meant.config, element_bits=kv_bits)) + meant.row_bytes(weight_bits)
    weights = meant.read_bytes(weight_bits)
    bandwidth = devices * chip.bytes_per_second
    at_once = reference.steady_batch(rate, steps=output - 1, weight_bytes=weights, kv_bytes=held, bytes_per_second=bandwidth)
    tpot = (weights + max(at_once, 1.0) * held) / bandwidth                     # a lone sequence is a batch of one while it runs
    times = reference.latency(queue=reference.queue_wait(rate, prefill), prefill=prefill, tpot=tpot, tokens=output)
    return {"prefill": prefill, "prefill_load": rate * prefill, "queue": times.queue, "ttft": times.ttft, "tpot": tpot, "ttlt": times.ttlt,
            "sequences_at_once": at_once}


def _told_load(load: dict[str, float], rate: float, prompt: int, output: int, share: float, most: int) -> list[str]:
    told = [f"Requests of {prompt:,} + {output:,} tokens, {rate:g} a second: prefill {_ms(load['prefill'])} at {100 * share:g} % of the "
            f"peak, a load of {100 * load['prefill_load']:.1f} %; queue before it (M/D/1) {_ms(load['queue'])}."]
    at_once = load["sequences_at_once"]
    if math.isinf(load["ttlt"]):
        return [*told, "The load is more than these devices can do: the queue grows without end."]
    told.append(f"TTFT {_ms(load['ttft'])} = queue + prefill; TPOT {_ms(load['tpot'])} with {at_once:.1f} sequences at once (Little's "
                f"law); TTLT {_ms(load['ttlt'])} = TTFT + {output - 1} TPOT.")
    told.append("Prefill and decoding are taken to run on devices of their own: on shared ones each delays the other.")
    return told + ([f"More sequences at once than the {most:,} that find room."] if at_once > most else [])


def _told_speed_up(faster: float | None, acceptance: float | None, drafts: int, draft_cost: float) -> str:
    if faster is None:
        return ""
    return (f"Speculative decoding with {drafts} drafts accepted at {acceptance:g}, each {draft_cost:g} of a pass: {faster:.2f} times as "
            "fast while reading the weights takes the time.")


def _ms(seconds: float) -> str:
    return "no end" if math.isinf(seconds) else f"{1e3 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def _plot_serving(path: Path, meant: Chosen, where: str, steps: list[DecodeStep], most: int) -> None:
    figure = new_figure()
    axes = figure.subplots()
    kinds: tuple[tuple[str, str, Any], ...] = (("room beside the weights", "tab:blue", lambda step: step.batch <= most),
                                               ("no room", "tab:red", lambda step: step.batch > most))
    axes.plot([1e3 * step.seconds for step in steps], [step.total_tokens for step in steps], color="tab:gray", zorder=1)
    for label, colour, belongs in kinds:
        some = [step for step in steps if belongs(step)]
        if some:
            axes.scatter([1e3 * step.seconds for step in some], [step.total_tokens for step in some], color=colour, zorder=2, label=label)
    for step in steps:
        axes.annotate(str(step.batch), (1e3 * step.seconds, step.total_tokens), textcoords="offset points", xytext=(5, -11), fontsize=8)
    axes.set(xlabel="time of each token of one user, ms", ylabel="tokens a second, all users", yscale="log", xlim=(0, None),
             title=f"{meant.name} on {where}, by batch")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    save_figure(figure, path)
