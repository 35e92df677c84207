"""Trace answers: what the oracles answer to the calls of a trace. The second route to the same answers stands in `trace_second_route`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from oracles import reference

from . import trace_training_answers
from .trace_stream import digest
from .traces import Step, Trace


def answers(trace: Trace) -> list[Step]:
    """The steps of a trace as the oracles answer them."""
    if trace.operation in OBJECTS:
        return OBJECTS[trace.operation](trace)
    return [_answered(FUNCTIONS[step.call], step) for step in trace.steps]


def _answered(function: Callable[..., Any], step: Step) -> Step:
    try:
        return replace(step, answer=function(**step.arguments))
    except (ValueError, reference.OutOfBlocks) as error:
        return replace(step, raises=type(error).__name__)


def _named(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """The function with its results as a record."""
    def call(**arguments: Any) -> dict[str, Any]:
        results = function(**arguments)
        return dict(zip(names, results if len(names) > 1 else (results,), strict=True))

    return call


def _visible_keys(*, window: list[int | None] | None = None, **arguments: Any) -> Any:
    return reference.visible_keys(**arguments, window=None if window is None else tuple(window))


def _schedule_timeline(*, actions: Any, chunks: int, split: bool, durations: list[int]) -> tuple[Any, Any, Any]:
    """Whole durations make whole times."""
    order = reference.Schedule(actions, chunks, split)
    starts, ends = order.timeline(durations)
    return starts.astype(np.int64), ends.astype(np.int64), order.peak_activations()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "write_kv": _named(reference.write_kv, "k_cache", "v_cache"),
    "sample": _named(reference.sample, "token"),
    "speculative_verify": _named(reference.speculative_verify, "tokens", "n_accepted"),
    "verify_tree": _named(reference.verify_tree, "tokens", "n_accepted", "nodes"),
    "tree_positions": _named(reference.tree_positions, "positions"),
    "apply_penalties": _named(reference.apply_penalties, "logits"),
    "visible_keys": _named(_visible_keys, "visible"),
    "slot_mapping": _named(reference.slot_mapping, "slots"),
    "prune_magnitude": _named(reference.prune_magnitude, "masks"),
    "prune_2_4": _named(reference.prune_2_4, "mask"),
    "prune_units": _named(reference.prune_units, "mask"),
    "gradual_masks": _named(reference.gradual_masks, "masks"),
    "padded_positions": _named(reference.padded_positions, "positions"),
    "next_token_targets": _named(reference.next_token_targets, "targets"),
    "token_accuracy": _named(reference.token_accuracy, "right", "counted"),
    "kv_bytes": _named(reference.kv_bytes, "bytes"),
    "model_flops": _named(reference.model_flops, "flops"),
    "training_bytes": _named(reference.training_bytes, "bytes"),
    "flat_layout": _named(reference.flat_layout, "offsets", "total"),
    "schedule_timeline": _named(_schedule_timeline, "starts", "ends", "peak"),
    "speculative_loop": _named(reference.speculative_loop, "tokens", "n_accepted"),
    "mtp_loop": _named(reference.mtp_loop, "tokens", "n_accepted"),
    "paging_waste": lambda **arguments: asdict(reference.paging_waste(**arguments)),
}


def _pool(trace: Trace) -> list[Step]:
    pool = reference.BlockAllocator(**trace.arguments)
    return [_answered(getattr(pool, step.call), step) for step in trace.steps]


def _guide(trace: Trace) -> list[Step]:
    """States go by number, in the order in which they were first given; `advance` answers with the number and the mask there."""
    automaton = reference.compile_regex(trace.arguments["pattern"], trace.arguments["vocabulary"], eos=trace.arguments["eos"])
    states = [automaton.start]

    def mask(state: int) -> Any:
        return automaton.token_mask(states[state])

    def advance(state: int, token: int) -> dict[str, Any]:
        states.append(automaton.advance(states[state], token))
        return {"state": len(states) - 1, "mask": mask(len(states) - 1)}

    calls: dict[str, Callable[..., Any]] = {"token_mask": mask, "advance": advance}
    return [_answered(calls[step.call], step) for step in trace.steps]


def _stream(trace: Trace) -> list[Step]:
    stream = reference.TorchStream(**trace.arguments)
    calls: dict[str, Callable[..., Any]] = {
        "randn": lambda shape: stream.randn(*shape), "rand": lambda shape: stream.rand(*shape),
        "digest": lambda shape: digest(stream.randn(*shape)),
    }  # fmt: skip
    return [_answered(calls[step.call], step) for step in trace.steps]


def _training(trace: Trace) -> list[Step]:
    methods = getattr(trace_training_answers, trace.operation)(trace)
    return [_answered(methods[step.call], step) for step in trace.steps]


def _cache(trace: Trace) -> list[Step]:
    cache = reference.KVCache(**trace.arguments)

    def select(rows: list[int]) -> None:
        cache.select(np.asarray(rows, dtype=np.int64))

    calls: dict[str, Callable[..., Any]] = {
        "append": cache.append, "length": cache.__len__, "view": lambda: dict(zip("kv", cache.view())), "crop": cache.crop,
        "select": select,
    }  # fmt: skip
    return [_answered(calls[step.call], step) for step in trace.steps]


OBJECTS: dict[str, Callable[[Trace], list[Step]]] = {
    "block_allocator": _pool, "token_mask": _guide, "torch_stream": _stream, "loss_scaler": _training, "master_weights": _training,
    "zero": _training, "kv_cache": _cache,
}  # fmt: skip
