"""torch.distributed on two gloo ranks: collectives, DistributedDataParallel, DTensor's tensor parallelism, two ZeROs.

Addresses: https://docs.pytorch.org/docs/stable/distributed.html, https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html,
https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html,
https://docs.pytorch.org/docs/stable/distributed.optim.html, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..declaration import subject
from .calls import gloo as calls
from .installed import copy_of, library_version, versions_text

_NOT_EMPTY = {"refuses": ("empty",)}

# name: of each operation the function in `calls` and what it declares
PEERS: dict[str, dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "torch_gloo": {
        "all_reduce": (calls.all_reduce, {}),
        "reduce_scatter": (calls.reduce_scatter, {}),
        "all_gather": (calls.all_gather, {}),
    },
    "torch_ddp": {"bucketed_all_reduce": (calls.bucketed_all_reduce, {})},
    "torch_dtensor": {
        "column_parallel": (calls.column_parallel, _NOT_EMPTY),
        "row_parallel": (calls.row_parallel, _NOT_EMPTY),
        "vocab_parallel_embedding": (calls.vocab_parallel_embedding, _NOT_EMPTY),
        "vocab_parallel_cross_entropy_backward": (calls.vocab_parallel_cross_entropy_backward,
                                                  {**_NOT_EMPTY, "only": {"reduction": ["mean", "sum"]}}),
        "clip_grad_norm_sharded": (calls.clip_grad_norm_sharded,
                                   {**_NOT_EMPTY, "conventions": {"clip_denominator": "norm_plus_1e-6"}}),
    },
    "torch_zero_redundancy": {},
    "torch_fully_shard": {},
}  # fmt: skip

OBJECT = "zero"                                                                 # the operation whose objects some of them make
OBJECTS: dict[str, Callable[..., Any]] = {"torch_zero_redundancy": calls.ZeroRedundancy, "torch_fully_shard": calls.FullyShard}


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
