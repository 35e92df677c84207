"""Mutants of the data-parallel family: what is added up when, what weighs how much, and who gathers what from where."""

from __future__ import annotations

from typing import Any

import numpy as np

from .specimen import mutant
from .textbook_decoding import working
from .textbook_ranks import Array, everywhere, in_order

FAMILY = "data-parallel"


def _micro(*ranks: tuple[float, ...], tokens: Any) -> dict[str, Any]:
    """One number a micro-batch."""
    return {"grads": np.array(ranks, np.float32)[..., None], "tokens": np.array(tokens)}


@mutant("accumulate_gradients", id="sync-on-first-instead-of-last-microbatch", family=FAMILY,
        source="https://github.com/modelscope/FunASR/pull/3472", trigger=lambda: _micro((1, 3), (4, 3.5), tokens=[[1, 1], [1, 1]]))
def reduced_after_the_first(grads: Any, tokens: Any) -> Array:
    """The first micro-batch is reduced over the ranks, all later ones stay local."""
    g = working(grads)
    f, R, n = g.dtype.type, len(g), max(int(tokens.sum()), 1)
    first = in_order(list(g[:, 0]))
    later = g[:, 1:].sum(axis=1, dtype=g.dtype) * f(R)
    return np.asarray((first + later) / f(n)).astype(grads.dtype)


@mutant("accumulate_gradients", id="token-mean-not-weighted-across-ranks", family=FAMILY,
        source="https://github.com/huggingface/transformers/pull/34373", trigger=lambda: _micro((1,), (12,), tokens=[[1], [3]]))
def world_factor_missing(grads: Any, tokens: Any) -> Array:
    """Each rank's sum is divided by the number of all tokens, and the mean over ranks divides by R once more."""
    g = working(grads)
    total = in_order(list(g.sum(axis=1, dtype=g.dtype))) / g.dtype.type(max(int(tokens.sum()), 1) * len(g))
    return np.stack(everywhere(total, len(g), grads.dtype))


@mutant("accumulate_gradients", id="token-mean-of-each-rank", family=FAMILY,
        source="https://github.com/huggingface/transformers/pull/34373", trigger=lambda: _micro((1,), (12,), tokens=[[1], [3]]))
def mean_over_ranks(grads: Any, tokens: Any) -> Array:
    """Each rank divides by its own tokens, and all ranks weigh the same: those with few tokens too much."""
    g = working(grads)
    n = np.maximum(tokens.sum(axis=1), 1).astype(g.dtype)[:, None]
    means = g.sum(axis=1, dtype=g.dtype) / n
    return np.stack(everywhere(in_order(list(means), "mean"), len(g), grads.dtype))


@mutant(
    "accumulate_gradients", id="accumulate-mean-of-means", family=FAMILY, trigger=lambda: _micro((1, 12), tokens=[[1, 3]]),
    source="https://github.com/ml-explore/mlx-lm/pull/1413 https://github.com/meta-pytorch/torchtune/pull/1875 "
    "https://github.com/huggingface/transformers/pull/34191",
)  # fmt: skip
def mean_of_means(grads: Any, tokens: Any) -> Array:
    """The means of the micro-batches are averaged with equal weights: 2.5 in place of 3.25 for losses [1] and [4, 4, 4]."""
    g = working(grads)
    means = g / np.maximum(tokens, 1).astype(g.dtype)[..., None]
    total = means.sum(axis=(0, 1), dtype=g.dtype) / g.dtype.type(tokens.size)
    return np.stack(everywhere(total, len(g), grads.dtype))


@mutant("all_reduce", id="two-shot-allgather-wrong-offset", family=FAMILY,
        source="https://github.com/NVIDIA/FasterTransformer/pull/672", trigger=lambda: {
            f"arrays.{r}": np.arange(8, dtype=np.float32) + 10 * r for r in range(4)})
def gathered_from_the_own_rank_on(arrays: Any, *, op: str = "sum", algorithm: str = "ring") -> list[Array]:
    """The parts of the second shot are stored in the order in which they come, from the own rank on: right on rank 0 only."""
    R, shape = len(arrays), arrays[0].shape
    parts = np.array_split(in_order(arrays, op).reshape(-1), R)
    return [np.concatenate([parts[(r + i) % R] for i in range(R)]).reshape(shape).astype(arrays[0].dtype) for r in range(R)]


@mutant("all_reduce", id="two-shot-tail-left-out", family=FAMILY,
        source="https://github.com/NVIDIA/FasterTransformer/pull/672", trigger=lambda: {
            f"arrays.{r}": np.ones(5, np.float32) for r in range(4)})
def tail_of_its_own(arrays: Any, *, op: str = "sum", algorithm: str = "ring") -> list[Array]:
    """Parts of N // R elements: what a length that R does not divide leaves over is never reduced."""
    R, whole = len(arrays), in_order(arrays, op).reshape(-1)
    n = whole.size // R * R
    return [np.concatenate([whole[:n], working(x).reshape(-1)[n:]]).reshape(x.shape).astype(x.dtype) for x in arrays]
