"""Mutants of the mla family: what scales the scores, chunks without keys, and cache entries that stand for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook, textbook_latents, triggers_latents, triggers_pages
from .specimen import mutant
from .textbook import Array, Call

FAMILY = "mla"
# mscale_all_dim and the factor of DeepSeek-V2, and what they stretch the scale by: (0.1 * 0.707 ln 40 + 1)^2.
ALL_DIM = 0.707
STRETCH = (0.1 * ALL_DIM * np.log(40.0) + 1.0) ** 2


def _mscale(scale: Any, q_nope: Any, q_rope: Any) -> float:
    """m of a scale m^2 / sqrt(D) as a model would give it; 1 where it is no such scale."""
    stretch = float(scale) * np.sqrt(q_nope.shape[-1] + q_rope.shape[-1])
    return float(np.sqrt(stretch)) if stretch > 1.0 else 1.0


@mutant(
    "mla_attention", id="mla-softmax-scale-from-wrong-mscale", family=FAMILY, source="https://github.com/NVIDIA/Megatron-LM/issues/1429",
    trigger=lambda: triggers_latents.latent(stretch=STRETCH),
)  # fmt: skip
def stretched_by_mscale(
    q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any, kv_lengths: Any = None
) -> tuple[Array, Array]:
    """The temperature of a stretched context is made from mscale, 1, where mscale_all_dim, 0.707, is meant."""
    m = _mscale(scale, q_nope, q_rope)
    wrong = 1.0 + (m - 1.0) / ALL_DIM
    return textbook_latents.latent_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal=causal, scale=scale * (wrong / m) ** 2,
                                             kv_lengths=kv_lengths)  # fmt: skip


@mutant(
    "mla_attention", id="mla-softmax-scale-missing", family=FAMILY,
    source="https://github.com/onnxruntime/mobius/pull/548 https://github.com/huggingface/transformers/pull/47435 "
           "https://github.com/huggingface/optimum-intel/pull/1877",
    trigger=lambda: triggers_latents.latent(Lk=2, stretch=STRETCH),
)  # fmt: skip
def not_stretched(
    q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any, kv_lengths: Any = None
) -> tuple[Array, Array]:
    """The scale of a stretched context is left at 1 / sqrt(Dn + Dr), which one key alone does not show in the output."""
    m = _mscale(scale, q_nope, q_rope)
    return textbook_latents.latent_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal=causal, scale=scale / m**2,
                                             kv_lengths=kv_lengths)  # fmt: skip


@mutant(
    "mla_attention", id="mla-rope-mscale-not-a-ratio", family=FAMILY, source="https://github.com/kekzl/imp/pull/880",
    trigger=lambda: triggers_latents.latent(stretch=STRETCH),
)  # fmt: skip
def rotary_parts_stretched_too(
    q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any, kv_lengths: Any = None
) -> tuple[Array, Array]:
    """The rotary parts of queries and keys carry m(mscale_all_dim), which the scale holds already, where their ratio, 1, is meant."""
    m = q_rope.dtype.type(_mscale(scale, q_nope, q_rope))
    return textbook_latents.latent_attention(q_nope, m * q_rope, latent, m * k_rope, w_uk, w_uv, causal=causal, scale=scale,
                                             kv_lengths=kv_lengths)  # fmt: skip


def _unguarded(s: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Softmax whose rows without keys are whatever stood in memory: NaN."""
    p, lse = textbook.weights(s, seen, sinks)
    return np.where(np.isneginf(lse)[..., None], np.nan, p).astype(s.dtype), lse


@mutant(
    "mla_attention", id="uninitialised-history-of-empty-chunk", family=FAMILY, arithmetic=Arithmetic(merges_lse=True),
    source="https://github.com/vllm-project/vllm/issues/27491",
    trigger=lambda: triggers_latents.latent(B=2, Lk=6, kv_lengths=np.array([1, 6]), causal="bottom_right"),
)  # fmt: skip
def history_of_nothing(
    q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any, kv_lengths: Any = None
) -> tuple[Array, Array]:
    """Keys before the new tokens are a chunk of their own, whose result for a sequence without any is never written, and merged."""

    def before(call: Call) -> Array:
        return np.asarray(np.arange(call.Lk) < (call.n_k - call.Lq)[:, None, None, None])

    def attend(q: Any, k: Any, v: Any, **options: Any) -> tuple[Array, Array]:
        def of(chunk: Any, weights: Any) -> tuple[Array, Array]:
            if k.shape[2] == 0:
                return textbook.attention(q, k, v, **options)
            return textbook.attention(q, k, v, visible=lambda call: textbook.visible(call) & chunk(call), weights=weights, **options)

        old, new = of(before, _unguarded), of(lambda call: ~before(call), textbook.weights)
        return textbook.merge_attention(*old, *new)

    return textbook_latents.latent_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, attend=attend, causal=causal, scale=scale,
                                             kv_lengths=kv_lengths)  # fmt: skip


def _through_whole_tables(q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, slots_of_nothing: int | None,
                          hidden: bool, causal: Any, scale: Any) -> tuple[Array, Array]:
    """Attention over as many slots as the tables have room for. slots_of_nothing: what is read behind a length; None: the table's own,
    page 0 for -1. hidden: it has no weight.
    """
    S, n_k = k_pages.shape[1], np.asarray(kv_lengths)
    t = np.arange(block_tables.shape[1] * S)
    at = np.maximum(block_tables[:, t // S], 0) * S + t % S                     # (B, max_blocks S)
    if slots_of_nothing is not None:
        at = np.where(t < n_k[:, None], at, slots_of_nothing)
    k, v = (pages.reshape(-1, *pages.shape[2:])[at].swapaxes(1, 2) for pages in (k_pages, v_pages))

    def visible(call: Call) -> Array:
        placed = replace(call, n_k=n_k)
        inside = np.broadcast_to(textbook.in_length(placed), (len(n_k), 1, 1, len(t)))
        return np.asarray(textbook.in_causal(placed) & inside if hidden else textbook.in_causal(placed) | ~inside)

    return textbook.attention(q, k, v, causal=causal, scale=scale, visible=visible)


@mutant(
    "paged_attention", id="sparse-invalid-index-mapped-to-zero", family=FAMILY, source="https://github.com/vllm-project/vllm/pull/45324",
    trigger=lambda: triggers_pages.paged([3], [[3, 1]]),
)  # fmt: skip
def nothing_is_slot_zero(
    q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None
) -> tuple[Array, Array]:
    """The index -1 of no token becomes slot 0 on its way through the table, so that the mask behind it, slot < 0, never hides it."""
    return _through_whole_tables(q, k_pages, v_pages, block_tables, kv_lengths, slots_of_nothing=0, hidden=False, causal=causal,
                                 scale=scale)


@mutant(
    "paged_attention", id="nan-in-unrelated-page-leaks", family=FAMILY, source="https://github.com/flashinfer-ai/flashinfer/pull/942",
    trigger=lambda: triggers_pages.emptied(triggers_pages.paged([3], [[3, 1]])),
)  # fmt: skip
def nan_times_zero(
    q: Any, k_pages: Any, v_pages: Any, block_tables: Any, kv_lengths: Any, *, causal: Any, scale: Any = None
) -> tuple[Array, Array]:
    """Scores of slots behind the length are hidden, their values multiplied by 0 and added: NaN left by another request spreads."""
    return _through_whole_tables(q, k_pages, v_pages, block_tables, kv_lengths, slots_of_nothing=None, hidden=True, causal=causal,
                                 scale=scale)
