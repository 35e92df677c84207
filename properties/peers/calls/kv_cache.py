"""Tokens written into slots by what PyTorch and JAX have for it, each on its own arrays.

Nothing but the libraries is imported, inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from typing import Any


def torch_index_put(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> None:
    """cache[slots] = tokens in place, without the skipped ones; PyTorch leaves open which of equal indices wins."""
    there = slots >= 0
    if slots[there].unique().numel() < int(there.sum()):
        raise NotImplementedError("a slot given twice")
    k_cache[slots[there].long()] = k[there]
    v_cache[slots[there].long()] = v[there]


def jax_scatter(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any:
    """cache.at[slots].set(tokens, mode="drop"), the skipped ones sent past the end since a negative index counts from there."""
    import jax.numpy as jnp

    S = k_cache.shape[0]
    past = jnp.where(slots < 0, S, slots)
    return k_cache.at[past].set(k, mode="drop"), v_cache.at[past].set(v, mode="drop")
