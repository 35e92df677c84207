"""The second route of pruning: lists sorted by exact fractions, one group of weights at a time."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

Place = tuple[int, ...]


def prune_magnitude(weights: Any, sparsity: float, scope: str, rule: str = "count") -> dict[str, Any]:
    kept = np.ones(weights.shape, dtype=bool)
    share = Fraction(str(sparsity))                                             # the decimal it is written as
    for group in _groups(weights, scope):
        sizes = [abs(_fraction(weights[place])) for place in group]
        gone = _smallest(sizes, share) if rule == "count" else _up_to_the_quantile(sizes, share)
        for i in gone:
            kept[group[i]] = False
    return {"masks": kept}


def prune_2_4(w: Any, axis: int) -> dict[str, Any]:
    kept = np.ones(w.shape, dtype=bool)
    axis %= w.ndim
    for rest in product(*(range(n) for d, n in enumerate(w.shape) if d != axis)):
        for start in range(0, w.shape[axis], 4):
            four = [(*rest[:axis], i, *rest[axis:]) for i in range(start, min(start + 4, w.shape[axis]))]
            ranked = sorted(four, key=lambda place: -abs(_fraction(w[place])))  # stable: of equals the lowest index first
            for place in ranked[2:]:
                kept[place] = False
    return {"mask": kept}


def prune_units(w: Any, axis: int, sparsity: float) -> dict[str, Any]:
    kept = np.ones(w.shape, dtype=bool)
    squares = [Fraction(0)] * w.shape[axis]
    for place in np.ndindex(*w.shape):
        squares[place[axis]] += _fraction(w[place]) ** 2                        # norms stand as their squares do
    gone = _smallest(squares, Fraction(str(sparsity)))
    assert len(set(squares)) == len(squares), "units of one norm belong in no trace"
    for place in np.ndindex(*w.shape):
        kept[place] = place[axis] not in gone
    return {"mask": kept}


def gradual_masks(history: Any, sparsities: Any, scope: str) -> dict[str, Any]:
    kept = np.ones(history.shape, dtype=bool)
    for t, sparsity in enumerate(sparsities):
        kept[t] = kept[t - 1] if t else True
        for group in _groups(history[t], scope):
            left = [place for place in group if kept[t][place]]
            more = int(Fraction(str(sparsity)) * len(group)) - (len(group) - len(left))
            for place in sorted(left, key=lambda place: abs(_fraction(history[t][place])))[:more]:
                kept[t][place] = False
    return {"masks": kept}


def _groups(weights: Any, scope: str) -> list[list[Place]]:
    """The places of what is compared with each other, in order."""
    layers = [[(i, *rest) for rest in np.ndindex(*weights.shape[1:])] for i in range(len(weights))]
    return layers if scope == "layer" else [[place for layer in layers for place in layer]]


def _smallest(sizes: list[Fraction], share: Fraction) -> list[int]:
    return sorted(range(len(sizes)), key=lambda i: (sizes[i], i))[: int(share * len(sizes))]


def _up_to_the_quantile(sizes: list[Fraction], share: Fraction) -> list[int]:
    ordered = sorted(sizes)
    place = share * (len(sizes) - 1)
    below = int(place)
    above = min(below + 1, len(sizes) - 1)
    border = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    return [i for i, size in enumerate(sizes) if size <= border]


def _fraction(x: Any) -> Fraction:
    return Fraction(float(x))
