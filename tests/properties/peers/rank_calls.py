"""Functions that ranks run in `test_gloo_ranks`: one that is right, and ranks that end, raise and sleep while the others wait for them."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed


def summed(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """x over all ranks, times a factor."""
    x = tensors["x"].clone()
    torch.distributed.all_reduce(x)
    return {"x": x * options.get("factor", 1)}


def _after(tensors: dict[str, Any], what: Any) -> dict[str, Any]:
    if torch.distributed.get_rank() == 1:
        what()
    return summed(tensors, {})


def ends(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 is gone before the others' all_reduce."""
    return _after(tensors, lambda: os._exit(7))


def raises(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 raises before the others' all_reduce."""
    return _after(tensors, lambda: tensors["y"])


def sleeps(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 never comes to the others' all_reduce."""
    return _after(tensors, lambda: time.sleep(120.0))
