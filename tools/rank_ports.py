"""Our own other forms of what is done on ranks: trees, butterflies, whole matrices, sorted heads. See own_ports."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties import Arithmetic, subject

FLOAT64 = Arithmetic(out="float64", accumulate="float64", elementwise="float64")
FORMATS = ("float32", "float64", "float16", "bfloat16")


def _by_halves(arrays: list[Any]) -> Any:
    """The sum of both halves, each summed by halves."""
    if len(arrays) == 1:
        return np.asarray(arrays[0], np.float64)
    return _by_halves(arrays[: len(arrays) // 2]) + _by_halves(arrays[len(arrays) // 2 :])


@subject("all_reduce", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def all_reduce_by_halves(arrays: Any, *, op: str = "sum", algorithm: str = "ring") -> Any:
    """Ranks added pair by pair; a maximum or minimum over all at once."""
    whole = {"max": np.max, "min": np.min}[op](np.asarray(arrays, np.float64), axis=0) if op in ("max", "min") else _by_halves(arrays)
    return [whole / len(arrays) if op == "mean" else whole.copy() for _ in arrays]


@subject("bucketed_all_reduce", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def gradients_by_columns(grads: Any, arrival: Any, *, bucket_elements: int) -> Any:
    """All gradients of all ranks as one matrix (R, P), whose columns are averaged."""
    R = len(arrival)
    matrix = np.concatenate([np.asarray(g, np.float64).reshape(R, g[0].size) for g in grads], axis=1)
    mean = np.broadcast_to(matrix.mean(axis=0), matrix.shape)
    ends = np.cumsum([g[0].size for g in grads])[:-1]
    return [part.reshape(g.shape).copy() for part, g in zip(np.split(mean, ends, axis=1), grads)]


@subject("accumulate_gradients", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def gradients_as_they_come(grads: Any, tokens: Any) -> Any:
    """A running mean: each micro-batch moves it by its share of the tokens seen so far."""
    mean, seen = np.zeros(grads.shape[2:]), 0
    for g, n in zip(np.asarray(grads, np.float64).reshape(tokens.size, *grads.shape[2:]), tokens.reshape(-1)):
        seen += int(n)
        mean = mean * ((seen - n) / seen) + g / seen if seen else mean
    return np.broadcast_to(mean, (len(grads), *mean.shape)).copy()


@subject("row_parallel", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def row_parallel_as_one_product(x_shards: Any, w_shards: Any, bias: Any) -> Any:
    """One product of all columns with all rows."""
    y = np.concatenate(x_shards, axis=1).astype(np.float64) @ np.concatenate(w_shards).astype(np.float64) + bias.astype(np.float64)
    return [y.copy() for _ in x_shards]


@subject("clip_grad_norm_sharded", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def clip_by_one_vector(grads: Any, placement: Any, *, max_norm: float) -> Any:
    """The norm of one vector in which every element stands once."""
    wide = [np.asarray(g, np.float64) for g in grads]
    norm = float(np.linalg.norm(np.concatenate([(g if kind else g[0]).reshape(-1) for g, kind in zip(wide, placement)])))
    factor = min(1.0, max_norm / norm) if norm else 1.0
    return [g * factor for g in wide], np.asarray(norm)
