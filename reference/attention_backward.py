"""The gradient of attention, by hand, from the textbook form. Packed and tiled forms are in their own files."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Causal, Float64, Shape, Window
from .attention import attention_scores, seen_product, softmax_over_visible
from .visibility import visible_keys


def attention_backward(q: ArrayLike, k: ArrayLike, v: ArrayLike, out: ArrayLike, lse: ArrayLike, dout: ArrayLike, *, causal: Causal,
                       window: Window = None, scale: float | None = None, softcap: float | None = None, bias: ArrayLike | None = None,
                       mask: ArrayLike | None = None, kv_lengths: ArrayLike | None = None, sinks: ArrayLike | None = None,
                       alibi_slopes: ArrayLike | None = None, dropout_mask: ArrayLike | None = None,
                       dropout_p: float = 0.0) -> dict[str, Float64]:
    """The gradients of sum(dout * attention(q, k, v).out): a dict of "dq", "dk", "dv", and "dbias", "dsinks" where given.

        dv = (p kept / (1 - dropout_p))^T dout
        dp = (dout v^T) kept / (1 - dropout_p)
        ds = p (dp - delta),   delta = sum_j p dp
        dbias = ds,  dsink = -sum over queries of p_sink delta
        ds = ds (1 - tanh^2(scale q k^T / softcap))
        dq = scale ds k,  dk = scale ds^T q

    Each has the shape of what it is the gradient of: dk and dv sum over the query heads of their group, dbias over the
    axes along which bias was broadcast. out and lse are what `attention` returned; a kernel may use them, the oracle
    checks their shapes and recomputes them. Other arguments as in `attention`.

    Nothing visible: all gradients 0. What a query does not see gets nothing from it, and never matters to it, NaN and
    inf included; a row that is NaN makes NaN the gradients of what it sees.

    >>> q, k, v = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.array([[[[1.0], [3.0]]]])
    >>> out, lse = np.full((1, 1, 1, 1), 2.0), np.full((1, 1, 1), np.log(2.0))
    >>> gradients = attention_backward(q, k, v, out, lse, np.ones((1, 1, 1, 1)), causal=None, bias=np.zeros((1, 1, 1, 2)))
    >>> gradients["dv"].ravel(), gradients["dbias"].ravel()
    (array([0.5, 0.5]), array([-0.5,  0.5]))

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: `properties.bounds`.
    Source: Dao et al. 2022 (arXiv 2205.14135), appendix B.2, equations 3 to 6, there without cap, bias, sinks.
    """
    q, k, v = (x.astype(np.float64) for x in arguments.query_key_value(q, k, v))
    (B, Hq, Lq, D), (_, Hkv, Lk, Dv) = q.shape, v.shape
    arguments.float_array("out", out, (B, Hq, Lq, Dv))
    arguments.float_array("lse", lse, (B, Hq, Lq))
    dout = arguments.widen("dout", dout, (B, Hq, Lq, Dv))
    kept, factor = arguments.dropout(dropout_mask, dropout_p, (B, Hq, Lq, Lk))
    keep = np.float64(1.0) if kept is None else kept * factor                   # () or (B, Hq, Lq, Lk)
    sink = None if sinks is None else arguments.widen("sinks", sinks, (Hq,))

    s = attention_scores(q, k, causal=causal, scale=scale, softcap=softcap, bias=bias, kv_lengths=kv_lengths, alibi_slopes=alibi_slopes)
    seen = visible_keys(B, Hq, Lq, Lk, causal=causal, window=window, mask=mask, kv_lengths=kv_lengths, bias=bias) & ~np.isneginf(s)
    p, lse = softmax_over_visible(s, seen, sink)                                # (B, Hq, Lq, Lk), (B, Hq, Lq)

    k, v = np.repeat(k, Hq // Hkv, axis=1), np.repeat(v, Hq // Hkv, axis=1)
    seen_by = seen.swapaxes(-1, -2)                                             # (B, Hq, Lk, Lq)
    with np.errstate(invalid="ignore", over="ignore"):
        dv = seen_product((p * keep).swapaxes(-1, -2), dout, seen_by)           # (B, Hq, Lk, Dv)
        dp = np.where(seen, (dout @ v.swapaxes(-1, -2)) * keep, 0.0)            # (B, Hq, Lq, Lk)
        delta = (p * dp).sum(axis=-1, keepdims=True)                            # (B, Hq, Lq, 1)
        ds = np.where(seen, p * (dp - delta), 0.0)
        gradients = {"dbias": _sum_to(ds, np.shape(bias))} if bias is not None else {}
        if sink is not None:
            gradients["dsinks"] = -(_sink_probability(sink, lse) * delta[..., 0]).sum(axis=(0, 2))
        if softcap is not None:
            capped = attention_scores(q, k, causal=causal, scale=scale, softcap=softcap) / softcap     # tanh, (B, Hq, Lq, Lk)
            ds = np.where(seen, ds * ((1.0 - capped) * (1.0 + capped)), 0.0)
        ds = arguments.score_scale(scale, D) * ds
        dq, dk = seen_product(ds, k, seen), seen_product(ds.swapaxes(-1, -2), q, seen_by)
        return {"dq": dq, "dk": _sum_groups(dk, Hkv), "dv": _sum_groups(dv, Hkv), **gradients}


def _sink_probability(sink: Float64, lse: Float64) -> Float64:
    """e^(sink - lse), (B, Hq, Lq); 0 for a sink of -inf, also where nothing else is seen either."""
    sink = np.broadcast_to(sink[:, None], lse.shape)
    return np.where(np.isneginf(sink), 0.0, np.exp(sink - np.where(np.isneginf(sink), 0.0, lse)))


def _sum_groups(x: Float64, Hkv: int) -> Float64:
    """(B, Hq, L, D) summed over the query heads of each key head: (B, Hkv, L, D)."""
    B, Hq, L, D = x.shape
    return np.asarray(x.reshape(B, Hkv, Hq // Hkv, L, D).sum(axis=2))


def _sum_to(x: Float64, shape: Shape) -> Float64:
    """x summed over the axes along which an array of `shape` was broadcast to it."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return np.asarray(x.sum(axis=tuple(axis for axis, n in enumerate(shape) if n == 1), keepdims=True))
