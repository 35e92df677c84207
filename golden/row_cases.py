"""Golden cases of the row operations: softmax, log-sum-exp, the merge of partial results."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.case import Case
from oracles.reference import FloatFormat

from . import draws
from .draws import Array

# name: (format, shape, axis, how the entries lie)
ROWS: dict[str, tuple[str, tuple[int, ...], int, str]] = {
    "one-entry": ("float64", (1,), -1, "normal"),
    "no-entries": ("float32", (3, 0), -1, "normal"),
    "pair": ("float64", (5, 2), -1, "normal"),
    "rows-of-7": ("float32", (4, 7), -1, "normal"),
    "first-axis": ("bfloat16", (13, 5), 0, "normal"),
    "middle-axis": ("float16", (3, 17, 2), 1, "normal"),
    "some-minus-infinity": ("float32", (9, 33), -1, "hidden"),
    "nothing-but-minus-infinity": ("float16", (2, 5), -1, "all hidden"),
    "far-apart": ("float32", (6, 64), -1, "far"),
    "beyond-the-exponential": ("float64", (4, 9), -1, "beyond"),
    "near-zero": ("float64", (8, 3), -1, "lse near 0"),
    "equal": ("bfloat16", (2, 6), -1, "equal"),
    "largest-numbers": ("float32", (3, 9), -1, "largest"),
    "subnormal": ("float16", (3, 9), -1, "subnormal"),
    "tile-border-257": ("bfloat16", (3, 257), -1, "normal"),
    "long": ("float32", (2, 4099), -1, "normal"),
}  # fmt: skip

# name: (format, shape of out, how the log-sum-exps lie)
MERGES: dict[str, tuple[str, tuple[int, ...], str]] = {
    "smallest": ("float64", (1, 1, 1, 1), "near"),
    "no-rows": ("float32", (1, 2, 0, 4), "near"),
    "near": ("float32", (2, 3, 5, 8), "near"),
    "near-float16": ("float16", (1, 2, 7, 16), "near"),
    "near-bfloat16": ("bfloat16", (1, 2, 7, 16), "near"),
    "equal": ("float32", (1, 2, 3, 4), "equal"),
    "far": ("float32", (1, 2, 9, 4), "far"),
    "huge": ("float32", (1, 1, 6, 4), "huge"),
    "first-empty": ("bfloat16", (1, 2, 3, 4), "first empty"),
    "second-empty": ("float16", (1, 2, 3, 4), "second empty"),
    "both-empty": ("float32", (1, 2, 3, 4), "both empty"),
    "wide": ("float64", (1, 1, 3, 128), "near"),
}  # fmt: skip


def softmax_cases() -> list[Case]:
    """The cases of `ROWS` for softmax."""
    return [Case("softmax", {"x": _row(name)}, {"axis": ROWS[name][2]}, origin=name) for name in ROWS]


def log_sum_exp_cases() -> list[Case]:
    """The same arrays for log_sum_exp."""
    return [Case("log_sum_exp", case.arrays, case.options, origin=case.origin) for case in softmax_cases()]


def _row(name: str) -> Array:
    dtype, shape, _, how = ROWS[name]
    fmt, key = FloatFormat(dtype), f"row {name}"
    if how == "normal":
        return draws.normal(key, shape, dtype)
    if how in ("hidden", "all hidden"):
        hidden = draws.whole(f"{key} hidden", shape, 0, 3) == 0 if how == "hidden" else np.ones(shape, dtype=bool)
        return np.where(hidden, np.asarray(-np.inf, draws.normal(key, shape, dtype).dtype), draws.normal(key, shape, dtype))
    if how == "far":
        return draws.normal(key, shape, dtype, exponent=6)
    if how == "beyond":                                                         # e^x overflows float64, or is nothing
        return draws.normal(key, shape, dtype, exponent=10)
    if how == "lse near 0":                                                     # two equal entries at -ln 2, the third far below
        return np.asarray(fmt.cast(np.broadcast_to([-np.log(2.0), -np.log(2.0), -60.0], shape) + np.ldexp(draws.bell(key, shape), -40)))
    if how == "equal":
        return np.repeat(draws.normal(key, (*shape[:-1], 1), dtype), shape[-1], axis=-1)
    if how == "largest":
        return np.asarray(fmt.cast(np.sign(draws.bell(key, shape)) * fmt.max))
    return draws.normal(key, shape, dtype, exponent=-20)


def merge_attention_cases() -> list[Case]:
    """The cases of `MERGES`: log-sum-exps in float32, in float64 beside float64."""
    cases = []
    for name, (dtype, shape, how) in MERGES.items():
        wide = "float64" if dtype == "float64" else "float32"
        arrays: dict[str, Any] = {}
        for part in ("a", "b"):
            out, lse = draws.normal(f"merge {name} out {part}", shape, dtype), draws.normal(f"merge {name} lse {part}", shape[:-1], wide)
            if how == "equal":
                lse = draws.normal(f"merge {name} lse", shape[:-1], wide)
            if how in ("far", "huge"):
                lse = draws.normal(f"merge {name} lse {part}", shape[:-1], wide, exponent=8 if how == "far" else 120)
            if how == "both empty" or how.startswith({"a": "first", "b": "second"}[part]):
                out, lse = np.zeros_like(out), np.full_like(lse, -np.inf)
            arrays |= {f"out_{part}": out, f"lse_{part}": lse}
        cases.append(Case("merge_attention", arrays, {}, origin=name))
    return cases
