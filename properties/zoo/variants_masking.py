"""Legal variants of masks: how what is hidden stays out, and the conventions that released libraries follow instead of ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from . import textbook
from . import variants_steps as steps
from .specimen import variant
from .textbook import Array, Call
from .variants_steps import Steps, online

FAMILY = "masking"


def _by_addition(hidden: float, s: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Softmax of scores to which `hidden` is added wherever a key is hidden, with nothing done about rows that see nothing."""
    x = s + np.where(seen, 0, hidden).astype(s.dtype)
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    m = m if sinks is None else np.maximum(m, sinks[:, None, None])
    shift = np.where(np.isneginf(m), 0, m)
    e = np.exp(x - shift)
    l = e.sum(axis=-1, keepdims=True)
    l = l if sinks is None else l + np.exp(sinks[:, None, None] - shift)
    return e / np.where(l == 0, 1, l), (shift + np.log(l))[..., 0]


@variant("attention", id="mask-added-minus-infinity", family=FAMILY)
def minus_infinity_added(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """Masks are additive: -inf is added to hidden scores."""
    return textbook.attention(q, k, v, causal=causal, weights=lambda s, seen, sinks: _by_addition(-np.inf, s, seen, sinks), **options)


def _repaired(s: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
    p, lse = _by_addition(np.finfo(s.dtype).min, np.where(seen, s, 0), seen, sinks)
    blind = np.asarray(~np.broadcast_to(seen, s.shape).any(axis=-1))
    of_sink = np.full(lse.shape, -np.inf, lse.dtype) if sinks is None else np.broadcast_to(sinks[:, None], lse.shape)
    return np.where(blind[..., None], 0, p), np.where(blind, of_sink, lse)


@variant("attention", id="mask-huge-and-repaired", family=FAMILY)
def huge_number_and_repair(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """Hidden scores are the least finite number, below every score, and rows that see nothing are set right afterwards."""
    return textbook.attention(q, k, v, causal=causal, weights=_repaired, **options)


def _multiplied(s: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
    """The maximum of what is seen, exponentials of everything, at most 1, and then a product with the mask."""
    m = np.where(seen, s, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    m = m if sinks is None else np.maximum(m, sinks[:, None, None])
    shift = np.where(np.isneginf(m), 0, m).astype(s.dtype)
    e = np.exp(np.minimum(np.where(np.isnan(s), 0, s) - shift, 0)) * seen
    e = np.where(seen & np.isnan(s), s, e)
    l = e.sum(axis=-1, keepdims=True)
    l = l if sinks is None else l + np.exp(sinks[:, None, None] - shift)
    return e / np.where(l == 0, 1, l), (shift + np.log(l))[..., 0]


@variant("attention", id="mask-multiplied", family=FAMILY)
def mask_multiplied(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """Weights are multiplied by the mask after the exponential, whose exponent is held at 0 where a hidden score is larger."""
    return textbook.attention(q, k, v, causal=causal, weights=_multiplied, **options)


@variant("attention", id="mask-as-bias", family=FAMILY)
def mask_as_bias(q: Any, k: Any, v: Any, *, causal: Any, mask: Any = None, bias: Any = None, scale: Any = None) -> tuple[Array, Array]:
    """A boolean mask becomes a bias of 0 and -inf before anything else is looked at."""
    if mask is not None:
        hidden = np.where(mask, 0, -np.inf).astype(textbook.working(q))
        bias = hidden if bias is None else bias.astype(hidden.dtype) + hidden
    return textbook.attention(q, k, v, causal=causal, bias=bias, scale=scale)


@variant("attention", id="hidden-tiles-skipped", family=FAMILY, causal=[None, "bottom_right", "top_left"])
def hidden_tiles_skipped(
    q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, kv_lengths: Any = None
) -> tuple[Array, Array]:
    """Tiles of 16 keys that no query of the whole call sees are never read."""
    with np.errstate(all="ignore"):
        call = textbook.prepared(q, k, v, causal=causal, window=window, scale=scale, kv_lengths=kv_lengths)
        seen = np.broadcast_to(textbook.visible(call), (*q.shape[:3], call.Lk))
        s = np.where(seen, textbook.scores(call), -np.inf).astype(call.q.dtype)
        tiles = [np.arange(i, min(i + 16, call.Lk)) for i in range(0, call.Lk, 16)]
        out, lse = steps.over(Steps(tile=16), call, s, [keys for keys in tiles if seen[..., keys].any()], with_sinks=True)
        return out.astype(q.dtype), lse


@variant("attention", id="each-length-by-itself", family=FAMILY)
def each_length_by_itself(
    q: Any, k: Any, v: Any, *, causal: Any, kv_lengths: Any = None, scale: Any = None, window: Any = None, softcap: Any = None
) -> tuple[Array, Array]:
    """Each sequence of a batch is cut at its own length and computed alone, so nothing beyond is ever touched."""
    n = np.full(len(q), k.shape[2]) if kv_lengths is None else kv_lengths
    out, lse = np.empty((*q.shape[:3], v.shape[-1]), q.dtype), np.empty(q.shape[:3], textbook.working(q))
    for b in range(len(q)):
        one = slice(b, b + 1)
        out[one], lse[one] = textbook.attention(q[one], k[one, :, : n[b]], v[one, :, : n[b]], causal=causal, scale=scale, window=window,
                                                softcap=softcap)  # fmt: skip
    return out, lse


@variant("attention", id="nan-beyond-lengths-ignored", family=FAMILY, conventions={"nonfinite_behind_mask": "ignored"})
def nan_that_nobody_sees_ignored(
    q: Any, k: Any, v: Any, *, causal: Any, mask: Any = None, kv_lengths: Any = None, window: Any = None, scale: Any = None
) -> tuple[Array, Array]:
    """Keys and values that no query sees are replaced by 0 before they are multiplied, so that NaN there changes nothing."""
    k, v = _cleaned(q, k, v, causal, mask, kv_lengths, window)
    return textbook.attention(q, k, v, causal=causal, mask=mask, kv_lengths=kv_lengths, window=window, scale=scale)


def _cleaned(q: Any, k: Any, v: Any, causal: Any, mask: Any, kv_lengths: Any, window: Any) -> tuple[Any, Any]:
    call = textbook.prepared(q, k, v, causal=causal, mask=mask, kv_lengths=kv_lengths, window=window)
    shape = (len(q), k.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2])
    seen = np.asarray(np.broadcast_to(textbook.visible(call), (*q.shape[:3], call.Lk)).reshape(shape).any(axis=(2, 3)))[..., None]
    return np.where(seen, k, np.zeros_like(k)), np.where(seen, v, np.zeros_like(v))


# A padded tail -----------------------------------------------------------------------------------------------------------


def _padded(x: Array, tile: int) -> Array:
    """Keys in scratch memory of whole tiles, whose tail holds what was there before: a large number of either sign."""
    B, H, L, D = x.shape
    scratch = np.full((B, H, -(-L // tile) * tile, D), np.nan, x.dtype)
    scratch[:, :, :L], scratch[:, :, L:] = x, np.where(np.arange(D) % 2, -1e4, 1e4)
    return scratch


@variant("attention", id="padded-tail-masked", family=FAMILY)
def padded_tail(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, window: Any = None, sinks: Any = None) -> tuple[Array, Array]:
    """Keys are padded to whole tiles of 32 with numbers left over in memory, hidden again by comparing with the length."""
    with np.errstate(all="ignore"):
        call = textbook.prepared(q, k, v, causal=causal, scale=scale, window=window, sinks=sinks)
        wide = replace(call, k=_padded(call.k, 32), v=_padded(call.v, 32))
        s = np.where(textbook.visible(wide), textbook.scores(wide), -np.inf).astype(call.q.dtype)
        out, lse = steps.over(Steps(tile=32), wide, s, [np.arange(i, i + 32) for i in range(0, wide.Lk, 32)], with_sinks=True)
        return out.astype(q.dtype), lse


# Conventions other than ours ---------------------------------------------------------------------------------------------


def _unguarded(s: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
    x = np.where(seen, s, -np.inf)
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(x - m)                                                           # -inf - -inf where nothing is seen
    l = e.sum(axis=-1, keepdims=True)
    return e / l, (m + np.log(l))[..., 0]


@variant("attention", id="empty-rows-nan", family=FAMILY, conventions={"empty_rows": "nan", "empty_lse": "any"},
         refuses=("empty",))  # fmt: skip
def empty_rows_nan(q: Any, k: Any, v: Any, *, causal: Any, mask: Any = None, scale: Any = None, window: Any = None) -> tuple[Array, Array]:
    """Rows that see nothing are NaN, as -inf - -inf makes them, and declared so."""
    return textbook.attention(q, k, v, causal=causal, mask=mask, scale=scale, window=window, weights=_unguarded)


@variant("attention", id="empty-rows-mean-v", family=FAMILY, conventions={"empty_rows": "mean_v", "empty_lse": "any"},
         refuses=("empty",))  # fmt: skip
def empty_rows_mean_v(q: Any, k: Any, v: Any, *, causal: Any, mask: Any = None, scale: Any = None) -> tuple[Array, Array]:
    """Hidden scores are replaced by the least finite number, so a row that sees nothing averages all values, and declared so."""
    return textbook.attention(q, k, v, causal=causal, mask=mask, scale=scale,
                              weights=lambda s, seen, sinks: textbook.weights(np.where(seen, s, np.finfo(s.dtype).min), np.ones_like(seen),
                                                                              sinks))  # fmt: skip


@variant("attention", id="empty-lse-any", family=FAMILY, conventions={"empty_lse": "any"})
def empty_lse_zero(q: Any, k: Any, v: Any, *, causal: Any, mask: Any = None, kv_lengths: Any = None) -> tuple[Array, Array]:
    """The log-sum-exp of a row that sees nothing is 0, and declared to be left open."""
    out, lse = textbook.attention(q, k, v, causal=causal, mask=mask, kv_lengths=kv_lengths)
    return out, np.where(np.isneginf(lse), 0, lse).astype(lse.dtype)


@variant("attention", id="window-counts-current", family=FAMILY, conventions={"window_counts_current": "yes"})
def window_with_the_current_key(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None) -> tuple[Array, Array]:
    """The window's left number counts the current key too, and declared so: W keys are W, not W + 1."""
    if window is not None and window[0] is not None:
        window = (window[0] - 1, window[1])
    return textbook.attention(q, k, v, causal=causal, window=window, scale=scale)


@variant("attention", id="bias-before-softcap", family=FAMILY, conventions={"bias_before_softcap": "yes"},
         source="https://github.com/onnx/onnx/pull/7867")  # fmt: skip
def bias_before_the_cap(q: Any, k: Any, v: Any, *, causal: Any, softcap: Any = None, bias: Any = None) -> tuple[Array, Array]:
    """The bias is added before the cap, and declared so."""

    def scores(call: Call) -> Array:
        return textbook.capped(call, textbook.biased(call, textbook.products(call)))

    return textbook.attention(q, k, v, causal=causal, softcap=softcap, bias=bias, scores=scores)


@variant("attention", id="boolean-causal-top-left", family=FAMILY, causal=["top_left"])
def boolean_top_left(q: Any, k: Any, v: Any, *, is_causal: bool = False, mask: Any = None, scale: Any = None) -> tuple[Array, Array]:
    """Causal is a boolean that means top left, and declared so."""
    return online(Steps(tile=32), q, k, v, causal="top_left" if is_causal else None, mask=mask, scale=scale)
