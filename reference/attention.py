"""Attention in its textbook form: all scores at once, one softmax per query. Tiles, caches and gradients are left to others."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Bool, Causal, Float64, Window
from .visibility import query_positions, visible_keys


def attention_scores(q: ArrayLike, k: ArrayLike, *, causal: Causal, scale: float | None = None, softcap: float | None = None,
                     bias: ArrayLike | None = None, kv_lengths: ArrayLike | None = None,
                     alibi_slopes: ArrayLike | None = None) -> Float64:
    """The scores of every query and key, nothing hidden yet: float64 (B, Hq, Lq, Lk).

        s = scale q k^T
        s = softcap tanh(s / softcap)
        s = s + bias - slope |p - j|

    in this order. scale None: 1/sqrt(D). Query head h reads key head h // (Hq // Hkv). p as in `query_positions`,
    the only thing `causal` and `kv_lengths` matter for here.

    >>> attention_scores([[[[2.0, 0.0]]]], [[[[3.0, 1.0], [0.0, 5.0]]]], causal=None, scale=0.5)
    array([[[[3., 0.]]]])

    Raises ValueError or TypeError for bad shapes, dtypes and a softcap that is not above 0.
    Error bound: (D + 4) u scale |q| |k|^T, and 4 u more of each term that follows.
    Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1; the cap: Gemma 2 (arXiv 2408.00118), section 2; ALiBi:
    Press et al. 2021 (arXiv 2108.12409). Cap before bias: onnx/onnx#7867 has the other order.
    """
    q, k = (x.astype(np.float64) for x in arguments.query_and_key(q, k))
    (B, Hq, Lq, D), Lk = q.shape, k.shape[2]
    k = np.repeat(k, Hq // k.shape[1], axis=1)                                  # (B, Hq, Lk, D)
    with np.errstate(invalid="ignore", over="ignore"):                          # NaN and inf may stand behind the mask
        s: Float64 = arguments.score_scale(scale, D) * (q @ k.swapaxes(-1, -2))     # (B, Hq, Lq, Lk)
        if softcap is not None:
            softcap = arguments.real_number("softcap", softcap, positive=True)
            s = softcap * np.tanh(s / softcap)
        if bias is not None:
            s = s + arguments.additive_bias(bias, s.shape).astype(np.float64)
        if alibi_slopes is not None:
            slopes = arguments.widen("alibi_slopes", alibi_slopes, (Hq,))[:, None, None]
            p = query_positions(B, Lq, Lk, causal=causal, kv_lengths=kv_lengths)[:, None, :, None]
            s = s - slopes * np.abs(p - np.arange(Lk))
    return s


def softmax_over_visible(s: Float64, visible: Bool, sinks: Float64 | None = None) -> tuple[Float64, Float64]:
    """Softmax of each row over the keys it sees, and that row's log-sum-exp: p (B, Hq, Lq, Lk), lse (B, Hq, Lq).

        lse = ln(sum_visible e^s + e^sink)
        p = e^(s - lse) where visible, else 0

    A sink (Hq,) takes its share of the probability and has no column in p. Nothing visible: p = 0, lse = sink or -inf.
    A score of -inf hides its key. A visible NaN or +inf makes lse and the visible p of its row NaN.

    >>> p, lse = softmax_over_visible(np.zeros((1, 1, 1, 3)), np.array([True, True, False]).reshape(1, 1, 1, 3))
    >>> p[0, 0, 0], float(lse[0, 0, 0]) == float(np.log1p(1.0))
    (array([0.5, 0.5, 0. ]), True)

    Error bound: (Lk + 6 + max |s - lse|) u p; of lse (Lk + 6 + max |s - m|) u ln(sum e^(s - m)) and u (|m| + |lse|),
    m the largest score.
    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), section 2; sinks: Xiao et al. 2023 (arXiv 2309.17453).
    """
    B, Hq, Lq, Lk = s.shape
    last = np.full((B, Hq, Lq, 1), -np.inf)
    if sinks is not None:
        last[:] = sinks[:, None, None]
    x = np.concatenate([np.where(visible, s, -np.inf), last], axis=-1)          # (B, Hq, Lq, Lk + 1): never empty
    top = x.argmax(axis=-1, keepdims=True)                                      # the place of a NaN, if there is one
    m = np.take_along_axis(x, top, axis=-1)
    shift = np.where(np.isneginf(m), 0.0, np.where(m == np.inf, np.nan, m))     # nothing seen: avoid -inf - -inf
    with np.errstate(over="ignore"):                                            # a difference past the largest number weighs 0
        e = np.exp(x - shift)
    others = e.copy()
    np.put_along_axis(others, top, 0.0, axis=-1)
    r = others.sum(axis=-1, keepdims=True)
    lse = np.where(np.isneginf(m), m, shift + np.log1p(r))                      # log1p: no digit lost when one key leads
    p = np.where(visible, e[..., :Lk] / (1.0 + r), 0.0)
    return p, lse[..., 0]


def seen_product(a: Float64, b: Float64, seen: Bool) -> Float64:
    """a b, where b[j] enters row i only if seen[i, j]: NaN and inf that are not seen never meet a's zeros.

    a, seen (..., I, J), b (..., J, N), a = 0 where nothing is seen. What is seen counts as IEEE arithmetic has it.

    >>> seen_product(np.array([[0.0, 2.0]]), np.array([[np.nan], [3.0]]), np.array([[False, True]]))
    array([[6.]])
    """
    finite = np.isfinite(b)
    with np.errstate(invalid="ignore", over="ignore"):
        product = a @ np.where(finite, b, 0.0)
        every = tuple(range(seen.ndim - 1))
        for j in np.flatnonzero(~finite.all(axis=(*every[:-1], -1)) & seen.any(axis=every)):
            odd = seen[..., :, j, None] & ~finite[..., None, j, :]
            product += np.where(odd, a[..., :, j, None] * b[..., None, j, :], 0.0)
    return product


def attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, *, causal: Causal, window: Window = None, scale: float | None = None,
              softcap: float | None = None, bias: ArrayLike | None = None, mask: ArrayLike | None = None,
              kv_lengths: ArrayLike | None = None, sinks: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None,
              dropout_mask: ArrayLike | None = None, dropout_p: float = 0.0) -> tuple[Float64, Float64]:
    """Scaled dot-product attention and its log-sum-exp: out (B, Hq, Lq, Dv), lse (B, Hq, Lq), float64.

        s = scores(q, k)                                      `attention_scores`
        p = softmax(s) over the visible keys, sinks included  `visible_keys`, `softmax_over_visible`
        out = (p kept / (1 - dropout_p)) v

    q (B, Hq, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv); bias, mask (True = visible) and dropout_mask (True = kept)
    broadcast to (B, Hq, Lq, Lk); kv_lengths (B,); sinks and alibi_slopes (Hq,). Any float dtype, widened exactly.

    Nothing visible: out 0, lse -inf (the sink, where there is one). What a query does not see never matters, NaN and
    inf included; a NaN or +inf score it sees makes its row NaN; a NaN in v makes NaN that element of each query that
    sees it. A score of -inf hides its key. lse is that of the row before dropout.

    >>> out, lse = attention([[[[1.0]]]], [[[[0.0], [0.0]]]], [[[[1.0, 2.0], [3.0, 6.0]]]], causal=None)
    >>> out, bool(lse == np.log(2.0))
    (array([[[[2., 4.]]]]), True)
    >>> attention([[[[1.0]]]], [[[[0.0], [0.0]]]], [[[[1.0], [3.0]]]], causal="top_left")[0]
    array([[[[1.]]]])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: `properties.bounds`.
    Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1; grouped heads: Ainslie et al. 2023 (arXiv 2305.13245).
    """
    q, k, v = arguments.query_key_value(q, k, v)
    (B, Hq, Lq, _), Lk = q.shape, k.shape[2]
    kept, factor = arguments.dropout(dropout_mask, dropout_p, (B, Hq, Lq, Lk))
    s = attention_scores(q, k, causal=causal, scale=scale, softcap=softcap, bias=bias, kv_lengths=kv_lengths, alibi_slopes=alibi_slopes)
    visible = visible_keys(B, Hq, Lq, Lk, causal=causal, window=window, mask=mask, kv_lengths=kv_lengths, bias=bias)
    p, lse = softmax_over_visible(s, visible, None if sinks is None else arguments.widen("sinks", sinks, (Hq,)))
    if kept is not None:
        p = p * kept * factor
    v = np.repeat(v.astype(np.float64), Hq // v.shape[1], axis=1)               # (B, Hq, Lk, Dv)
    return seen_product(p, v, visible & ~np.isneginf(s)), lse
