"""What ranks bring together in double-double: sums over ranks in pairs, one division; what is moved is copied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.array_lists import spread

from .double_double import DD, exact

Results = dict[str, DD]


def all_reduce(arrays: Sequence[ArrayLike], *, op: str = "sum", algorithm: str = "ring") -> Results:
    """out.0, out.1, …, one for each rank."""
    return spread("out", [_reduced(arrays, op)] * len(arrays))


def reduce_scatter(arrays: Sequence[ArrayLike], *, op: str = "sum") -> Results:
    """out.0, out.1, …, parts of the first axis."""
    whole, n = _reduced(arrays, op), len(np.asarray(arrays[0])) // len(arrays)
    return spread("out", [whole[r * n : (r + 1) * n] for r in range(len(arrays))])


def all_gather(arrays: Sequence[ArrayLike]) -> Results:
    """out.0, out.1, …, one for each rank."""
    return spread("out", [exact(np.concatenate([np.asarray(x) for x in arrays]))] * len(arrays))


def bucketed_all_reduce(grads: Sequence[ArrayLike], arrival: ArrayLike, *, bucket_elements: int) -> Results:
    """grads.0, grads.1, …, each the shape that it had."""
    return spread("grads", [_on_all(exact(g).sum(axis=0) / float(len(np.asarray(g))), np.shape(g)) for g in grads])


def accumulate_gradients(grads: ArrayLike, tokens: ArrayLike) -> Results:
    """grads (R, ...)."""
    R, counted = len(np.asarray(grads)), int(np.asarray(tokens).sum())
    summed = exact(grads).sum(axis=0).sum(axis=0)
    return {"grads": _on_all(summed / float(counted) if counted else exact(np.zeros(summed.shape)), (R, *summed.shape))}


def tied_gradients(grads: ArrayLike) -> Results:
    """grads (S, R, ...)."""
    shape = np.shape(grads)
    return {"grads": _on_all(exact(grads).sum(axis=0).sum(axis=0) / float(shape[1]), shape)}


def _reduced(arrays: Sequence[ArrayLike], op: str) -> DD:
    wide = np.stack([np.asarray(x).astype(np.float64) for x in arrays])
    if op in ("max", "min"):
        return exact(wide.max(axis=0) if op == "max" else wide.min(axis=0))
    return exact(wide).sum(axis=0) / (float(len(arrays)) if op == "mean" else 1.0)


def _on_all(x: DD, shape: tuple[int, ...]) -> DD:
    return DD(np.broadcast_to(x.hi, shape).copy(), np.broadcast_to(x.lo, shape).copy())
