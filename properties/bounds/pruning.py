"""What pruning may decide otherwise: magnitudes are compared exactly, so only counts, quantiles and ties leave anything open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference.arguments import Bool, Float64

from ..array_lists import spread
from ..conventions import declared
from .sums import roundings

U64 = 2.0**-53


def counts_of(sparsity: float, n: int, convention: str) -> tuple[int, int]:
    """The least and the largest number of n weights that may go: one number, unless sparsity times n rounds onto the other side of
    a whole number (of a half, "nearest").

    >>> counts_of(0.5, 8, "floor"), counts_of(0.29, 100, "floor"), counts_of(0.5, 3, "nearest")
    ((4, 4), (28, 29), (1, 2))
    """
    exact = Fraction(repr(float(sparsity))) * n
    dyadic = Fraction(float(sparsity)) * n == exact
    slack = Fraction(0) if dyadic else Fraction(4.0 * U64) * n
    if convention == "nearest":
        half = Fraction(1, 2)
        return ceil(exact - slack - half), floor(exact + slack + half)
    return max(floor(exact - slack), 0), min(floor(exact + slack), n)


def prune_magnitude_bound(
    arithmetic: ResolvedArithmetic, weights: ArrayLike | Sequence[ArrayLike], *, sparsity: float, scope: str, rule: str = "count",
    conventions: Mapping[str, str] | None = None,
) -> dict[str, Float64]:  # fmt: skip
    """Where a legal mask may differ from the oracle's: 0 where it may not, inf where a rounding or a convention decides.

        count      the weights between the least and the largest count (`counts_of`); with ties left open, all that equal the border
        quantile   | |w| - t | <= 4 u (|a| + |b|) + n 2^-20 |b - a|,  t between the order statistics a and b; none where t = a exactly

    {"masks"} of the shape of an array of layers; {"masks.0", "masks.1", ...} for a list of them.

    >>> from oracles.properties import Arithmetic
    >>> prune_magnitude_bound(Arithmetic().resolve("float32"), np.ones((1, 4)), sparsity=0.5, scope="layer")["masks"]
    array([[0., 0., 0., 0.]])
    """
    chosen = declared({}, "prune_magnitude") if conventions is None else conventions
    u = roundings(arithmetic).inputs.u + roundings(arithmetic).elementwise.u

    def allowed(row: Float64) -> Float64:
        left_open = _open_quantile(row, sparsity, u) if rule == "quantile" else _open_count(row, sparsity, chosen)
        return np.where(left_open, np.inf, 0.0)

    return ranked_together(weights, scope, allowed)


def ranked_together(weights: ArrayLike | Sequence[ArrayLike], scope: str, judged: Callable[[Float64], Float64]) -> dict[str, Float64]:
    """What `judged` says of the magnitudes that are ranked together, all of them or each layer's, in the form of masks.

    >>> ranked_together([np.ones(2), np.ones((1, 3))], "global", lambda w: w * w.size)
    {'masks.0': array([5., 5.]), 'masks.1': array([[5., 5., 5.]])}
    """
    layers = [np.abs(np.asarray(w, np.float64)) for w in weights]               # type: ignore[union-attr]
    rows = [w.reshape(-1) for w in layers]
    if scope == "global":
        ends = np.cumsum([row.size for row in rows])[:-1]
        rows = np.split(judged(np.concatenate(rows)), ends) if rows else []
    else:
        rows = [judged(row) for row in rows]
    masks = [row.reshape(w.shape) for row, w in zip(rows, layers)]
    return {"masks": np.array(masks).reshape(weights.shape)} if isinstance(weights, np.ndarray) else spread("masks", masks)


def gradual_masks_bound(arithmetic: ResolvedArithmetic, history: Any, *, sparsities: ArrayLike, scope: str) -> dict[str, Float64]:
    """Where a legal sequence of masks may differ from the oracle's: {"masks"}, 0 everywhere.

    Magnitudes are compared exactly, and sparsities of cases are multiples of 1/16, so that every count is one number.

    >>> from oracles.properties import Arithmetic
    >>> gradual_masks_bound(Arithmetic().resolve("float32"), np.ones((1, 1, 2)), sparsities=[0.5], scope="layer")["masks"]
    array([[[0., 0.]]])
    """
    return {"masks": np.zeros(np.shape(history))}


def prune_2_4_bound(
    arithmetic: ResolvedArithmetic, w: ArrayLike, *, axis: int, conventions: Mapping[str, str] | None = None
) -> dict[str, Float64]:
    """Where a legal mask may differ from the oracle's: {"mask"}, 0 everywhere, unless ties are left open: then inf for weights that
    equal both one that stays and one that goes of their four.

    >>> from oracles.properties import Arithmetic
    >>> prune_2_4_bound(Arithmetic().resolve("float32"), [1.0, 2.0, 2.0, 3.0], axis=0, conventions={"pruned_ties": "any"})["mask"]
    array([ 0., inf, inf,  0.])
    """
    magnitudes = np.abs(np.asarray(w).astype(np.float64))                       # codes are integers
    allowed = np.zeros(magnitudes.shape)
    if conventions is None or conventions["pruned_ties"] == "lowest":
        return {"mask": allowed}
    rows, out = np.moveaxis(magnitudes, axis, -1), np.moveaxis(allowed, axis, -1)
    for start in range(0, rows.shape[-1], 4):
        four = rows[..., start : start + 4]
        if four.shape[-1] > 2:
            ordered = np.sort(four, axis=-1)[..., ::-1]
            tied = ordered[..., 1:2] == ordered[..., 2:3]
            out[..., start : start + 4] = np.where(tied & (four == ordered[..., 1:2]), np.inf, 0.0)
    return {"mask": allowed}


def _open_count(w: Float64, sparsity: float, conventions: Mapping[str, str]) -> Bool:
    least, most = counts_of(sparsity, len(w), conventions["pruned_count"])
    order = np.argsort(w, kind="stable")
    left_open = np.zeros(len(w), bool)
    left_open[order[least:most]] = True
    if conventions["pruned_ties"] == "any":
        for border in (least, most):
            if 0 < border < len(w) and w[order[border - 1]] == w[order[border]]:
                left_open |= w == w[order[border]]
    return left_open


def _open_quantile(w: Float64, sparsity: float, u: float) -> Bool:
    n = len(w)
    if n == 0:
        return np.zeros(0, bool)
    place = Fraction(repr(float(sparsity))) * (n - 1)
    if place.denominator == 1 and Fraction(float(sparsity)) * (n - 1) == place:
        return np.zeros(n, bool)
    ordered, below = np.sort(w), int(place)
    a, b = ordered[below], ordered[min(below + 1, n - 1)]
    t = a + float(place - below) * (b - a)
    near_whole = min(place - below, 1 - (place - below)) <= Fraction(n * 2.0**-20)   # the place itself in float32, as some compute it
    slack = 4.0 * u * (a + b) + n * 2.0**-20 * (b - a)
    around = (w >= ordered[max(below - 1, 0)]) & (w <= ordered[min(below + 2, n - 1)])
    return np.asarray((np.abs(w - t) <= slack) | (around & near_whole))
