"""The bound for attention: how far a legal kernel's out and lse may be from the exact ones. The gradient's is next door."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments, attention
from oracles.reference.arguments import Array, Bool, Causal, Float64, Window

from .scores import Scores, finite, grouped, score_errors
from .softmax import Weights, exponential_weights, lse_error, row_sum_errors
from .sums import Roundings, checked, compound, roundings, underflow

# Unit roundoff of the float64 in which the bounds themselves are computed.
_U = 2.0**-53


@dataclass(frozen=True)
class Forward:
    """What the forward pass computes and how far off it may be, grouped: rows R = G Lq, and (B, Hkv, R, 1) for rows.

    z: what dropout multiplies P with, 1.0 without. out, lse exact; out_bound, lse_bound as stored, inf where a format
    may overflow.
    """

    scores: Scores
    w: Weights
    z: Float64 | float
    v: Float64
    out: Float64
    out_bound: Float64
    lse_bound: Float64


def attention_bound(arithmetic: ResolvedArithmetic, q: ArrayLike, k: ArrayLike, v: ArrayLike, *, causal: Causal, window: Window = None,
                    scale: float | None = None, softcap: float | None = None, bias: ArrayLike | None = None,
                    mask: ArrayLike | None = None, kv_lengths: ArrayLike | None = None, sinks: ArrayLike | None = None,
                    alibi_slopes: ArrayLike | None = None, dropout_mask: ArrayLike | None = None,
                    dropout_p: float = 0.0) -> dict[str, Float64]:
    """How far a legal kernel may be from exact attention, element by element: {"out" (B,Hq,Lq,Dv), "lse" (B,Hq,Lq)}.

        |error of out| <= [ sum_j p (e^d - 1) |z v_j - out|                       errors of the weights
                          + c sum_j p e^d |z v_j|                                 rounding P, the products, the sum
                          + sum_j min(eta, p e^d) |z v_j|                         underflow of exp and of P
                          + gamma |out| sum_j p e^d ] / (1 - shrinkage)     roundings of the row sum
        c = (1 + u_p) (1 + gamma) ((1 + 3 u) (1 + u_p) if dropout) - 1,  1 + gamma = (1 + u_a)^(n + 1) (1 + u)^(4T + 1)

    then 3 u (|out| + error) for the division and one rounding of `out`. lse: `lse_error`, one rounding of `lse`.
    The first line: N' - out D', for the computed numerator and row sum, loses what the weights' errors share, because
    sum_j p (z v_j - out) = 0, sink included (its value is 0). It is taken as the smaller of
    sqrt(sum p t) sqrt(sum p t (z v_j - out)^2), t = e^d - 1, by Cauchy-Schwarz, and of sum p t (|z v_j| + |out|).
    With `row_sum_rounded` the rounding of P is in numerator and row sum alike, and costs the larger of
    u_p sum p e^d |z v_j - out| and u_p sum p e^d |z v_j|: either may be summed. P may be rounded before or after it is
    divided by the row sum; d, T and shrinkage are those of `softmax.exponential_weights`.

    What is hidden adds nothing; a row that sees nothing has the bound 0. Where the oracle is NaN or infinite the bound is
    0: only the kind is to be compared. inf: a score, the sum of P V or a result may overflow its declared format, and the
    element is not to be compared. Never NaN.

    >>> from oracles.properties import Arithmetic
    >>> one = np.ones((1, 1, 1, 1), np.float32)
    >>> bound = attention_bound(Arithmetic().resolve("float32"), one, one, one, causal=None)
    >>> bool(0 < bound["out"].item() < 1e-6), bound["lse"].shape
    (True, (1, 1, 1))

    Source: derived here; the shape of the softmax part is Blanchard, Higham and Higham 2021 (doi 10.1093/imanum/draa038).
    """
    options: dict[str, Any] = dict(causal=causal, window=window, scale=scale, softcap=softcap, bias=bias, mask=mask, kv_lengths=kv_lengths,
                                   sinks=sinks, alibi_slopes=alibi_slopes, dropout_mask=dropout_mask, dropout_p=dropout_p)
    q, k, v = arguments.query_key_value(q, k, v)
    (B, Hq, Lq, _), Dv = q.shape, v.shape[-1]
    f = forward(roundings(arithmetic), q, k, v, **options)
    out, lse = f.out_bound.reshape(B, Hq, Lq, Dv), f.lse_bound.reshape(B, Hq, Lq)
    if odd(q, k, v, bias, sinks):
        exact_out, exact_lse = attention(q, k, v, **options)
        out, lse = np.where(np.isfinite(exact_out), out, 0.0), np.where(np.isfinite(exact_lse), lse, 0.0)
    return checked({"out": out, "lse": lse})


def forward(r: Roundings, q: Array, k: Array, v: Array, *, sinks: ArrayLike | None, dropout_mask: ArrayLike | None, dropout_p: float,
            **options: Any) -> Forward:
    """The exact forward pass and its bounds, for the backward bound to go on from."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    return from_scores(r, score_errors(r, q, k, **options), v, Hq=q.shape[1], sinks=sinks, dropout_mask=dropout_mask, dropout_p=dropout_p)


def from_scores(r: Roundings, scores: Scores, v: Float64, *, Hq: int, sinks: ArrayLike | None = None,
                dropout_mask: ArrayLike | None = None, dropout_p: float = 0.0) -> Forward:
    """What follows from scores known to within `scores.ds`: softmax, product with v (B, Hkv, Lk, Dv), log-sum-exp."""
    B, Hkv, Lk, _ = v.shape
    Lq, column = scores.s.shape[2] * Hkv // Hq, None
    if sinks is not None:
        heads = finite(arguments.widen("sinks", sinks, (Hq,)))
        hidden = np.isneginf(arguments.widen("sinks", sinks, (Hq,)))
        column = grouped(np.broadcast_to(np.where(hidden, -np.inf, heads)[:, None, None], (B, Hq, Lq, 1)), Hkv)
    w = exponential_weights(r, scores.s, scores.ds, scores.visible, column)
    kept, factor = arguments.dropout(dropout_mask, dropout_p, (B, Hq, Lq, Lk))
    z: Float64 | float = 1.0 if kept is None else grouped(kept * factor, Hkv)
    v = np.where(np.any(scores.visible, axis=-2)[..., None], finite(v), 0.0)    # what no query sees may be of any size
    out, b_out = out_error(r, w, scores.visible, z, v)
    given_up = scores.overflow | w.hopeless
    anything = w.seen > 0.0
    out_bound = np.where(given_up & anything, np.inf, np.where(anything, r.out.bound(out, b_out), 0.0))
    b_lse = np.where(scores.overflow, 0.0, lse_error(r, w))
    lse_bound = np.where(given_up & anything, np.inf, r.lse.bound(w.lse, b_lse))
    if column is None:
        lse_bound = np.where(anything, lse_bound, 0.0)
    return Forward(scores, w, z, v, out, out_bound, lse_bound)


def out_error(r: Roundings, w: Weights, visible: Bool, z: Float64 | float, v: Float64) -> tuple[Float64, Float64]:
    """The exact out and its error before it is stored, (B, Hkv, R, Dv)."""
    unit = 2.0 ** np.ceil(np.log2(np.maximum(np.abs(v).max(initial=0.0), np.finfo(np.float64).tiny)))
    v = v / unit                                                                # squares neither overflow nor vanish
    size, square = np.abs(v), v * v
    out = dropped(w.p, z) @ v
    u, dropout = r.elementwise.u, 0.0 if isinstance(z, float) else 3.0 * r.elementwise.u
    u_p = 0.0 if r.declared.row_sum_rounded else r.probabilities.u
    _, shrinkage = row_sum_errors(r, w)
    growth = np.expm1(w.sum_growth(r))
    c = compound(u_p, growth, dropout, u_p if dropout else 0.0)
    largest_z, high = float(np.max(z, initial=1.0)), dropped(w.high, z)
    eta = (1.0 + w.rescalings) * r.elementwise.eta * largest_z + (r.elementwise.eta if dropout else 0.0)
    lost = np.minimum(eta, np.exp2(w.rescalings + 2.0) * high)                  # each rounding at most doubles what there is
    lost = lost + underflow(high + lost, *[r.probabilities.eta * largest_z] * (2 if dropout else 1))
    numerator = _wander(w.excess, w.excess_sum, z, v, size, square, out)
    numerator += (c * high + lost) @ size
    if r.declared.row_sum_rounded:
        both = _wander(w.high, 1.0 + w.excess_sum, z, v, size, square, out)
        numerator += r.probabilities.u * np.maximum(both, high @ size) + lost.sum(axis=-1, keepdims=True) * np.abs(out)
    numerator += growth * (1.0 + w.excess_sum) * np.abs(out)
    numerator += 2.0 * (w.seen + w.rescalings) * (1.0 + growth) * (r.accumulate.eta / unit)
    b = numerator / np.where(shrinkage < 1.0, 1.0 - shrinkage, 1.0)
    b = b + 3.0 * u * (np.abs(out) + b) + r.elementwise.eta / unit
    given_up = shrinkage >= 1.0
    if float(w.seen.max(initial=0.0)) * largest_z * unit * 2.0 > r.accumulate.largest:
        running = (visible * largest_z) @ size                                     # before the maximum is known, weights are at most 1
        given_up = given_up | ((1.0 + growth) * running > r.accumulate.largest / unit)
    return out * unit, np.where(given_up, np.inf, b * unit)


def dropped(weights: Float64, z: Float64 | float) -> Float64:
    """weights z; the weights themselves where there is no dropout."""
    return weights if isinstance(z, float) else weights * z


def _wander(weights: Float64, total: Float64, z: Float64 | float, v: Float64, size: Float64, square: Float64, out: Float64) -> Float64:
    """An upper bound of sum_j weights_j |z v_j - out|; total: the row sums of the weights, sink included.

        sqrt(total (A - 2 out B + out^2 total)),  A = sum w z^2 v^2, B = sum w z v,  and what float64 loses by cancelling
        sum w z |v| + out total, where that is smaller
    """
    wz = dropped(weights, z)
    a = dropped(wz, z) @ square
    spread = a - 2.0 * out * (wz @ v) + out * out * total
    spread = np.maximum(spread, 0.0) + (weights.shape[-1] + 8.0) * _U * (np.sqrt(a) + np.abs(out) * np.sqrt(total)) ** 2
    return np.asarray(np.minimum(np.sqrt(total * spread), wz @ size + np.abs(out) * total))


def odd(*arrays: ArrayLike | None) -> bool:
    """Any NaN or infinity, but for a -inf in the last two, bias and sinks: that hides."""
    wide = [None if x is None else np.asarray(x, dtype=np.float64) for x in arrays]
    return any(x is not None and not bool((np.isfinite(x) | (np.isneginf(x) & (i >= len(wide) - 2))).all()) for i, x in enumerate(wide))


def attention_packed_bound(arithmetic: ResolvedArithmetic, q: ArrayLike, k: ArrayLike, v: ArrayLike, cu_q: ArrayLike, cu_k: ArrayLike, *,
                           causal: Causal, window: Window = None, scale: float | None = None,
                           softcap: float | None = None) -> dict[str, Float64]:
    """`attention_bound` for each of n packed sequences: {"out" (Tq, Hq, Dv), "lse" (Hq, Tq)}.

    q (Tq, Hq, D), k (Tk, Hkv, D), v (Tk, Hkv, Dv); cu_q, cu_k (n + 1,) offsets. A sequence without keys: 0.

    >>> from oracles.properties import Arithmetic
    >>> x = np.ones((3, 1, 1), np.float32)
    >>> attention_packed_bound(Arithmetic().resolve("float32"), x, x, x, [0, 1, 3], [0, 0, 3], causal=None)["lse"][0, 0]
    np.float64(0.0)
    """
    q, k, v = (arguments.float_array(name, x, ndim=3) for name, x in (("q", q), ("k", k), ("v", v)))
    out, lse = np.zeros((*q.shape[:2], v.shape[-1])), np.zeros((q.shape[1], len(q)))
    for rows, keys in sequences(q, k, cu_q, cu_k):
        one = attention_bound(arithmetic, batch(q[rows]), batch(k[keys]), batch(v[keys]), causal=causal, window=window, scale=scale,
                              softcap=softcap)
        out[rows], lse[:, rows] = one["out"][0].swapaxes(0, 1), one["lse"][0]
    return {"out": out, "lse": lse}


def sequences(q: Array, k: Array, cu_q: ArrayLike, cu_k: ArrayLike) -> Iterator[tuple[slice, slice]]:
    """The queries and keys of each packed sequence."""
    starts_q, starts_k = arguments.offsets("cu_q", cu_q, len(q)), arguments.offsets("cu_k", cu_k, len(k))
    for i in range(len(starts_q) - 1):
        yield slice(starts_q[i], starts_q[i + 1]), slice(starts_k[i], starts_k[i + 1])


def batch(x: Array) -> Array:
    """(T, H, D) as a batch of one, (1, H, T, D)."""
    return x.swapaxes(0, 1)[None]
