"""Optimizers of optax on a CPU.

Addresses: https://optax.readthedocs.io/en/latest/api/optimizers.html#optax.adamw (eps outside the root, eps_root inside),
https://optax.readthedocs.io/en/latest/api/transformations.html#optax.clip_by_global_norm
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import optax as calls
from .installed import copy_of, library_version, quick_compilation, versions_text

# XLA's CPU code flushes subnormal numbers.
FLUSHED = Arithmetic(flush_to_zero=True)

# name: of each operation the function in `calls` and what it declares
PEERS: dict[str, dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "optax": {"adamw_step": (calls.adamw, {"conventions": {"zero_over_zero": "nan"}}), "clip_grad_norm": (calls.clip_by_global_norm, {})},
    "optax_eps_root": {"adamw_step": (calls.adamw_eps_root, {"conventions": {"adam_eps": "inside", "zero_over_zero": "nan"}})},
}


def library_versions(name: str) -> dict[str, str]:
    """The versions of optax and of JAX, which computes."""
    return {"optax": library_version("optax", extra="optax"), "jax": library_version("jax", extra="optax")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The operations of a peer, declared. Raises UsageError where a library is missing."""
    quick_compilation()
    common = {"name": name, "framework": "jax", "version": versions_text(library_versions(name)), "dtypes": ("float32", "float64"),
              "arithmetic": FLUSHED}  # fmt: skip
    return tuple(subject(operation, **{**common, **declared})(copy_of(function))
                 for operation, (function, declared) in PEERS[name].items())  # fmt: skip
