"""Tensor parallelism in ball arithmetic: products of the whole, heads and rows of tables copied, norms, gradients clipped over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.array_lists import spread

from .ball_losses import cross_entropy_backward
from .ball_optimizers import clip_grad_norm
from .balls import elementwise, exact, product, total
from .certified import Balls, flint


def column_parallel(x: ArrayLike, w_shards: Sequence[ArrayLike], bias_shards: Sequence[ArrayLike]) -> dict[str, Balls]:
    """out.0, out.1, …: x w_r + b_r."""
    return spread("out", [product(exact(x), exact(w)) + exact(bias) for w, bias in zip(w_shards, bias_shards)])


def row_parallel(x_shards: Sequence[ArrayLike], w_shards: Sequence[ArrayLike], bias: ArrayLike) -> dict[str, Balls]:
    """out.0, out.1, …: the product of the whole, and the bias once."""
    x, w = np.concatenate([exact(a) for a in x_shards], axis=1), np.concatenate([exact(a) for a in w_shards], axis=0)
    return spread("out", [product(x, w) + exact(bias)] * len(x_shards))


def shard_qkv(w_q: ArrayLike, w_k: ArrayLike, w_v: ArrayLike, *, heads: int, kv_heads: int, world: int) -> dict[str, Balls]:
    """q.0, …, k.0, …, v.0, …: the columns of a rank's query heads, and of every key head that one of these reads."""
    results: dict[str, Balls] = {}
    for letter, w, n in (("q", w_q, heads), ("k", w_k, kv_heads), ("v", w_v, kv_heads)):
        wide = exact(w)
        columns = wide.reshape(wide.shape[0], n, wide.shape[1] // n)
        for r in range(world):
            mine = range(r * heads // world, (r + 1) * heads // world)
            read = sorted({h if letter == "q" else h * kv_heads // heads for h in mine})
            results[f"{letter}.{r}"] = columns[:, read].reshape(wide.shape[0], -1) if wide.size else exact(
                np.zeros((wide.shape[0], len(read) * columns.shape[2])))  # fmt: skip
    return results


def vocab_parallel_embedding(tokens: ArrayLike, table: ArrayLike, *, world: int) -> dict[str, Balls]:
    """out.0, out.1, …: the rows of the tokens."""
    return spread("out", [exact(np.asarray(table)[np.asarray(tokens)])] * world)


def vocab_parallel_cross_entropy_backward(shards: ArrayLike, targets: ArrayLike, dloss: ArrayLike, **options: Any) -> dict[str, Balls]:
    """dshards (R, ..., V/R): the gradient of the classes of all shards in a row, cut again."""
    parts = [np.asarray(shard).astype(np.float64) for shard in np.asarray(shards)]
    whole = cross_entropy_backward(np.concatenate(parts, axis=-1), targets, dloss, **options)["dlogits"]
    return {"dshards": np.stack(np.split(whole, len(parts), axis=-1))}


def norm_backward_sharded(x_shards: Sequence[ArrayLike], weight: ArrayLike, dout_shards: Sequence[ArrayLike], *, eps: float = 1e-6,
                          sharded: str) -> dict[str, Balls]:
    """dx.0, …, dweight.0, …: that of each rank's vectors, and the sum over all of them on every rank."""
    each = [norm_backward(x, weight, dout, eps) for x, dout in zip(x_shards, dout_shards)]
    dweight = total(np.stack([part for _, part in each]), axis=0)
    return {**spread("dx", [dx for dx, _ in each]), **spread("dweight", [dweight] * len(each))}


def norm_backward(x: ArrayLike, weight: ArrayLike, dout: ArrayLike, eps: float) -> tuple[Balls, Balls]:
    """dx and dweight of x weight / r, r = sqrt(S / D + eps), S the sum of squares along the last axis.

        dx = (w dy (S + D eps) - x sum w dy x) / (D r^3)            exactly 0 where the two agree
    """
    a, d = exact(x), exact(dout)
    D, wd = a.shape[-1], d * exact(weight)
    square = total(a * a, axis=-1)[..., None] + D * flint().arb(float(eps))
    root = elementwise(lambda s: (s / D).sqrt(), square)
    dx = (wd * square - a * total(wd * a, axis=-1)[..., None]) / (D * root**3)
    axes = tuple(range(a.ndim - 1))
    return np.asarray(dx, dtype=object), total(d * a / root, axis=axes)


def clip_grad_norm_sharded(grads: Sequence[ArrayLike], placement: ArrayLike, *, max_norm: float) -> dict[str, Balls]:
    """grads.0, grads.1, … and norm: what all ranks hold is clipped, and counted, as one copy of it."""
    wide, kinds = [np.asarray(g) for g in grads], np.asarray(placement).tolist()
    once = clip_grad_norm([g if kind else g[0] for g, kind in zip(wide, kinds)], max_norm=max_norm)
    clipped = [np.array(np.broadcast_to(np.asarray(once[f"grads.{k}"], dtype=object), g.shape)) for k, g in enumerate(wide)]
    return {**spread("grads", clipped), "norm": once["norm"]}
