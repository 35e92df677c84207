"""Bounds for attention scores: product, scale, cap, bias, ALiBi. The softmax over them is left to `softmax`.

Arrays are grouped: (B, Hq, L, N) is held as (B, Hkv, G L, N), G the query heads of a key head, so that one matrix product
serves the whole group and a sum over rows is the sum over the group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from oracles.reference import arguments, query_positions, visible_keys
from oracles.reference.arguments import Array, Bool, Causal, Float64, Window

from .sums import Roundings, compound, dot_bound, g


@dataclass(frozen=True)
class Scores:
    """Exact scores s, known to within ds, where visible; 0 elsewhere. (B, Hkv, G Lq, Lk).

    overflow: rows (..., 1) in which a declared format may overflow before the softmax. cap_slope is 1 - tanh^2, the
    derivative of the cap, known to within cap_slope_error; 1 and 0 without a cap.
    """

    s: Float64
    ds: Float64
    visible: Bool
    overflow: Bool
    cap_slope: Float64 | float = 1.0
    cap_slope_error: Float64 | float = 0.0


def grouped(x: Array, Hkv: int) -> Array:
    """(B, Hq, L, N) as (B, Hkv, G L, N)."""
    B, Hq, L, N = x.shape
    return x.reshape(B, Hkv, Hq // Hkv * L, N)


def finite(x: Float64) -> Float64:
    """x with 0 for NaN and infinities: rows that see those are compared by kind, or not at all."""
    return np.where(np.isfinite(x), x, 0.0)


def score_errors(r: Roundings, q: Float64, k: Float64, *, causal: Causal, window: Window = None, scale: float | None = None,
                 softcap: float | None = None, bias: ArrayLike | None = None, mask: ArrayLike | None = None,
                 kv_lengths: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None) -> Scores:
    """The scores of attention and how far computed ones may be, stage by stage.

        x = scale q k^T       dx = |scale| |q||k|^T ((1 + g(D, u_a)) (1 + u)^4 (1 + u_q) - 1) + underflow + 2 u_s |x|
        y = c tanh(x / c)     dy = sech^2(nearest 0 of x +- dx') dx' + (tanh_ulps + 2) u |y|,  dx' = dx + 2 u |x|
        s = y + b - a         ds = dy + 2 u |a| + u |s|  (and u of the largest partial sum, where there are both b and a)

    The four roundings of a product: scale itself, log2 e, their product, the product with the sum or with q. They do not depend on
    the sign of the scale. u_q: q scaled and rounded to its own format before the product (`scaled_q`). x / c is a
    division or a product with a rounded reciprocal; tanh' = sech^2 falls with |x|, so the end of the interval nearest 0
    has the largest slope. An addition rounds the sum, so a large bias costs u |s|. The distance |p - j| of ALiBi is an
    integer that may be rounded once, its product with the slope once more.
    Each stage may be stored in the `scores` format: product, scaled product, x / c, tanh, c tanh, each sum.

    overflow: where |q||k|^T may pass `accumulate`, a stage before the bias its formats, or the largest score a format
    from above. A score below -largest becomes -inf, which is a weight of 0, unless every key of the row is as low.
    """
    (B, Hq, Lq, D), (Hkv, Lk) = q.shape, k.shape[1:3]
    shape, scale = (B, Hq, Lq, Lk), arguments.score_scale(scale, D)
    u, u_s, eta = r.elementwise.u, r.scores.u, r.elementwise.eta + r.scores.eta
    visible = grouped(visible_keys(*shape, causal=causal, window=window, mask=mask, kv_lengths=kv_lengths, bias=bias), Hkv)
    q, k = grouped(q, Hkv), k.swapaxes(-1, -2)
    with np.errstate(invalid="ignore", over="ignore"):
        s = scale * (q @ k)
        q, k = np.abs(finite(q)), np.abs(finite(k))
        product = q @ k                                                         # (B, Hkv, G Lq, Lk)
    limit = min(r.scores.largest, r.elementwise.largest)
    growth = float(compound(g(D, r.accumulate.u), g(4.0, u), r.inputs.u if r.declared.scaled_q else 0.0))
    widest = max(1.0, abs(scale)) * (1.0 + growth)
    ds = (abs(scale) * growth) * product + (abs(scale) * float(dot_bound(r.accumulate, 0.0, D)) + (1.0 + abs(scale)) * eta)
    if r.declared.scaled_q:
        ds = ds + r.inputs.eta * k.sum(axis=-2, keepdims=True)
    if u_s:
        ds = ds + float(g(2.0, u_s)) * (np.abs(finite(s)) + ds)
    over: Bool = np.zeros((*visible.shape[:-1], 1), dtype=bool)
    if product.size and not float(product.max()) * widest * 1.5 < min(r.accumulate.largest, limit, r.inputs.largest):
        over = _product_overflow(r, q, product, s, ds, scale, widest, limit, visible)
        ds = np.minimum(ds, 4.0 * limit)                                        # a stand-in where the row is given up anyway
    extra: dict[str, Float64 | float] = {}
    if softcap is not None:
        cap = arguments.real_number("softcap", softcap, positive=True)
        s, ds, extra = _capped(r, s, ds, cap)
    s, ds = _added(r, s, ds, shape, Hkv, causal, bias, kv_lengths, alibi_slopes)
    visible = visible & np.isfinite(s)
    s, ds = np.where(visible, s, 0.0), np.where(visible, ds, 0.0)
    if s.size and not float(s.max()) * 1.5 + float(ds.max()) * 1.5 < limit:
        over = over | (visible & (1.5 * (s + ds) > limit)).any(axis=-1, keepdims=True)        # 1.5: room for a product with log2 e
    if s.size and not float(s.min()) * 1.5 - float(ds.max()) * 1.5 > -limit:
        over = over | ((~visible | (1.5 * (s - ds) < -limit)).all(axis=-1, keepdims=True) & visible.any(axis=-1, keepdims=True))
    return Scores(s, ds, visible, np.asarray(over), **extra)


def _product_overflow(r: Roundings, q: Float64, product: Float64, s: Float64, ds: Float64, scale: float, widest: float, limit: float,
                      visible: Bool) -> Bool:
    over = product * (widest / max(1.0, abs(scale))) > r.accumulate.largest
    over |= np.abs(s) + ds > limit
    if r.scores.u:
        over |= np.abs(s) / (abs(scale) or 1.0) + product * widest > r.scores.largest       # stored before it is scaled
    rows = np.asarray((over & visible).any(axis=-1, keepdims=True))
    if r.declared.scaled_q:
        rows = rows | (q * (1.5 * abs(scale)) > r.inputs.largest).any(axis=-1, keepdims=True)
    return rows


def _capped(r: Roundings, x: Float64, dx: Float64, cap: float) -> tuple[Float64, Float64, dict[str, Float64 | float]]:
    """The cap's value, its error, and its slope for the backward pass."""
    u, u_s, eta = r.elementwise.u, r.scores.u, r.elementwise.eta + r.scores.eta
    with np.errstate(invalid="ignore"):
        t = np.tanh(x / cap)
    far, size = np.abs(finite(x)), np.abs(finite(t))
    dx = dx + float(compound(g(2.0, u), u_s)) * (far + dx) + eta * cap
    steepest = _sech_squared(np.maximum(far - dx, 0.0) / cap)
    dt = np.minimum(steepest * dx / cap, 2.0)
    dt = dt + float(compound(r.declared.tanh_ulps * u, u_s)) * (size + dt) + eta
    dy = cap * dt + float(compound(g(2.0, u), u_s)) * cap * (size + dt) + eta
    slope_error = dt * (2.0 * size + dt) + 4.0 * u * (1.0 + dt) ** 2             # of 1 - t^2, t known to within dt
    return cap * t, dy, {"cap_slope": _sech_squared(far / cap), "cap_slope_error": slope_error}


def _sech_squared(y: Float64) -> Float64:
    """1 - tanh^2 of y >= 0, with no digit lost where tanh is near 1."""
    e = np.exp(-2.0 * y)
    return np.asarray(4.0 * e / (1.0 + e) ** 2)


def _added(r: Roundings, y: Float64, dy: Float64, shape: tuple[int, ...], Hkv: int, causal: Causal, bias: ArrayLike | None,
           kv_lengths: ArrayLike | None, alibi_slopes: ArrayLike | None) -> tuple[Float64, Float64]:
    """Bias and ALiBi, added in any order."""
    if bias is None and alibi_slopes is None:
        return y, dy
    B, Hq, Lq, Lk = shape
    u = float(compound(r.elementwise.u, r.scores.u))
    eta = r.elementwise.eta + r.scores.eta
    terms, s, ds = [y], y, dy
    with np.errstate(invalid="ignore"):
        if bias is not None:
            terms.append(grouped(arguments.additive_bias(bias, shape).astype(np.float64), Hkv))
            s = s + terms[-1]
        if alibi_slopes is not None:
            slopes = arguments.widen("alibi_slopes", alibi_slopes, (Hq,))[:, None, None]
            p = query_positions(B, Lq, Lk, causal=causal, kv_lengths=kv_lengths)[:, None, :, None]
            terms.append(grouped(-slopes * np.abs(p - np.arange(Lk)), Hkv))
            ds = ds + float(compound(u, r.elementwise.u)) * np.abs(terms[-1]) + eta
            s = s + terms[-1]
        partial = np.zeros_like(y)
        if len(terms) == 3:                                                     # whichever two are added first
            partial = np.abs(terms[0] + terms[1])
            for a, b in ((0, 2), (1, 2)):
                partial = np.maximum(partial, np.abs(terms[a] + terms[b]))
        return s, finite(ds + u * (np.abs(s) + partial + 2.0 * ds) + 2.0 * eta)
