"""Legal variants of attention through block tables: how tokens get from pages to products, and in which order."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook, textbook_pages
from . import variants_steps as steps
from .specimen import variant
from .textbook import Array
from .textbook_pages import batch
from .variants_steps import BINARY, Steps, merged, online

FAMILY = "paged-attention"
EVERY_ALIGNMENT = (None, "bottom_right", "top_left")
SPLIT = Arithmetic(merges_lse=True)
BY_PAGES = Arithmetic(tile_min=1)                                               # a page may be one token, a partial one too
SIXTEEN = ("bfloat16", "float16")


@variant("paged_attention", id="gathered-first", family=FAMILY, causal=EVERY_ALIGNMENT, promises=("deterministic",),
         conventions={"nonfinite_behind_mask": "ignored"})  # fmt: skip
def gathered_first(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, **options: Any,
                   ) -> tuple[Array, Array]:  # fmt: skip
    """The tokens of each sequence are copied out of their pages, the hidden ones zeroed, and attended to as ever."""

    def attend(q: Any, k: Any, v: Any, **options: Any) -> tuple[Array, Array]:
        with np.errstate(all="ignore"):
            call = textbook.prepared(q, k, v, **options)
            seen = textbook.visible(call)
            grouped = seen.reshape(*k.shape[:2], seen.shape[1] // k.shape[1] * seen.shape[2], k.shape[2])
            looked_at = np.any(grouped, axis=2)
            k, v = (np.where(looked_at[..., None], x, 0).astype(x.dtype) for x in (k, v))
            return textbook.attention(q, k, v, **options)

    return textbook_pages.paged_attention(q, k_pages, v_pages, block_tables, kv_lengths, attend=attend, causal=causal, **options)


def _tiled(tiles: Steps, *arguments: Any, **options: Any) -> tuple[Array, Array]:
    return textbook_pages.paged_attention(*arguments, attend=lambda q, k, v, **given: online(tiles, q, k, v, **given), **options)


@variant("paged_attention", id="tiles-over-gathered-pages", family=FAMILY, causal=EVERY_ALIGNMENT)
def tiles_of_32(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, **options: Any,
                ) -> tuple[Array, Array]:  # fmt: skip
    """Online softmax over tiles of 32 tokens, whatever the size of pages."""
    return _tiled(Steps(tile=32), q, k_pages, v_pages, block_tables, kv_lengths, causal=causal, **options)


@variant("paged_attention", id="page-after-page", family=FAMILY, arithmetic=BY_PAGES)
def page_after_page(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, **options: Any,
                    ) -> tuple[Array, Array]:  # fmt: skip
    """Online softmax with one rescaling a page, and declared: a page may hold one token."""
    return _tiled(Steps(tile=k_pages.shape[1]), q, k_pages, v_pages, block_tables, kv_lengths, causal=causal, **options)


@variant("paged_attention", id="last-page-first", family=FAMILY, arithmetic=BY_PAGES)
def last_page_first(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, **options: Any,
                    ) -> tuple[Array, Array]:  # fmt: skip
    """Pages from the last to the first, in powers of 2."""
    tiles = Steps(tile=k_pages.shape[1], order=steps.backwards, base=BINARY)
    return _tiled(tiles, q, k_pages, v_pages, block_tables, kv_lengths, causal=causal, **options)


@variant("paged_attention", id="token-after-token", family=FAMILY, arithmetic=BY_PAGES)
def token_after_token(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None,
                      ) -> tuple[Array, Array]:  # fmt: skip
    """Every token is a tile of its own."""
    return _tiled(Steps(tile=1), q, k_pages, v_pages, block_tables, kv_lengths, causal=causal, scale=scale)


@variant("paged_attention", id="split-over-pages", family=FAMILY, arithmetic=Arithmetic(merges_lse=True, tile_min=1))
def split_over_pages(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, **options: Any,
                     ) -> tuple[Array, Array]:  # fmt: skip
    """The pages of a sequence in three parts, merged through their log-sum-exp."""
    return _tiled(Steps(tile=k_pages.shape[1], parts=3), q, k_pages, v_pages, block_tables, kv_lengths, causal=causal, **options)


@variant("paged_attention", id="split-in-tiles-of-64", family=FAMILY, arithmetic=SPLIT)
def split_in_two(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, window: Any = None,
                 scale: Any = None,
                 ) -> tuple[Array, Array]:  # fmt: skip
    """Tiles of 64 tokens in two parts, powers of 2 inside each, as flash decoding does."""
    return _tiled(Steps(tile=64, parts=2, base=BINARY), q, k_pages, v_pages, block_tables, kv_lengths, causal=causal,
                  window=window, scale=scale)  # fmt: skip


@variant("paged_attention", id="weights-in-sixteen-bits", family=FAMILY, dtypes=SIXTEEN, arithmetic=Arithmetic(probabilities="input"))
def weights_of_sixteen_bits(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, **options: Any,
                            ) -> tuple[Array, Array]:  # fmt: skip
    """P is rounded to the format of the pages before it meets the values."""
    tiles = Steps(tile=64, stored=steps.in_format(q.dtype.name))
    return _tiled(tiles, q, k_pages, v_pages, block_tables, kv_lengths, causal=causal, **options)


@variant("paged_attention", id="all-sequences-at-once", family=FAMILY, conventions={"nonfinite_behind_mask": "spread"})
def all_at_once(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, window: Any = None,
                scale: Any = None,
                softcap: Any = None, sinks: Any = None) -> tuple[Array, Array]:
    """All that the tables have room for is copied, -1 read as page 0, and masked by length: 0 times what stands there is added."""
    S = k_pages.shape[1]
    t = np.arange(block_tables.shape[1] * S)
    at = np.maximum(block_tables[:, t // S], 0) * S + t % S                     # (B, max_blocks S)
    k, v = (pages.reshape(-1, *pages.shape[2:])[at].swapaxes(1, 2) for pages in (k_pages, v_pages))
    n_k = np.asarray(kv_lengths)[:, None, None, None]
    j, p = np.arange(len(t)), n_k - q.shape[2] + np.arange(q.shape[2])[:, None]  # (B, 1, Lq, 1)
    seen = (j < n_k) & ((j <= p) if causal is not None else True)
    left, right = window or (None, None)
    seen = seen & (True if left is None else p - j <= left) & (True if right is None else j - p <= right)
    seen = np.broadcast_to(seen, (len(q), 1, q.shape[2], len(t)))
    return textbook.attention(q, k, v, scale=scale, softcap=softcap, sinks=sinks, mask=seen)


def _rows(q: Array, k: Array, v: Array, scale: float, seen: Any) -> tuple[Array, Array]:
    """Attention of grouped rows: q (Hkv, G Lq, D), k and v (Hkv, n, ...), seen broadcast to the scores."""
    wide = textbook.working(q)
    s = np.where(seen, wide(scale) * (q.astype(wide) @ k.astype(wide).swapaxes(-1, -2)), -np.inf).astype(wide)
    p, lse = textbook.weights(s[None], np.isfinite(s)[None], None)
    return p[0] @ v.astype(wide), lse[0]


@variant("paged_attention", id="grouped-rows-over-pages", family=FAMILY, arithmetic=SPLIT)
def grouped_rows(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None,
                 ) -> tuple[Array, Array]:  # fmt: skip
    """The query heads of a group are rows of one product with their key head, in as many parts as there are pages of 16 tokens."""
    (B, Hq, Lq, D), Hkv = q.shape, k_pages.shape[2]
    out, lse = np.zeros((B, Hq, Lq, v_pages.shape[3]), q.dtype), np.full((B, Hq, Lq), -np.inf, textbook.working(q))
    for b, n in enumerate(int(n) for n in kv_lengths):
        k, v = (batch(textbook_pages.in_pages(pages, block_tables[b], n))[0] for pages in (k_pages, v_pages))       # (Hkv, n, D)
        rows = q[b].reshape(Hkv, Hq // Hkv * Lq, D)
        p = np.tile(np.arange(Lq) + n - Lq, Hq // Hkv)[:, None]
        parts = []
        with np.errstate(all="ignore"):
            for i in range(0, n, 16):
                j = np.arange(i, min(i + 16, n))
                parts.append(_rows(rows, k[:, j], v[:, j], D**-0.5 if scale is None else scale, (causal is None) | (j <= p)))
            if parts:
                o, l = merged(parts)
                out[b], lse[b] = o.reshape(out[b].shape).astype(q.dtype), l.reshape(Hq, Lq)
    return out, lse


@variant("paged_attention", id="padding-left-open", family=FAMILY, conventions={"padding_queries": "any"})
def padding_left_open(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, query_lengths: Any = None,
                      ) -> tuple[Array, Array]:  # fmt: skip
    """Rows of padding queries keep whatever stood in memory, and declared so."""
    out, lse = textbook_pages.paged_attention(q, k_pages, v_pages, block_tables, kv_lengths, query_lengths=query_lengths, causal=causal)
    if query_lengths is not None:
        padding = np.arange(q.shape[2]) >= np.asarray(query_lengths)[:, None]
        out, lse = (np.where(padding[:, None].reshape(len(q), 1, -1, *[1] * (x.ndim - 3)), np.nan, x).astype(x.dtype) for x in (out, lse))
    return out, lse


@variant("paged_attention", id="nan-for-no-keys", family=FAMILY, conventions={"empty_rows": "nan", "empty_lse": "any"})
def nan_for_no_keys(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None,
                    ) -> tuple[Array, Array]:  # fmt: skip
    """A query that sees no key is 0 / 0, and declared so."""
    out, lse = textbook_pages.paged_attention(q, k_pages, v_pages, block_tables, kv_lengths, causal=causal, scale=scale)
    blind = np.isneginf(lse)
    return np.where(blind[..., None], np.nan, out).astype(out.dtype), np.where(blind, np.nan, lse).astype(lse.dtype)


@variant("paged_attention", id="paged-layout-blhd", family=FAMILY, layout="blhd", refuses=("empty",))
def layout_blhd(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, window: Any = None,
                ) -> tuple[Array, Array]:  # fmt: skip
    """Queries and output in the order (B, L, H, D), and no empty sequences taken."""
    out, lse = _tiled(Steps(tile=16), q.swapaxes(1, 2), k_pages, v_pages, block_tables, kv_lengths, causal=causal, window=window)
    return out.swapaxes(1, 2), lse
