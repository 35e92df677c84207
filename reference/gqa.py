"""Grouped key/value heads: many heads pooled to few, and few repeated to many. Attention reads grouped heads by itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Float64


def group_heads(k: ArrayLike, v: ArrayLike, *, groups: int) -> tuple[Float64, Float64]:
    """The mean key and the mean value of each group of neighbouring heads: k (B, groups, L, D), v (B, groups, L, Dv), float64.

        group g = mean of heads g n .. (g + 1) n - 1,   n = H / groups

    k (B, H, L, D), v (B, H, L, Dv). groups = H changes nothing (multi-head attention), groups = 1 leaves one head
    (multi-query). Of keys and values the same mean as of the weights that make them: a projection is linear. A NaN spreads
    over its group; a sum past the largest number is infinite.

    >>> k = np.array([1.0, 3.0, 10.0, 20.0]).reshape(1, 4, 1, 1)
    >>> group_heads(k, -k, groups=2)[0].ravel()
    array([ 2., 15.])

    Raises ValueError where `groups` does not divide H. Error bound: n u mean |x|. Exact for groups = H.
    Source: Ainslie et al. 2023 (arXiv 2305.13245), section 2.1.
    """
    k, v = _keys_and_values(k, v)
    B, H, L, _ = k.shape
    groups = arguments.whole_number("groups", groups, least=1)
    if H % groups:
        raise ValueError(f"groups: got {groups} for {H} heads; want a divisor of {H}")
    with np.errstate(invalid="ignore", over="ignore"):
        pooled = [x.astype(np.float64).reshape(B, groups, H // groups, L, x.shape[-1]).mean(axis=2) for x in (k, v)]
    return pooled[0], pooled[1]


def repeat_heads(k: ArrayLike, v: ArrayLike, *, heads: int) -> tuple[Float64, Float64]:
    """Each key/value head as often as query heads read it: k (B, heads, L, D), v (B, heads, L, Dv), float64.

        head h of the result = head h // n of k and v,   n = heads / Hkv

    k (B, Hkv, L, D), v (B, Hkv, L, Dv). Copies stand next to each other, 0 0 1 1 and not 0 1 0 1 (a standard once had the
    latter: onnx/onnx#7274), on the axis of the heads and not of the tokens (PrimeIntellect-ai/prime-rl#2681).

    >>> k = np.array([1.0, 2.0]).reshape(1, 2, 1, 1)
    >>> repeat_heads(k, -k, heads=4)[0].ravel()
    array([1., 1., 2., 2.])

    Raises ValueError where Hkv does not divide `heads`. Exact.
    Source: Ainslie et al. 2023 (arXiv 2305.13245), section 2.2; repeat_kv of huggingface/transformers.
    """
    k, v = _keys_and_values(k, v)
    Hkv = k.shape[1]
    heads = arguments.whole_number("heads", heads, least=1)
    if heads % Hkv:
        raise ValueError(f"heads: got {heads} for {Hkv} key/value heads; want a multiple of {Hkv}")
    n = heads // Hkv
    return np.repeat(k.astype(np.float64), n, axis=1), np.repeat(v.astype(np.float64), n, axis=1)


def _keys_and_values(k: ArrayLike, v: ArrayLike) -> tuple[Array, Array]:
    """k (B, Hkv, L, D) and v (B, Hkv, L, Dv), at least one head."""
    k, v = arguments.float_array("k", k, ndim=4), arguments.float_array("v", v, ndim=4)
    if k.shape[1] == 0:
        raise ValueError(f"k: got shape {k.shape}; want at least one head")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v: got shape {v.shape} beside k {k.shape}; want ({k.shape[0]}, {k.shape[1]}, {k.shape[2]}, Dv)")
    return k, v
