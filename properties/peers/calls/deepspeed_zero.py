"""DeepSpeed's engine on the ranks of one process group: what each rank does when asked, with the engine kept between calls.

The functions run in the ranks of `gloo_ranks`, on that rank's tensors. DeepSpeed is imported inside them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

_HELD: dict[str, Any] = {}                                                      # of this rank: the engine, gradient bytes seen last


def ready(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed and what it imports at the first engine, which takes the longest, in memory."""
    _engines()
    for name in ("muon.muon_optimizer", "stage3", "stage_1_and_2"):
        importlib.import_module(f"deepspeed.runtime.zero.{name}")
    return {}


def _engines() -> Any:
    """The library. Its all_reduce through shared memory is left out: it is C++ compiled at the first use, for minutes, and a rank that is
    killed meanwhile leaves a lock for which all later ones wait for ever. gloo does its work."""
    import torch.distributed as dist

    os.environ["DS_ACCELERATOR"], os.environ["LOCAL_RANK"] = "cpu", str(dist.get_rank())
    deepspeed = importlib.import_module("deepspeed")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _model(like: list[Any]) -> Any:
    """A module whose loss has the gradients that it is handed; each parameter in a module of its own, which stage 3 gathers."""
    import torch

    class Product(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, x: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(x.shape, dtype=x.dtype).copy_(x))  # strides of an empty one, too

        def forward(self, g: Any) -> Any:
            return (self.weight * g).sum()

    class Products(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.each = torch.nn.ModuleList([Product(x) for x in like])

        def forward(self, grads: list[Any]) -> Any:
            return sum(product(g) for product, g in zip(self.each, grads))

    return Products()


def configuration(options: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration: one sample a micro-batch, PyTorch's AdamW, a parameter of any size cut at stage 3.

    Buckets of 8 elements, so that a few parameters fill several; the 5e8 of the default are 2 GB allocated in every step.
    """
    adam = {"lr": options["lr"], "betas": [options["beta1"], options["beta2"]], "eps": options["eps"],
            "weight_decay": options["weight_decay"], "torch_adam": True}  # fmt: skip
    if "adam_w_mode" in options:
        adam["adam_w_mode"] = options["adam_w_mode"]
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": options.get("max_norm") or 0.0,
        "optimizer": {"type": options.get("type", "AdamW"), "params": adam},
        "zero_optimization": {"stage": options["stage"], "reduce_bucket_size": 8, "stage3_param_persistence_threshold": 0},
    }


def attach(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A new engine of a stage over the parameters "0", "1", …; the one before is let go."""
    deepspeed = _engines()
    if "engine" in _HELD:
        _HELD.pop("engine").destroy()
    model = _model([tensors[str(k)] for k in range(len(tensors))])
    _HELD["engine"] = deepspeed.initialize(model=model, config=configuration(options), dist_init_required=False)[0]
    return {}


def step(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """All micro-batches of one step, gradient k of micro-batch a being "a.k"; the norm of the averaged gradient before it is clipped.

    Stage 0 tells no norm: there it is PyTorch's, of the gradients that DeepSpeed leaves.
    """
    import torch

    engine, A = _HELD["engine"], options["micro_batches"]
    params = list(engine.module.parameters())
    engine.set_train_batch_size(A * engine.dp_world_size)
    for a in range(A):
        engine.set_gradient_accumulation_boundary(a == A - 1)
        engine.backward(engine([tensors[f"{a}.{k}"] for k in range(len(params))]))
    _HELD["gradients"] = _bytes(_gradients(engine, params))
    norm = None if engine.zero_optimization() else torch.nn.utils.get_total_norm([p.grad for p in params])
    engine.step()
    return {"norm": torch.as_tensor(engine.get_global_grad_norm() if norm is None else norm, dtype=torch.float32)}


def params(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Whole parameters, "0", "1", …"""
    deepspeed = _engines()
    own = list(_HELD["engine"].module.parameters())
    with deepspeed.zero.GatheredParameters(own):
        return {str(k): p.detach().clone() for k, p in enumerate(own)}


def held(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes of this rank by role, each storage once; gradients as they were just before the last step."""
    import torch

    engine = _HELD["engine"]
    own, optimizer = list(engine.module.parameters()), engine.optimizer
    masters: list[Any] = []
    if engine.zero_optimization_stage() in (1, 2):
        masters = list(optimizer.single_partition_of_fp32_groups)
    elif engine.zero_optimization_stage() == 3:
        masters = list(optimizer.fp32_partitioned_groups_flat)
    state = (optimizer.optimizer if engine.zero_optimization() else optimizer).state
    moments = [one[name] for one in state.values() for name in ("exp_avg", "exp_avg_sq")]
    found = {"weights": _bytes([getattr(p, "ds_tensor", p) for p in own]), "gradients": _HELD["gradients"], "masters": _bytes(masters),
             "moments": _bytes(moments)}  # fmt: skip
    return {role: torch.tensor(n) for role, n in found.items()}


def _gradients(engine: Any, params: list[Any]) -> Iterator[Any]:
    """What a rank holds of gradients between the last backward pass and the step."""
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    yield from (p.grad for p in params if p.grad is not None)
    if stage in (1, 2):
        yield from (g for group in optimizer.averaged_gradients.values() if group is not None for g in group)
    elif stage == 3:
        yield optimizer.grad_partitions_flat_buffer


def _bytes(tensors: Any) -> int:
    """Bytes of the storages of tensors, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return int(sum(storages.values()))


def ends(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Rank `doomed` ends while the other waits for it in a step: a fault to be named."""
    import torch.distributed as dist

    if dist.get_rank() == options["doomed"]:
        os._exit(17)
    return step(tensors, options)
