"""Context and pipeline parallelism of PyTorch, on one or two ranks of gloo.

Addresses: https://docs.pytorch.org/docs/stable/distributed.pipelining.html,
https://github.com/pytorch/pytorch/blob/main/torch/distributed/tensor/experimental/_context_parallel/_attention.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import torch_ranks as calls
from .gloo_ranks import ranks
from .installed import copy_of, library_version, versions_text

# Merged in float32 by a sigmoid, whatever the inputs are (`_cp_options.convert_to_f32`), so float32 alone. A negative scale under a
# causal mask is NaN in its flash kernel (docs/findings.md, torch-negative-scale-under-causal).
_RING = {"dtypes": ("float32",), "refuses": ("empty", "value_dim", "negative_scale"), "arithmetic": Arithmetic(merges_lse=True)}
_PIPELINE = {"dtypes": ("float32", "float64"), "refuses": ("empty",), "only": {"kind": ["gpipe", "1f1b"]}}

# name: of each operation the function in `calls` and what it declares
PEERS: dict[str, dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "torch_ring": {
        "ring_attention": (calls.torch_ring_attention, _RING),
        "ring_attention_backward": (calls.torch_ring_attention_backward, _RING),
    },
    "torch_pipelining": {"pipeline_step": (calls.torch_pipeline_step, _PIPELINE)},
}


def library_versions(name: str) -> dict[str, str]:
    """The version of PyTorch, whichever of its functions."""
    return {"torch": library_version("torch", extra="torch")}


def _living(name: str, arrays: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """On ranks that live on between calls."""
    return ranks(len(arrays)).call(f"{calls.__name__}:{name}", arrays, options)


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The operations of a peer, declared. Raises UsageError where the library is missing."""
    version = versions_text(library_versions(name))
    calls.RANKS = _living
    return tuple(subject(operation, name=name, version=version, **declared)(copy_of(function))
                 for operation, (function, declared) in PEERS[name].items())  # fmt: skip
