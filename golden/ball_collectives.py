"""What ranks bring together in ball arithmetic: sums in no order at all, for they are exact at enough bits; what is moved is copied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.array_lists import spread

from .balls import exact, total
from .certified import Balls, flint


def all_reduce(arrays: Sequence[ArrayLike], *, op: str = "sum", algorithm: str = "ring") -> dict[str, Balls]:
    """out.0, out.1, …: the same for every rank, by whatever algorithm."""
    return spread("out", [_reduced(arrays, op)] * len(arrays))


def reduce_scatter(arrays: Sequence[ArrayLike], *, op: str = "sum") -> dict[str, Balls]:
    """out.0, out.1, …: part r of the first axis for rank r."""
    return spread("out", np.split(_reduced(arrays, op), len(arrays)))


def all_gather(arrays: Sequence[ArrayLike]) -> dict[str, Balls]:
    """out.0, out.1, …: all rows one behind the other, for every rank."""
    return spread("out", [np.concatenate([exact(x) for x in arrays])] * len(arrays))


def bucketed_all_reduce(grads: Sequence[ArrayLike], arrival: ArrayLike, *, bucket_elements: int) -> dict[str, Balls]:
    """grads.0, grads.1, …: the mean over the ranks of each, on every rank; neither arrival nor buckets are looked at."""
    return spread("grads", [_on_all(total(exact(g), axis=0) / len(np.asarray(g)), np.shape(g)) for g in grads])


def accumulate_gradients(grads: ArrayLike, tokens: ArrayLike) -> dict[str, Balls]:
    """grads: the sum over ranks and micro-batches, over the number of all tokens; 0 without one."""
    (R, _, *shape), counted = np.shape(grads), sum(np.asarray(tokens).reshape(-1).tolist())
    summed = total(exact(grads), axis=(0, 1))
    return {"grads": _on_all(summed / counted if counted else exact(np.zeros(shape)), (R, *shape))}


def tied_gradients(grads: ArrayLike) -> dict[str, Balls]:
    """grads: the sum over copies and ranks, over the number of ranks."""
    shape = np.shape(grads)
    return {"grads": _on_all(total(exact(grads), axis=(0, 1)) / shape[1], shape)}


def _reduced(arrays: Sequence[ArrayLike], op: str) -> Balls:
    wide = np.stack([np.asarray(x).astype(np.float64) for x in arrays])
    if op in ("max", "min"):
        return exact(wide.max(axis=0) if op == "max" else wide.min(axis=0))
    summed = total(exact(wide), axis=0)
    return np.asarray(summed / flint().arb(len(arrays)) if op == "mean" else summed, dtype=object)


def _on_all(x: Balls, shape: tuple[int, ...]) -> Balls:
    return np.array(np.broadcast_to(np.asarray(x, dtype=object), shape), dtype=object)
