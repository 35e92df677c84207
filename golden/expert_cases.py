"""Golden cases of mixtures of experts: routes, the loss that balances them, layers with and without places for all, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.case import Case
from oracles.reference import FloatFormat

from . import draws
from .draws import Array
from .trace_cases import distribution

# name: (format, tokens, experts, options, whether a bias chooses, how the logits lie)
ROUTES: dict[str, tuple[str, int, int, dict[str, Any], bool, str]] = {
    "smallest": ("float64", 1, 1, {"k": 1, "normalize": True}, False, "normal"),
    "no-tokens": ("float32", 0, 4, {"k": 2, "normalize": False}, False, "normal"),
    "one-of-two": ("float32", 9, 2, {"k": 1, "normalize": False}, False, "normal"),
    "one-normalized": ("float32", 5, 4, {"k": 1, "normalize": True}, False, "normal"),
    "two-of-eight": ("float32", 17, 8, {"k": 2, "normalize": True}, False, "normal"),
    "two-plain": ("float32", 17, 8, {"k": 2, "normalize": False}, False, "normal"),
    "all-of-them": ("float64", 5, 6, {"k": 6, "normalize": True}, False, "normal"),
    "all-plain": ("float32", 5, 6, {"k": 6, "normalize": False}, False, "normal"),
    "bias-chooses": ("float32", 17, 8, {"k": 2, "normalize": True}, True, "normal"),
    "bias-plain": ("float64", 9, 8, {"k": 3, "normalize": False}, True, "normal"),
    "equal-logits": ("float32", 4, 6, {"k": 3, "normalize": True}, False, "equal"),
    "equal-in-pairs": ("bfloat16", 7, 8, {"k": 3, "normalize": False}, False, "pairs"),
    "some-minus-infinity": ("float32", 9, 8, {"k": 2, "normalize": True}, False, "hidden"),
    "far-apart": ("float32", 7, 8, {"k": 3, "normalize": False}, False, "far"),
    "bfloat16": ("bfloat16", 11, 16, {"k": 4, "normalize": True}, False, "normal"),
    "float16": ("float16", 11, 16, {"k": 4, "normalize": False}, False, "normal"),
    "many-experts": ("float32", 5, 129, {"k": 8, "normalize": True}, True, "normal"),
}  # fmt: skip

# name: (format, tokens, experts, k, which tokens are real, how the probabilities lie)
BALANCES: dict[str, tuple[str, int, int, int, str, str]] = {
    "smallest": ("float64", 1, 1, 1, "all", "normal"), "no-tokens": ("float32", 0, 4, 2, "all", "normal"),
    "balanced": ("float32", 8, 4, 1, "all", "balanced"), "one-does-everything": ("float32", 7, 4, 1, "all", "one"),
    "two-choices": ("float32", 9, 5, 2, "all", "normal"), "all-experts": ("float32", 6, 3, 3, "all", "normal"),
    "masked": ("float32", 13, 6, 2, "some", "normal"), "nobody-real": ("float32", 5, 4, 2, "none", "normal"),
    "all-real": ("float32", 5, 4, 2, "said", "normal"), "not-distributions": ("float64", 9, 5, 2, "some", "any"),
    "bfloat16": ("bfloat16", 17, 8, 2, "all", "normal"), "float16": ("float16", 17, 8, 2, "some", "normal"),
    "many-experts": ("float32", 5, 65, 8, "all", "normal"), "tile-border": ("float32", 129, 4, 1, "some", "normal"),
}  # fmt: skip

# name: (format, tokens, experts, (D, F), options, whether a bias chooses)
LAYERS: dict[str, tuple[str, int, int, tuple[int, int], dict[str, Any], bool]] = {
    "smallest": ("float64", 1, 1, (1, 1), {"k": 1, "normalize": True}, False),
    "no-tokens": ("float32", 0, 4, (3, 5), {"k": 2, "normalize": True}, False),
    "nothing-to-sum": ("float32", 3, 2, (0, 4), {"k": 1, "normalize": True}, False),
    "one-expert-each": ("float32", 7, 4, (5, 3), {"k": 1, "normalize": True}, False),
    "one-plain": ("float32", 7, 4, (5, 3), {"k": 1, "normalize": False}, False),
    "two-of-eight": ("float32", 9, 8, (6, 5), {"k": 2, "normalize": True}, False),
    "two-plain": ("float64", 5, 8, (6, 5), {"k": 2, "normalize": False}, False),
    "all-experts": ("float32", 5, 3, (4, 4), {"k": 3, "normalize": True}, False),
    "bias-chooses": ("float32", 7, 6, (5, 4), {"k": 2, "normalize": True}, True),
    "few-places": ("float32", 9, 3, (4, 4), {"k": 1, "normalize": False, "capacity": 2}, False),
    "few-places-two-choices": ("float32", 11, 4, (4, 4), {"k": 2, "normalize": True, "capacity": 3}, True),
    "no-places": ("float32", 5, 3, (4, 4), {"k": 2, "normalize": True, "capacity": 0}, False),
    "places-for-all": ("bfloat16", 9, 4, (8, 6), {"k": 2, "normalize": True, "capacity": 9}, False),
    "bfloat16": ("bfloat16", 9, 4, (8, 6), {"k": 2, "normalize": True}, False),
    "float16": ("float16", 9, 4, (8, 6), {"k": 2, "normalize": False, "capacity": 4}, False),
    "tile-border": ("float32", 3, 2, (129, 3), {"k": 1, "normalize": False}, False),
}  # fmt: skip

# name: (format, ranks, tokens of each, experts of each, (D, F), options, whether a bias chooses)
SPREAD: dict[str, tuple[str, int, int, int, tuple[int, int], dict[str, Any], bool]] = {
    "smallest": ("float64", 1, 1, 1, (1, 1), {"k": 1, "normalize": True}, False),
    "no-tokens": ("float32", 2, 0, 2, (3, 4), {"k": 2, "normalize": True}, False),
    "one-rank": ("float32", 1, 7, 4, (4, 3), {"k": 2, "normalize": True}, False),
    "one-expert-each": ("float32", 3, 3, 1, (4, 3), {"k": 1, "normalize": False}, False),
    "one-normalized": ("float32", 2, 4, 2, (4, 3), {"k": 1, "normalize": True}, False),
    "two-ranks": ("float32", 2, 4, 2, (4, 3), {"k": 2, "normalize": True}, False),
    "two-plain": ("float64", 2, 4, 3, (4, 3), {"k": 2, "normalize": False}, False),
    "all-experts": ("float32", 2, 3, 2, (3, 3), {"k": 4, "normalize": True}, False),
    "bias-chooses": ("float32", 2, 4, 3, (4, 3), {"k": 2, "normalize": True}, True),
    "few-places": ("float32", 3, 4, 1, (3, 4), {"k": 1, "normalize": False, "capacity": 3}, False),
    "few-places-two-choices": ("float32", 2, 5, 2, (3, 4), {"k": 2, "normalize": True, "capacity": 4}, True),
    "no-places": ("float32", 2, 3, 2, (3, 3), {"k": 2, "normalize": True, "capacity": 0}, False),
    "bfloat16": ("bfloat16", 2, 5, 2, (6, 5), {"k": 2, "normalize": True}, False),
    "float16": ("float16", 4, 2, 1, (5, 6), {"k": 2, "normalize": False}, False),
}  # fmt: skip


def route_cases() -> list[Case]:
    """The cases of `ROUTES`."""
    cases = []
    for name, (dtype, T, E, options, biased, how) in ROUTES.items():
        key = f"route {name}"
        logits = draws.normal(f"{key} logits", (T, E), dtype, exponent=5 if how == "far" else 0)
        if how == "equal":
            logits[:] = logits[:, :1]
        if how == "pairs":
            logits[:, 1::2] = logits[:, ::2]
        if how == "hidden":
            logits[draws.whole(f"{key} hidden", (T, E), 0, 3) == 0] = -np.inf
        cases.append(Case("route", {"logits": logits, **_bias(key, E, biased)}, options, origin=name))
    return cases


def balance_loss_cases() -> list[Case]:
    """The cases of `BALANCES`: shares in multiples of 1/64, chosen experts of their own."""
    cases = []
    for name, (dtype, T, E, k, real, how) in BALANCES.items():
        key = f"balance {name}"
        probs: Array = distribution(f"{key} probs", (T,), E)
        ids = np.argsort(draws.bell(f"{key} ids", (T, E)), axis=1, kind="stable").astype(np.int64)[:, :k]
        if how == "balanced":
            probs, ids = np.full((T, E), 1.0 / E), np.arange(T, dtype=np.int64)[:, None] % E
        if how == "one":
            probs, ids = np.where(np.arange(E) == 2, 1.0, np.zeros((T, 1))), np.full((T, k), 2, dtype=np.int64)
        if how == "any":
            probs = draws.normal(f"{key} numbers", (T, E), "float64")
        arrays: dict[str, Array] = {"probs": np.asarray(FloatFormat(dtype).cast(probs)), "ids": ids}
        if real != "all":
            arrays["mask"] = draws.whole(f"{key} mask", (T,), 0, 3) > 0 if real == "some" else np.full(T, real == "said")
        cases.append(Case("balance_loss", arrays, {}, origin=name))
    return cases


def balance_loss_backward_cases() -> list[Case]:
    """The same with a gradient of the loss, one number."""
    cases = []
    for case in balance_loss_cases():
        dloss = np.asarray(draws.normal(f"balance {case.origin} dloss", (), BALANCES[case.origin][0]))
        arrays = {name: case.arrays[name] for name in ("probs", "ids")} | {"dloss": dloss}
        cases.append(Case("balance_loss_backward", {**arrays, **case.arrays}, case.options, origin=case.origin))
    return cases


def moe_layer_cases() -> list[Case]:
    """The cases of `LAYERS`."""
    cases = []
    for name, (dtype, T, E, (D, F), options, biased) in LAYERS.items():
        key = f"moe {name}"
        shapes = {"x": (T, D), "logits": (T, E), "weights": (E, D, F)}
        arrays = {letter: draws.normal(f"{key} {letter}", shape, dtype) for letter, shape in shapes.items()}
        cases.append(Case("moe_layer", {**arrays, **_bias(key, E, biased)}, options, origin=name))
    return cases


def expert_parallel_backward_cases() -> list[Case]:
    """The cases of `SPREAD`."""
    cases = []
    for name, (dtype, R, T, n, (D, F), options, biased) in SPREAD.items():
        key = f"expert parallel {name}"
        shapes = {"x": (R, T, D), "logits": (R, T, R * n), "weights": (R, n, D, F), "dout": (R, T, F)}
        arrays = {letter: draws.normal(f"{key} {letter}", shape, dtype) for letter, shape in shapes.items()}
        cases.append(Case("expert_parallel_backward", {**arrays, **_bias(key, R * n, biased)}, options, origin=name))
    return cases


def _bias(key: str, E: int, biased: bool) -> dict[str, Array]:
    """Of the size of the probabilities, in float32."""
    return {"bias": draws.normal(f"{key} bias", (E,), "float32", exponent=-3)} if biased else {}
