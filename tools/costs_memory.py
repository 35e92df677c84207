"""`oracles costs memory`, `kv` and `models`: bytes of training states and caches, by formula, with what is left out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from oracles import reference
from oracles.properties.declaration import UsageError
from oracles.reference.model_presets import DEVICES, PRESETS

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

MEMORY_LEFT_OUT = ("embeddings', last norm's and logits' activations, buffers of communication, layers gathered at stage 3, fragments, "
                   "the runtime's own memory")
KV_LEFT_OUT = "activations, workspaces, pages that are not full, tables of blocks, scales of quantized numbers, the runtime's own memory"
CONTEXTS = (4096, 32768, 131072)


def memory(
    model: Model = None, config: Config = None, devices: Devices = 1,
    zero: Annotated[int, typer.Option(min=0, max=3, help="ZeRO stage: 0 shares nothing out.")] = 0,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 4096,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences of a micro-batch on one device.")] = 1,
    checkpointing: Annotated[str, typer.Option(help="What is computed again: none, selective (the attention core), full.")] = "selective",
    lora_rank: Annotated[int | None, typer.Option(min=1, help="Train adapters of this rank on q and v alone; all else is frozen.")] = None,
    device: DeviceName = "h100", as_json: Json = False,
) -> None:  # fmt: skip
    """Bytes that one device holds in training: Adam in mixed precision (2 + 2 + 4 + 4 + 4 bytes a parameter), ZeRO, activations."""
    meant, chip = chosen(model, config), accelerator(device)
    try:
        parts = _parts(meant, zero, devices, lora_rank)
        parts["activations"] = reference.activation_bytes(meant.config, tokens=tokens, sequences=sequences,
                                                          checkpointing=checkpointing)  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(str(error)) from None
    total = sum(parts.values())
    settings = {"devices": devices, "zero": zero, "tokens": tokens, "sequences": sequences, "checkpointing": checkpointing,
                "lora_rank": lora_rank, "device": device, "device_bytes": chip.memory_bytes}
    if as_json:
        print_json({**meant.to_json(), **settings, "bytes": parts, "total_bytes": total, "left_out": MEMORY_LEFT_OUT})
        return
    rows = [[name, *_both(count), f"{100 * count / chip.memory_bytes:.1f}"] for name, count in [*parts.items(), ("in all", total)]]
    print_table(("on each device", "GiB", "GB", f"% of {device}"), rows, meant.remark(),
                f"ZeRO-{zero} over {devices} device{'s' if devices > 1 else ''}; "
                f"a micro-batch of {sequences} x {tokens:,} tokens, checkpointing {checkpointing}.",
                _room(chip.memory_bytes - total, device), f"Left out: {MEMORY_LEFT_OUT}. Activations are those of a GPT layer "
                "(Korthikanti et al. 2022): gated and grouped layers keep about as much, not exactly that.")


def _parts(meant: Chosen, stage: int, devices: int, lora_rank: int | None) -> dict[str, int]:
    if lora_rank is None:
        return reference.training_parts(meant.parameters.total, stage=stage, world=devices)
    adapters = reference.lora_parameters(meant.config, rank=lora_rank)
    frozen = int(reference.training_bytes(meant.parameters.total, stage=stage, world=devices, gradient_bytes=0, optimizer_bytes=0))
    return {"frozen weights": frozen, **{f"adapter {name}": count for name, count in
                                         reference.training_parts(adapters, stage=stage, world=devices).items()}}


def _both(count: int) -> tuple[str, str]:
    return reference.show_bytes(count, "GiB").removesuffix(" GiB"), reference.show_bytes(count, "GB").removesuffix(" GB")


def _room(left: int, device: str) -> str:
    if left < 0:
        return f"That is {reference.show_bytes(-left, 'GB')} more than one {device} has."
    return f"That leaves {reference.show_bytes(left, 'GB')} of one {device} for what is left out."


def kv(
    model: Model = None, config: Config = None,
    context: Annotated[list[int] | None, typer.Option(min=1, help="Tokens of a sequence; repeatable.")] = None,
    kv_bits: KvBits = 16, weight_bits: WeightBits = 16, device: DeviceName = "h100", devices: Devices = 1, plot: Plot = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Bytes of the cache of keys and values by context, and how many sequences find room beside the weights."""
    meant, chip = chosen(model, config), accelerator(device)
    weights, room = meant.weight_bytes(weight_bits), devices * chip.memory_bytes
    contexts = context or CONTEXTS
    rows = []
    for tokens in contexts:
        held = int(reference.kv_bytes(tokens, config=meant.config, element_bits=kv_bits))
        rows.append({"context": tokens, "kv_bytes": held, "sequences": reference.largest_batch(room, weights, held)})
    if plot is not None:
        _plot_kv(plot, meant, contexts, kv_bits, room - weights, f"{devices} x {device}")
    if as_json:
        print_json({**meant.to_json(), "weight_bytes": weights, "device": device, "devices": devices, "memory_bytes": room,
                    "kv_bits": kv_bits, "contexts": rows, "left_out": KV_LEFT_OUT})
        return
    one = reference.show_bytes(int(reference.kv_bytes(1, config=meant.config, element_bits=kv_bits)), "KiB")
    shown = [[f"{row['context']:,}", *_both(row["kv_bytes"]), f"{row['sequences']:,}"] for row in rows]
    told = "That is more than there is: no sequence finds room." if weights > room else ""
    print_table(("context", "GiB a sequence", "GB a sequence", "sequences at once"), shown, meant.remark(),
                f"The first token takes {one}. Weights of {weight_bits} bits take {reference.show_bytes(weights, 'GB')} of the "
                f"{reference.show_bytes(room, 'GB')} of {devices} x {device}. {told}".rstrip(),
                f"Sequences at once is an upper bound. Left out: {KV_LEFT_OUT}.", f"plot: {plot}" if plot else "")


def _plot_kv(path: Any, meant: Chosen, contexts: Any, bits: int, room: int, where: str) -> None:
    figure = new_figure()
    axes = figure.subplots()
    lengths = sorted({2**i for i in range(8, 18)} | set(contexts))
    for batch in (1, 8, 64):
        held = reference.kv_bytes(lengths, config=meant.config, element_bits=bits) * batch
        axes.plot(lengths, held / 2**30, marker=".", label=f"{batch} sequence{'s' if batch > 1 else ''}")
    if room > 0:
        axes.axhline(room / 2**30, color="tab:red", linestyle="--", label=f"left beside the weights on {where}")
    axes.set(yscale="log", xlabel="context, tokens", ylabel="keys and values, GiB", title=f"{meant.name}, {bits} bits a number")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n) for n in lengths])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)


def models(as_json: Json = False) -> None:
    """The models and devices that are known by name, and where their figures are published."""
    known = [(name, reference.parameter_count(preset.config), preset) for name, preset in PRESETS.items()]
    if as_json:
        print_json({"models": [{"model": name, "parameters": count.total, "active_parameters": count.active, "source": preset.source}
                               for name, count, preset in known],
                    "devices": [{"device": name, "memory_bytes": chip.memory_bytes, "bytes_per_second": chip.bytes_per_second,
                                 "flops_per_second": chip.flops_per_second, "source": chip.source} for name, chip in DEVICES.items()]})
        return
    rows = [[name, preset.source, f"{count.total:,}", f"{count.active:,}" if count.idle else "",
             reference.show_bytes(int(reference.kv_bytes(1, config=preset.config)), "KiB", digits=1)] for name, count, preset in known]
    print_table(("model", "config", "parameters", "active", "first token in the cache"), rows, right=(2, 3, 4))
    chips = [[name, chip.source, reference.show_bytes(chip.memory_bytes, "GB", digits=0), f"{chip.bytes_per_second / 1e12:.3f}",
              f"{chip.flops_per_second / 1e12:,.1f}", f"{reference.ridge_point(chip.flops_per_second, chip.bytes_per_second):.0f}"]
             for name, chip in DEVICES.items()]
    print_table(("device", "figures", "memory", "TB/s", "TFLOPS, 16 bits, dense", "ridge, FLOPs a byte"), chips, right=(2, 3, 4, 5))
