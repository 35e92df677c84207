"""Softmax, log-sum-exp and the merge of partial results in ball arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .balls import elementwise, exact, total
from .certified import Balls, flint


def softmax(x: ArrayLike, *, axis: int = -1) -> dict[str, Balls]:
    """p, the shape of x: e^(x - m) / l over the entries that are not -inf; 0 for the others."""
    e, l, _, _ = _weights(x, axis)
    p = e / np.where(l == 0, flint().arb(1), l)[..., None]
    return {"p": np.moveaxis(p, -1, axis)}


def log_sum_exp(x: ArrayLike, *, axis: int = -1) -> dict[str, Balls]:
    """lse, without the axis: m + ln l; -inf for nothing."""
    _, l, m, nothing = _weights(x, axis)
    logarithms = elementwise(flint().arb.log, np.where(nothing, flint().arb(1), l))
    return {"lse": np.asarray(np.where(nothing, -np.inf, exact(m) + logarithms), dtype=object)}


def merge_attention(out_a: ArrayLike, lse_a: ArrayLike, out_b: ArrayLike, lse_b: ArrayLike) -> dict[str, Balls]:
    """out and lse of two parts: the weights are the softmax of (lse_a, lse_b)."""
    pair = np.stack([np.asarray(lse_a).astype(np.float64), np.asarray(lse_b).astype(np.float64)], axis=-1)
    weights = softmax(pair)["p"]
    out = weights[..., :1] * exact(out_a) + weights[..., 1:] * exact(out_b)
    return {"out": out, "lse": log_sum_exp(pair)["lse"]}


def _weights(x: ArrayLike, axis: int) -> tuple[Balls, Balls, NDArray[np.float64], NDArray[np.bool_]]:
    """e^(x - m) with the axis last, their sums, the maxima (0 for nothing), and which rows hold nothing but -inf."""
    wide = np.moveaxis(np.asarray(x).astype(np.float64), axis, -1)
    nothing = np.asarray(np.isneginf(wide).all(axis=-1))
    m = np.where(nothing, 0.0, wide.max(axis=-1, initial=-np.inf))
    hidden = np.isneginf(wide)
    differences = exact(np.where(hidden, 0.0, wide)) - exact(m)[..., None]
    e = np.where(hidden, flint().arb(0), elementwise(flint().arb.exp, differences))
    return e, total(e, axis=-1), np.asarray(m), nothing
