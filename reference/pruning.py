"""Pruning by magnitude: over all layers or each by itself, whole neurons or channels, and step by step while training goes on.

Masks are True where a weight stays. Two of every four are left to `pruning_2_4`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Bool, Float64

Scope = Literal["global", "layer"]
Rule = Literal["count", "quantile"]
Layers = Sequence[ArrayLike]


@overload
def prune_magnitude(weights: np.ndarray[Any, Any], *, sparsity: float, scope: Scope, rule: Rule = "count") -> Bool: ...
@overload
def prune_magnitude(weights: Layers, *, sparsity: float, scope: Scope, rule: Rule = "count") -> list[Bool]: ...
def prune_magnitude(
    weights: Layers | np.ndarray[Any, Any], *, sparsity: float, scope: Scope, rule: Rule = "count"
) -> list[Bool] | Bool:  # fmt: skip
    """Masks that keep the weights of large magnitude.

        count      of n weights the floor(sparsity n) smallest |w| go; of equals the lowest index goes first
        quantile   |w| > the `sparsity` quantile of |w| stays, linear between order statistics

    weights: layers, a list of arrays of any shapes, or one array whose first axis counts layers; masks, of bool, come in the same form.
    scope "global": all layers together, one after another, each in C order; "layer": each by itself. sparsity in [0, 1], taken as the
    decimal it is written as: 0.29 of 100 are 29. Equal magnitudes at the quantile all go: "quantile" may prune more than its share.
    Raises ValueError for NaN and infinities.

    A law: each layer by itself, by either rule, sparsity < 1 and n >= 2 distinct magnitudes, is never emptied. Over all layers one may be.
    Source: Han et al. 2015 (arXiv 1506.02626), section 3; scopes: Blalock et al. 2020 (arXiv 2003.03033), section 2.3.

    >>> [mask.tolist() for mask in prune_magnitude([[0.1, -0.2], [3.0, -4.0]], sparsity=0.5, scope="global")]
    [[False, False], [True, True]]
    >>> [mask.tolist() for mask in prune_magnitude([[0.1, -0.2], [3.0, -4.0]], sparsity=0.5, scope="layer")]
    [[False, True], [False, True]]
    """
    layers = [_finite(f"weights[{i}]", w) for i, w in enumerate(weights)]
    share = _share(sparsity)
    if scope not in ("global", "layer"):
        raise ValueError(f"scope: got {scope!r}; want 'global' or 'layer'")
    if rule not in ("count", "quantile"):
        raise ValueError(f"rule: got {rule!r}; want 'count' or 'quantile'")
    kept = {"count": _largest, "quantile": _above_the_quantile}[rule]
    if scope == "layer":
        masks = [kept(np.abs(w).reshape(-1), share).reshape(w.shape) for w in layers]
    else:
        flat = kept(np.abs(np.concatenate([w.reshape(-1) for w in layers])) if layers else np.zeros(0), share)
        ends = np.cumsum([w.size for w in layers])
        masks = [flat[end - w.size : end].reshape(w.shape) for end, w in zip(ends, layers)]
    return np.array(masks, bool).reshape(weights.shape) if isinstance(weights, np.ndarray) else masks


def prune_units(w: ArrayLike, *, axis: int, sparsity: float) -> Bool:
    """A mask that takes whole neurons or channels: the indices of one axis with the smallest Euclidean norm.

        norm_i = sqrt(sum of w^2 at index i of `axis`);      of n indices the floor(sparsity n) smallest go, ties by lowest index

    Returns a mask of the shape of w; the product may then leave those indices out altogether.
    Source: Li et al. 2017 (arXiv 1608.08710), section 3.1, with the 2-norm.

    >>> prune_units([[1.0, 0.0], [0.0, 3.0]], axis=0, sparsity=0.5).tolist()
    [[False, False], [True, True]]
    """
    w = _finite("w", w)
    if not -w.ndim <= axis < w.ndim:
        raise ValueError(f"axis: got {axis} for {w.ndim} axes; want -{w.ndim}..{w.ndim - 1}")
    rows = np.moveaxis(w, axis, 0).reshape(w.shape[axis], int(np.prod(w.shape)) // max(w.shape[axis], 1))
    largest = np.abs(w).max(initial=0.0)
    norm = np.sqrt(((rows / (largest or 1.0)) ** 2).sum(axis=1))                # scaled: squares neither overflow nor vanish together
    kept = _largest(norm, _share(sparsity))
    return np.broadcast_to(kept.reshape(-1, *[1] * (w.ndim - 1 - axis % w.ndim)), w.shape).copy()


def gradual_masks(history: Sequence[Layers] | np.ndarray[Any, Any], *, sparsities: Sequence[float], scope: Scope) -> list[Any] | Bool:
    """The masks of pruning step by step while training goes on: what was pruned stays pruned.

        M_0 = all True,      M_t keeps of the weights in M_(t-1) the largest |W_t|, so many that floor(sparsities[t] n) are gone

    history: the weights at each step, as `prune_magnitude` takes them, or one array (steps, layers, ...); a weight that is pruned but has
    grown again in the meantime (an optimiser with momentum) stays pruned. sparsities: one a step, never falling.
    Returns the masks of each step, of bool, in the same form: the last has the last sparsity exactly.
    Source: Zhu and Gupta 2017 (arXiv 1710.01878), section 3.

    >>> steps = gradual_masks([[[1.0, 2.0, 3.0]], [[9.0, 2.0, 3.0]]], sparsities=[0.34, 0.67], scope="layer")
    >>> [[mask.tolist() for mask in masks] for masks in steps]
    [[[False, True, True]], [[False, False, True]]]
    """
    shares = [_share(s) for s in sparsities]
    if len(shares) != len(history) or any(b < a for a, b in pairwise(shares)):
        raise ValueError(f"sparsities: got {list(sparsities)} for {len(history)} steps; want one a step, never falling")
    steps: list[list[Bool]] = []
    for t, weights in enumerate(history):
        magnitudes = [np.abs(_finite(f"history[{t}]", w)) for w in weights]
        if steps:
            magnitudes = [np.where(mask, w, -1.0) for mask, w in zip(steps[-1], magnitudes)]      # gone: smaller than any that is left
        steps.append(_masks(magnitudes, shares[t], scope))
    return np.array(steps, bool).reshape(history.shape) if isinstance(history, np.ndarray) else steps


def _masks(magnitudes: list[Float64], share: Fraction, scope: Scope) -> list[Bool]:
    if scope not in ("global", "layer"):
        raise ValueError(f"scope: got {scope!r}; want 'global' or 'layer'")
    if scope == "layer":
        return [_largest(w.reshape(-1), share).reshape(w.shape) for w in magnitudes]
    flat = _largest(np.concatenate([w.reshape(-1) for w in magnitudes]) if magnitudes else np.zeros(0), share)
    ends = np.cumsum([w.size for w in magnitudes])
    return [flat[end - w.size : end].reshape(w.shape) for end, w in zip(ends, magnitudes)]


def _largest(magnitudes: Float64, share: Fraction) -> Bool:
    kept = np.ones(len(magnitudes), dtype=bool)
    kept[np.argsort(magnitudes, kind="stable")[: int(share * len(magnitudes))]] = False
    return kept


def _above_the_quantile(magnitudes: Float64, share: Fraction) -> Bool:
    n = len(magnitudes)
    if n == 0:
        return np.zeros(0, dtype=bool)
    place = share * (n - 1)
    ordered, below = np.sort(magnitudes), int(place)
    a, b = ordered[below], ordered[min(below + 1, n - 1)]
    return np.asarray(magnitudes > a + float(place - below) * (b - a))


def _share(sparsity: float) -> Fraction:
    s = arguments.real_number("sparsity", sparsity)
    if not 0.0 <= s <= 1.0:
        raise ValueError(f"sparsity: got {s}; want 0..1")
    return Fraction(repr(s))


def _finite(name: str, w: ArrayLike) -> Float64:
    w = arguments.widen(name, w)
    if not np.isfinite(w).all():
        raise ValueError(f"{name}: got {w[~np.isfinite(w)][0]}; want finite numbers")
    return w
