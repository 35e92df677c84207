"""Mutants of attention through block tables: whose page is read, how far the last one is filled, and where a query stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from . import textbook, textbook_pages, triggers_pages
from .specimen import mutant
from .textbook import Array
from .textbook_pages import in_pages

# Faults of block tables and caches as attention meets them; as calls of an allocator or a cache they stand in families of their own.
FAMILY = "paged-attention"


@mutant(
    "paged_attention", id="beams-read-blocks-of-their-own", family=FAMILY, source="https://github.com/NVIDIA/TensorRT-LLM/pull/15444",
    trigger=lambda: triggers_pages.paged([4, 4], [[3, 1], [3, 1]]),
)  # fmt: skip
def own_blocks_for_every_beam(
    q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None
) -> tuple[Array, Array]:
    """A beam that shares its pages with the first reads pages of its own, the next ones in the pool, which nobody has written for it."""
    tables, N = np.array(block_tables), len(k_pages)
    for b in range(1, len(tables)):
        if tables.shape[1] and tables[b, 0] == tables[0, 0] >= 0:
            tables[b] = np.where(tables[b] >= 0, (tables[b] + 1) % N, -1)
    return textbook_pages.paged_attention(q, k_pages, v_pages, tables, kv_lengths, causal=causal, scale=scale)


@mutant(
    "paged_attention", id="full-last-block-not-attended", family=FAMILY, source="https://github.com/Wenyueh/MinivLLM/pull/87",
    trigger=lambda: triggers_pages.paged([8], [[2, 5]], S=4),
)  # fmt: skip
def full_last_block_is_empty(
    q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None
) -> tuple[Array, Array]:
    """The last block is filled as far as n % S says, which is 0 where it is full: its tokens are not seen."""
    S, n = k_pages.shape[1], np.asarray(kv_lengths)
    hidden = np.where((n > 0) & (n % S == 0), S, 0)

    def without_the_last(pages: Array, table: Array, n: int) -> Array:
        return in_pages(pages, table, n - S if n and n % S == 0 else n)

    def attend(q: Any, k: Any, v: Any, **options: Any) -> tuple[Array, Array]:
        cut = int(lost.pop(0))                                                  # positions still count them
        k, v = (np.concatenate([x, np.zeros((*x.shape[:2], cut, x.shape[3]), x.dtype)], axis=2) for x in (k, v))
        return textbook.attention(q, k, v, visible=lambda call: textbook.visible(call) & (np.arange(call.Lk) < call.Lk - cut), **options)

    lost = list(hidden)
    return textbook_pages.paged_attention(q, k_pages, v_pages, block_tables, kv_lengths, gather=without_the_last, attend=attend,
                                          causal=causal, scale=scale)  # fmt: skip


@mutant(
    "paged_attention", id="length-taken-from-the-room-of-blocks", family=FAMILY,
    source="https://github.com/ROCm/hip-ep/pull/753 https://github.com/microsoft/onnxruntime/pull/24485",
    trigger=lambda: triggers_pages.paged([6], [[1]], S=16),
)  # fmt: skip
def capacity_for_length(
    q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None
) -> tuple[Array, Array]:
    """The number of tokens is taken from what the sequence's blocks have room for."""
    S = k_pages.shape[1]
    room = -(-np.asarray(kv_lengths) // S) * S
    return textbook_pages.paged_attention(q, k_pages, v_pages, block_tables, room, causal=causal, scale=scale)


@mutant(
    "paged_attention", id="values-read-from-key-pages", family=FAMILY, refuses=("value_dim",),
    source="https://github.com/huggingface/transformers/issues/34232", trigger=lambda: triggers_pages.paged([3, 4], [[3, 1], [0, 2]]),
)  # fmt: skip
def keys_for_values(
    q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None
) -> tuple[Array, Array]:
    """Splitting a batch copies the keys into the values of every sequence but the first."""
    sequences = (textbook_pages.paged_attention(q[b : b + 1], k_pages, v_pages if b == 0 else k_pages, block_tables[b : b + 1],
                                                kv_lengths[b : b + 1], causal=causal, scale=scale) for b in range(len(q)))
    empty = textbook_pages.paged_attention(q[:0], k_pages, v_pages, block_tables[:0], kv_lengths[:0], causal=causal)
    out, lse = (np.concatenate(parts) for parts in zip(empty, *sequences))
    return out, lse


@mutant(
    "paged_attention", id="past-length-uniform-over-tables", family=FAMILY,
    source="https://github.com/microsoft/onnxruntime/pull/27992",
    trigger=lambda: triggers_pages.paged([3, 8], [[3, -1, -1, -1], [0, 1, 2, 4]], causal="bottom_right", window=(2, None)),
)  # fmt: skip
def one_past_for_the_batch(
    q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None, window: Any = None
) -> tuple[Array, Array]:
    """All sequences take the longest one's past for their own, which moves windows and the causal limit."""
    longest = np.asarray(kv_lengths).max(initial=0)

    def attend(q: Any, k: Any, v: Any, **options: Any) -> tuple[Array, Array]:
        short = int(longest) - k.shape[2]
        k, v = (np.concatenate([x, np.zeros((*x.shape[:2], short, x.shape[3]), x.dtype)], axis=2) for x in (k, v))
        return textbook.attention(q, k, v, visible=lambda call: textbook.visible(call) & (np.arange(call.Lk) < call.Lk - short), **options)

    return textbook_pages.paged_attention(q, k_pages, v_pages, block_tables, kv_lengths, attend=attend, causal=causal, scale=scale,
                                          window=window)  # fmt: skip


@mutant(
    "paged_attention", id="padding-queries-counted-as-new", family=FAMILY,
    source="https://github.com/mosaicml/examples/pull/257",
    trigger=lambda: triggers_pages.paged([6], [[3, 1, 2]], Lq=3, query_lengths=np.array([2]), causal="bottom_right"),
)  # fmt: skip
def padding_moves_the_positions(
    q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None, query_lengths: Any = None
) -> tuple[Array, Array]:
    """The offset of padding is lost: a query stands at i + n_k - Lq, though only some of the Lq are its sequence's."""
    out, lse = textbook_pages.paged_attention(q, k_pages, v_pages, block_tables, kv_lengths, causal=causal, scale=scale)
    if query_lengths is None:
        return out, lse
    padding = np.arange(q.shape[2]) >= np.asarray(query_lengths)[:, None]       # (B, Lq)
    return np.where(padding[:, None, :, None], 0, out).astype(out.dtype), np.where(padding[:, None], -np.inf, lse).astype(lse.dtype)


@mutant(
    "paged_attention", id="partial-last-page-values-of-another", family=FAMILY,
    source="https://github.com/hw-native-sys/simpler/pull/72", trigger=lambda: triggers_pages.paged([5], [[2, 5]], S=4),
)  # fmt: skip
def whole_last_page_in_the_sum(
    q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None
) -> tuple[Array, Array]:
    """Slots of the last page behind the length are hidden from the scores by 0 instead of -inf, and so weigh e^0."""
    S = k_pages.shape[1]

    def whole(pages: Array, table: Array, n: int) -> Array:
        return in_pages(pages, table, -(-n // S) * S)

    def attend(q: Any, k: Any, v: Any, **options: Any) -> tuple[Array, Array]:
        n = int(lengths.pop(0))
        k = np.where(np.arange(k.shape[2])[:, None] < n, k, 0).astype(k.dtype)
        v = np.where(np.isnan(v), 0, v).astype(v.dtype)
        return textbook.attention(q, k, v, visible=lambda call: _or_behind(call, n), **options)

    lengths = list(kv_lengths)
    return textbook_pages.paged_attention(q, k_pages, v_pages, block_tables, kv_lengths, gather=whole, attend=attend, causal=causal,
                                          scale=scale)  # fmt: skip


def _or_behind(call: textbook.Call, n: int) -> Array:
    return textbook.visible(replace(call, n_k=np.array([n]))) | (np.arange(call.Lk) >= n)


@mutant(
    "paged_attention", id="pages-tiled-instead-of-repeated", family=FAMILY, source="https://github.com/onnx/onnx/pull/7274",
    trigger=lambda: triggers_pages.paged([4], [[3, 1]], Hkv=2, G=2),
)  # fmt: skip
def heads_of_pages_tiled(
    q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None
) -> tuple[Array, Array]:
    """The key/value heads of a page are laid out 0, 1, 0, 1 for the query heads instead of 0, 0, 1, 1."""

    def tiled(q: Any, k: Any, v: Any, **options: Any) -> tuple[Array, Array]:
        return textbook.attention(q, k, v, heads=lambda x, G: np.tile(x, (1, G, 1, 1)), **options)

    return textbook_pages.paged_attention(q, k_pages, v_pages, block_tables, kv_lengths, attend=tiled, causal=causal, scale=scale)
