"""Context and pipeline parallelism of PyTorch, on ranks of gloo.

Nothing but NumPy and the library is imported, it inside the functions, so that this file runs alone. Functions that end in `_on_rank`
run on every rank; who calls many of them sets `RANKS` to something that keeps ranks alive, otherwise each call forks its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

SECONDS = 30.0
Tensors = dict[str, Any]
RANKS: Callable[[str, Sequence[Mapping[str, Any]], Mapping[str, Any]], list[dict[str, Any]]] | None = None


def on_ranks(name: str, arrays: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the function of that name returns on each rank."""
    return _forked(name, arrays, options) if RANKS is None else RANKS(name, arrays, options)


def _forked(name: str, arrays: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ranks for one call alone."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as place:
        ends = [context.Pipe(duplex=False) for _ in arrays]
        ranks = [context.Process(target=_one, args=(end[1], f"{place}/store", r, len(arrays), name, arrays[r], options), daemon=True)
                 for r, end in enumerate(ends)]  # fmt: skip
        for rank in ranks:
            rank.start()
        answers = []
        for r, (end, _) in enumerate(ends):
            if not end.poll(SECONDS):
                raise RuntimeError(f"rank {r} of {len(arrays)} in {name}: did not answer within {SECONDS:g} s")
            answers.append(end.recv())
            if isinstance(answers[-1], str):
                raise RuntimeError(f"rank {r} of {len(arrays)} in {name}: {answers[-1]}")
        return answers


def _one(end: Any, store: str, rank: int, world: int, name: str, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    import torch
    import torch.distributed

    try:
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world,
                                             timeout=timedelta(seconds=SECONDS))  # fmt: skip
        returned = globals()[name]({key: torch.from_numpy(np.asarray(x, order="C")) for key, x in arrays.items()}, options)
        end.send({key: tensor.detach().numpy() for key, tensor in returned.items()})
    except Exception as error:
        end.send(f"{type(error).__name__}: {error}")


# The ring ----------------------------------------------------------------------------------------------------------------


def _ring_covers(shards: Sequence[Any], causal: Any, order: str) -> None:
    if len(shards) not in (1, 2):
        raise NotImplementedError(f"{len(shards)} ranks")
    if order == "zigzag" and (causal is None or len(shards) == 1):
        raise NotImplementedError("zig-zag order without a causal mask, or on one rank")


def torch_ring_attention(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", scale: Any = None) -> Any:
    """torch.distributed.tensor.experimental's ring over its own flash kernel; zig-zag order is its load balancing."""
    _ring_covers(q_shards, causal, order)
    arrays = [{"q": q, "k": k, "v": v} for q, k, v in zip(q_shards, k_shards, v_shards)]
    answers = on_ranks("ring_on_rank", arrays, {"causal": causal is not None, "zigzag": order == "zigzag", "scale": scale})
    return [answer["out"] for answer in answers], [answer["lse"] for answer in answers]


def torch_ring_attention_backward(
    q_shards: Any, k_shards: Any, v_shards: Any, dout_shards: Any, *, causal: Any, order: str = "contiguous", scale: Any = None
) -> Any:  # fmt: skip
    """Its ring, forward and backward."""
    _ring_covers(q_shards, causal, order)
    arrays = [{"q": q, "k": k, "v": v, "dout": dout} for q, k, v, dout in zip(q_shards, k_shards, v_shards, dout_shards)]
    answers = on_ranks("ring_backward_on_rank", arrays, {"causal": causal is not None, "zigzag": order == "zigzag", "scale": scale})
    return {name: [answer[name] for answer in answers] for name in ("dq", "dk", "dv")}


def _ring(options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The module of the ring, told which order it is, and the process group."""
    import torch.distributed
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    ring._cp_options.enable_load_balance = options["zigzag"]
    return ring, torch.distributed.group.WORLD


def ring_on_rank(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """Out and log-sum-exp of this rank."""
    import torch

    ring, group = _ring(options)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse, *_ = ring._templated_ring_attention(group, 2, kernel, tensors["q"], tensors["k"], tensors["v"], is_causal=options["causal"],
                                                  scale=options["scale"])  # fmt: skip
    return {"out": out, "lse": lse}


def ring_backward_on_rank(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """dq, dk and dv of this rank."""
    import torch

    ring, group = _ring(options)
    forward = ring_on_rank(tensors, options)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    dq, dk, dv, *_ = ring._templated_ring_attention_backward(
        group, 2, kernel, tensors["dout"], "grad_out", tensors["q"], tensors["k"], tensors["v"], forward["out"], forward["lse"],
        is_causal=options["causal"], dropout_p=0.0, scale=options["scale"],
    )  # fmt: skip
    return {"dq": dq, "dk": dk, "dv": dv}


# The pipeline ------------------------------------------------------------------------------------------------------------


def torch_pipeline_step(
    x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, accumulation: int = 1
) -> Any:  # fmt: skip
    """torch.distributed.pipelining: one stage on each of two ranks, the loss a share of the mean over all tokens, no scaling."""
    runs = [part for part in np.array_split(np.arange(len(x)), accumulation)]
    if len(weights) != 2:
        raise NotImplementedError(f"{len(weights)} stages")
    if any(len(part) == 0 or len(part) % microbatch_size for part in runs) or 0 in x.shape:
        raise NotImplementedError("micro-batches of different sizes, or none")
    if kind == "1f1b" and any(len(part) < 2 * microbatch_size for part in runs):
        raise NotImplementedError("fewer micro-batches than stages under 1F1B")
    inside = (np.arange(x.shape[1]) < np.asarray(lengths)[:, None])[..., None]
    share = np.broadcast_to(inside / max(int(inside.sum()), 1), x.shape).astype(x.dtype)
    common = {"x": np.where(inside, x, 0).astype(x.dtype), "targets": np.stack([targets, share], axis=-1)}
    options = {"kind": kind, "size": microbatch_size, "runs": [[int(part[0]), int(part[-1]) + 1] for part in runs]}
    first, last = on_ranks("pipeline_on_rank", [{**common, "weight": w} for w in weights], options)
    return last["loss"], first["dx"], [first["dweight"], last["dweight"]]


def pipeline_on_rank(tensors: Tensors, options: Mapping[str, Any]) -> Tensors:
    """This rank's stage through all runs of a step: the gradient of its weights; dx of the first, the loss of the last."""
    import torch
    import torch.distributed
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank, linear = torch.distributed.get_rank(), torch.nn.Linear(1, 1, bias=False)
    linear.weight = torch.nn.Parameter(tensors["weight"].T.contiguous())        # it multiplies by the transposed weight
    piece, dtype = torch.nn.Sequential(linear, torch.nn.Tanh()), tensors["x"].dtype

    def loss_of(y: Any, goal: Any) -> Any:
        return ((y - goal[..., 0]) ** 2 * goal[..., 1]).sum() / 2

    total, dx = torch.zeros((), dtype=dtype), torch.zeros_like(tensors["x"])
    for start, stop in options["runs"]:
        stage = PipelineStage(piece, rank, 2, torch.device("cpu"))
        schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[options["kind"]]
        order = schedule(stage, (stop - start) // options["size"], loss_fn=loss_of, scale_grads=False)
        losses: list[Any] = []
        if rank == 0:
            part = tensors["x"][start:stop].clone().requires_grad_()
            order.step(part)
            dx[start:stop] = part.grad
        else:
            order.step(target=tensors["targets"][start:stop], losses=losses)
            total = total + sum(one.detach() for one in losses)
    return {"dweight": linear.weight.grad.T.contiguous(), "dx": dx, "loss": total}
