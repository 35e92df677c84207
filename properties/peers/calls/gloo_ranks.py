"""Two processes of torch.distributed over gloo: what each rank does when asked, and the pair of them as the checker calls it.

Nothing but NumPy and the libraries is imported, these inside the functions, so that this file runs alone: as a program it is one rank.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

WORLD, SECONDS = 2, 30.0
STARTING = 120.0                                                                # PyTorch is imported twice, on whatever machine


class RankLost(RuntimeError):
    """A rank that died or did not answer: which, and during what."""


class Ranks:
    """A pair of rank processes, started when first asked, and again after one was lost.

    ask(task, of_each) → what each rank answered. Raises RankLost naming rank and task within `seconds` where one dies or hangs, and
    RuntimeError with what a rank raised.
    """

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._folder = ""
        atexit.register(self.close)

    def ask(self, task: str, of_each: Sequence[tuple[Any, ...]]) -> list[Any]:
        if not self._processes:
            self._start()
        for rank, (connection, given) in enumerate(zip(self._connections, of_each)):
            try:
                connection.send((task, given))
            except OSError:
                self._lose(rank, task)
        return self._answers(task, self.seconds)

    def _answers(self, task: str, seconds: float) -> list[Any]:
        """What each rank says of a task, within the seconds."""
        deadline = time.monotonic() + seconds
        answers: dict[int, tuple[str, Any]] = {}
        while len(answers) < WORLD:
            open_ones = [connection for rank, connection in enumerate(self._connections) if rank not in answers]
            ready = wait(open_ones, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = next(rank for rank in range(WORLD) if rank not in answers)
                self.close()
                raise RankLost(f"rank {silent} did not answer {task} within {seconds:g} s")
            for connection in ready:
                rank = self._connections.index(connection)                      # type: ignore[arg-type]
                try:
                    answers[rank] = self._connections[rank].recv()
                except (EOFError, OSError):
                    self._lose(rank, task)
                if answers[rank][0] == "raised":
                    self._blame(rank, task, answers[rank][1])
        return [answers[rank][1] for rank in range(WORLD)]

    def close(self) -> None:
        """End both processes."""
        for process in self._processes:
            process.kill()
            process.wait()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        self._folder = tempfile.mkdtemp()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        for rank in range(WORLD):
            ours, theirs = socket.socketpair()
            command = [sys.executable, __file__, str(rank), os.path.join(self._folder, "store"), str(theirs.fileno())]
            self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdout=subprocess.DEVNULL,
                                                    stderr=subprocess.DEVNULL))  # fmt: skip
            theirs.close()
            self._connections.append(Connection(ours.detach()))
        self._answers("the start", STARTING)

    def _lose(self, rank: int, task: str) -> None:
        status = self._processes[rank].wait(timeout=5.0)
        self.close()
        raise RankLost(f"rank {rank} ended with exit status {status} during {task}")

    def _blame(self, rank: int, task: str, message: str) -> None:
        """What a rank raised; but where the other one is gone, that is why."""
        limit = time.monotonic() + 1.0
        while time.monotonic() < limit:
            gone = next((r for r, process in enumerate(self._processes) if process.poll() is not None), None)
            if gone is not None:
                self._lose(gone, task)
            time.sleep(0.05)
        self.close()                                                            # the other rank may wait for this one for ever
        if message.startswith("NotImplementedError"):
            raise NotImplementedError(f"rank {rank} in {task}: {message}")
        raise RuntimeError(f"rank {rank} in {task}: {message}")


RANKS = Ranks()


# What a rank does. `held` is what it keeps between tasks. ---------------------------------------------------------------

def _reduction(op: str) -> Any:
    import torch.distributed as dist

    return {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[op]


def all_reduce(held: dict[str, Any], x: Any, op: str) -> Any:
    """torch.distributed.all_reduce."""
    import torch
    import torch.distributed as dist

    t = torch.from_numpy(x)
    dist.all_reduce(t, op=_reduction(op))
    return t.numpy()


def reduce_scatter(held: dict[str, Any], x: Any, op: str) -> Any:
    """torch.distributed.reduce_scatter_tensor."""
    import torch
    import torch.distributed as dist

    t = torch.from_numpy(x)
    out = torch.empty((len(t) // WORLD, *t.shape[1:]), dtype=t.dtype)
    dist.reduce_scatter_tensor(out, t, op=_reduction(op))
    return out.numpy()


def all_gather(held: dict[str, Any], x: Any) -> Any:
    """torch.distributed.all_gather_into_tensor."""
    import torch
    import torch.distributed as dist

    t = torch.from_numpy(x)
    out = torch.empty((WORLD * len(t), *t.shape[1:]), dtype=t.dtype)
    dist.all_gather_into_tensor(out, t)
    return out.numpy()


def data_parallel(held: dict[str, Any], grads: Sequence[Any], bucket_bytes: int) -> Any:
    """The gradients that DistributedDataParallel leaves of sum_k <p_k, g_k>."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    given = [torch.from_numpy(g) for g in grads]
    model = DistributedDataParallel(_inner_products(torch, given), bucket_cap_mb=bucket_bytes / 2**20)
    model(given).backward()
    return [p.grad.numpy() for p in model.parameters()]


def _inner_products(torch: Any, like: Sequence[Any]) -> Any:
    """A module whose loss has the gradients that it is handed."""
    class Products(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.nn.Parameter(x.clone()) for x in like])

        def forward(self, grads: Sequence[Any]) -> Any:
            return sum((p * g).sum() for p, g in zip(self.weights, grads))

    return Products()


def _mesh(held: dict[str, Any]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return held.setdefault("mesh", init_device_mesh("cpu", (WORLD,)))


def linear(held: dict[str, Any], x: Any, w: Any, bias: Any, columns: bool) -> Any:
    """torch.nn.Linear under ColwiseParallel (x whole) or RowwiseParallel (x this rank's columns); w (C, N), bias (N,), whole."""
    import torch
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    layer = torch.nn.Linear(*w.shape, dtype=torch.from_numpy(x).dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(w).T)
        layer.bias.copy_(torch.from_numpy(bias))
    style = ColwiseParallel() if columns else RowwiseParallel(input_layouts=Shard(-1), output_layouts=Replicate())
    with torch.no_grad():
        return parallelize_module(layer, _mesh(held), style)(torch.from_numpy(x)).numpy()


def embedding(held: dict[str, Any], tokens: Any, table: Any) -> Any:
    """torch.nn.Embedding under RowwiseParallel."""
    import torch
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    layer = torch.nn.Embedding(*table.shape, dtype=torch.from_numpy(table).dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(table))
        style = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
        return parallelize_module(layer, _mesh(held), style)(torch.from_numpy(tokens)).numpy()


def loss_gradient(held: dict[str, Any], shard: Any, targets: Any, dloss: float, ignore_index: int, reduction: str) -> Any:
    """The gradient of cross_entropy under loss_parallel, of this rank's logits."""
    import torch
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel

    z = DTensor.from_local(torch.from_numpy(shard), _mesh(held), [Shard(1)]).detach().requires_grad_()
    with loss_parallel():
        loss = torch.nn.functional.cross_entropy(z, torch.from_numpy(targets), ignore_index=ignore_index, reduction=reduction)
        loss.backward()
    return z.grad.to_local().numpy() * shard.dtype.type(dloss)


def clip(held: dict[str, Any], grads: Sequence[Any], kinds: Sequence[int], max_norm: float) -> Any:
    """torch.nn.utils.clip_grad_norm_ of DTensors, sharded or replicated."""
    import torch
    from torch.distributed.tensor import DTensor, Replicate, Shard

    params = []
    for g, kind in zip(grads, kinds):
        placed = DTensor.from_local(torch.from_numpy(g), _mesh(held), [Shard(0) if kind else Replicate()])
        p = torch.nn.Parameter(torch.zeros_like(placed))
        p.grad = placed
        params.append(p)
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
    whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return [p.grad.to_local().numpy() for p in params], whole.numpy()


def crash(held: dict[str, Any], rank: int, doomed: int) -> Any:
    """Rank `doomed` ends at once, while the other waits for it: a fault to be named."""
    if rank == doomed:
        os._exit(17)
    return all_reduce(held, __import__("numpy").ones(1), "sum")


def stall(held: dict[str, Any], rank: int, stalled: int) -> None:
    """Rank `stalled` never answers: a fault to be named."""
    if rank == stalled:
        time.sleep(3600.0)


def attach(held: dict[str, Any], kind: str, params: Mapping[str, Any], options: Mapping[str, float]) -> None:
    """Parameters under ZeroRedundancyOptimizer ("redundancy") or fully_shard ("fully_shard"), and AdamW."""
    import torch

    own = [torch.from_numpy(x) for x in params.values()]
    adam = {"lr": options["lr"], "betas": (options["beta1"], options["beta2"]), "eps": options["eps"],
            "weight_decay": options["weight_decay"]}  # fmt: skip
    model = _inner_products(torch, own)
    if kind == "fully_shard":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=_mesh(held))
        optimizer = torch.optim.AdamW(model.parameters(), **adam)
    else:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **adam)
    held.update(model=model, optimizer=optimizer, kind=kind, names=list(params), pending=0)


def backward(held: dict[str, Any], grads: Sequence[Any]) -> None:
    """One micro-batch: its gradients are added to those held."""
    import torch

    held["model"]([torch.from_numpy(g) for g in grads]).backward()
    held["pending"] += 1


def step(held: dict[str, Any], grads: Sequence[Any]) -> float:
    """The last micro-batch, the mean over micro-batches and ranks, one step; the norm of the averaged gradient."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    backward(held, grads)
    params = list(held["model"].parameters())
    for p in params:
        if held["kind"] == "redundancy":                                        # fully_shard has averaged over ranks itself
            dist.all_reduce(p.grad)
            p.grad /= WORLD
        p.grad /= held["pending"]
    norm = torch.nn.utils.get_total_norm([p.grad for p in params])
    held["optimizer"].step()
    held["optimizer"].zero_grad()
    held["pending"] = 0
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def params(held: dict[str, Any]) -> dict[str, Any]:
    """Whole parameters by name."""
    from torch.distributed.tensor import DTensor

    tensors = [p.full_tensor() if isinstance(p, DTensor) else p for p in held["model"].parameters()]
    return {name: t.detach().clone().numpy() for name, t in zip(held["names"], tensors)}


TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task for task in (all_reduce, reduce_scatter, all_gather, data_parallel, linear, embedding, loss_gradient, clip, crash,
                                     stall, attach, backward, step, params)
}  # fmt: skip


def serve(rank: int, store: str, descriptor: int) -> None:
    """One rank: tasks are done as they are asked for, until nobody asks any more."""
    import warnings
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    connection, held = Connection(descriptor), {}  # type: tuple[Connection, dict[str, Any]]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=timedelta(seconds=SECONDS))
    connection.send(("returned", None))
    while True:
        try:
            task, given = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            connection.send(("returned", TASKS[task](held, *given)))
        except Exception as error:
            connection.send(("raised", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
