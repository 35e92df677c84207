"""The bound for latent attention in its two forms: keys and values built from latents, or never built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments, mla_attention
from oracles.reference.arguments import Bool, Causal, Float64

from .attention import from_scores, odd, out_error
from .scores import Scores, finite, grouped, score_errors
from .sums import Roundings, checked, compound, dot_bound, g, roundings


def mla_attention_bound(arithmetic: ResolvedArithmetic, q_nope: ArrayLike, q_rope: ArrayLike, latent: ArrayLike, k_rope: ArrayLike,
                        w_uk: ArrayLike, w_uv: ArrayLike, *, causal: Causal, scale: float, kv_lengths: ArrayLike | None = None,
                        mask: ArrayLike | None = None) -> dict[str, Float64]:
    """How far legal latent attention may be from the exact one: {"out" (B, H, Lq, Dv), "lse" (B, H, Lq)}.

    Reconstructed (the default), with k = latent w_uk, v = latent w_uv and C terms in each sum:

        |error of k| <= e_k = fl_p(g(C, u_a) |latent| |w_uk| + underflow),   e_v likewise
        ds = ds of `attention` for [q_nope, q_rope] and [k, k_rope]  +  |scale| (1 + growth) |q_nope| e_k^T
        |error of out| <= that of `attention` for v, under this ds  +  the largest a kernel may answer for the values e_v

    The last term: the computed numerator is linear in the values, so what the error of v adds to it is at most what values
    of e_v >= 0 would make of it, exact result and bound together.

    `absorbed`, with the queries q = q_nope w_uk^T (Dn terms), and o = p latent:

        ds = ds of `attention` for [q, q_rope] and [latent, k_rope]  +  |scale| (1 + growth) e_q |latent|^T
        |error of out| <= e_o |w_uv| + g(C, u_a) (|o| + e_o) |w_uv| + underflow,   e_o that of `attention`, stored

    fl_p: one rounding to `projected`, growth that of the product in `score_errors`. Then one rounding of `out`; lse as in
    `attention_bound`, under the ds of the form.

    inf where a key, a value, a query or a sum that the row needs may overflow its format, 0 where the oracle is not finite.

    >>> from oracles.properties import Arithmetic
    >>> one = np.ones((1, 1, 1, 1), np.float32)
    >>> given = one, one, one[0], one[0], one[0], one[0]
    >>> plain, narrow = (mla_attention_bound(Arithmetic(projected=p).resolve("float32"), *given, causal=None, scale=1.0)
    ...                  for p in (None, "bfloat16"))
    >>> bool(0 < plain["out"].item() < 1e-6 < 2**-8 < narrow["out"].item() < 0.02)
    True

    Source: derived here on that of `attention_bound`; the two forms: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2.
    """
    r = roundings(arithmetic)
    arrays = [np.asarray(x).astype(np.float64) for x in (q_nope, q_rope, latent, k_rope, w_uk, w_uv)]
    scale = arguments.real_number("scale", scale)

    def scores(q: Float64, k: Float64) -> Scores:
        return score_errors(r, q, k, causal=causal, scale=scale, kv_lengths=kv_lengths, mask=mask)

    form = _absorbed if arithmetic.absorbed else _reconstructed
    out, lse = form(r, scores, abs(scale), *arrays)
    if odd(*arrays, None, None):
        exact = mla_attention(*arrays, causal=causal, scale=scale, kv_lengths=kv_lengths, mask=mask)
        out, lse = (np.where(np.isfinite(x), b, 0.0) for x, b in zip(exact, (out, lse)))
    return checked({"out": out, "lse": lse})


ScoresOf = Callable[[Float64, Float64], Scores]


def _reconstructed(r: Roundings, scores_of: ScoresOf, size: float, q_nope: Float64, q_rope: Float64, latent: Float64, k_rope: Float64,
                   w_uk: Float64, w_uv: Float64) -> tuple[Float64, Float64]:
    (B, H, _, Dn), (_, Lk, Dr) = q_nope.shape, k_rope.shape
    k, e_k, over_k = _projected(r, latent[:, None], w_uk)                       # (B, H, Lk, Dn)
    v, e_v, over_v = _projected(r, latent[:, None], w_uv)                       # (B, H, Lk, Dv)
    q = np.concatenate([q_nope, q_rope], axis=-1)
    scores = scores_of(q, np.concatenate([k, np.broadcast_to(k_rope[:, None], (B, H, Lk, Dr))], axis=-1))
    wrong = np.abs(finite(q_nope)) @ e_k.swapaxes(-1, -2)                       # (B, H, Lq, Lk), as scores are: one query head a key head
    lost = r.inputs.eta * e_k.sum(axis=-1)[:, :, None] if r.declared.scaled_q else 0.0
    scores = _widened(r, scores, size * wrong + lost, Dn + Dr)
    given_up = (scores.visible & (over_k | over_v)[:, :, None, :]).any(axis=-1, keepdims=True)
    f = from_scores(r, replace(scores, overflow=scores.overflow | given_up), finite(v), Hq=H)
    seen = np.any(scores.visible, axis=-2)[..., None]
    share, error = out_error(r, f.w, scores.visible, 1.0, np.where(seen, e_v, 0.0))
    more = np.where(f.w.seen > 0.0, share + error, 0.0)
    return _stored(r, f.out, f.out_bound, more), f.lse_bound[..., 0]


def _absorbed(r: Roundings, scores_of: ScoresOf, size: float, q_nope: Float64, q_rope: Float64, latent: Float64, k_rope: Float64,
              w_uk: Float64, w_uv: Float64) -> tuple[Float64, Float64]:
    (B, H, Lq, _), C, Dr = q_nope.shape, latent.shape[-1], q_rope.shape[-1]
    q, e_q, over = _projected(r, q_nope, w_uk.swapaxes(-1, -2))                 # (B, H, Lq, C)
    scores = scores_of(np.concatenate([q, q_rope], axis=-1), np.concatenate([latent, k_rope], axis=-1)[:, None])
    wrong = grouped(e_q, 1) @ np.abs(finite(latent))[:, None].swapaxes(-1, -2)  # (B, 1, H Lq, Lk)
    scores = _widened(r, scores, size * wrong, C + Dr)
    given_up = scores.overflow | over.reshape(B, 1, H * Lq, 1)
    f = from_scores(r, replace(scores, overflow=given_up), finite(latent)[:, None], Hq=H)
    o, e_o = out_error(r, f.w, scores.visible, 1.0, f.v)                        # (B, 1, H Lq, C)
    e_o = r.projected.bound(o, e_o)
    o, e_o = (x.reshape(B, H, Lq, C) for x in (o, e_o))
    promised = np.isfinite(e_o).all(axis=-1, keepdims=True) & ~(f.scores.overflow | f.w.hopeless).reshape(B, H, Lq, 1)
    e_o, weights = np.where(np.isfinite(e_o), e_o, 0.0), np.abs(finite(w_uv))
    exact, most = o @ finite(w_uv), (np.abs(o) + e_o) @ weights                 # (B, H, Lq, Dv)
    error = e_o @ weights + dot_bound(r.accumulate, most, C)
    promised = promised & (2.0 * most < r.accumulate.largest)
    seen = scores.visible.any(axis=-1).reshape(B, H, Lq, 1)
    out = np.where(seen, np.where(promised, r.out.bound(exact, error), np.inf), 0.0)
    return out, f.lse_bound.reshape(B, H, Lq)


def _projected(r: Roundings, x: Float64, w: Float64) -> tuple[Float64, Float64, Bool]:
    """x w, its error as stored, and the rows in which it may overflow: (..., R, N), the same, (..., R)."""
    with np.errstate(invalid="ignore", over="ignore"):
        exact = x @ w
        most = np.abs(finite(x)) @ np.abs(finite(w))
    error = r.projected.bound(finite(exact), dot_bound(r.accumulate, most, x.shape[-1]))
    over = ~np.isfinite(error) | (2.0 * most > r.accumulate.largest)
    return exact, np.where(over, 0.0, error), np.asarray(over.any(axis=-1))


def _widened(r: Roundings, scores: Scores, wrong: Float64, terms: int) -> Scores:
    """Scores whose operands were known to within something that moves them by at most `wrong` before rounding."""
    growth = compound(g(terms, r.accumulate.u), g(4.0, r.elementwise.u), r.inputs.u if r.declared.scaled_q else 0.0, g(2.0, r.scores.u))
    return replace(scores, ds=np.where(scores.visible, scores.ds + (1.0 + growth) * wrong, 0.0))


def _stored(r: Roundings, out: Float64, bound: Float64, more: Float64) -> Float64:
    """The bound of a stored result whose error before that is larger by `more`."""
    given_up = ~np.isfinite(bound) | ~(np.abs(out) + bound + more < r.out.largest)
    return np.where(given_up, np.inf, bound + np.where(given_up, 0.0, more) * (1.0 + r.out.u) + np.minimum(r.out.eta, more))
