"""A short flash attention in NumPy, correct, with causal masks, scale and grouped heads: what the tests of the checker plant faults in."""

from __future__ import annotations

from typing import Any

import numpy as np


def attention(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    (B, Hq, Lq, D), (_, Hkv, Lk, Dv), tile = q.shape, v.shape, 64
    k, v = np.repeat(k, Hq // Hkv, axis=1), np.repeat(v, Hq // Hkv, axis=1)
    q = q * q.dtype.type(D**-0.5 if scale is None else scale)
    m, l, acc = np.full((B, Hq, Lq, 1), -np.inf, q.dtype), np.zeros((B, Hq, Lq, 1), q.dtype), np.zeros((B, Hq, Lq, Dv), q.dtype)
    for j in range(0, Lk, tile):
        s = q @ k[:, :, j : j + tile].swapaxes(-1, -2)                          # (B, Hq, Lq, tile)
        if causal:
            s = np.where(np.arange(Lq)[:, None] + Lk - Lq >= np.arange(j, min(j + tile, Lk)), s, -np.inf)
        m_new = np.maximum(m, s.max(-1, keepdims=True))
        shift = np.where(np.isneginf(m_new), 0, m_new)
        p, a = np.exp(s - shift), np.exp(m - shift)
        l, acc, m = l * a + p.sum(-1, keepdims=True), acc * a + p @ v[:, :, j : j + tile], m_new
    l = np.where(l == 0, 1, l)
    return acc / l, np.where(np.isneginf(m), -np.inf, m + np.log(l))[..., 0]
