"""Textbook: a plain attention made of steps, of which a specimen of the zoo exchanges one. It shares no arithmetic with the oracles.

Computed in float64 for float64 inputs and in float32 for all others; outputs in the format of the inputs, lse in float32 (float64).
What the options mean, and what a row that sees nothing gives, is the contract's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Sides = tuple[int | None, int | None]


@dataclass(frozen=True)
class Call:
    """The arguments of one call, heads repeated, in the format in which it is computed.

    q (B, Hq, Lq, D), k (B, Hq, Lk, D), v (B, Hq, Lk, Dv), n_k (B,) keys of each sequence; keep: what dropout multiplies P with.
    """

    q: Array
    k: Array
    v: Array
    n_k: Array
    causal: str | None
    window: Sides
    scale: float
    softcap: float | None
    bias: Array | None
    mask: Array | None
    sinks: Array | None
    alibi_slopes: Array | None
    keep: Array | float

    @property
    def Lq(self) -> int:
        return int(self.q.shape[2])

    @property
    def Lk(self) -> int:
        return int(self.k.shape[2])


def repeated(x: Array, G: int) -> Array:
    """Query head h reads key/value head h // G: (B, Hkv, L, D) as (B, Hkv G, L, D)."""
    return np.repeat(x, G, axis=1)


def prepared(q: Any, k: Any, v: Any, *, causal: str | None = None, window: Sides | None = None, scale: float | None = None,
             softcap: float | None = None, bias: Any = None, mask: Any = None, kv_lengths: Any = None, sinks: Any = None,
             alibi_slopes: Any = None, dropout_mask: Any = None, dropout_p: float = 0.0,
             heads: Callable[[Array, int], Array] = repeated) -> Call:
    """The call of these arguments. Keys and values past kv_lengths, where anything may stand, become 0."""
    wide = working(q)
    (B, Hq, _, D), (_, Hkv, Lk, _) = q.shape, k.shape
    n_k = np.full(B, Lk) if kv_lengths is None else np.asarray(kv_lengths)
    inside = (np.arange(Lk) < n_k[:, None])[:, None, :, None]                   # (B, 1, Lk, 1)
    k, v = (heads(np.where(inside, x.astype(wide), wide(0)), Hq // Hkv) for x in (k, v))
    bias, sinks, alibi_slopes = (None if x is None else x.astype(wide) for x in (bias, sinks, alibi_slopes))
    keep = 1.0 if dropout_mask is None else dropout_mask * wide(1.0 / (1.0 - dropout_p))
    return Call(q.astype(wide), k, v, n_k, causal, window or (None, None), D**-0.5 if scale is None else float(scale), softcap, bias, mask,
                sinks, alibi_slopes, keep)


def working(x: Array) -> Any:
    """The type in which inputs of this type are computed."""
    return np.float64 if x.dtype == np.float64 else np.float32


# Which keys a query sees ------------------------------------------------------------------------------------------------


def positions(call: Call) -> Array:
    """Where each query stands among the keys: (B, 1, Lq, 1)."""
    shift = 0 * call.n_k if call.causal == "top_left" else call.n_k - call.Lq
    return np.asarray((np.arange(call.Lq) + shift[:, None])[:, None, :, None])


def in_length(call: Call) -> Array:
    """(B, 1, 1, Lk): the key belongs to the sequence."""
    return np.asarray(np.arange(call.Lk) < call.n_k[:, None, None, None])


def in_causal(call: Call) -> Array:
    """(B, 1, Lq, Lk): the key is not later than the query."""
    return np.asarray((call.causal is None) | (np.arange(call.Lk) <= positions(call)))


def in_window(call: Call) -> Array:
    """(B, 1, Lq, Lk): at most `left` keys before the query and `right` after it, the current one not counted."""
    left, right = call.window
    ahead = np.arange(call.Lk) - positions(call)
    seen = np.ones(ahead.shape, dtype=bool)
    if left is not None:
        seen &= -ahead <= left
    if right is not None:
        seen &= ahead <= right
    return seen


def in_mask(call: Call) -> Array:
    """Neither mask nor a bias of -inf hides the key."""
    seen = np.ones((1, 1, 1, 1), dtype=bool) if call.mask is None else call.mask
    return np.asarray(seen if call.bias is None else seen & ~np.isneginf(call.bias))


def visible(call: Call) -> Array:
    """All of these together, broadcast to (B, Hq, Lq, Lk)."""
    seen = in_length(call) & in_causal(call) & in_window(call) & in_mask(call)
    return np.broadcast_to(seen, (*call.q.shape[:3], call.Lk))


# Scores and weights -----------------------------------------------------------------------------------------------------


def capped(call: Call, s: Array) -> Array:
    """softcap tanh(s / softcap)."""
    return s if call.softcap is None else call.softcap * np.tanh(s / call.softcap)


def distances(call: Call) -> Array:
    """|p - j|, (B, 1, Lq, Lk)."""
    return np.abs(positions(call) - np.arange(call.Lk)).astype(call.q.dtype)


def biased(call: Call, s: Array, distances: Callable[[Call], Array] = distances) -> Array:
    """Bias added, and ALiBi's -slope |p - j|."""
    s = s if call.bias is None else s + call.bias
    return s if call.alibi_slopes is None else s - call.alibi_slopes[:, None, None] * distances(call)


def products(call: Call) -> Array:
    """scale q k^T, (B, Hq, Lq, Lk)."""
    return np.asarray(call.scale * (call.q @ call.k.swapaxes(-1, -2)))


def scores(call: Call) -> Array:
    """Product, cap, bias, in this order: (B, Hq, Lq, Lk)."""
    return biased(call, capped(call, products(call)))


def weights(s: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Softmax over the visible keys, and its log-sum-exp: (B, Hq, Lq, Lk), (B, Hq, Lq). Nothing visible: 0, and -inf or the sink."""
    x = np.where(seen, s, -np.inf)
    sink = np.full((*s.shape[:3], 1), -np.inf, s.dtype)
    if sinks is not None:
        sink[:] = sinks[:, None, None]
    m = np.maximum(x.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    shift = np.where(np.isneginf(m), 0, m)
    e = np.exp(x - shift)
    l = e.sum(axis=-1, keepdims=True) + np.exp(sink - shift)                    # (B, Hq, Lq, 1)
    return e / np.where(l == 0, 1, l), (shift + np.log(l))[..., 0]


# Attention --------------------------------------------------------------------------------------------------------------

Weights = Callable[[Array, Array, Array | None], tuple[Array, Array]]


def attention(q: Any, k: Any, v: Any, *, heads: Callable[[Array, int], Array] = repeated, visible: Callable[[Call], Array] = visible,
              scores: Callable[[Call], Array] = scores, weights: Weights = weights, **options: Any) -> tuple[Array, Array]:
    """out (B, Hq, Lq, Dv), lse (B, Hq, Lq); options as in the contract."""
    with np.errstate(all="ignore"):
        call = prepared(q, k, v, heads=heads, **options)
        p, lse = weights(scores(call), visible(call), call.sinks)
        return ((p * call.keep) @ call.v).astype(q.dtype), lse


def attention_in_parts(q: Any, k: Any, v: Any, *, parts: int, weights: Weights = weights, **options: Any) -> list[tuple[Array, Array]]:
    """out and lse over each of so many stretches of the keys, all of about the same length, out not yet rounded to the format of q."""
    with np.errstate(all="ignore"):
        call = prepared(q, k, v, **options)
        s, seen = scores(call), visible(call)
        stretch = np.arange(call.Lk) * parts // max(call.Lk, 1)
        partial = [weights(s, seen & (stretch == n), None) for n in range(parts)]
        return [(p @ call.v, lse) for p, lse in partial]


def merge_attention(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Array, Array]:
    """out and lse over the union of two disjoint sets of keys."""
    wide = working(lse_a)
    with np.errstate(all="ignore"):
        m = np.maximum(lse_a, lse_b).astype(wide)
        m = np.where(np.isneginf(m), 0, m)
        w_a, w_b = np.exp(lse_a - m), np.exp(lse_b - m)                         # (...)
        l = w_a + w_b
        safe = np.where(l == 0, 1, l)
        out = (w_a / safe)[..., None] * out_a.astype(wide) + (w_b / safe)[..., None] * out_b.astype(wide)
        return out.astype(out_a.dtype), m + np.log(l)


def softmax(x: Any, *, axis: int = -1) -> Array:
    """The softmax of x along an axis; 0 where there is nothing but -inf."""
    return _rows(x, axis)[0].astype(x.dtype)


def log_sum_exp(x: Any, *, axis: int = -1) -> Array:
    """ln of the sum of e^x along an axis, which goes."""
    return _rows(x, axis)[1]


def _rows(x: Any, axis: int) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        rows = np.moveaxis(x.astype(working(x)), axis, -1)
        m = rows.max(axis=-1, keepdims=True, initial=-np.inf)
        shift = np.where(np.isneginf(m), 0, m)
        e = np.exp(rows - shift)
        l = e.sum(axis=-1, keepdims=True)
        return np.moveaxis(e / np.where(l == 0, 1, l), -1, axis), (shift + np.log(l))[..., 0]


# Gradients --------------------------------------------------------------------------------------------------------------


def recomputed(call: Call, lse: Array) -> Array:
    """P = e^(s - lse) of what is visible, from the forward pass's lse."""
    shift = np.where(np.isneginf(lse), 0, lse)[..., None]
    return np.asarray(np.exp(np.where(visible(call), scores(call), -np.inf) - shift))


def row_sums(dout: Array, out: Array) -> Array:
    """delta, (B, Hq, Lq, 1)."""
    return np.asarray((dout * out).sum(axis=-1, keepdims=True))


def score_gradient(call: Call, p: Array, dp: Array, delta: Array) -> Array:
    """dS = P (dP - delta), before the cap."""
    return np.asarray(p * (dp - delta))


def summed_over_group(x: Array, G: int) -> Array:
    """(B, Hq, L, D) summed over the G query heads of each key/value head."""
    B, Hq, L, D = x.shape
    return np.asarray(x.reshape(B, Hq // G, G, L, D).sum(axis=2))


def attention_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, recomputed: Callable[[Call, Array], Array] = recomputed,
                       row_sums: Callable[[Array, Array], Array] = row_sums,
                       score_gradient: Callable[[Call, Array, Array, Array], Array] = score_gradient,
                       summed_over_group: Callable[[Array, int], Array] = summed_over_group, **options: Any) -> dict[str, Array]:
    """dq, dk, dv, and dbias, dsinks where given, from out and lse of the forward pass."""
    G = q.shape[1] // k.shape[1]
    with np.errstate(all="ignore"):
        call = prepared(q, k, v, **options)
        dout, out, lse = (x.astype(call.q.dtype) for x in (dout, out, lse))
        p, seen = recomputed(call, lse), visible(call)                          # (B, Hq, Lq, Lk)
        dv = (p * call.keep).swapaxes(-1, -2) @ dout
        dp = np.where(seen, dout @ call.v.swapaxes(-1, -2), 0) * call.keep
        delta = row_sums(dout, out)
        ds = score_gradient(call, p, dp, delta)
        gradients = {}
        if call.bias is not None:
            gradients["dbias"] = _summed_to(ds, call.bias.shape).astype(options["bias"].dtype)
        if call.sinks is not None:
            hidden = np.isneginf(call.sinks)[:, None]
            share = np.where(hidden, 0, np.exp(call.sinks[:, None] - np.where(np.isneginf(lse), 0, lse)))       # (B, Hq, Lq)
            gradients["dsinks"] = -(share * delta[..., 0]).sum(axis=(0, 2)).astype(options["sinks"].dtype)
        if call.softcap is not None:
            tanh = np.tanh(products(call) / call.softcap)
            ds = ds * ((1 - tanh) * (1 + tanh))
        dq, dk = call.scale * (ds @ call.k), call.scale * (ds.swapaxes(-1, -2) @ call.q)
        dk, dv = summed_over_group(dk, G), summed_over_group(dv, G)
        return {"dq": dq.astype(q.dtype), "dk": dk.astype(k.dtype), "dv": dv.astype(v.dtype), **gradients}


def _summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """x summed over the axes along which a bias of this shape was broadcast."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return np.asarray(x.sum(axis=tuple(axis for axis, n in enumerate(shape) if n == 1), keepdims=True))


# Packed sequences -------------------------------------------------------------------------------------------------------


def batch(x: Array) -> Array:
    """(T, H, D) as a batch of one, (1, H, T, D)."""
    return x.swapaxes(0, 1)[None]


def sequences(cu_q: Any, cu_k: Any) -> list[tuple[slice, slice]]:
    """The rows and the keys of each sequence."""
    return [(slice(*rows), slice(*keys)) for rows, keys in zip(pairwise(cu_q), pairwise(cu_k))]


def attention_packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, **options: Any) -> tuple[Array, Array]:
    """out (Tq, Hq, Dv), lse (Hq, Tq): each sequence by itself."""
    out, lse = np.zeros((*q.shape[:2], v.shape[-1]), q.dtype), np.full((q.shape[1], len(q)), -np.inf, working(q))
    for rows, keys in sequences(cu_q, cu_k):
        o, l = attention(batch(q[rows]), batch(k[keys]), batch(v[keys]), **options)
        out[rows], lse[:, rows] = o[0].swapaxes(0, 1), l[0]
    return out, lse


def attention_packed_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any,
                              **options: Any) -> dict[str, Array]:
    """dq, dk, dv of each sequence by itself."""
    gradients = {"dq": np.zeros_like(q), "dk": np.zeros_like(k), "dv": np.zeros_like(v)}
    for rows, keys in sequences(cu_q, cu_k):
        one = attention_backward(batch(q[rows]), batch(k[keys]), batch(v[keys]), batch(out[rows]), lse[None, :, rows], batch(dout[rows]),
                                 **options)
        for name, part in (("dq", rows), ("dk", keys), ("dv", keys)):
            gradients[name][part] = one[name][0].swapaxes(0, 1)
    return gradients
