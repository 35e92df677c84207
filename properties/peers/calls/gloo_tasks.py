"""torch.distributed over gloo: what each rank does when asked, on that rank's tensors, with sharded optimizers kept between calls.

A list of tensors x is x.0, x.1, …. The functions run in processes that form one group; PyTorch is imported inside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Tensors = dict[str, Any]


def _members(tensors: Tensors, name: str) -> list[Any]:
    """The list of that name."""
    return [tensors[f"{name}.{k}"] for k in range(sum(key.startswith(f"{name}.") for key in tensors))]


def _spread(name: str, members: Sequence[Any]) -> Tensors:
    """A list as tensors of its name."""
    return {f"{name}.{k}": member for k, member in enumerate(members)}


@lru_cache
def _mesh() -> Any:
    """All ranks, in one row."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),))


# Collectives and DistributedDataParallel ---------------------------------------------------------------------------------


def _reduction(op: str) -> Any:
    import torch.distributed as dist

    return {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[op]


def all_reduce(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """torch.distributed.all_reduce of x."""
    import torch.distributed as dist

    dist.all_reduce(tensors["x"], op=_reduction(options["op"]))
    return {"out": tensors["x"]}


def reduce_scatter(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """torch.distributed.reduce_scatter_tensor of x."""
    import torch.distributed as dist

    x = tensors["x"]
    out = x.new_empty((len(x) // dist.get_world_size(), *x.shape[1:]))
    dist.reduce_scatter_tensor(out, x, op=_reduction(options["op"]))
    return {"out": out}


def all_gather(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """torch.distributed.all_gather_into_tensor of x."""
    import torch.distributed as dist

    x = tensors["x"]
    out = x.new_empty((dist.get_world_size() * len(x), *x.shape[1:]))
    dist.all_gather_into_tensor(out, x)
    return {"out": out}


def data_parallel(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """The gradients that DistributedDataParallel leaves of sum_k <p_k, g_k>, with buckets of `bucket_bytes`."""
    from torch.nn.parallel import DistributedDataParallel

    grads = _members(tensors, "grads")
    model = DistributedDataParallel(_inner_products(grads), bucket_cap_mb=options["bucket_bytes"] / 2**20)
    model(grads).backward()
    return _spread("grads", [p.grad for p in model.parameters()])


def _inner_products(like: Sequence[Any]) -> Any:
    """A module whose loss has the gradients that it is handed."""
    import torch

    class Products(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.nn.Parameter(x.clone()) for x in like])

        def forward(self, grads: Sequence[Any]) -> Any:
            return sum((p * g).sum() for p, g in zip(self.weights, grads))

    return Products()


# DTensor -----------------------------------------------------------------------------------------------------------------


def linear(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """torch.nn.Linear under ColwiseParallel (x whole) or RowwiseParallel (x this rank's columns); w (C, N), bias (N,), whole."""
    import torch
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    x, w = tensors["x"], tensors["w"]
    layer = torch.nn.Linear(*w.shape, dtype=x.dtype)
    style = ColwiseParallel() if options["columns"] else RowwiseParallel(input_layouts=Shard(-1), output_layouts=Replicate())
    with torch.no_grad():
        layer.weight.copy_(w.T)
        layer.bias.copy_(tensors["bias"])
        return {"out": parallelize_module(layer, _mesh(), style)(x)}


def embedding(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """torch.nn.Embedding under RowwiseParallel."""
    import torch
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    table = tensors["table"]
    layer = torch.nn.Embedding(*table.shape, dtype=table.dtype)
    style = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    with torch.no_grad():
        layer.weight.copy_(table)
        return {"out": parallelize_module(layer, _mesh(), style)(tensors["tokens"])}


def loss_gradient(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """The gradient of cross_entropy under loss_parallel, of this rank's logits."""
    import torch
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel

    z = DTensor.from_local(tensors["shard"], _mesh(), [Shard(1)]).detach().requires_grad_()
    with loss_parallel():
        torch.nn.functional.cross_entropy(z, tensors["targets"], **options).backward()
    return {"dlogits": z.grad.to_local()}


def clip(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """torch.nn.utils.clip_grad_norm_ of DTensors, each sharded or replicated as `kinds` says."""
    import torch
    from torch.distributed.tensor import DTensor, Replicate, Shard

    params = []
    for g, kind in zip(_members(tensors, "grads"), options["kinds"], strict=True):
        placed = DTensor.from_local(g, _mesh(), [Shard(0) if kind else Replicate()])
        p = torch.nn.Parameter(torch.zeros_like(placed))
        p.grad = placed
        params.append(p)
    norm = torch.nn.utils.clip_grad_norm_(params, options["max_norm"])
    return {**_spread("grads", [p.grad.to_local() for p in params]), "norm": _whole(norm)}


def _whole(tensor: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


# Sharded optimizers ------------------------------------------------------------------------------------------------------


@dataclass
class _Engine:
    """One optimizer, its model, and how many micro-batches it has gradients of."""

    model: Any
    optimizer: Any
    averages: bool                                                              # over ranks, in the backward pass
    pending: int = 0


_ENGINES: dict[int, _Engine] = {}                                               # of this rank, by the number its owner gave it


def _engine(options: Mapping[str, Any]) -> _Engine:
    if options["engine"] not in _ENGINES:
        raise RuntimeError(f"optimizer {options['engine']}: this rank does not hold it; it may have been started after it was attached")
    return _ENGINES[options["engine"]]


def attach(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """A new engine of that number over params: ZeroRedundancyOptimizer ("redundancy") or fully_shard ("fully_shard"), and AdamW.

    Those of the numbers that are no longer `living` are let go.
    """
    import torch

    for gone in _ENGINES.keys() - set(options["living"]):
        del _ENGINES[gone]
    adam = {"lr": options["lr"], "betas": (options["beta1"], options["beta2"]), "eps": options["eps"],
            "weight_decay": options["weight_decay"]}  # fmt: skip
    model = _inner_products(_members(tensors, "params"))
    if options["kind"] == "fully_shard":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=_mesh())
        optimizer = torch.optim.AdamW(model.parameters(), **adam)
    else:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **adam)
    _ENGINES[options["engine"]] = _Engine(model, optimizer, options["kind"] == "fully_shard")
    return {}


def backward(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """One micro-batch: its gradients are added to those held."""
    engine = _engine(options)
    engine.model(_members(tensors, "grads")).backward()
    engine.pending += 1
    return {}


def step(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """The last micro-batch, the mean over micro-batches and ranks, one step; the norm of the averaged gradient."""
    import torch
    import torch.distributed as dist

    backward(tensors, options)
    engine = _engine(options)
    params = list(engine.model.parameters())
    for p in params:
        if not engine.averages:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        p.grad /= engine.pending
    norm = torch.nn.utils.get_total_norm([p.grad for p in params])
    engine.optimizer.step()
    engine.optimizer.zero_grad()
    engine.pending = 0
    return {"norm": _whole(norm)}


def params(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """Whole parameters."""
    return _spread("params", [_whole(p).detach().clone() for p in _engine(options).model.parameters()])
