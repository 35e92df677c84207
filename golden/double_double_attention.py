"""Attention and its gradient in double-double, all heads at once: the textbook form, keys gathered first where they lie elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import double_double_functions as functions
from .ball_attention import visible
from .double_double import DD, exact, sqrt, where

Bool = NDArray[np.bool_]
Results = dict[str, DD]


def attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, **options: Any) -> Results:
    """out (B, Hq, Lq, Dv) and lse (B, Hq, Lq)."""
    h_q, h_k, h_v = _heads(q, k, v)
    s, _, _ = _scores(h_q, h_k, options)
    out, lse, _, _ = _attended(s, _seen(h_q, h_k, options), h_v, options)
    return {"out": out, "lse": lse}


def attention_backward(q: ArrayLike, k: ArrayLike, v: ArrayLike, out: ArrayLike, lse: ArrayLike, dout: ArrayLike,
                       **options: Any) -> Results:
    """dq, dk, dv, and dbias, dsinks where given; out and lse are made anew."""
    Hkv, do = np.shape(k)[1], exact(dout)
    h_q, h_k, h_v = _heads(q, k, v)
    seen = _seen(h_q, h_k, options)
    s, slope, scale = _scores(h_q, h_k, options)
    _, _, p, p_sink = _attended(s, seen, h_v, options)
    z = _kept(options, s.shape)
    dp = where(seen, (do @ h_v.T) * z, 0.0)
    delta = (p * dp).sum(keepdims=True)                                         # (B, Hq, Lq, 1)
    ds = p * (dp - delta)
    results = {}
    if options.get("bias") is not None:
        results["dbias"] = _summed_to(ds, np.shape(options["bias"]))
    if options.get("sinks") is not None:
        results["dsinks"] = -(p_sink * delta)[..., 0].sum(axis=-1).sum(axis=0)
    ds = ds * slope * scale
    gradients = {"dq": ds @ h_k, "dk": _grouped(ds.T @ h_q, Hkv), "dv": _grouped((p * z).T @ do, Hkv)}
    return {**gradients, **results}


def attention_packed(q: ArrayLike, k: ArrayLike, v: ArrayLike, cu_q: ArrayLike, cu_k: ArrayLike, **options: Any) -> Results:
    """out (Tq, Hq, Dv) and lse (Hq, Tq)."""
    q, k, v = (np.asarray(x) for x in (q, k, v))
    out, lse = exact(np.zeros((*q.shape[:2], v.shape[-1]))), exact(np.zeros((q.shape[1], len(q))))
    for rows, keys in _sequences(cu_q, cu_k):
        one = attention(_alone(q[rows]), _alone(k[keys]), _alone(v[keys]), **options)
        _put(out, rows, one["out"][0], swapped=True)
        _put(lse, (slice(None), rows), one["lse"][0])
    return {"out": out, "lse": lse}


def attention_packed_backward(q: ArrayLike, k: ArrayLike, v: ArrayLike, out: ArrayLike, lse: ArrayLike, dout: ArrayLike, cu_q: ArrayLike,
                              cu_k: ArrayLike, **options: Any) -> Results:
    """dq, dk, dv, shaped as q, k, v."""
    q, k, v, dout = (np.asarray(x) for x in (q, k, v, dout))
    results = {name: exact(np.zeros(x.shape)) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    for rows, keys in _sequences(cu_q, cu_k):
        one = attention_backward(_alone(q[rows]), _alone(k[keys]), _alone(v[keys]), out, lse, _alone(dout[rows]), **options)
        for name, part in (("dq", rows), ("dk", keys), ("dv", keys)):
            _put(results[name], part, one[name][0], swapped=True)
    return results


def paged_attention(q: ArrayLike, k_pages: ArrayLike, v_pages: ArrayLike, block_tables: ArrayLike, kv_lengths: ArrayLike, *,
                    query_lengths: ArrayLike | None = None, **options: Any) -> Results:
    """out (B, Hq, Lq, Dv) and lse (B, Hq, Lq); padding is 0 and -inf."""
    q, k_pages, v_pages, tables = (np.asarray(x) for x in (q, k_pages, v_pages, block_tables))
    (B, Hq, Lq, _), S = q.shape, k_pages.shape[1]
    rows = [Lq] * B if query_lengths is None else [int(n) for n in np.asarray(query_lengths)]
    out, lse = exact(np.zeros((B, Hq, Lq, v_pages.shape[-1]))), exact(np.full((B, Hq, Lq), -np.inf))
    for b, n in enumerate(np.asarray(kv_lengths).tolist()):
        blocks = tables[b, : -(-n // S)]
        k, v = (pages[blocks].reshape(-1, *pages.shape[2:])[:n] for pages in (k_pages, v_pages))
        one = attention(q[b : b + 1, :, : rows[b]], _alone(k), _alone(v), **options)
        place = (slice(b, b + 1), slice(None), slice(0, rows[b]))
        _put(out, place, one["out"])
        _put(lse, place, one["lse"])
    return {"out": out, "lse": lse}


def mla_attention(q_nope: ArrayLike, q_rope: ArrayLike, latent: ArrayLike, k_rope: ArrayLike, w_uk: ArrayLike, w_uv: ArrayLike,
                  **options: Any) -> Results:
    """out (B, H, Lq, Dv) and lse (B, H, Lq), keys and values built from the latents."""
    c, H = exact(np.asarray(latent)[:, None]), np.shape(w_uk)[0]                # (B, 1, Lk, C)
    k_nope, v = c @ exact(w_uk), c @ exact(w_uv)                                # (B, H, Lk, Dn), (B, H, Lk, Dv)
    shared = exact(np.repeat(np.asarray(k_rope)[:, None], H, axis=1))
    q, k = _joined(exact(q_nope), exact(q_rope)), _joined(k_nope, shared)
    s, _, _ = _scores(q, k, options)
    out, lse, _, _ = _attended(s, _seen(q, k, options), v, options)
    return {"out": out, "lse": lse}


def _heads(q: ArrayLike, k: ArrayLike, v: ArrayLike) -> tuple[DD, DD, DD]:
    """q, and the keys and values that each query head reads: (B, Hq, L, D)."""
    group = np.shape(q)[1] // np.shape(k)[1]
    return exact(q), exact(np.repeat(np.asarray(k), group, axis=1)), exact(np.repeat(np.asarray(v), group, axis=1))


def _seen(q: DD, k: DD, options: dict[str, Any]) -> Bool:
    (B, Hq, Lq, _), Lk = q.shape, k.shape[2]
    return visible(B, Hq, Lq, Lk, **{name: options.get(name) for name in ("causal", "window", "mask", "kv_lengths")})


def _scores(q: DD, k: DD, options: dict[str, Any]) -> tuple[DD, DD, DD]:
    """Scores before they are hidden (B, Hq, Lq, Lk), the slope of the cap, the scale."""
    (B, _, Lq, D), Lk = q.shape, k.shape[2]
    given, cap = options.get("scale"), options.get("softcap")
    scale = exact(1.0) / sqrt(exact(float(D))) if given is None else exact(float(given))
    s, slope = (q @ k.T) * scale, exact(1.0)
    if cap is not None:
        tanh = functions.tanh(s / float(cap))
        s, slope = tanh * float(cap), (1.0 - tanh) * (1.0 + tanh)
    if options.get("bias") is not None:
        s = s + np.asarray(options["bias"]).astype(np.float64)
    slopes = options.get("alibi_slopes")
    if slopes is not None:
        n = np.full(B, Lk) if options.get("kv_lengths") is None else np.asarray(options["kv_lengths"])
        p = np.arange(Lq) + (np.zeros((B, 1), np.int64) if options.get("causal") == "top_left" else n[:, None] - Lq)
        distance = np.abs(p[:, None, :, None] - np.arange(Lk)).astype(np.float64)
        s = s - exact(np.asarray(slopes).astype(np.float64)[:, None, None]) * distance
    return s, slope, scale


def _attended(s: DD, seen: Bool, v: DD, options: dict[str, Any]) -> tuple[DD, DD, DD, DD]:
    """out, lse (B, Hq, Lq), p, and the sink's share (B, Hq, Lq, 1)."""
    sinks = options.get("sinks")
    sink = np.full((*s.shape[:3], 1), -np.inf)
    if sinks is not None:
        sink[:] = np.asarray(sinks).astype(np.float64)[:, None, None]
    m = np.maximum(np.where(seen, s.hi, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf), sink)
    nothing = np.isneginf(m)
    m = np.where(nothing, 0.0, m)
    e = where(seen, functions.exp(where(seen, s - m, 0.0)), 0.0)
    hidden = np.isneginf(sink)
    e_sink = where(hidden, 0.0, functions.exp(where(hidden, 0.0, exact(np.where(hidden, 0.0, sink)) - m)))
    l = where(nothing, 1.0, e.sum(keepdims=True) + e_sink)
    p = e / l
    lse = where(nothing, -np.inf, functions.log(l) + m)[..., 0]
    return (p * _kept(options, s.shape)) @ v, lse, p, e_sink / l


def _kept(options: dict[str, Any], shape: tuple[int, ...]) -> DD:
    mask = options.get("dropout_mask")
    if mask is None:
        return exact(1.0)
    return exact(np.broadcast_to(mask, shape)) / (exact(1.0) - float(options.get("dropout_p", 0.0)))


def _grouped(x: DD, Hkv: int) -> DD:
    """(B, Hq, L, D) summed over the query heads of each key head."""
    B, Hq, L, D = x.shape
    shape = (B, Hkv, Hq // Hkv, L, D)
    return DD(x.hi.reshape(shape), x.lo.reshape(shape)).sum(axis=2)


def _summed_to(x: DD, shape: tuple[int, ...]) -> DD:
    while len(x.shape) > len(shape):
        x = x.sum(axis=0)
    for axis, n in enumerate(shape):
        x = x.sum(axis=axis, keepdims=True) if n == 1 else x
    return x


def _joined(a: DD, b: DD) -> DD:
    return DD(np.concatenate([a.hi, b.hi], axis=-1), np.concatenate([a.lo, b.lo], axis=-1))


def _put(x: DD, place: Any, part: DD, *, swapped: bool = False) -> None:
    x.hi[place], x.lo[place] = ((part.hi.swapaxes(0, 1), part.lo.swapaxes(0, 1)) if swapped else (part.hi, part.lo))


def _alone(x: Any) -> Any:
    """(T, H, D) as a batch of one, (1, H, T, D)."""
    return x.swapaxes(0, 1)[None]


def _sequences(cu_q: ArrayLike, cu_k: ArrayLike) -> list[tuple[slice, slice]]:
    q, k = (np.asarray(cu).tolist() for cu in (cu_q, cu_k))
    return [(slice(q[i], q[i + 1]), slice(k[i], k[i + 1])) for i in range(len(q) - 1)]
