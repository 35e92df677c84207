"""Trace cases of whole generation loops: a target and its draft, or its own heads, as tables; what a pass decides stands near no tie."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import draws
from .draws import Array
from .trace_cases import distribution, uniforms
from .traces import Step, Trace

# name: (V, B, prompt, N, k, what is asked besides)
LOOPS: dict[str, tuple[int, int, int, int, int, tuple[str, ...]]] = {
    "smallest": (1, 1, 1, 1, 1, ()),
    "no-tokens": (2, 2, 1, 0, 2, ()),
    "no-rows": (2, 0, 1, 3, 1, ()),
    "no-drafts": (3, 2, 1, 5, 0, ()),
    "one-draft": (3, 2, 2, 6, 1, ()),
    "two-drafts": (3, 3, 2, 8, 2, ()),
    "three-drafts": (4, 2, 3, 9, 3, ()),
    "more-drafts-than-tokens": (3, 2, 1, 2, 5, ()),
    "equal-models": (4, 2, 2, 12, 2, ("equal",)),
    "eos": (3, 4, 1, 9, 2, ("eos",)),
    "forbidden": (4, 3, 2, 8, 2, ("forbidden",)),
    "forbidden-eos": (4, 4, 1, 9, 2, ("forbidden", "eos")),
    "longer": (5, 2, 4, 24, 3, ()),
}  # fmt: skip


def loop_traces() -> list[Trace]:
    """The questions of both loops: a trace of one call each. Heads: where no draft is made, none."""
    traces = []
    for operation in ("speculative_loop", "mtp_loop"):
        for name, (V, B, P, N, k, asked) in LOOPS.items():
            key = f"{operation} {name}"
            target = distribution(f"{key} target", (V, V), V)
            drafts = np.stack([distribution(f"{key} draft {j}", (V, V), V) for j in range(max(k, 1))])
            if "equal" in asked:
                drafts = np.broadcast_to(target, drafts.shape).copy()
            models = {"draft": drafts[0]} if operation == "speculative_loop" else {"heads": drafts[:k]}
            given: dict[str, Any] = {"eos": 0} if "eos" in asked else {}
            if "forbidden" in asked:                                            # no token after itself
                given["forbidden"] = np.eye(V, dtype=bool)
            arrays: dict[str, Array] = {"target": target, **models, "prompt": draws.whole(f"{key} prompt", (B, P), 0, V),
                                        "uniforms": uniforms(f"{key} u", (B, N, 2 * k + 1))}  # fmt: skip
            traces.append(Trace(operation, name, {}, (Step(operation, {**arrays, **given}),)))
    return traces
