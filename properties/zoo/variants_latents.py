"""Legal variants of latent attention: both its forms, the orders of their products, and what is stored between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook, textbook_latents
from . import variants_steps as steps
from .specimen import variant
from .textbook import Array
from .textbook_latents import absorbed_attention, joined, latent_attention, made
from .variants_steps import BINARY, Steps, online

FAMILY = "mla"
EVERY_ALIGNMENT = (None, "bottom_right", "top_left")
ABSORBED = Arithmetic(absorbed=True)


@variant("mla_attention", id="keys-reconstructed", family=FAMILY, causal=EVERY_ALIGNMENT, promises=("deterministic",))
def keys_reconstructed(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, **options: Any,
                       ) -> tuple[Array, Array]:  # fmt: skip
    """Keys and values of every head are made first."""
    return latent_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal=causal, **options)


@variant("mla_attention", id="keys-absorbed", family=FAMILY, causal=EVERY_ALIGNMENT, arithmetic=ABSORBED)
def keys_absorbed(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, **options: Any,
                  ) -> tuple[Array, Array]:  # fmt: skip
    """w_uk is taken to the queries and w_uv behind the sum: one key head and one value head for all."""
    return absorbed_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal=causal, **options)


@variant("mla_attention", id="absorbed-in-tiles", family=FAMILY, arithmetic=ABSORBED)
def absorbed_in_tiles(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, **options: Any,
                      ) -> tuple[Array, Array]:  # fmt: skip
    """The absorbed form by online softmax over tiles of 16 latents, the last ones first, in powers of 2."""
    tiles = Steps(tile=16, order=steps.backwards, base=BINARY)
    return absorbed_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, attend=lambda *a, **o: online(tiles, *a, **o), causal=causal,
                              **options)  # fmt: skip


@variant("mla_attention", id="absorbed-split", family=FAMILY, arithmetic=Arithmetic(absorbed=True, merges_lse=True))
def absorbed_and_split(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                       kv_lengths: Any = None) -> tuple[Array, Array]:
    """The absorbed form over three parts of the latents, merged through their log-sum-exp before w_uv."""
    tiles = Steps(tile=32, parts=3)
    return absorbed_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, attend=lambda *a, **o: online(tiles, *a, **o), causal=causal,
                              scale=scale, kv_lengths=kv_lengths)  # fmt: skip


@variant("mla_attention", id="reconstructed-in-tiles", family=FAMILY)
def reconstructed_in_tiles(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, **options: Any,
                           ) -> tuple[Array, Array]:  # fmt: skip
    """Keys and values made first, then online softmax over tiles of 64."""
    return latent_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, attend=lambda *a, **o: online(Steps(tile=64), *a, **o),
                            causal=causal, **options)  # fmt: skip


@variant("mla_attention", id="reconstructed-kept-in-bfloat16", family=FAMILY, dtypes=("bfloat16",),
         arithmetic=Arithmetic(projected="input", probabilities="input"))  # fmt: skip
def kept_in_sixteen_bits(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                         kv_lengths: Any = None) -> tuple[Array, Array]:
    """Keys, values and P are stored in bfloat16, as a framework's operations one after another do."""
    stored = steps.in_format("bfloat16")
    k, v = joined(stored(made(latent, w_uk)), k_rope), stored(made(latent, w_uv))
    out, lse = online(Steps(tile=128, stored=stored), joined(q_nope, q_rope), k, v, causal=causal, scale=scale, kv_lengths=kv_lengths)
    return out.astype(q_nope.dtype), lse


@variant("mla_attention", id="absorbed-kept-in-bfloat16", family=FAMILY, dtypes=("bfloat16",),
         arithmetic=Arithmetic(absorbed=True, projected="input", probabilities="input"))  # fmt: skip
def absorbed_in_sixteen_bits(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                             kv_lengths: Any = None) -> tuple[Array, Array]:
    """The absorbed queries, P, and the sums of latents are stored in bfloat16, as decoding kernels on GPUs do."""
    stored = steps.in_format("bfloat16")
    tiles = Steps(tile=64, stored=stored)
    return absorbed_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, attend=lambda *a, **o: online(tiles, *a, **o), stored=stored,
                              causal=causal, scale=scale, kv_lengths=kv_lengths)  # fmt: skip


@variant("mla_attention", id="keys-and-values-in-one-product", family=FAMILY)
def one_product(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any, mask: Any = None,
                ) -> tuple[Array, Array]:  # fmt: skip
    """w_uk and w_uv side by side are one matrix for all heads, (C, H (Dn + Dv)), as checkpoints hold them."""
    H, C, Dn = w_uk.shape
    both = np.concatenate([w_uk, w_uv], axis=-1).transpose(1, 0, 2).reshape(C, -1)
    wide = textbook.working(latent)
    with np.errstate(all="ignore"):
        made_at_once = latent.astype(wide) @ both.astype(wide)                  # (B, Lk, H (Dn + Dv))
    made_at_once = made_at_once.reshape(*latent.shape[:2], H, Dn + w_uv.shape[-1]).swapaxes(1, 2)
    k, v = joined(made_at_once[..., :Dn], k_rope), made_at_once[..., Dn:]
    out, lse = textbook.attention(joined(q_nope, q_rope), k, v, causal=causal, scale=scale, mask=mask)
    return out.astype(q_nope.dtype), lse


@variant("mla_attention", id="scores-of-both-parts-added", family=FAMILY, arithmetic=ABSORBED)
def two_products(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                 ) -> tuple[Array, Array]:  # fmt: skip
    """Scores of the latents and of the rotary keys are two products, added before they are scaled."""
    wide = textbook.working(q_nope)

    def scores(call: textbook.Call) -> Array:
        C = latent.shape[-1]
        a, b = (call.q[..., part] @ call.k[..., part].swapaxes(-1, -2) for part in (slice(0, C), slice(C, None)))
        return np.asarray(wide(call.scale) * (a + b))

    return absorbed_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal=causal, scale=scale,
                              attend=lambda *a, **o: textbook.attention(*a, scores=scores, **o))  # fmt: skip


@variant("mla_attention", id="weights-after-the-last-product", family=FAMILY, arithmetic=ABSORBED)
def divided_last(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                 ) -> tuple[Array, Array]:  # fmt: skip
    """The sum of e^s latent meets w_uv before it is divided by the row sum."""
    wide, sums = textbook.working(q_nope), []

    def undivided(s: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
        x = np.where(seen, s, -np.inf)
        m = x.max(axis=-1, keepdims=True, initial=-np.inf)
        shift = np.where(np.isneginf(m), 0, m).astype(s.dtype)
        e = np.exp(x - shift)
        l = e.sum(axis=-1, keepdims=True)
        sums.append(np.where(l == 0, 1, l).astype(s.dtype))
        return e, (shift + np.log(l))[..., 0]

    with np.errstate(all="ignore"):
        q = joined(q_nope.astype(wide) @ w_uk.astype(wide).swapaxes(-1, -2), q_rope)
        k, v = joined(latent[:, None], k_rope), latent.astype(wide)[:, None]
        o, lse = textbook.attention(q, k, v, weights=undivided, causal=causal, scale=scale)
        return ((o @ w_uv.astype(wide)) / sums[0]).astype(q_nope.dtype), lse


@variant("mla_attention", id="latents-fused-and-reversed", family=FAMILY, arithmetic=ABSORBED)
def products_backwards(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                       ) -> tuple[Array, Array]:  # fmt: skip
    """Products run from the last channel to the first, every one rounded, and weights meet latents with fused operations."""
    wide = textbook.working(q_nope)
    tiles = Steps(tile=32, scores=steps.scores_by(steps.backward_product), product=steps.fused_product)
    with np.errstate(all="ignore"):
        q = joined(steps.backward_product(q_nope.astype(wide), w_uk.astype(wide).swapaxes(-1, -2)), q_rope)
        o, lse = online(tiles, q, joined(latent[:, None], k_rope), latent.astype(wide)[:, None], causal=causal, scale=scale)
        return steps.backward_product(o, w_uv.astype(wide)).astype(q_nope.dtype), lse


@variant("mla_attention", id="latent-layout-blhd", family=FAMILY, layout="blhd", refuses=("empty",))
def layout_blhd(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                ) -> tuple[Array, Array]:  # fmt: skip
    """Queries and output in the order (B, L, H, D), and nothing empty taken."""
    out, lse = latent_attention(q_nope.swapaxes(1, 2), q_rope.swapaxes(1, 2), latent, k_rope, w_uk, w_uv, causal=causal, scale=scale)
    return out.swapaxes(1, 2), lse


@variant("mla_attention", id="nan-for-no-latents", family=FAMILY, conventions={"empty_rows": "nan", "empty_lse": "any"})
def nan_for_no_latents(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any,
                       kv_lengths: Any = None) -> tuple[Array, Array]:
    """A query that sees none of the latents there are is 0 / 0, and declared so."""
    out, lse = textbook_latents.latent_attention(q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal=causal, scale=scale,
                                                  kv_lengths=kv_lengths)  # fmt: skip
    blind = np.isneginf(lse) & (latent.shape[1] > 0)
    return np.where(blind[..., None], np.nan, out).astype(out.dtype), np.where(blind, np.nan, lse).astype(lse.dtype)
