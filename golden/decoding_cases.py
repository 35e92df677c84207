"""Golden cases of filtered probabilities and of the loss of several heads. No filter stands within rounding of a tie."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.case import Case

from . import draws
from .draws import Array

# name: (format, shape of logits, options, exponent of the logits); an option given as a list is an array over the rows
FILTERS: dict[str, tuple[str, tuple[int, ...], dict[str, Any], int]] = {
    "smallest": ("float64", (1,), {}, 0),
    "no-rows": ("float32", (0, 5), {"top_k": 2}, 0),
    "plain-softmax": ("float32", (3, 17), {}, 0),
    "temperature": ("bfloat16", (3, 17), {"temperature": 0.7}, 0),
    "temperature-zero": ("float32", (3, 17), {"temperature": 0.0, "top_p": 0.5}, 0),
    "temperature-of-a-row": ("float32", (4, 9), {"temperature": [0.0, 0.25, 1.0, 8.0]}, 0),
    "top-k": ("float32", (3, 33), {"top_k": 5}, 0),
    "top-k-of-all": ("float16", (3, 7), {"top_k": 50}, 0),
    "top-k-ties": ("float32", (2, 8), {"top_k": 3}, 0),
    "top-p": ("float32", (3, 33), {"top_p": 0.8}, 0),
    "top-p-of-one": ("float64", (2, 9), {"top_p": 1.0}, 0),
    "top-p-tiny": ("bfloat16", (3, 33), {"top_p": 0.015625}, 1),
    "min-p": ("float32", (3, 33), {"min_p": 0.1}, 0),
    "all-filters": ("float64", (5, 65), {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05}, 1),
    "filters-of-a-row": ("float32", (3, 17), {"top_k": [1, 4, 17], "top_p": [0.3, 0.9, 1.0], "min_p": [0.0, 0.2, 0.5]}, 0),
    "forbidden-tokens": ("float32", (3, 17), {"top_p": 0.75}, 0),
    "far-apart": ("float32", (3, 65), {"min_p": 0.0}, 6),
    "vocabulary": ("bfloat16", (2, 4099), {"top_k": 200, "top_p": 0.95}, 1),
}  # fmt: skip

# name: (format, (K, T, V), what is given besides, exponent of the logits)
LOSSES: dict[str, tuple[str, tuple[int, int, int], tuple[str, ...], int]] = {
    "smallest": ("float64", (1, 2, 2), (), 0),
    "one-token": ("float32", (1, 1, 5), (), 0),
    "no-tokens": ("float32", (2, 0, 5), (), 0),
    "one-word": ("float32", (1, 4, 1), (), 0),
    "next-token": ("float32", (1, 17, 33), (), 0),
    "two-heads": ("bfloat16", (2, 17, 33), (), 0),
    "more-heads-than-tokens": ("float16", (4, 3, 9), (), 0),
    "weights": ("float32", (3, 9, 17), ("weights",), 0),
    "segments": ("float32", (2, 13, 17), ("segments",), 0),
    "ignored": ("float64", (2, 13, 17), ("ignored",), 0),
    "all-ignored": ("float32", (2, 5, 7), ("all ignored",), 0),
    "everything": ("float32", (3, 21, 33), ("weights", "segments", "ignored"), 0),
    "leading-targets": ("float64", (1, 9, 17), ("leading",), 0),
    "far-apart": ("float32", (2, 9, 65), (), 6),
    "vocabulary": ("bfloat16", (1, 4, 4099), (), 0),
}  # fmt: skip


def filter_probabilities_cases() -> list[Case]:
    """The cases of `FILTERS`."""
    cases = []
    for name, (dtype, shape, options, exponent) in FILTERS.items():
        arrays: dict[str, Array] = {"logits": draws.normal(f"filter {name} logits", shape, dtype, exponent=exponent)}
        if name == "top-k-ties":                                                # pairs of equal logits; the border parts one of them
            arrays["logits"] = np.repeat(arrays["logits"][:, ::2], 2, axis=-1)
        if name == "forbidden-tokens":
            hidden = (draws.whole(f"filter {name} hidden", shape, 0, 3) == 0) & (np.arange(shape[-1]) > 0)
            arrays["logits"] = np.where(hidden, np.asarray(-np.inf, arrays["logits"].dtype), arrays["logits"])
        plain = {}
        for option, value in options.items():
            if isinstance(value, list):
                arrays[option] = np.asarray(value, dtype=np.int64 if option == "top_k" else np.float64)
            else:
                plain[option] = value
        cases.append(Case("filter_probabilities", arrays, plain, origin=name))
    return cases


def mtp_loss_cases() -> list[Case]:
    """The cases of `LOSSES`."""
    cases = []
    for name, (dtype, (K, T, V), given, exponent) in LOSSES.items():
        tokens = draws.whole(f"mtp {name} tokens", (T,), 0, V)
        arrays: dict[str, Array] = {"logits": draws.normal(f"mtp {name} logits", (K, T, V), dtype, exponent=exponent), "tokens": tokens}
        if "leading" in given:                                                  # the target 40 above the others: a loss near e^-40
            arrays["logits"][0, np.arange(T - 1), tokens[1:]] += 40.0
        if "weights" in given:
            arrays["weights"] = np.ldexp(draws.whole(f"mtp {name} weights", (K,), 1, 9).astype(np.float64), -3)
        if "segments" in given:
            arrays["segments"] = np.arange(T, dtype=np.int64) // 5
        if "ignored" in given:
            arrays["tokens"] = np.where(draws.whole(f"mtp {name} ignored", (T,), 0, 3) == 0, -100, tokens)
        if "all ignored" in given:
            arrays["tokens"] = np.full((T,), -100, dtype=np.int64)
        cases.append(Case("mtp_loss", arrays, {}, origin=name))
    return cases
