"""Gloo ranks: processes of PyTorch that form one process group and run functions of `calls` together. A dead rank is an error, no hang.

`GlooRanks(2).call("module:function", arrays, options)` runs function(tensors, options) on every rank, with that rank's arrays as
tensors, and gives back what each of them returned: {name: tensor}. The ranks live on between calls.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from .. import wire
from ..array_bridge import to_framework, to_numpy
from ..outcome import RAISED, REFUSED
from ..safetensors_file import Array
from ..worker_process import WorkerProcess

SECONDS = 30.0
GRACE = 1.0                                                                     # for news of the rank that made the others fail
_MODULE = __name__ if __name__ != "__main__" else "oracles.properties.peers.gloo_ranks"


class RankError(RuntimeError):
    """A rank ended, failed or did not answer: which, and in which function."""


class GlooRanks:
    """A process group of `world` ranks on this machine. seconds: how long a call may take."""

    def __init__(self, world: int, *, seconds: float = SECONDS) -> None:
        self.world, self.seconds = world, seconds
        self._ranks: list[WorkerProcess] = []
        self._meeting: tempfile.TemporaryDirectory[str] | None = None

    def call(self, function: str, arrays: Sequence[Mapping[str, Array]], options: Mapping[str, Any]) -> list[dict[str, Array]]:
        """What "module:function" returns on each rank, given the rank's arrays and the options (plain JSON).

        Raises RankError within `seconds` where a rank ends, raises or does not answer, NotImplementedError where that is all that ranks
        raise: not covered. All ranks are ended then, and a later call starts new ones.
        """
        try:
            if not self._ranks:
                self._start()
            for rank, process in enumerate(self._ranks):
                process.send("call", dict(arrays[rank]), {"function": function, "options": json.dumps(dict(options))})
            return self._answers(function)
        except wire.HungUp:
            raise self._broken(function, {}) from None
        except BaseException:
            self.close()                                                        # a late answer would be taken for that of the next call
            raise

    def close(self) -> None:
        """End all ranks, whatever they are doing."""
        for process in self._ranks:
            process.close()
        self._ranks = []
        if self._meeting is not None:
            self._meeting.cleanup()
            self._meeting = None

    def _start(self) -> None:
        self._meeting = tempfile.TemporaryDirectory(prefix="oracles-ranks-")
        place = str(Path(self._meeting.name) / "store")
        self._ranks = [WorkerProcess(_MODULE, f"rank {rank}", [str(rank), str(self.world), place, str(self.seconds)], seconds=self.seconds)
                       for rank in range(self.world)]  # fmt: skip
        with ThreadPoolExecutor(self.world) as starting:                        # each waits for an import of PyTorch
            list(starting.map(WorkerProcess.start, self._ranks))

    def _answers(self, function: str) -> list[dict[str, Array]]:
        found: dict[int, dict[str, Array]] = {}
        failed: dict[int, str] = {}
        refused: set[int] = set()
        deadline = time.monotonic() + self.seconds
        while len(found) < self.world:
            waiting = {process.descriptor: rank for rank, process in enumerate(self._ranks) if rank not in found and rank not in failed}
            if failed:
                deadline = min(deadline, time.monotonic() + GRACE)
            ready = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))[0] if waiting else []
            if not ready:
                silent = {rank: f"did not answer within {self.seconds:g} s" for rank in waiting.values()}
                raise self._broken(function, failed or silent, refused=bool(failed) and refused == set(failed))
            for rank in (waiting[descriptor] for descriptor in ready):
                kind, tensors, metadata = self._ranks[rank].receive()           # HungUp: the rank has ended
                if kind == "failed":
                    failed[rank] = metadata["message"]
                    refused |= {rank} if metadata["how"] == REFUSED else set()
                else:
                    found[rank] = tensors
        return [found[rank] for rank in range(self.world)]

    def _broken(self, function: str, failed: dict[int, str], *, refused: bool = False) -> RuntimeError:
        """The error that says which ranks ended, or else which failed, which may be that they refused; all ranks are ended by this."""
        time.sleep(0.1 if failed else GRACE / 2)                                # a process that is ending needs a moment
        ended = {rank: process.how_it_ended() for rank, process in enumerate(self._ranks) if process.has_ended}
        told = ended or failed or {rank: "hung up" for rank in range(len(self._ranks))}
        self.close()
        name = function.rpartition(":")[2]
        error = NotImplementedError if refused and not ended else RankError
        return error("; ".join(f"rank {rank} of {self.world} in {name}: {what}" for rank, what in sorted(told.items())))


@lru_cache
def ranks(world: int) -> GlooRanks:
    """The ranks that the peers of this process share, ended with it."""
    shared = GlooRanks(world)
    atexit.register(shared.close)
    return shared


def _serve(theirs: int, ours: int, rank: int, world: int, place: str, seconds: float) -> None:
    """One rank: answer calls until the other end hangs up. The group is formed at the first, when all ranks have PyTorch in memory."""
    from datetime import timedelta

    import torch
    import torch.distributed

    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")                       # no rank is met from another machine
    wire.send(ours, "ready", {}, {})
    while True:
        try:
            _, arrays, metadata = wire.receive(theirs)
        except wire.HungUp:
            return
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world,
                                                 timeout=timedelta(seconds=seconds))  # fmt: skip
        module, _, name = metadata["function"].partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
            given = {key: to_framework(array, "torch") for key, array in arrays.items()}
            returned = {key: to_numpy(tensor) for key, tensor in function(given, json.loads(metadata["options"])).items()}
            wire.send(ours, "done", returned, {})
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            message = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            wire.send(ours, "failed", {}, {"message": message, "how": REFUSED if isinstance(error, NotImplementedError) else RAISED})


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], float(sys.argv[6]))
