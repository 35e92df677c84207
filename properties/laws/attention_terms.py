"""Terms: what the laws of attention ask of a case, and how they change one."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.reference import FloatFormat
from oracles.reference.visibility import visible_keys

from ..case import Case
from ..safetensors_file import Array

SCORE_TERMS = ("scale", "softcap", "bias", "alibi_slopes", "kv_lengths", "causal")
VISIBILITY_TERMS = ("causal", "window", "mask", "kv_lengths", "bias")


def sizes(case: Case) -> tuple[int, int, int, int]:
    """B, Hq, Lq, Lk of a case."""
    (B, Hq, Lq, _), Lk = case.arrays["q"].shape, case.arrays["k"].shape[2]
    return B, Hq, Lq, Lk


def chosen(case: Case, names: tuple[str, ...]) -> dict[str, Any]:
    """Those arguments of a case that are given."""
    return {name: value for name, value in case.arguments().items() if name in names}


def visible(case: Case) -> Array:
    """Which keys each query may see: bool (B, Hq, Lq, Lk)."""
    return visible_keys(*sizes(case), **chosen(case, VISIBILITY_TERMS))


def without(case: Case, *names: str) -> Case:
    """The case with some optional arguments left at their defaults."""
    arrays = {name: array for name, array in case.arrays.items() if name not in names}
    options = {name: value for name, value in case.options.items() if name not in names}
    return Case(case.operation, arrays, options, case.origin, case.notes)


def is_empty(case: Case) -> bool:
    """Whether there is no query or no key to speak of."""
    return 0 in (*case.arrays["q"].shape, *case.arrays["v"].shape)


def like(array: Array, values: Array) -> Array:
    """Values in the format of an array, rounded once, in plain C order: a case gives them the memory order of what they replace."""
    return np.ascontiguousarray(FloatFormat(array.dtype.name).cast(values, overflow="saturate"))
