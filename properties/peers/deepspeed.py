"""DeepSpeed's ZeRO 0 to 3 on two gloo ranks, its gradients averaged and clipped by itself, with PyTorch's AdamW.

Address: https://deepspeed.readthedocs.io/en/latest/zero3.html, https://www.deepspeed.ai/docs/config-json/
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .calls import deepspeed_zero as calls
from .gloo_ranks import SECONDS, GlooRanks
from .installed import library_version

OBJECT = "zero"
WORLD = 2
STARTING = 120.0                                                                # DeepSpeed is imported twice, on whatever machine

_Arrays = Mapping[str, Any]


class Engines:
    """Two ranks that have DeepSpeed in memory, started when first asked, and anew after one was lost: see `GlooRanks.call`."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._ranks: GlooRanks | None = None

    def ask(self, function: str, arrays: Sequence[_Arrays], options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What a function of `calls` returns on each rank. Raises RankError naming rank and function within the seconds."""
        if self._ranks is None:
            self._ranks = GlooRanks(WORLD, seconds=STARTING)
            self._ranks.call(f"{calls.__name__}:ready", [{}] * WORLD, {})
            self._ranks.seconds = self._seconds
        try:
            return self._ranks.call(f"{calls.__name__}:{function}", arrays, options)
        except RuntimeError:
            self._ranks = None                                                  # it has ended both
            raise

    def close(self) -> None:
        """End both ranks."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None


@lru_cache
def engines() -> Engines:
    """The ranks that the objects of this process share: the object attached last has them."""
    shared = Engines()
    atexit.register(shared.close)
    return shared


class Sharded:
    """DeepSpeed's engine of a stage on two ranks. It has to know beforehand how many micro-batches a step has: `step` hands over all."""

    def __init__(self, stage: int, world: int, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
                 max_norm: float | None = None, **configured: Any) -> None:
        if stage not in (0, 1, 2, 3) or world < 1:
            raise ValueError(f"stage, world: got {stage}, {world}; want 0..3, and at least one rank")
        self._world = world
        self._options = {"stage": stage, "lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay,
                         "max_norm": max_norm, **configured}  # fmt: skip
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._waiting: list[Sequence[Sequence[Any]]] = []

    def attach(self, params: _Arrays) -> None:
        if self._world != WORLD:
            raise NotImplementedError(f"{self._world} ranks; two processes are started")
        if self._options["stage"] == 3 and any(not x.size for x in params.values()):
            raise NotImplementedError("an empty parameter: fetch_sub_module asserts that it is available, which it never becomes")
        own = {str(k): x for k, x in enumerate(params.values())}
        engines().ask("attach", [own] * WORLD, self._options)
        self._shapes = {name: x.shape for name, x in params.items()}
        self._waiting = []

    def accumulate(self, grads: Sequence[Sequence[Any]]) -> None:
        self._check(grads)
        self._waiting.append(grads)

    def step(self, grads: Sequence[Sequence[Any]]) -> float:
        self.accumulate(grads)
        batches, self._waiting = self._waiting, []
        of_each = [{f"{a}.{k}": g for a, batch in enumerate(batches) for k, g in enumerate(batch[r])} for r in range(WORLD)]
        return float(engines().ask("step", of_each, {"micro_batches": len(batches)})[0]["norm"])

    def params(self) -> dict[str, Any]:
        if not self._shapes:
            raise ValueError("params: nothing is attached")
        first, second = engines().ask("params", [{}] * WORLD, {})
        if any(not np.array_equal(first[k], second[k]) for k in first):
            raise RuntimeError("the ranks hold different parameters")
        return {name: first[str(k)] for k, name in enumerate(self._shapes)}

    def bytes_of_ranks(self) -> list[dict[str, int]]:
        """What each rank holds, by role, and gradients as they were just before the last step. No law's `held`: there are masters too."""
        return [{role: int(n) for role, n in own.items()} for own in engines().ask("held", [{}] * WORLD, {})]

    def _check(self, grads: Sequence[Sequence[Any]]) -> None:
        """What no rank would notice: shapes that broadcast, ranks that are not there."""
        wanted = list(self._shapes.values())
        if not wanted or [[g.shape for g in own] for own in grads] != [wanted] * WORLD:
            raise ValueError(f"grads: want arrays of shapes {wanted} for each of {WORLD} ranks")


class Zero(Sharded):
    """What the laws are put to: without the limit of the norm, which DeepSpeed divides by the norm + 1e-6."""

    def __init__(self, stage: int, world: int, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
        super().__init__(stage, world, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)


def library_versions(name: str) -> dict[str, str]:
    """The versions of DeepSpeed and PyTorch."""
    return {library: library_version(library, extra="deepspeed") for library in ("deepspeed", "torch")}


def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """No operation but that of its objects."""
    return ()


def objects(name: str) -> dict[str, Callable[..., Any]]:
    """The factory of sharded optimizers. Raises UsageError where the library is missing."""
    library_versions(name)
    return {OBJECT: Zero}
