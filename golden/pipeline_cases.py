"""Golden cases of pipelines: losses of ragged sequences summed in micro-batches, and steps of a model of tanh pieces."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.array_lists import spread
from oracles.properties.case import Case

from . import draws

# name: (format, lengths, T, micro-batch, how the losses lie)
LOSSES: dict[str, tuple[str, tuple[int, ...], int, int, str]] = {
    "smallest": ("float64", (1,), 1, 1, "normal"), "no-sequences": ("float32", (), 3, 1, "normal"),
    "no-tokens": ("float32", (0, 0), 4, 1, "normal"), "whole-rows": ("float32", (5, 5, 5), 5, 1, "normal"),
    "ragged": ("float32", (1, 4, 7), 7, 1, "normal"), "one-micro-batch": ("float32", (1, 4, 7), 7, 3, "normal"),
    "short-last": ("float32", (3, 1, 5, 2, 4), 5, 2, "normal"), "larger-than-the-batch": ("float32", (2, 3), 4, 100, "normal"),
    "empty-among-others": ("float32", (0, 6, 0, 2), 6, 2, "normal"), "nan-behind-the-lengths": ("float32", (2, 0, 3), 5, 1, "nan"),
    "cancelling": ("float32", (6, 6), 6, 1, "cancelling"), "bfloat16": ("bfloat16", (9, 3, 5), 9, 2, "normal"),
    "float16": ("float16", (9, 3, 5), 9, 2, "normal"), "float64": ("float64", (9, 3, 5), 9, 2, "normal"),
    "tile-border": ("float32", (129, 257, 3), 257, 1, "normal"),
}  # fmt: skip

# name: (format, lengths, (T, D), pieces, options, share that dropout takes, exponent of the weights)
STEPS: dict[str, tuple[str, tuple[int, ...], tuple[int, int], int, dict[str, Any], float, int]] = {
    "smallest": ("float64", (1,), (1, 1), 1, {"kind": "gpipe", "microbatch_size": 1}, 0.0, 0),
    "no-sequences": ("float32", (), (3, 4), 2, {"kind": "gpipe", "microbatch_size": 1}, 0.0, 0),
    "no-tokens": ("float32", (0, 0), (2, 3), 2, {"kind": "1f1b", "microbatch_size": 1}, 0.0, 0),
    "one-stage": ("float32", (3, 2), (3, 4), 1, {"kind": "1f1b", "microbatch_size": 1}, 0.0, -1),
    "two-stages": ("float32", (2, 3, 1), (3, 4), 2, {"kind": "gpipe", "microbatch_size": 1}, 0.0, -1),
    "one-forward-one-backward": ("float32", (3, 1, 2, 3), (3, 4), 3, {"kind": "1f1b", "microbatch_size": 1}, 0.0, -1),
    "interleaved": ("float32", (3, 2, 3, 1), (3, 3), 4, {"kind": "interleaved", "microbatch_size": 1, "chunks": 2}, 0.0, -1),
    "zero-bubble": ("float32", (3, 2, 3), (3, 4), 3, {"kind": "zero_bubble", "microbatch_size": 1}, 0.0, -1),
    "accumulated": ("float32", (3, 2, 3, 1), (3, 4), 2, {"kind": "1f1b", "microbatch_size": 1, "accumulation": 2}, 0.0, -1),
    "short-last": ("float64", (2, 3, 1), (3, 3), 2, {"kind": "gpipe", "microbatch_size": 2}, 0.0, -1),
    "dropout": ("float32", (3, 2, 1), (3, 5), 2, {"kind": "1f1b", "microbatch_size": 1}, 0.25, -1),
    "dropout-float64": ("float64", (3, 3), (3, 4), 3, {"kind": "zero_bubble", "microbatch_size": 1}, 0.1, -1),
    "flat-tanh": ("float32", (2, 2), (2, 3), 2, {"kind": "gpipe", "microbatch_size": 1}, 0.0, 1),
    "bfloat16": ("bfloat16", (3, 2), (3, 6), 2, {"kind": "1f1b", "microbatch_size": 1}, 0.0, -2),
    "float16": ("float16", (3, 2), (3, 6), 2, {"kind": "interleaved", "microbatch_size": 1, "chunks": 2}, 0.0, -2),
    "tile-border": ("float32", (1,), (1, 33), 2, {"kind": "gpipe", "microbatch_size": 1}, 0.0, -3),
}  # fmt: skip


def pipeline_loss_cases() -> list[Case]:
    """The cases of `LOSSES`."""
    cases = []
    for name, (dtype, lengths, T, size, how) in LOSSES.items():
        losses, counts = draws.normal(f"pipeline loss {name}", (len(lengths), T), dtype), np.asarray(lengths, dtype=np.int64)
        if how == "nan":
            losses[np.arange(T) >= counts[:, None]] = np.nan
        if how == "cancelling":
            losses[1] = -losses[0]
            losses[1, 0] += 2.0**-10
        cases.append(Case("pipeline_loss", {"token_losses": losses, "lengths": counts}, {"microbatch_size": size}, origin=name))
    return cases


def pipeline_step_cases() -> list[Case]:
    """The cases of `STEPS`."""
    cases = []
    for name, (dtype, lengths, (T, D), P, options, p, exponent) in STEPS.items():
        key, B = f"pipeline {name}", len(lengths)
        x, targets = (draws.normal(f"{key} {letter}", (B, T, D), dtype, exponent=-1) for letter in ("x", "targets"))
        weights = [draws.normal(f"{key} weights {i}", (D, D), dtype, exponent=exponent) for i in range(P)]
        arrays = {"x": x, "targets": targets, "lengths": np.asarray(lengths, dtype=np.int64), **spread("weights", weights)}
        given = dict(options)
        if p:
            arrays["dropout_mask"] = draws.whole(f"{key} dropout", (P, B, T, D), 0, 4) > 0
            given["dropout_p"] = p
        cases.append(Case("pipeline_step", arrays, given, origin=name))
    return cases
