"""Pruning of PyTorch on a CPU.

Addresses: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.prune.l1_unstructured.html,
https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.prune.global_unstructured.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..declaration import subject
from .calls import pruning as calls
from .installed import copy_of, library_version, versions_text


def library_versions(name: str) -> dict[str, str]:
    """The version of PyTorch."""
    return {"torch": library_version("torch", extra="torch")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """prune_magnitude, declared. Raises UsageError where PyTorch is missing.

    It takes the nearest whole number of weights, by topk, which promises no order among equals.
    """
    conventions = {"pruned_count": "nearest", "pruned_ties": "any"}
    return (subject("prune_magnitude", name=name, version=versions_text(library_versions(name)), framework="torch",
                    dtypes=("float32", "float64"), conventions=conventions)(copy_of(calls.torch_prune)),)  # fmt: skip
