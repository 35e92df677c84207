"""Rows, rotations, filters and losses in double-double."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import double_double_functions as functions
from .double_double import DD, Float64, exact, where

Results = dict[str, DD]


def softmax(x: ArrayLike, *, axis: int = -1) -> Results:
    """p, the shape of x."""
    e, l, _ = _weights(x, axis)
    p = e / where(l.hi == 0.0, 1.0, l)
    return {"p": DD(np.moveaxis(p.hi, -1, axis), np.moveaxis(p.lo, -1, axis))}


def log_sum_exp(x: ArrayLike, *, axis: int = -1) -> Results:
    """lse, without the axis."""
    _, l, m = _weights(x, axis)
    nothing = l.hi == 0.0
    return {"lse": where(nothing, -np.inf, functions.log(where(nothing, 1.0, l)) + m)[..., 0]}


def merge_attention(out_a: ArrayLike, lse_a: ArrayLike, out_b: ArrayLike, lse_b: ArrayLike) -> Results:
    """out and lse of both parts together."""
    pair = np.stack([np.asarray(lse_a).astype(np.float64), np.asarray(lse_b).astype(np.float64)], axis=-1)
    p = softmax(pair)["p"]
    return {"out": p[..., :1] * out_a + p[..., 1:] * out_b, "lse": log_sum_exp(pair)["lse"]}


def _weights(x: ArrayLike, axis: int) -> tuple[DD, DD, Float64]:
    """e^(x - m) with the axis last, their sums (..., 1), 0 for nothing, and m (..., 1)."""
    wide = np.moveaxis(np.asarray(x).astype(np.float64), axis, -1)
    hidden = np.isneginf(wide)
    m = wide.max(axis=-1, keepdims=True, initial=-np.inf)
    m = np.where(np.isneginf(m), 0.0, m)
    e = where(hidden, 0.0, functions.exp(where(hidden, 0.0, exact(np.where(hidden, 0.0, wide)) - m)))
    return e, e.sum(keepdims=True), m


def rope(x: ArrayLike, positions: ArrayLike, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
         scaling: Mapping[str, Any] | None = None) -> Results:
    """out, the shape of x."""
    wide = np.asarray(x).astype(np.float64)
    R = wide.shape[-1] if rotary_dim is None else rotary_dim
    f, m = frequencies(R, base, scaling)
    p = np.broadcast_to(np.asarray(positions), wide.shape[:-1]).astype(np.float64)
    sin, cos = functions.sin_cos(f * p[..., None])
    sin, cos = sin * m, cos * m
    first, second = (slice(0, R // 2), slice(R // 2, R)) if pairing == "half" else (slice(0, R, 2), slice(1, R, 2))
    a, b, out = exact(wide[..., first]), exact(wide[..., second]), exact(wide.copy())
    for place, turned in ((first, a * cos - b * sin), (second, a * sin + b * cos)):
        out.hi[..., place], out.lo[..., place] = turned.hi, turned.lo
    return {"out": out}


def frequencies(R: int, base: float, scaling: Mapping[str, Any] | None) -> tuple[DD, DD]:
    """The angle per position of each pair (R / 2,), and the factor on cos and sin."""
    kind, s = None if scaling is None else scaling["kind"], dict(scaling or {})
    i = np.arange(R // 2).astype(np.float64)
    b, one = exact(float(base)), exact(1.0)
    if kind == "ntk":
        b = b * functions.power(exact(float(s["factor"])), exact(float(R)) / (R - 2.0))
    f = functions.power(b, exact(-2.0 * i) / float(R))
    if kind == "linear":
        return f / float(s["factor"]), one
    if kind == "yarn":
        low, high = (R * functions.log(float(s["original_max_position_embeddings"]) / (functions.PI * (2.0 * float(s[beta]))))
                     / (functions.log(b) * 2.0) for beta in ("beta_fast", "beta_slow"))
        if s["truncate"]:
            low, high = exact(np.floor(low.hi)), exact(np.ceil(high.hi))        # no golden case lies within rounding of a whole number
        low, high = _kept(low, 0.0, R - 1.0), _kept(high, 0.0, R - 1.0)
        apart = where((high - low).hi == 0.0, 0.001, high - low)
        ramp = _kept((i - low) / apart, 0.0, 1.0)
        return (1.0 - ramp) * f + ramp * f / float(s["factor"]), _mscale(s, "mscale") / _mscale(s, "mscale_all_dim")
    if kind == "llama3":
        turns = float(s["original_max_position_embeddings"]) * f / (functions.PI * 2.0)
        ramp = _kept((turns - float(s["low_freq_factor"])) / (exact(float(s["high_freq_factor"])) - float(s["low_freq_factor"])), 0.0, 1.0)
        return (1.0 - ramp) * f / float(s["factor"]) + ramp * f, one
    return f, one


def _kept(x: DD, least: float, most: float) -> DD:
    return where(x.hi < least, least, where(x.hi > most, most, x))


def _mscale(s: Mapping[str, Any], name: str) -> DD:
    if s["factor"] <= 1.0:
        return exact(1.0)
    return 1.0 + functions.log(exact(float(s["factor"]))) * float(s[name]) / 10.0


def filter_probabilities(logits: ArrayLike, *, temperature: ArrayLike = 1.0, top_k: ArrayLike | None = None,
                         top_p: ArrayLike | None = None, min_p: ArrayLike | None = None) -> Results:
    """probabilities, the shape of logits; decisions by the upper halves, since no golden case stands near a tie."""
    z = np.asarray(logits).astype(np.float64)
    rows, V = z.shape[:-1], z.shape[-1]
    T, k, p, least = (np.broadcast_to(np.asarray(none if x is None else x), rows)[..., None] for x, none in
                      ((temperature, 1.0), (top_k, V), (top_p, 1.0), (min_p, 0.0)))
    order = np.argsort(-z, axis=-1, kind="stable")
    ranked = np.take_along_axis(z, order, axis=-1)
    hidden = np.isneginf(ranked)
    finite = np.where(hidden, 0.0, ranked)
    w = where(hidden, 0.0, functions.exp((exact(finite) - finite[..., :1]) / np.where(T == 0.0, 1.0, T)))
    kept = (np.arange(V) < np.where(T == 0.0, 1, k)) & ~hidden
    if (p < 1.0).any():                                                         # a border of all mass cuts nothing, whatever rounding says
        left = where(kept, w, 0.0)
        before = DD(np.cumsum(left.hi, axis=-1) - left.hi, np.zeros_like(left.hi))
        border = left.sum(keepdims=True) * p
        kept = kept & ((p == 1.0) | ((before - border).hi < 0.0))
    kept = kept & ((np.arange(V) == 0) | (w.hi >= least))
    w = where(kept, w, 0.0)
    ranked_p = w / w.sum(keepdims=True) if z.size else w
    result = exact(np.zeros(z.shape))
    for limb, values in ((result.hi, ranked_p.hi), (result.lo, ranked_p.lo)):
        np.put_along_axis(limb, order, values, axis=-1)
    return {"probabilities": result}


def mtp_loss(logits: ArrayLike, tokens: ArrayLike, *, weights: ArrayLike | None = None, segments: ArrayLike | None = None,
             ignore_index: int = -100) -> Results:
    """loss, a single number."""
    z, ids = np.asarray(logits).astype(np.float64), np.asarray(tokens)
    K, T = z.shape[:2]
    w = np.ones(K) if weights is None else np.asarray(weights).astype(np.float64)
    documents = np.zeros(T) if segments is None else np.asarray(segments)
    loss = exact(0.0)
    for j in range(1, K + 1):
        t = np.asarray([t for t in range(T - j) if documents[t] == documents[t + j] and ids[t + j] != ignore_index], dtype=np.int64)
        if not len(t):
            continue
        rows, target = z[j - 1, t], ids[t + j]
        top = rows.argmax(axis=-1)
        m = exact(rows[np.arange(len(t)), top])
        e = functions.exp(exact(rows) - m[:, None])
        others = where(np.arange(rows.shape[1]) == top[:, None], 0.0, e).sum()
        terms = functions.log1p(others) + (m - rows[np.arange(len(t)), target])
        loss = loss + terms.sum() / float(len(t)) * w[j - 1]
    return {"loss": loss}
