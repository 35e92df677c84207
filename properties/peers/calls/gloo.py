"""torch.distributed on two ranks of gloo, called as the operations of the contract: collectives, DDP, DTensor, ZeRO.

The ranks are processes of their own: `gloo_ranks`. Other numbers of ranks are not covered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .gloo_ranks import RANKS, WORLD


def _two(arrays: Sequence[Any]) -> None:
    if len(arrays) != WORLD:
        raise NotImplementedError(f"{len(arrays)} ranks; two processes are started")


def all_reduce(arrays: Any, *, op: str = "sum") -> Any:
    """torch.distributed.all_reduce; gloo has no mean."""
    _two(arrays)
    if op == "mean":
        raise NotImplementedError("ReduceOp.AVG is not available with gloo")
    return RANKS.ask("all_reduce", [(x, op) for x in arrays])


def reduce_scatter(arrays: Any, *, op: str = "sum") -> Any:
    """torch.distributed.reduce_scatter_tensor; gloo has no mean."""
    _two(arrays)
    if op == "mean":
        raise NotImplementedError("ReduceOp.AVG is not available with gloo")
    return RANKS.ask("reduce_scatter", [(x, op) for x in arrays])


def all_gather(arrays: Any) -> Any:
    """torch.distributed.all_gather_into_tensor, of arrays of one shape."""
    _two(arrays)
    if arrays[0].shape != arrays[1].shape:
        raise NotImplementedError("arrays of different shapes")
    return RANKS.ask("all_gather", [(x,) for x in arrays])


def bucketed_all_reduce(grads: Any, arrival: Any, *, bucket_elements: int) -> Any:
    """The gradients that DistributedDataParallel leaves, with buckets of that many elements; empty ones stay out of the model."""
    _two(arrival)
    there = [k for k, g in enumerate(grads) if g.size]
    if not there:
        return [g.copy() for g in grads]
    found = RANKS.ask("data_parallel", [([grads[k][r] for k in there], bucket_elements * grads[0].itemsize) for r in range(WORLD)])
    averaged = {k: np.stack([own[i] for own in found]) for i, k in enumerate(there)}
    return [averaged.get(k, g.copy()) for k, g in enumerate(grads)]


def column_parallel(x: Any, w_shards: Any, bias_shards: Any) -> Any:
    """torch.nn.Linear under ColwiseParallel."""
    _two(w_shards)
    w, bias = np.concatenate(w_shards, axis=1), np.concatenate(bias_shards)
    return RANKS.ask("linear", [(x, w, bias, True)] * WORLD)


def row_parallel(x_shards: Any, w_shards: Any, bias: Any) -> Any:
    """torch.nn.Linear under RowwiseParallel."""
    _two(x_shards)
    return RANKS.ask("linear", [(x, np.concatenate(w_shards), bias, False) for x in x_shards])


def vocab_parallel_embedding(tokens: Any, table: Any, *, world: int) -> Any:
    """torch.nn.Embedding under RowwiseParallel."""
    _two(range(world))
    return RANKS.ask("embedding", [(tokens, table)] * WORLD)


def vocab_parallel_cross_entropy_backward(shards: Any, targets: Any, dloss: Any, *, ignore_index: int = -100, reduction: str) -> Any:
    """The gradient of cross_entropy under loss_parallel, which has neither label smoothing nor a reduction of "none" with gradients."""
    _two(shards)
    if reduction == "none":
        raise NotImplementedError("loss_parallel sums or averages")
    if (targets == ignore_index).all():
        raise NotImplementedError("a mean over no target")
    return np.stack(RANKS.ask("loss_gradient", [(shard, targets, float(dloss), ignore_index, reduction) for shard in shards]))


def clip_grad_norm_sharded(grads: Any, placement: Any, *, max_norm: float) -> Any:
    """torch.nn.utils.clip_grad_norm_ of DTensors."""
    _two(grads[0])
    of_each = [([g[r] for g in grads], placement.tolist(), max_norm) for r in range(WORLD)]
    found = RANKS.ask("clip", of_each)
    return [np.stack([own[0][k] for own in found]) for k in range(len(grads))], found[0][1]


class _Sharded:
    """A sharded optimizer on two ranks. stage: what it is in ZeRO's words."""

    STAGE, KIND = 0, ""

    def __init__(self, stage: int, world: int, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
        if stage not in (0, 1, 2, 3) or world < 1:
            raise ValueError(f"stage, world: got {stage}, {world}; want 0..3, and at least one rank")
        self._stage, self._world = stage, world
        self._options = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        self._shapes: list[tuple[int, ...]] = []

    def attach(self, params: Mapping[str, Any]) -> None:
        if (self._stage, self._world) != (self.STAGE, WORLD):
            raise NotImplementedError(f"stage {self._stage} on {self._world} ranks; this is stage {self.STAGE}, on two processes")
        RANKS.ask("attach", [(self.KIND, dict(params), self._options)] * WORLD)
        self._shapes = [x.shape for x in params.values()]

    def accumulate(self, grads: Sequence[Sequence[Any]]) -> None:
        self._check(grads)
        RANKS.ask("backward", [(list(own),) for own in grads])

    def step(self, grads: Sequence[Sequence[Any]]) -> float:
        self._check(grads)
        return float(RANKS.ask("step", [(list(own),) for own in grads])[0])

    def params(self) -> dict[str, Any]:
        if not self._shapes:
            raise ValueError("params: nothing is attached")
        first, second = RANKS.ask("params", [()] * WORLD)
        if any(not np.array_equal(first[name], second[name]) for name in first):
            raise RuntimeError("the ranks hold different parameters")
        return dict(first)

    def _check(self, grads: Sequence[Sequence[Any]]) -> None:
        """What no rank would notice: shapes that broadcast, ranks that are not there."""
        if not self._shapes or [[g.shape for g in own] for own in grads] != [self._shapes] * WORLD:
            raise ValueError(f"grads: want arrays of shapes {self._shapes} for each of {WORLD} ranks")


class ZeroRedundancy(_Sharded):
    """torch.distributed.optim.ZeroRedundancyOptimizer over AdamW: stage 1."""

    STAGE, KIND = 1, "redundancy"


class FullyShard(_Sharded):
    """torch.distributed.fsdp.fully_shard with AdamW: stage 3."""

    STAGE, KIND = 3, "fully_shard"

    def attach(self, params: Mapping[str, Any]) -> None:
        if any(not x.size for x in params.values()):
            raise NotImplementedError("an empty parameter: _chunk_cat expects non-empty tensors")
        super().attach(params)
