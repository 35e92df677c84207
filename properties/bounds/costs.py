"""Bounds of costs: whole numbers, computed exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..arithmetic import ResolvedArithmetic
from ..comparison import Float64


def kv_bytes_bound(arithmetic: ResolvedArithmetic, lengths: ArrayLike, **options: Any) -> dict[str, Float64]:
    """Exact: {"bytes"}, 0 everywhere. Whole numbers below 2^53, which whoever counts in float64 holds too; one division, rounded up."""
    return {"bytes": np.zeros(np.shape(lengths))}


def training_bytes_bound(arithmetic: ResolvedArithmetic, parameters: ArrayLike, **options: Any) -> dict[str, Float64]:
    """Exact: {"bytes"}, 0 everywhere. Whole numbers below 2^53; the part of each device is rounded up before it is multiplied."""
    return {"bytes": np.zeros(np.shape(parameters))}


def model_flops_bound(arithmetic: ResolvedArithmetic, lengths: ArrayLike, **options: Any) -> dict[str, Float64]:
    """Exact: {"flops"}, 0 everywhere. Whole numbers below 2^53 in all cases, which whoever counts in float64 holds too."""
    return {"flops": np.zeros(np.shape(lengths))}


def token_accuracy_bound(arithmetic: ResolvedArithmetic, logits: ArrayLike, tokens: ArrayLike, **options: Any) -> dict[str, Float64]:
    """Exact: {"right", "counted"}, 0. The largest of given numbers is found without arithmetic, and no case has two that are equal."""
    return {"right": np.zeros(()), "counted": np.zeros(())}
