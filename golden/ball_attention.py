"""Attention and its gradient in ball arithmetic, one query head at a time, written apart from the float64 oracle.

Every form keeps what is exact exact: exponents and dP are taken relative to those of the key with the largest score, so that a row
with one key, or with equal scores, has weights without any rounding, and gradients that are 0 are the exact 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .balls import elementwise, exact, middles, product, total
from .certified import Balls, flint

Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Head:
    """One query head: softmax rows and what the backward pass needs of them. (Lq, Lk), or (Lq, 1) for rows.

    p: 0.0 where nothing is seen. p_sink: the sink's share or 0. slope: what the cap multiplies gradients of scores with, or 1.
    """

    p: Balls
    p_sink: Balls
    lse: Balls
    heaviest: NDArray[np.int64]
    slope: Balls
    scale: Any


def attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, **options: Any) -> dict[str, Balls]:
    """out (B, Hq, Lq, Dv) and lse (B, Hq, Lq); arguments as in the contract."""
    return _over_heads(q, k, v, None, options)


def attention_backward(q: ArrayLike, k: ArrayLike, v: ArrayLike, out: ArrayLike, lse: ArrayLike, dout: ArrayLike,
                       **options: Any) -> dict[str, Balls]:
    """dq, dk, dv, and dbias, dsinks where given; out and lse, which are rounded, are not looked at."""
    return _over_heads(q, k, v, dout, options)


def _over_heads(q: ArrayLike, k: ArrayLike, v: ArrayLike, dout: ArrayLike | None, options: dict[str, Any]) -> dict[str, Balls]:
    q, k, v = (np.asarray(x) for x in (q, k, v))
    (B, Hq, Lq, _), (_, Hkv, Lk, Dv) = q.shape, v.shape
    seen = visible(B, Hq, Lq, Lk, **{name: options.get(name) for name in ("causal", "window", "mask", "kv_lengths")})
    zero = np.float64(0.0)
    results: dict[str, Balls] = {}
    if dout is None:
        results = {"out": exact(np.zeros((B, Hq, Lq, Dv))), "lse": exact(np.zeros((B, Hq, Lq)))}
    else:
        results = {name: exact(np.zeros(x.shape)) for name, x in (("dq", q), ("dk", k), ("dv", v))}
        ds_all = exact(np.zeros((B, Hq, Lq, Lk)))
        sink_parts = exact(np.zeros((B, Hq)))
    keep = _kept(options, (B, Hq, Lq, Lk))
    for b in range(B):
        for h in range(Hq):
            g = h // (Hq // Hkv)
            h_q, h_k = exact(q[b, h]), exact(np.where(seen[b, h].any(axis=0)[:, None], k[b, g], zero))
            h_v = exact(np.where(seen[b, h].any(axis=0)[:, None], v[b, g], zero))
            head = softmax_rows(h_q, h_k, seen[b, h], added(options, b, h, (B, Hq, Lq, Lk)), options, h)
            z = keep[b, h]
            if dout is None:
                results["out"][b, h], results["lse"][b, h] = product(head.p * z, h_v), head.lse[:, 0]
                continue
            h_dout = exact(np.asarray(dout)[b, h])
            dv, ds, delta = score_gradients(head, seen[b, h], z, h_v, h_dout)
            ds_all[b, h], sink_parts[b, h] = ds, total(head.p_sink * delta)
            ds = ds * head.slope * head.scale
            results["dq"][b, h] = product(ds, h_k)
            results["dk"][b, g] += product(ds.T, h_q)
            results["dv"][b, g] += dv
    if dout is not None and options.get("bias") is not None:
        results["dbias"] = _summed_to(ds_all, np.shape(options["bias"]))
    if dout is not None and options.get("sinks") is not None:
        results["dsinks"] = -total(sink_parts, axis=0)
    return results


def softmax_rows(q: Balls, k: Balls, seen: Bool, bias: Balls, options: dict[str, Any], h: int) -> Head:
    """Softmax of scale q k^T, capped, plus bias (Lq, Lk), over what is seen, the sink of head h included."""
    arb = flint().arb
    (Lq, D), Lk = q.shape, k.shape[0]
    given, cap = options.get("scale"), options.get("softcap")
    scale = arb(D).rsqrt() if given is None else arb(float(given))
    s = product(q, k.T)                                                         # (Lq, Lk), exact before the scale at enough bits
    slope = exact(np.ones((Lq, Lk)))
    if cap is not None:
        tanh = elementwise(arb.tanh, s * scale / arb(float(cap)))
        slope, s, factor = 1 - tanh * tanh, tanh, arb(float(cap))
    else:
        factor = scale
    rough = np.where(seen, middles(s * factor + bias), -np.inf)
    heaviest = rough.argmax(axis=1) if Lk else np.zeros(Lq, np.int64)
    none = np.asarray(~seen.any(axis=1))
    e = exact(np.zeros((Lq, Lk)))
    top = np.asarray([arb(0)] * Lq, dtype=object)                               # the score that is subtracted
    for i in range(Lq):
        if none[i]:
            continue
        m = heaviest[i]
        top[i] = s[i, m] * factor + bias[i, m]
        for j in np.flatnonzero(seen[i]):
            e[i, j] = ((s[i, j] - s[i, m]) * factor + (bias[i, j] - bias[i, m])).exp()
    l = total(e, axis=1)
    sink = exact(np.zeros(Lq))
    sinks = options.get("sinks")
    if sinks is not None and not np.isneginf(float(sinks[h])):
        sink = elementwise(arb.exp, arb(float(sinks[h])) - top)
        l = l + sink
    nothing = none & np.asarray([x == 0 for x in sink], dtype=bool)
    l = np.where(nothing, arb(1), l)
    lse = np.where(nothing, -np.inf, top + elementwise(arb.log, l))
    return Head(e / l[:, None], (sink / l)[:, None], lse[:, None], heaviest, slope, scale)


def score_gradients(head: Head, seen: Bool, z: Balls, v: Balls, dout: Balls) -> tuple[Balls, Balls, Balls]:
    """dv (Lk, Dv), ds (Lq, Lk) before cap and scale, delta (Lq, 1)."""
    dv = product((head.p * z).T, dout)
    dp = product(dout, v.T) * z                                                 # (Lq, Lk)
    if dp.shape[1] == 0:
        return dv, dp, exact(np.zeros((dp.shape[0], 1)))
    at_heaviest = np.take_along_axis(dp, head.heaviest[:, None], axis=1)
    apart = np.where(seen, dp - at_heaviest, flint().arb(0))                    # 0 for the heaviest, and where all agree
    mean = total(head.p * apart, axis=1)[:, None]
    ds = head.p * (apart - mean + head.p_sink * at_heaviest)
    delta = mean + (1 - head.p_sink) * at_heaviest
    return dv, ds, np.where(np.asarray(seen.any(axis=1))[:, None], delta, flint().arb(0))


def visible(B: int, Hq: int, Lq: int, Lk: int, *, causal: str | None, window: Any, mask: Any, kv_lengths: Any) -> Bool:
    """What each query may see, index by index, as the contract says it."""
    seen = np.ones((B, Hq, Lq, Lk), dtype=bool) if mask is None else np.array(np.broadcast_to(mask, (B, Hq, Lq, Lk)), dtype=bool)
    left, right = (None, None) if window is None else window
    for b in range(B):
        n = Lk if kv_lengths is None else int(kv_lengths[b])
        for i in range(Lq):
            p = i if causal == "top_left" else i + n - Lq
            for j in range(Lk):
                hidden = j >= n or (causal is not None and j > p)
                hidden = hidden or (left is not None and j < p - left) or (right is not None and j > p + right)
                if hidden:
                    seen[b, :, i, j] = False
    return seen


def added(options: dict[str, Any], b: int, h: int, shape: tuple[int, int, int, int]) -> Balls:
    """What is added to the scores of one head: bias, and -slope |p - j|."""
    _, _, Lq, Lk = shape
    bias, slopes = options.get("bias"), options.get("alibi_slopes")
    result = exact(np.zeros((Lq, Lk)) if bias is None else np.broadcast_to(np.asarray(bias).astype(np.float64), shape)[b, h])
    if slopes is not None:
        n = Lk if options.get("kv_lengths") is None else int(options["kv_lengths"][b])
        p = np.arange(Lq) + (0 if options.get("causal") == "top_left" else n - Lq)
        result = result - exact(float(slopes[h])) * exact(np.abs(p[:, None] - np.arange(Lk)[None, :]))
    return result


def _kept(options: dict[str, Any], shape: tuple[int, ...]) -> Balls:
    mask = options.get("dropout_mask")
    if mask is None:
        return exact(np.ones(shape))
    return np.asarray(exact(np.broadcast_to(mask, shape)) / (1 - flint().arb(float(options.get("dropout_p", 0.0)))), dtype=object)


def _summed_to(x: Balls, shape: tuple[int, ...]) -> Balls:
    x = total(x, axis=tuple(range(x.ndim - len(shape))))
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1)
    return np.asarray(total(x, axis=axes), dtype=object).reshape(shape)
