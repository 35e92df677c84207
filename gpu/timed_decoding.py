"""The calls of the cache and decoding families that device_timing times: one decoding step of a batch, and its sampling."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .kv_cache import write_kv
from .mla import mla_attention_absorbed
from .paged_attention import paged_attention
from .rope import rope
from .sampling import filter_probabilities, sample
from .speculative import speculative_verify
from .timed_call import Call

PAGE = 16                                                                       # tokens


def cache_calls(cupy: Any, torch: Any, *, small: bool) -> list[Call]:
    """Rotary embedding, a write into the cache, and one step of decoding over pages and over latents; work is bytes."""

    def arrays(*shape: int) -> Any:
        return cupy.random.standard_normal(shape, dtype=cupy.float32).astype("float16")

    B, Hq, Hkv, L, D = (2, 4, 2, 70, 64) if small else (32, 32, 8, 4096, 128)
    blocks, H, C, Dr, Dn = -(-L // PAGE), *((3, 40, 6, 8) if small else (128, 512, 64, 128))
    T = B * 4
    x, k, v = arrays(T, Hq, D), arrays(T, Hkv, D), arrays(T, Hkv, D)
    positions = cupy.arange(T)[:, None]
    k_pages, v_pages = (arrays(B * blocks, PAGE, Hkv, D) for _ in range(2))
    k_slots, v_slots = (pages.reshape(-1, Hkv, D) for pages in (k_pages, v_pages))
    order = np.random.default_rng(0).permutation(B * blocks)
    slots, tables, lengths = cupy.asarray(order[:T] * PAGE), order.reshape(B, blocks), np.full(B, L)
    q = arrays(B, Hq, 1, D)
    latent, k_rope, w_uk, w_uv = arrays(B, L, C), arrays(B, L, Dr), arrays(H, C, Dn), arrays(H, C, Dn)
    paged: dict[str, Any] = {"q": q, "k_pages": k_pages, "v_pages": v_pages, "block_tables": tables, "kv_lengths": lengths,
             "causal": "bottom_right"}  # fmt: skip
    latents: dict[str, Any] = {"q_nope": arrays(B, H, 1, Dn), "q_rope": arrays(B, H, 1, Dr), "latent": latent, "k_rope": k_rope,
                               "w_uk": w_uk, "w_uv": w_uv, "causal": None, "scale": (Dn + Dr) ** -0.5}  # fmt: skip
    indexed = None if torch is None else partial(torch.from_dlpack(k_slots).index_copy_, 0, torch.from_dlpack(slots), torch.from_dlpack(k))
    cached = 2 * B * L * Hkv * D * q.itemsize
    return [
        Call("rope float16", lambda: rope(x, positions, pairing="half"), None, 2 * x.nbytes, "GB/s"),
        Call("write_kv float16", lambda: write_kv(k_slots, v_slots, k, v, slots),
             indexed, 2 * (k.nbytes + v.nbytes), "GB/s"),                       # PyTorch: the keys alone
        Call("paged_attention, one token", lambda: paged_attention(**paged), None, cached, "GB/s"),
        Call("paged_attention, 8 splits", lambda: paged_attention(**paged, splits=8), None, cached, "GB/s"),
        Call("mla_attention_absorbed, 8 splits", lambda: mla_attention_absorbed(**latents, splits=8), None, latent.nbytes + k_rope.nbytes,
             "GB/s"),
    ]  # fmt: skip


def decoding_calls(cupy: Any, *, small: bool) -> list[Call]:
    """Filters, a draw, and the verification of a batch of drafts over a vocabulary of 131,072; work is the bytes read once."""
    B, K, V = (3, 2, 1100) if small else (256, 4, 2**17)
    logits = 3 * cupy.random.standard_normal((B, V), dtype=cupy.float32)
    weights = cupy.random.random((B, 2 * K + 1, V), dtype=cupy.float32)
    weights /= weights.sum(axis=-1, keepdims=True)
    q, p = cupy.ascontiguousarray(weights[:, :K]), cupy.ascontiguousarray(weights[:, K:])
    generator = np.random.default_rng(0)
    x, u, last = generator.integers(0, V, (B, K)), cupy.asarray(generator.random((B, K))), cupy.asarray(generator.random(B))
    return [
        Call("filter_probabilities", lambda: filter_probabilities(logits, top_k=50, top_p=0.9), None, 2 * logits.nbytes, "GB/s"),
        Call("sample", lambda: sample(p[:, 0], last), None, logits.nbytes, "GB/s"),
        Call("speculative_verify", lambda: speculative_verify(x, q, p, u, last), None, 2 * logits.nbytes, "GB/s"),
    ]  # fmt: skip
