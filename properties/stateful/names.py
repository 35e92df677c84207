"""Stateful names: of the operations that are objects, for those who must not load their models. `operations` has them all."""

from __future__ import annotations

STATEFUL_NAMES: tuple[str, ...] = ("block_allocator", "kv_cache", "token_mask", "loss_scaler", "master_weights", "zero")
