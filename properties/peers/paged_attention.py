"""Attention through block tables of PyTorch's FlexAttention and of JAX's Pallas kernel for GPUs, on a CPU.

Addresses: https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html; the page table and the kernel are documented in their
source alone, torch/nn/attention/experimental/_paged_attention.py and jax/experimental/pallas/ops/gpu/paged_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import paged_attention as calls
from .installed import library_version, quick_compilation, versions_text

# name: (library, the function in `calls`, what it declares)
PEERS: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]] = {
    # As torch_flex: scores and softmax in float32 (float64), P rounded to the format of q. Every page of the pool is multiplied, with
    # weight 0 where it is not the sequence's, so NaN in it spreads.
    "torch_flex_paged": ("torch", calls.torch_flex, {
        "dtypes": ("float32", "float64", "float16", "bfloat16"), "causal": (None, "bottom_right", "top_left"), "refuses": ("empty",),
        "framework": "torch", "arithmetic": Arithmetic(probabilities="input"), "conventions": {"nonfinite_behind_mask": "spread"}}),
    # Read in the source of 0.10: one page is one step of the online softmax, two parts of the pages are merged by their maxima, P is
    # rounded to the format of v, and the row sum grows by the eps of float32. The scale is the caller's. Of bfloat16 even the partial
    # sums are kept in that format, which is why it is not declared. XLA's CPU code flushes subnormal numbers.
    "jax_pallas_paged": ("jax", calls.jax_pallas, {
        "dtypes": ("float32",), "causal": (None, "bottom_right"), "head_dims": (64,), "refuses": ("empty", "value_dim"),
        "framework": "jax", "arithmetic": Arithmetic(scaled_q=True, tile_min=1, flush_to_zero=True),
        "conventions": {"nonfinite_behind_mask": "spread"}}),
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The version of the library."""
    library = PEERS[name][0]
    return {library: library_version(library, extra=library)}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The peer's paged attention, declared. Raises UsageError where the library is missing."""
    quick_compilation()
    version = versions_text(library_versions(name))
    _, function, declared = PEERS[name]
    return (subject("paged_attention", name=name, version=version, **declared)(function),)
