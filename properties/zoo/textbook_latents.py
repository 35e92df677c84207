"""Textbook of latents: plain multi-head latent attention in both forms, of which a specimen exchanges a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import textbook
from .textbook import Array

Attend = Callable[..., tuple[Array, Array]]


def made(latent: Any, w: Any) -> Array:
    """What each head makes of the latents, (B, H, Lk, D), in the type it is computed in."""
    wide = textbook.working(latent)
    with np.errstate(all="ignore"):                                             # anything may stand behind a length
        return np.asarray(latent.astype(wide)[:, None] @ w.astype(wide))


def joined(nope: Array, rope: Array) -> Array:
    """Both parts of queries or keys, (B, H, L, Dn + Dr); keys without heads are given to each."""
    wide = textbook.working(nope)
    rope = rope[:, None] if rope.ndim == 3 else rope
    return np.concatenate([nope.astype(wide), np.broadcast_to(rope.astype(wide), (*nope.shape[:-1], rope.shape[-1]))], axis=-1)


def latent_attention(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, attend: Attend = textbook.attention,
                     **options: Any) -> tuple[Array, Array]:
    """out (B, H, Lq, Dv), lse (B, H, Lq): keys and values made for each head, then attention; options as in the contract."""
    with np.errstate(all="ignore"):
        k, v = joined(made(latent, w_uk), k_rope), made(latent, w_uv)
        out, lse = attend(joined(q_nope, q_rope), k, v, **options)
        return out.astype(q_nope.dtype), lse


def absorbed_attention(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, attend: Attend = textbook.attention,
                       stored: Callable[[Array], Array] = lambda x: x, **options: Any) -> tuple[Array, Array]:
    """The same without keys or values of a head; stored: what becomes of the queries and the sums that the projections make."""
    with np.errstate(all="ignore"):
        wide = textbook.working(q_nope)
        q = joined(stored(q_nope.astype(wide) @ w_uk.astype(wide).swapaxes(-1, -2)), q_rope)       # (B, H, Lq, C + Dr)
        k = joined(latent[:, None], k_rope)                                     # (B, 1, Lk, C + Dr)
        o, lse = attend(q, k, latent.astype(wide)[:, None], **options)
        return (stored(o) @ w_uv.astype(wide)).astype(q_nope.dtype), lse
