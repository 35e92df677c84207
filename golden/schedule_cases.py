"""Trace cases of pipelines: orders of work and how long each action takes; when each starts and ends has one answer. An order has none:
any that costs no more is as good, so that a schedule itself is the checker's to judge, by its laws."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles import reference

from . import draws
from .traces import Step, Trace

# name: (kind, stages, micro-batches, chunks, durations of F, B, W, whether each stage's backward passes are in another order)
ORDERS: dict[str, tuple[str, int, int, int, tuple[int, int, int], bool]] = {
    "smallest": ("gpipe", 1, 1, 1, (1, 1, 1), False), "no-micro-batches": ("1f1b", 3, 0, 1, (1, 1, 1), False),
    "gpipe": ("gpipe", 4, 6, 1, (3, 5, 1), False), "gpipe-slow-backward": ("gpipe", 3, 5, 1, (1, 2, 1), False),
    "gpipe-last-first": ("gpipe", 3, 4, 1, (2, 3, 1), True), "1f1b": ("1f1b", 4, 8, 1, (3, 5, 1), False),
    "1f1b-slow-backward": ("1f1b", 4, 6, 1, (1, 2, 1), False), "fewer-micro-batches-than-stages": ("1f1b", 5, 2, 1, (1, 2, 1), False),
    "interleaved": ("interleaved", 2, 4, 2, (3, 5, 1), False), "interleaved-three-chunks": ("interleaved", 3, 6, 3, (1, 2, 1), False),
    "zero-bubble": ("zero_bubble", 4, 6, 1, (3, 4, 3), False), "zero-bubble-unequal": ("zero_bubble", 3, 5, 1, (7, 5, 2), False),
    "slow-forward": ("1f1b", 3, 5, 1, (7, 2, 1), False), "long": ("zero_bubble", 8, 33, 1, (2, 3, 1), False),
}  # fmt: skip


def schedule_traces() -> list[Trace]:
    """The questions of timelines: a trace of one call each."""
    return [Trace("schedule_timeline", name, {}, (Step("schedule_timeline", _order(name)),)) for name in ORDERS]


def _order(name: str) -> dict[str, Any]:
    kind, stages, microbatches, chunks, durations, turned = ORDERS[name]
    order = reference.schedule(kind, stages=stages, microbatches=microbatches, chunks=chunks)
    actions = order.actions.copy()
    if turned:                                                                  # the backward passes in an order drawn, everywhere the same
        shuffled = np.argsort(draws.bell(f"schedule {name}", (microbatches,)), kind="stable")
        actions[:, microbatches:, 1] = shuffled
    return {"actions": actions, "chunks": order.chunks, "split": order.split, "durations": list(durations)}
