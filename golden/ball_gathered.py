"""Attention over keys that are first gathered, in ball arithmetic: packed sequences, pages, latents."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .ball_attention import attention, attention_backward, softmax_rows, visible
from .balls import exact, product
from .certified import Balls


def attention_packed(q: ArrayLike, k: ArrayLike, v: ArrayLike, cu_q: ArrayLike, cu_k: ArrayLike, **options: Any) -> dict[str, Balls]:
    """out (Tq, Hq, Dv) and lse (Hq, Tq): each sequence by itself."""
    q, k, v = (np.asarray(x) for x in (q, k, v))
    (Tq, Hq, _), Dv = q.shape, v.shape[-1]
    out, lse = exact(np.zeros((Tq, Hq, Dv))), exact(np.zeros((Hq, Tq)))
    for rows, keys in _sequences(cu_q, cu_k):
        one = attention(_alone(q[rows]), _alone(k[keys]), _alone(v[keys]), **options)
        out[rows], lse[:, rows] = one["out"][0].swapaxes(0, 1), one["lse"][0]
    return {"out": out, "lse": lse}


def attention_packed_backward(q: ArrayLike, k: ArrayLike, v: ArrayLike, out: ArrayLike, lse: ArrayLike, dout: ArrayLike, cu_q: ArrayLike,
                              cu_k: ArrayLike, **options: Any) -> dict[str, Balls]:
    """dq, dk, dv; out and lse, which are rounded, are not looked at."""
    q, k, v, dout = (np.asarray(x) for x in (q, k, v, dout))
    results = {name: exact(np.zeros(x.shape)) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    for rows, keys in _sequences(cu_q, cu_k):
        one = attention_backward(_alone(q[rows]), _alone(k[keys]), _alone(v[keys]), out, lse, _alone(dout[rows]), **options)
        for name, part in (("dq", rows), ("dk", keys), ("dv", keys)):
            results[name][part] = one[name][0].swapaxes(0, 1)
    return results


def paged_attention(q: ArrayLike, k_pages: ArrayLike, v_pages: ArrayLike, block_tables: ArrayLike, kv_lengths: ArrayLike, *,
                    query_lengths: ArrayLike | None = None, **options: Any) -> dict[str, Balls]:
    """out (B, Hq, Lq, Dv) and lse (B, Hq, Lq): token t of b lies in page block_tables[b, t // S], slot t % S; padding is 0 and -inf."""
    q, k_pages, v_pages, tables = (np.asarray(x) for x in (q, k_pages, v_pages, block_tables))
    (B, Hq, Lq, _), S = q.shape, k_pages.shape[1]
    lengths = [int(n) for n in np.asarray(kv_lengths)]
    rows = [Lq] * B if query_lengths is None else [int(n) for n in np.asarray(query_lengths)]
    out, lse = exact(np.zeros((B, Hq, Lq, v_pages.shape[-1]))), np.full((B, Hq, Lq), -np.inf, dtype=object)
    for b, (n_k, n_q) in enumerate(zip(lengths, rows)):
        k, v = (np.zeros((n_k, *pages.shape[2:]), pages.dtype) for pages in (k_pages, v_pages))
        for t in range(n_k):
            k[t], v[t] = k_pages[tables[b, t // S], t % S], v_pages[tables[b, t // S], t % S]
        one = attention(q[b : b + 1, :, :n_q], _alone(k), _alone(v), **options)
        out[b, :, :n_q], lse[b, :, :n_q] = one["out"][0], one["lse"][0]
    return {"out": out, "lse": lse}


def mla_attention(q_nope: ArrayLike, q_rope: ArrayLike, latent: ArrayLike, k_rope: ArrayLike, w_uk: ArrayLike, w_uv: ArrayLike, *,
                  causal: str | None, scale: float, kv_lengths: ArrayLike | None = None,
                  mask: ArrayLike | None = None) -> dict[str, Balls]:
    """out (B, H, Lq, Dv) and lse (B, H, Lq): keys and values built from the latents without rounding."""
    (B, H, Lq, _), Lk, Dv = np.shape(q_nope), np.shape(latent)[1], np.shape(w_uv)[-1]
    seen = visible(B, H, Lq, Lk, causal=causal, window=None, mask=mask, kv_lengths=kv_lengths)
    out, lse = exact(np.zeros((B, H, Lq, Dv))), exact(np.zeros((B, H, Lq)))
    for b in range(B):
        c, r = exact(np.asarray(latent)[b]), exact(np.asarray(k_rope)[b])       # (Lk, C), (Lk, Dr)
        for h in range(H):
            q = np.concatenate([exact(np.asarray(x)[b, h]) for x in (q_nope, q_rope)], axis=-1)
            k = np.concatenate([product(c, exact(np.asarray(w_uk)[h])), r], axis=-1)
            head = softmax_rows(q, k, seen[b, h], exact(np.zeros((Lq, Lk))), {"scale": scale}, h)
            out[b, h] = product(head.p, product(c, exact(np.asarray(w_uv)[h])))
            lse[b, h] = head.lse[:, 0]
    return {"out": out, "lse": lse}


def _sequences(cu_q: ArrayLike, cu_k: ArrayLike) -> list[tuple[slice, slice]]:
    ends = [[int(n) for n in np.asarray(cu)] for cu in (cu_q, cu_k)]
    return [(slice(*rows), slice(*keys)) for rows, keys in zip(zip(ends[0], ends[0][1:]), zip(ends[1], ends[1][1:]))]


def _alone(x: Any) -> Any:
    """(T, H, D) as a batch of one, (1, H, T, D)."""
    return x.swapaxes(0, 1)[None]
