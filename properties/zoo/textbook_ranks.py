"""Textbook forms of what is done on ranks, in float32 (float64 for float64): what mutants and variants are made of, and no oracle is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .textbook_decoding import working
from .textbook_losses import log_softmax

Array = NDArray[Any]
OPS: dict[str, Callable[[Any, Any], Any]] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}


def in_order(arrays: Sequence[Array], op: str = "sum") -> Array:
    """The reduction of arrays one after the other, in the working format."""
    total = working(arrays[0])
    for x in arrays[1:]:
        total = OPS[op](total, working(x))
    return np.asarray(total / total.dtype.type(len(arrays)) if op == "mean" else total)


def everywhere(x: Array, ranks: int, dtype: Any) -> list[Array]:
    """A copy for every rank."""
    return [np.array(x).astype(dtype) for _ in range(ranks)]


def all_reduce(arrays: Any, *, op: str = "sum", algorithm: str = "ring") -> list[Array]:
    return everywhere(in_order(arrays, op), len(arrays), arrays[0].dtype)


def reduce_scatter(arrays: Any, *, op: str = "sum") -> list[Array]:
    return [part.astype(arrays[0].dtype) for part in np.split(in_order(arrays, op), len(arrays))]


def all_gather(arrays: Any) -> list[Array]:
    return everywhere(np.concatenate(arrays), len(arrays), arrays[0].dtype)


def buckets_of(sizes: Sequence[int], order: Sequence[int], bucket_elements: int) -> list[list[int]]:
    """Gradients in their order, a new bucket where one more would not fit."""
    buckets: list[list[int]] = [[]]
    for k in order:
        if buckets[-1] and sum(sizes[i] for i in buckets[-1]) + sizes[k] > bucket_elements:
            buckets.append([])
        buckets[-1].append(k)
    return buckets


def bucketed_all_reduce(grads: Any, arrival: Any, *, bucket_elements: int) -> list[Array]:
    R, out = len(arrival), [np.empty_like(g) for g in grads]
    for bucket in buckets_of([g[0].size for g in grads], arrival[0].tolist(), bucket_elements):
        flat = [np.concatenate([grads[k][r].reshape(-1) for k in bucket]) for r in range(R)]
        unpack(out, bucket, everywhere(in_order(flat, "mean"), R, flat[0].dtype))
    return out


def unpack(out: list[Array], bucket: Sequence[int], flat: Sequence[Array]) -> None:
    """The gradients of a bucket out of each rank's flat buffer."""
    start = 0
    for k in bucket:
        size = out[k][0].size
        for r, buffer in enumerate(flat):
            out[k][r] = buffer[start : start + size].reshape(out[k].shape[1:])
        start += size


def accumulate_gradients(grads: Any, tokens: Any) -> Array:
    g, n = working(grads), int(tokens.sum())
    total = g.sum(axis=(0, 1), dtype=g.dtype) / g.dtype.type(max(n, 1))
    return np.stack(everywhere(total, len(grads), grads.dtype))


def tied_gradients(grads: Any) -> Array:
    g = working(grads)
    mean = g.sum(axis=0, dtype=g.dtype).sum(axis=0, dtype=g.dtype) / g.dtype.type(g.shape[1])
    return np.broadcast_to(mean, g.shape).astype(grads.dtype)


def flat_layout(sizes: Any, *, alignment: int = 1, world: int = 1, counted: Callable[[int], int] = int) -> tuple[Array, Array]:
    """counted: the size that is taken for an array's."""
    offsets, end = [], 0
    for size in sizes.tolist():
        start = end + (-end) % alignment
        offsets.append(start)
        end = start + counted(size)
    return np.array(offsets, np.int64), np.asarray(end + (-end) % world)


def column_parallel(x: Any, w_shards: Any, bias_shards: Any) -> list[Array]:
    return [(working(x) @ working(w) + working(b)).astype(x.dtype) for w, b in zip(w_shards, bias_shards)]


def row_parallel(x_shards: Any, w_shards: Any, bias: Any) -> list[Array]:
    y = in_order([working(x) @ working(w) for x, w in zip(x_shards, w_shards)]) + working(bias)
    return everywhere(y, len(x_shards), bias.dtype)


def heads_of(w: Array, heads: int, chosen: Sequence[int]) -> Array:
    """The columns of some heads."""
    D = w.shape[1] // heads
    return np.concatenate([w[:, h * D : (h + 1) * D] for h in chosen], axis=1)


def shard_qkv(w_q: Any, w_k: Any, w_v: Any, *, heads: int, kv_heads: int, world: int) -> tuple[list[Array], list[Array], list[Array]]:
    own = [range(r * heads // world, (r + 1) * heads // world) for r in range(world)]
    read = [sorted({h // (heads // kv_heads) for h in chosen}) for chosen in own]
    return ([heads_of(w_q, heads, chosen) for chosen in own], [heads_of(w_k, kv_heads, chosen) for chosen in read],
            [heads_of(w_v, kv_heads, chosen) for chosen in read])  # fmt: skip


def vocab_parallel_embedding(tokens: Any, table: Any, *, world: int, rows: int | None = None) -> list[Array]:
    """rows: of each rank's part."""
    n = -(-len(table) // world) if rows is None else rows
    total = np.zeros((*tokens.shape, table.shape[1]), working(table).dtype)
    for r in range(world):
        part = working(table)[r * n : (r + 1) * n]
        mine = (tokens >= r * n) & (tokens < r * n + len(part))
        if len(part):
            total = total + np.where(mine[..., None], part[np.where(mine, tokens - r * n, 0)], 0)
    return everywhere(total, world, table.dtype)


def vocab_parallel_cross_entropy_backward(
    shards: Any, targets: Any, dloss: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str
) -> Array:  # fmt: skip
    z = np.concatenate(list(working(shards)), axis=-1)                          # (T, V)
    f, V = z.dtype.type, z.shape[-1]
    counts = targets != ignore_index
    logp = log_softmax(z)
    lse = z[:, :1] - logp[:, :1]
    pull = f(1) + f(2 * z_loss) * lse if z_loss else f(1)
    labels = np.where(counts[:, None], np.arange(V) == targets[:, None], False)
    dz = np.exp(logp) * pull - f(1 - label_smoothing) * labels - f(label_smoothing / V)
    g = working(dloss) / f(max(counts.sum(), 1) if reduction == "mean" else 1)
    dz = np.where(counts[:, None], np.reshape(g, (-1, 1)) * dz, f(0))
    return np.stack(np.split(dz, len(shards), axis=-1)).astype(shards.dtype)


def norm_backward_sharded(x_shards: Any, weight: Any, dout_shards: Any, *, eps: float = 1e-6, sharded: str) -> Any:
    dx, parts = norm_parts(x_shards, weight, dout_shards, eps)
    return dx, everywhere(in_order(parts), len(parts), weight.dtype)


def norm_parts(x_shards: Any, weight: Any, dout_shards: Any, eps: float) -> tuple[list[Array], list[Array]]:
    """dx of each rank, and its own part of the gradient of the weight."""
    dx, parts, w = [], [], working(weight)
    for x, d in zip(map(working, x_shards), map(working, dout_shards)):
        r = np.sqrt((x * x).mean(axis=-1, keepdims=True, dtype=x.dtype) + x.dtype.type(eps))
        n = x / r
        dx.append(((w * d - n * (w * d * n).mean(axis=-1, keepdims=True, dtype=x.dtype)) / r).astype(weight.dtype))
        parts.append((d * n).sum(axis=(0, 1), dtype=x.dtype))
    return dx, parts


def clip_grad_norm_sharded(grads: Any, placement: Any, *, max_norm: float, weigh: Callable[[int], float] = lambda R: 1.0
                           ) -> tuple[list[Array], Array]:
    """weigh: what the squares of one rank's copy count for."""
    wide = [working(g) for g in grads]
    f, R = wide[0].dtype.type, len(wide[0])
    squares = [(g * g).sum(dtype=g.dtype) if kind else f(weigh(R)) * (g[0] * g[0]).sum(dtype=g.dtype) for g, kind in zip(wide, placement)]
    norm = np.sqrt(np.sum(squares, dtype=f))
    factor = f(min(1.0, max_norm / float(norm))) if norm > 0 else f(1)
    return [(g * factor).astype(grads[0].dtype) for g in wide], np.asarray(norm).astype(grads[0].dtype)
