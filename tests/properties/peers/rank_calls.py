"""Functions that ranks run in tests: one that is right, and ranks that end, raise, refuse and sleep while the others wait for them."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed

from oracles.properties.peers.calls import gloo_tasks


def summed(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """x over all ranks, times a factor."""
    x = tensors["x"].clone()
    torch.distributed.all_reduce(x)
    return {"x": x * options.get("factor", 1)}


def _after(tensors: dict[str, Any], what: Any, rank: int = 1) -> dict[str, Any]:
    if torch.distributed.get_rank() == rank:
        what()
    return summed(tensors, {})


def ends(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Rank `doomed` is gone before the others' all_reduce."""
    return _after(tensors, lambda: os._exit(7), options.get("doomed", 1))


def raises(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 raises before the others' all_reduce."""
    return _after(tensors, lambda: tensors["y"])


def sleeps(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 never comes to the others' all_reduce."""
    return _after(tensors, lambda: time.sleep(120.0))


def stalls(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 sleeps, and nobody waits for it."""
    if torch.distributed.get_rank() == 1:
        time.sleep(120.0)
    return {}


def _refuse() -> None:
    raise NotImplementedError("no kernel for it")


def refuses(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 says that this is not covered, before the others' all_reduce."""
    return _after(tensors, _refuse)


def all_refuse(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Every rank says so."""
    _refuse()
    return {}


def refuses_beside_one_that_raises(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 says so, the others raise."""
    if torch.distributed.get_rank() == 1:
        _refuse()
    return {"x": tensors["y"]}


def refuses_beside_one_that_ends(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 says so, the others are gone a little later."""
    if torch.distributed.get_rank() == 1:
        _refuse()
    time.sleep(0.3)
    os._exit(7)


def engines(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the sharded optimizers that this rank holds."""
    return {"numbers": torch.tensor(sorted(gloo_tasks._ENGINES))}
