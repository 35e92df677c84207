"""Tensor parallelism in double-double: a product a rank, then a sum over ranks; norms by the textbook; gradients clipped over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.array_lists import spread

from .double_double import DD, exact, sqrt
from .double_double_losses import cross_entropy_backward
from .double_double_optimizers import clip_grad_norm

Results = dict[str, DD]


def column_parallel(x: ArrayLike, w_shards: Sequence[ArrayLike], bias_shards: Sequence[ArrayLike]) -> Results:
    """out.0, out.1, …, one for each rank."""
    return spread("out", [exact(x) @ exact(w) + exact(bias) for w, bias in zip(w_shards, bias_shards)])


def row_parallel(x_shards: Sequence[ArrayLike], w_shards: Sequence[ArrayLike], bias: ArrayLike) -> Results:
    """out.0, out.1, …, the same for every rank."""
    partial = [exact(x) @ exact(w) for x, w in zip(x_shards, w_shards)]
    whole = DD(np.stack([one.hi for one in partial]), np.stack([one.lo for one in partial])).sum(axis=0)
    return spread("out", [whole + exact(bias)] * len(partial))


def shard_qkv(w_q: ArrayLike, w_k: ArrayLike, w_v: ArrayLike, *, heads: int, kv_heads: int, world: int) -> Results:
    """q.0, …, k.0, …, v.0, …: slices of columns; a key head is held by all ranks whose query heads read it."""
    results: Results = {}
    for letter, w, n in (("q", w_q, heads), ("k", w_k, kv_heads), ("v", w_v, kv_heads)):
        D, kept = np.shape(w)[1] // n, max(n // world, 1)
        for r in range(world):
            first = r * n // world * D
            results[f"{letter}.{r}"] = exact(np.asarray(w)[:, first : first + kept * D])
    return results


def vocab_parallel_embedding(tokens: ArrayLike, table: ArrayLike, *, world: int) -> Results:
    """out.0, out.1, …, the same for every rank."""
    return spread("out", [exact(np.take(np.asarray(table), np.asarray(tokens), axis=0))] * world)


def vocab_parallel_cross_entropy_backward(shards: ArrayLike, targets: ArrayLike, dloss: ArrayLike, **options: Any) -> Results:
    """dshards (R, ..., V/R)."""
    whole = cross_entropy_backward(np.concatenate(list(np.asarray(shards)), axis=-1), targets, dloss, **options)["dlogits"]
    R = len(np.asarray(shards))
    return {"dshards": DD(*(np.stack(np.split(limb, R, axis=-1)) for limb in (whole.hi, whole.lo)))}


def norm_backward_sharded(x_shards: Sequence[ArrayLike], weight: ArrayLike, dout_shards: Sequence[ArrayLike], *, eps: float = 1e-6,
                          sharded: str) -> Results:
    """dx.0, …, dweight.0, …, the weight's the same for every rank."""
    each = [norm_backward(x, weight, dout, eps) for x, dout in zip(x_shards, dout_shards)]
    parts = [dweight for _, dweight in each]
    whole = DD(np.stack([one.hi for one in parts]), np.stack([one.lo for one in parts])).sum(axis=0)
    return {**spread("dx", [dx for dx, _ in each]), **spread("dweight", [whole] * len(each))}


def norm_backward(x: ArrayLike, weight: ArrayLike, dout: ArrayLike, eps: float) -> tuple[DD, DD]:
    """dx = (w dy - n mean(w dy n)) / r and dweight = sum dy n of vectors (..., D), n = x / r, r = sqrt(mean(x^2) + eps)."""
    a, d = exact(x), exact(dout)
    D, wd = a.shape[-1], d * exact(weight)
    r = sqrt((a * a).sum(keepdims=True) / float(D) + float(eps))
    n = a / r
    dx = (wd - n * ((wd * n).sum(keepdims=True) / float(D))) / r
    each = d * n
    return dx, DD(each.hi.reshape(-1, D), each.lo.reshape(-1, D)).sum(axis=0)


def clip_grad_norm_sharded(grads: Sequence[ArrayLike], placement: ArrayLike, *, max_norm: float) -> Results:
    """grads.0, grads.1, … (R, ...) and norm."""
    wide, kinds = [np.asarray(g) for g in grads], np.asarray(placement).tolist()
    once = clip_grad_norm([g if kind else g[:1] for g, kind in zip(wide, kinds)], max_norm=max_norm)
    clipped = [DD(*(np.broadcast_to(limb, g.shape).copy() for limb in (once[f"grads.{k}"].hi, once[f"grads.{k}"].lo)))
               for k, g in enumerate(wide)]  # fmt: skip
    return {**spread("grads", clipped), "norm": once["norm"]}
