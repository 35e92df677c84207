"""torch.distributed on two gloo ranks: collectives, DistributedDataParallel, DTensor's tensor parallelism, two ZeROs.

Other numbers of ranks are not covered. Addresses: https://docs.pytorch.org/docs/stable/distributed.html,
https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html,
https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html,
https://docs.pytorch.org/docs/stable/distributed.optim.html, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import numpy as np

from ..array_lists import spread
from ..declaration import subject
from .calls import gloo_tasks as tasks
from .gloo_ranks import ranks
from .installed import copy_of, library_version, versions_text

WORLD = 2


def _ask(task: str, arrays: Sequence[Mapping[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """What a function of `tasks` returns on each rank; what it raises: see `GlooRanks.call`."""
    return ranks(WORLD).call(f"{tasks.__name__}:{task}", arrays, options)


def _two(arrays: Sequence[Any]) -> None:
    if len(arrays) != WORLD:
        raise NotImplementedError(f"{len(arrays)} ranks; two processes are started")


# Operations --------------------------------------------------------------------------------------------------------------


def all_reduce(arrays: Any, *, op: str = "sum") -> Any:
    """torch.distributed.all_reduce; gloo has no mean."""
    _two(arrays)
    if op == "mean":
        raise NotImplementedError("ReduceOp.AVG is not available with gloo")
    return [own["out"] for own in _ask("all_reduce", [{"x": x} for x in arrays], op=op)]


def reduce_scatter(arrays: Any, *, op: str = "sum") -> Any:
    """torch.distributed.reduce_scatter_tensor; gloo has no mean."""
    _two(arrays)
    if op == "mean":
        raise NotImplementedError("ReduceOp.AVG is not available with gloo")
    return [own["out"] for own in _ask("reduce_scatter", [{"x": x} for x in arrays], op=op)]


def all_gather(arrays: Any) -> Any:
    """torch.distributed.all_gather_into_tensor, of arrays of one shape."""
    _two(arrays)
    if arrays[0].shape != arrays[1].shape:
        raise NotImplementedError("arrays of different shapes")
    return [own["out"] for own in _ask("all_gather", [{"x": x} for x in arrays])]


def bucketed_all_reduce(grads: Any, arrival: Any, *, bucket_elements: int) -> Any:
    """The gradients that DistributedDataParallel leaves, with buckets of that many elements; empty ones stay out of the model."""
    _two(arrival)
    there = [k for k, g in enumerate(grads) if g.size]
    if not there:
        return [g.copy() for g in grads]
    of_each = [spread("grads", [grads[k][r] for k in there]) for r in range(WORLD)]
    found = _ask("data_parallel", of_each, bucket_bytes=bucket_elements * grads[0].itemsize)
    averaged = {k: np.stack([own[f"grads.{i}"] for own in found]) for i, k in enumerate(there)}
    return [averaged.get(k, g.copy()) for k, g in enumerate(grads)]


def column_parallel(x: Any, w_shards: Any, bias_shards: Any) -> Any:
    """torch.nn.Linear under ColwiseParallel."""
    _two(w_shards)
    given = {"x": x, "w": np.concatenate(w_shards, axis=1), "bias": np.concatenate(bias_shards)}
    return [own["out"] for own in _ask("linear", [given] * WORLD, columns=True)]


def row_parallel(x_shards: Any, w_shards: Any, bias: Any) -> Any:
    """torch.nn.Linear under RowwiseParallel."""
    _two(x_shards)
    w = np.concatenate(w_shards)
    return [own["out"] for own in _ask("linear", [{"x": x, "w": w, "bias": bias} for x in x_shards], columns=False)]


def vocab_parallel_embedding(tokens: Any, table: Any, *, world: int) -> Any:
    """torch.nn.Embedding under RowwiseParallel."""
    _two(range(world))
    return [own["out"] for own in _ask("embedding", [{"tokens": tokens, "table": table}] * WORLD)]


def vocab_parallel_cross_entropy_backward(shards: Any, targets: Any, dloss: Any, *, ignore_index: int = -100, reduction: str) -> Any:
    """The gradient of cross_entropy under loss_parallel, which has neither label smoothing nor a reduction of "none" with gradients."""
    _two(shards)
    if reduction == "none":
        raise NotImplementedError("loss_parallel sums or averages")
    if (targets == ignore_index).all():
        raise NotImplementedError("a mean over no target")
    of_each = [{"shard": shard, "targets": targets} for shard in shards]
    found = _ask("loss_gradient", of_each, ignore_index=int(ignore_index), reduction=reduction)
    return np.stack([own["dlogits"] * shard.dtype.type(dloss) for own, shard in zip(found, shards)])


def clip_grad_norm_sharded(grads: Any, placement: Any, *, max_norm: float) -> Any:
    """torch.nn.utils.clip_grad_norm_ of DTensors."""
    _two(grads[0])
    of_each = [spread("grads", [g[r] for g in grads]) for r in range(WORLD)]
    found = _ask("clip", of_each, kinds=placement.tolist(), max_norm=float(max_norm))
    return [np.stack([own[f"grads.{k}"] for own in found]) for k in range(len(grads))], found[0]["norm"]


# Objects -----------------------------------------------------------------------------------------------------------------


class _Sharded:
    """A sharded optimizer on two ranks. STAGE: what it is in ZeRO's words; KIND: what `tasks` calls it."""

    STAGE, KIND = 0, ""

    def __init__(self, stage: int, world: int, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
        if stage not in (0, 1, 2, 3) or world < 1:
            raise ValueError(f"stage, world: got {stage}, {world}; want 0..3, and at least one rank")
        self._stage, self._world = stage, world
        self._options = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.engine = next(_NUMBERS)                                            # by which the ranks know it

    def attach(self, params: Mapping[str, Any]) -> None:
        if (self._stage, self._world) != (self.STAGE, WORLD):
            raise NotImplementedError(f"stage {self._stage} on {self._world} ranks; this is stage {self.STAGE}, on two processes")
        _ATTACHED.add(self)
        living = sorted(one.engine for one in _ATTACHED)
        own = spread("params", params.values())
        _ask("attach", [own] * WORLD, engine=self.engine, living=living, kind=self.KIND, **self._options)
        self._shapes = {name: x.shape for name, x in params.items()}

    def accumulate(self, grads: Sequence[Sequence[Any]]) -> None:
        self._check(grads)
        _ask("backward", [spread("grads", own) for own in grads], engine=self.engine)

    def step(self, grads: Sequence[Sequence[Any]]) -> float:
        self._check(grads)
        return float(_ask("step", [spread("grads", own) for own in grads], engine=self.engine)[0]["norm"])

    def params(self) -> dict[str, Any]:
        if not self._shapes:
            raise ValueError("params: nothing is attached")
        first, second = _ask("params", [{}] * WORLD, engine=self.engine)
        if any(not np.array_equal(first[k], second[k]) for k in first):
            raise RuntimeError("the ranks hold different parameters")
        return {name: first[f"params.{k}"] for k, name in enumerate(self._shapes)}

    def _check(self, grads: Sequence[Sequence[Any]]) -> None:
        """What no rank would notice: shapes that broadcast, ranks that are not there."""
        wanted = list(self._shapes.values())
        if not wanted or [[g.shape for g in own] for own in grads] != [wanted] * WORLD:
            raise ValueError(f"grads: want arrays of shapes {wanted} for each of {WORLD} ranks")


_NUMBERS = itertools.count()
_ATTACHED: WeakSet[_Sharded] = WeakSet()                                        # the ranks let go of any other


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


# Peers -------------------------------------------------------------------------------------------------------------------

_NOT_EMPTY = {"refuses": ("empty",)}

# name: of each operation the function and what it declares
PEERS: dict[str, dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "torch_gloo": {
        "all_reduce": (all_reduce, {}),
        "reduce_scatter": (reduce_scatter, {}),
        "all_gather": (all_gather, {}),
    },
    "torch_ddp": {"bucketed_all_reduce": (bucketed_all_reduce, {})},
    "torch_dtensor": {
        "column_parallel": (column_parallel, _NOT_EMPTY),
        "row_parallel": (row_parallel, _NOT_EMPTY),
        "vocab_parallel_embedding": (vocab_parallel_embedding, _NOT_EMPTY),
        "vocab_parallel_cross_entropy_backward": (vocab_parallel_cross_entropy_backward,
                                                  {**_NOT_EMPTY, "only": {"reduction": ["mean", "sum"]}}),
        "clip_grad_norm_sharded": (clip_grad_norm_sharded, {**_NOT_EMPTY, "conventions": {"clip_denominator": "norm_plus_1e-6"}}),
    },
    "torch_zero_redundancy": {},
    "torch_fully_shard": {},
}  # fmt: skip

OBJECT = "zero"                                                                 # the operation whose objects some of them make
OBJECTS: dict[str, Callable[..., Any]] = {"torch_zero_redundancy": ZeroRedundancy, "torch_fully_shard": FullyShard}


def library_versions(name: str) -> dict[str, str]:
    """The version of PyTorch, whichever of its parts."""
    return {"torch": library_version("torch", extra="torch")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The operations of a peer, declared. Raises UsageError where the library is missing."""
    common = {"name": name, "version": versions_text(library_versions(name)), "dtypes": ("float32", "float64")}
    return tuple(subject(operation, **{**common, **declared})(copy_of(function))
                 for operation, (function, declared) in PEERS[name].items())  # fmt: skip


def objects(name: str) -> dict[str, Callable[..., Any]]:
    """The factory of sharded optimizers, of the peers that have one. Raises UsageError where the library is missing."""
    library_versions(name)
    return {OBJECT: OBJECTS[name]} if name in OBJECTS else {}
