"""Attention through block tables as PyTorch and JAX have it: FlexAttention with its page table, and a Pallas kernel, interpreted.

Nothing but NumPy and the library called is imported, inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

PARTS = 2                                                                       # the Pallas kernel's k_splits
QUERIES = 64


def torch_flex(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, window: Any = None,
               scale: Any = None, softcap: Any = None) -> Any:
    """out, lse of flex_attention over all pages of the pool, hidden by what PagedAttention makes of the tables."""
    import torch
    from torch.nn.attention import flex_attention as module
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True                         # the same operations, not traced first: a second a call
    (B, Hq, Lq, _), (N, S, Hkv, _) = q.shape, k_pages.shape
    blocks = int(-(-kv_lengths.max() // S))
    paging = PagedAttention(N, S, B, device="cpu")
    paging.page_table[:, :blocks] = block_tables[:, :blocks]
    for b in range(B):
        own = block_tables[b][: -(-int(kv_lengths[b]) // S)]
        paging.physical_to_logical[b, own] = torch.arange(len(own))

    def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
        p = i if causal == "top_left" else i + kv_lengths[b] - Lq
        seen = j < kv_lengths[b]
        if causal is not None:
            seen = seen & (j <= p)
        left, right = window or (None, None)
        if left is not None:
            seen = seen & (p - j <= left)
        return seen if right is None else seen & (j - p <= right)

    logical = create_block_mask(visible, B, Hq, Lq, blocks * S, device="cpu", BLOCK_SIZE=(128, S))
    mask = paging.convert_logical_block_mask(logical, kv_len=kv_lengths)
    k, v = (pages.permute(2, 0, 1, 3).reshape(1, Hkv, N * S, -1).expand(B, -1, -1, -1) for pages in (k_pages, v_pages))
    cap = None if softcap is None else (lambda score, b, h, i, j: softcap * torch.tanh(score / softcap))
    out, extra = flex_attention(q, k, v, score_mod=cap, block_mask=mask, scale=scale, enable_gqa=Hq != Hkv, return_aux=AuxRequest(lse=True))
    return out, extra.lse


def jax_pallas(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None,
               softcap: Any = None) -> Any:
    """out of pallas.ops.gpu.paged_attention, each query as a sequence of its own, which sees the keys up to a length.

    The scale is the caller's, so q is multiplied by it. The tables are filled up to a multiple of the kernel's parts with page 0.
    """
    import jax
    import jax.numpy as jnp

    B, Hq, Lq, D = q.shape
    if B * Lq > QUERIES:
        raise NotImplementedError(f"{QUERIES} queries at most")
    tables, lengths = np.maximum(np.asarray(block_tables), 0), np.asarray(kv_lengths)
    tables = np.pad(tables, ((0, 0), (0, -tables.shape[1] % PARTS)))
    ends = np.broadcast_to(lengths[:, None], (B, Lq))
    if causal is not None:
        ends = np.minimum(lengths[:, None] - Lq + 1 + np.arange(Lq), ends)
    scaled = q * np.asarray(D**-0.5 if scale is None else scale).astype(q.dtype)
    rows = scaled.swapaxes(1, 2).reshape(B * Lq, Hq, D)
    with jax.enable_x64(False):                                                 # the kernel mixes Python integers with int32
        out = _pallas(softcap)(rows, *(jnp.transpose(pages, (2, 0, 1, 3)) for pages in (k_pages, v_pages)),
                               np.repeat(tables, Lq, axis=0).astype(np.int32), np.maximum(ends, 0).ravel().astype(np.int32))
    return out.reshape(B, Lq, Hq, D).swapaxes(1, 2)


@lru_cache(maxsize=64)
def _pallas(softcap: Any) -> Any:
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

    def run(q: Any, k: Any, v: Any, tables: Any, lengths: Any) -> Any:
        return paged_attention(q, k, v, tables, lengths, pages_per_compute_block=1, k_splits=PARTS, interpret=True,
                               attn_logits_soft_cap=softcap)

    return run
