"""Our own second forms of attention through block tables and over latents: split over the pool's pages, and products in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracles import reference
from oracles.properties import Arithmetic, subject

FORMATS = ("float32", "float64", "float16", "bfloat16")
ALIGNMENTS = (None, "bottom_right", "top_left")
FLOAT64 = Arithmetic(out="float64", accumulate="float64", elementwise="float64", lse="float64")


@subject("paged_attention", dtypes=FORMATS, causal=ALIGNMENTS, arithmetic=replace(FLOAT64, merges_lse=True, tile_min=1),
         conventions={"nonfinite_behind_mask": "ignored"}, promises=["deterministic", "validates_input"])
def paged_attention_page_by_page(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any,
                                 **options: Any) -> Any:
    """Each page is attended to by itself, no key copied elsewhere, and the partial results of a sequence are merged at once."""
    n_q = np.asarray(options.pop("query_lengths", np.full(len(q), q.shape[2])))
    if n_q.max(initial=0) > q.shape[2]:
        raise ValueError(f"query_lengths: got {n_q.max()} for {q.shape[2]} queries; want as many at most")
    reference.paged_attention(q[:, :, :0], k_pages, v_pages, block_tables, kv_lengths, causal=causal, **options)      # refuses bad input
    (B, Hq, Lq, _), S = q.shape, k_pages.shape[1]
    out, lse = np.zeros((B, Hq, Lq, v_pages.shape[3])), np.full((B, Hq, Lq), -np.inf)
    for b, n_k in enumerate(int(n) for n in kv_lengths):
        rows = slice(0, int(n_q[b]))
        parts = []
        for i in range(0, n_k, S):
            page, n = int(block_tables[b, i // S]), min(S, n_k - i)
            parts.append(_one_page(q[b, :, rows], k_pages[page, :n], v_pages[page, :n], first=i, n_k=n_k, causal=causal, **options))
        if options.get("sinks") is not None:
            sink = np.broadcast_to(np.asarray(options["sinks"], np.float64)[:, None], (Hq, rows.stop))
            parts.append((np.zeros((Hq, rows.stop, v_pages.shape[3])), sink))
        if parts:
            out[b, :, rows], lse[b, :, rows] = _merged(np.stack([o for o, _ in parts]), np.stack([l for _, l in parts]))
    return out, lse


def _merged(out: Any, lse: Any) -> tuple[Any, Any]:
    """Partial results out (n, ..., Dv), lse (n, ...) over disjoint keys as one."""
    m = lse.max(axis=0)
    m = np.where(np.isneginf(m), 0.0, m)
    w = np.exp(lse - m)
    l = w.sum(axis=0)
    with np.errstate(divide="ignore"):
        return ((w / np.where(l == 0.0, 1.0, l))[..., None] * out).sum(axis=0), m + np.log(l)


def _one_page(q: Any, k: Any, v: Any, *, first: int, n_k: int, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None,
              sinks: Any = None) -> tuple[Any, Any]:
    """Attention of one sequence's queries (Hq, n_q, D) over one page (n, Hkv, D), whose first token stands at `first` of n_k."""
    (Hq, n_q, D), Hkv = q.shape, k.shape[1]
    p = np.arange(n_q)[:, None] + (0 if causal == "top_left" else n_k - n_q)
    ahead = first + np.arange(len(k)) - p                                       # (n_q, n): how far a key lies ahead of its query
    left, right = window or (None, None)
    seen = (ahead <= 0) | (causal is None)
    seen &= (left is None) | (-ahead <= (left or 0))
    seen &= (right is None) | (ahead <= (right or 0))
    keys, values = (np.where(seen.any(axis=0)[:, None, None], x.astype(np.float64), 0.0) for x in (k, v))
    s = np.einsum("hgqd,nhd->hgqn", q.astype(np.float64).reshape(Hkv, Hq // Hkv, n_q, D), keys) * (D**-0.5 if scale is None else scale)
    s = s if softcap is None else softcap * np.tanh(s / softcap)
    s = np.where(seen, s, -np.inf)
    out = np.einsum("hgqn,nhd->hgqd", reference.softmax(s), values)
    return out.reshape(Hq, n_q, v.shape[-1]), reference.log_sum_exp(s).reshape(Hq, n_q)


@subject("mla_attention", dtypes=FORMATS, causal=ALIGNMENTS, arithmetic=replace(FLOAT64, absorbed=True),
         conventions={"nonfinite_behind_mask": "ignored"}, promises=["deterministic", "validates_input"])
def mla_attention_over_latents(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: float,
                               **options: Any) -> Any:
    """The absorbed form, its scores as the sum of two products, and the tiled attention over one key head."""
    reference.mla_attention(q_nope[:, :, :0], q_rope[:, :, :0], latent, k_rope, w_uk, w_uv, causal=causal, scale=scale)
    if q_rope.shape[2] != q_nope.shape[2]:
        raise ValueError(f"q_rope: got {q_rope.shape[2]} queries beside {q_nope.shape[2]} of q_nope; want as many")
    q = np.einsum("bhqn,hcn->bhqc", q_nope.astype(np.float64), w_uk.astype(np.float64))       # (B, H, Lq, C)
    k, v = np.concatenate([latent, k_rope], axis=-1).astype(np.float64)[:, None], latent.astype(np.float64)[:, None]
    out, lse = reference.flash_attention(np.concatenate([q, q_rope.astype(np.float64)], axis=-1), k, v, causal=causal, scale=scale,
                                         block_q=16, block_k=32, **options)
    return np.einsum("bhqc,hcv->bhqv", out.astype(np.float64), w_uv.astype(np.float64)), lse
