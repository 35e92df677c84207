"""Textbook of pages: plain attention through block tables, made of steps of which a specimen exchanges one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import textbook
from .textbook import Array

Attend = Callable[..., tuple[Array, Array]]


def in_pages(pages: Array, table: Array, n: int) -> Array:
    """The first n tokens of a table, (n, Hkv, D): page after page, the last one as far as it is filled."""
    S = pages.shape[1]
    blocks = [pages[table[i]][: min(S, n - i * S)] for i in range(-(-n // S))]
    return np.concatenate([pages[:0].reshape(0, *pages.shape[2:]), *blocks])


def batch(x: Array) -> Array:
    """(T, H, D) as a batch of one, (1, H, T, D)."""
    return np.asarray(x.swapaxes(0, 1)[None])


def paged_attention(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, query_lengths: Any = None,
                    gather: Callable[[Array, Array, int], Array] = in_pages, attend: Attend = textbook.attention,
                    **options: Any) -> tuple[Array, Array]:
    """out (B, Hq, Lq, Dv), lse (B, Hq, Lq): each sequence by itself, over a copy of its tokens; options as in the contract."""
    B, Hq, Lq, _ = q.shape
    out = np.zeros((B, Hq, Lq, v_pages.shape[3]), q.dtype)
    lse = np.full((B, Hq, Lq), -np.inf, textbook.working(q))
    for b in range(B):
        rows = slice(0, Lq if query_lengths is None else int(query_lengths[b]))
        k, v = (batch(gather(pages, block_tables[b], int(kv_lengths[b]))) for pages in (k_pages, v_pages))
        out[b, :, rows], lse[b, :, rows] = (x[0] for x in attend(q[b : b + 1, :, rows], k, v, **options))
    return out, lse
