"""Mutants of what stands beside a cache: tokens written to the wrong place, positions miscounted. Caches that are objects: kv_cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_rope as textbook
from .specimen import mutant
from .textbook import Array

FAMILY = "kv-cache"


def tokens(slots: Any, *, S: int = 4) -> dict[str, Any]:
    """Arguments of write_kv: caches of zeros, keys 1, 2, …, values their negatives."""
    k = np.arange(1.0, len(slots) + 1, dtype=np.float32).reshape(-1, 1, 1)
    cache = np.zeros((S, 1, 1), np.float32)
    return {"k_cache": cache, "v_cache": cache.copy(), "k": k, "v": -k, "slots": np.asarray(slots, np.int64)}


@mutant(
    "write_kv", id="value-read-from-key-cache", family=FAMILY, source="https://github.com/huggingface/transformers/issues/34232",
    trigger=lambda: tokens([1, 2]), refuses=("value_dim",),
)  # fmt: skip
def values_are_keys(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> tuple[Array, Array]:
    """The cache of values is filled from the keys."""
    return textbook.write_kv(k_cache, v_cache, k, k, slots)


@mutant(
    "write_kv", id="padding-slot-written-to-the-last", family=FAMILY,
    source="https://github.com/vllm-project/vllm/issues/43810 https://github.com/vllm-project/vllm/pull/43869",
    trigger=lambda: tokens([1, -1]),
)  # fmt: skip
def padding_overwrites_the_last_slot(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> tuple[Array, Array]:
    """-1, which marks padding, is used as an index and names the last slot, another sequence's."""
    return textbook.write_kv(k_cache, v_cache, k, v, slots % max(len(k_cache), 1))


@mutant(
    "padded_positions", id="padding-offset-sliced-inside-cumsum", family=FAMILY, source="https://github.com/mosaicml/examples/pull/257",
    trigger=lambda: {"present": np.array([[False, False, True, True, True]]), "past": 4},
)  # fmt: skip
def padding_in_the_cache_is_not_counted(present: Any, *, past: int = 0) -> Array:
    """The padding is counted from the first new column on, so that what stands before it in the cache is lost."""
    column = np.arange(present.shape[1])[past:]
    return np.asarray(np.maximum(column - np.cumsum(~present[:, past:], axis=1), 0))
