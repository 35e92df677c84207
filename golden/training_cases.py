"""Golden sequences of calls on what stands behind a training step: a loss scaler, master weights, ZeRO. Every number is dyadic.

Without momentum and eps a step of AdamW moves each number by its learning rate, against the sign of its gradient, and where that is 0
not at all: exactly. Numbers that JSON has no word for are texts: "inf", "-inf", "nan".
"""

from __future__ import annotations

from typing import Any

from .traces import Step, Trace

Calls = tuple[tuple[Any, ...], ...]

# What each call is given, in order.
NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "loss_scaler": {"scale": ("loss",), "unscale": ("grads",), "load": ("state",)},
    "master_weights": {"accumulate": ("grad",), "step": ("loss_scale",), "load": ("weights",), "resume": ("number",)},
    "zero": {"attach": ("params",), "accumulate": ("grads", "tokens"), "step": ("grads", "tokens"), "reload": ("stage", "world")},
}  # fmt: skip

_GOOD: Calls = (("unscale", [[1.0, -2.0]]), ("step",), ("update",), ("value",))
_BAD: Calls = (("unscale", [[1.0, "inf"]]), ("step",), ("update",), ("value",))
_TOP, _BOTTOM = 2.0**127, 2.0**-126                                             # powers of two among the normal numbers of float32

# name: (arguments, calls)
SCALERS: dict[str, tuple[dict[str, Any], Calls]] = {
    "as-made": ({}, (("value",), ("scale", 0.5), ("state",))),
    "one-good-step": ({"init_scale": 8.0}, (("scale", 3.0), *_GOOD, ("state",))),
    "an-overflow": ({"init_scale": 8.0}, (*_BAD, ("scale", 3.0), ("state",))),
    "nan": ({"init_scale": 8.0}, (("unscale", [[1.0], ["nan", 4.0]]), ("step",), ("update",), ("value",))),
    "minus-infinity": ({"init_scale": 8.0}, (("unscale", [["-inf"]]), ("step",), ("update",), ("value",))),
    "no-gradients": ({"init_scale": 8.0}, (("unscale", []), ("step",), ("update",), ("value",), ("unscale", [[]]), ("step",))),
    "grows": ({"init_scale": 8.0, "growth_interval": 2}, (*_GOOD, *_GOOD, ("state",), *_GOOD, *_GOOD)),
    "grows-with-every-step": ({"init_scale": 1.0, "growth_interval": 1}, (*_GOOD, *_GOOD, *_BAD, *_GOOD)),
    "an-overflow-ends-the-run": ({"init_scale": 8.0, "growth_interval": 2}, (*_GOOD, *_BAD, ("state",), *_GOOD, ("state",), *_GOOD)),
    "two-overflows": ({"init_scale": 8.0, "growth_interval": 2}, (*_BAD, *_BAD, ("unscale", [[1.0]]))),
    "other-factors": ({"init_scale": 16.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 1}, (*_GOOD, *_BAD, *_BAD)),
    "never-infinite": ({"init_scale": _TOP, "growth_interval": 1}, (*_GOOD, ("state",), *_GOOD, *_BAD, *_GOOD)),
    "never-zero": ({"init_scale": _BOTTOM}, (*_BAD, ("state",), *_BAD)),
    "checkpoint": ({"init_scale": 8.0, "growth_interval": 3},
                   (*_GOOD, *_GOOD, ("state",), *_BAD, ("load", {"value": 8.0, "run": 2}), *_GOOD, ("state",))),
    "checkpoints-refused": ({"init_scale": 8.0}, (("load", {"value": 0.0, "run": 0}), ("load", {"value": 4.0, "run": -1}),
                                                  ("load", {"value": 4.0}), ("state",))),
}  # fmt: skip

_HALF: Calls = (("accumulate", [1.0]), ("step", 1.0), ("weights",))
_SPOILT: Calls = (("accumulate", ["inf"]), ("step", 1.0), ("weights",))

# name: (weights, format, learning rates, calls)
MASTERS: dict[str, tuple[list[Any], str, list[float], Calls]] = {
    "as-made": ([1.0, -2.5], "bfloat16", [0.5], (("weights",), ("state",))),
    "one-step": ([1.0, -2.5], "bfloat16", [0.5], (("accumulate", [4.0, -8.0]), ("step", 2.0), ("weights",), ("state",))),
    "no-weights": ([], "float16", [0.5], (("accumulate", []), ("step", 2.0), ("weights",), ("state",))),
    "gradient-of-zero": ([1.0, 2.0], "bfloat16", [0.5], (("accumulate", [0.0, 1.0]), ("step", 1.0), ("state",))),
    "nothing-gathered": ([1.0], "bfloat16", [0.5], (("step", 1.0), ("state",))),
    "ties-go-to-even": ([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -1.0 - 2.0**-8], "bfloat16", [0.5], (("weights",), ("state",))),
    "ties-of-float16": ([1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 2.0**-25, 3 * 2.0**-25], "float16", [0.5], (("weights",), ("state",))),
    "steps-below-a-unit": ([1.0], "bfloat16", [2.0**-9], (*_HALF, *_HALF, *_HALF, ("state",))),
    "gathered-beyond-the-format": ([1.0], "bfloat16", [0.25], (("accumulate", [256.0]), *(("accumulate", [1.0]),) * 3, ("step", 1.0),
                                                               ("state",))),
    "an-overflow-is-left-out": ([1.0, 2.0], "float16", [0.5, 0.25], (("accumulate", ["inf", 1.0]), ("step", 4.0), ("state",),
                                                                     ("accumulate", [4.0, -4.0]), ("step", 4.0), ("state",))),
    "nan-is-left-out": ([1.0], "bfloat16", [0.5], (("accumulate", ["nan"]), ("step", 1.0), ("weights",), *_HALF)),
    "rates-of-steps-taken": ([1.0], "bfloat16", [0.5, 0.25, 0.125], (*_HALF, *_SPOILT, *_HALF, *_HALF, *_HALF, ("state",))),
    "other-weights": ([1.0], "bfloat16", [0.5, 0.25], (*_HALF, ("load", [4.0]), ("weights",), ("state",), *_HALF)),
    "checkpoint": ([1.0], "bfloat16", [0.5, 2.0**-9], (*_HALF, ("state",), *_HALF, ("state",), ("resume", 0), ("state",), *_HALF)),
    "shapes-refused": ([1.0, 2.0], "bfloat16", [0.5], (("accumulate", [1.0]), ("load", [1.0, 2.0, 3.0]), ("state",))),
}  # fmt: skip

_TWO = [["w", [1.0, 2.0, 3.0]], ["b", [0.5]]]
_ONE_STEP: Calls = (("step", [[[1.0, -1.0, 0.0], [2.0]], [[1.0, 3.0, 0.0], [-2.0]]]), ("params",))

# name: (stage, world, learning rate, weight decay, alignment, calls)
SHARDED: dict[str, tuple[int, int, float, float, int, Calls]] = {
    "one-rank": (0, 1, 0.5, 0.0, 1, (("attach", [["w", [1.0]]]), ("step", [[[2.0]]]), ("params",), ("held",))),
    **{f"stage-{stage}": (stage, 2, 0.5, 0.0, 1, (("attach", _TWO), ("held",), *_ONE_STEP, ("held",))) for stage in range(4)},
    **{f"three-ranks-stage-{stage}": (stage, 3, 0.25, 0.5, 1, (
        ("attach", [["w", [4.0, -4.0]], ["b", []]]), ("step", [[[1.0, 0.0], []], [[-1.0, 1.0], []], [[1.0, 0.0], []]]), ("params",),
        ("held",))) for stage in (1, 3)},
    "micro-batches": (2, 2, 0.5, 0.0, 1, (("attach", _TWO), ("accumulate", [[[1.0, -4.0, 0.0], [2.0]], [[0.0, 0.0, 0.0], [0.0]]]),
                                          ("held",), *_ONE_STEP)),
    "tokens": (1, 2, 0.5, 0.0, 1, (("attach", [["w", [1.0]]]), ("accumulate", [[[3.0]], [[-4.0]]], [1, 2]),
                                   ("step", [[[0.0]], [[0.0]]], [1, 0]), ("params",))),                     # a mean of means is above 0
    "no-tokens": (3, 2, 0.5, 0.0, 1, (("attach", [["w", [1.0]]]), ("step", [[[0.0]], [[0.0]]], [0, 0]), ("params",))),
    "aligned": (2, 2, 0.5, 0.0, 4, (("attach", _TWO), *_ONE_STEP, ("held",))),
    "another-layout": (1, 2, 0.5, 0.5, 1, (("attach", _TWO), *_ONE_STEP, ("reload", 3, 1), ("held",), ("step", [[[1.0, 1.0, 1.0], [-1.0]]]),
                                           ("params",))),
    "refused": (2, 2, 0.5, 0.0, 1, (("attach", _TWO), ("accumulate", [[[1.0, 1.0, 1.0], [1.0]]]), ("step", [[[1.0]], [[1.0]]]),
                                    ("accumulate", [[[1.0, 1.0, 1.0], [1.0]]] * 2), ("reload", 0, 1))),
}  # fmt: skip


def training_traces() -> list[Trace]:
    """The questions of all three."""
    adam = {"beta1": 0.0, "beta2": 0.0, "eps": 0.0}
    return [
        *(Trace("loss_scaler", name, {"growth_interval": 2000, **arguments}, _steps("loss_scaler", calls))
          for name, (arguments, calls) in SCALERS.items()),
        *(Trace("master_weights", name, {"weights": weights, "fmt": fmt, "lr": rates, **adam}, _steps("master_weights", calls))
          for name, (weights, fmt, rates, calls) in MASTERS.items()),
        *(Trace("zero", name, {"stage": stage, "world": world, "lr": rate, **adam, "weight_decay": decay, "alignment": alignment},
                _steps("zero", calls)) for name, (stage, world, rate, decay, alignment, calls) in SHARDED.items()),
    ]  # fmt: skip


def _steps(operation: str, calls: Calls) -> tuple[Step, ...]:
    return tuple(Step(name, dict(zip(NAMES[operation].get(name, ()), given))) for name, *given in calls)
