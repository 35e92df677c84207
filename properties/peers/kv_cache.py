"""Writes into a cache by the indexed assignments of PyTorch and JAX, on a CPU.

Addresses: https://docs.pytorch.org/docs/stable/generated/torch.Tensor.index_put_.html,
https://docs.jax.dev/en/latest/_autosummary/jax.numpy.ndarray.at.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..declaration import subject
from .calls import kv_cache as calls
from .installed import copy_of, library_version, quick_compilation, versions_text

FORMATS = ("float32", "float64", "float16", "bfloat16")
TORCH: dict[str, Any] = {"dtypes": FORMATS, "framework": "torch", "in_place": ("k_cache", "v_cache")}

# name: (library and extra, the function in `calls`, what it declares). Both pages leave open which of equal indices wins: with several
# threads PyTorch's CPU code takes others than the last, as measured, so such slots are not put to it; XLA's takes the last. bfloat16 of
# JAX stands apart: XLA's CPU code takes it through float32, which changes the bits of a NaN, also in slots that no token names.
PEERS: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]] = {
    "torch_index_put": ("torch", calls.torch_index_put, TORCH),
    "jax_scatter": ("jax", calls.jax_scatter, {"dtypes": ("float32", "float64", "float16"), "framework": "jax"}),
    "jax_scatter_bfloat16": ("jax", calls.jax_scatter, {"dtypes": ("bfloat16",), "framework": "jax"}),
}


def library_versions(name: str) -> dict[str, str]:
    """The version of the library."""
    library = PEERS[name][0]
    return {library: library_version(library, extra=library)}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The assignment, declared. Raises UsageError where the library is missing."""
    quick_compilation()
    version = versions_text(library_versions(name))
    _, function, declared = PEERS[name]
    return (subject("write_kv", name=name, version=version, **declared)(copy_of(function)),)
