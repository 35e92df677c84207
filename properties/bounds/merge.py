"""The bound for merging attention over two disjoint sets of keys. What the parts' own errors do is added by the caller."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments
from oracles.reference.arguments import Float64

from .softmax import exponential_weights, lse_error, row_sum_errors
from .sums import Roundings, checked, g, roundings


def merge_attention_bound(arithmetic: ResolvedArithmetic, out_a: ArrayLike, lse_a: ArrayLike, out_b: ArrayLike,
                lse_b: ArrayLike) -> dict[str, Float64]:
    """How far a legal merge of these very numbers may be from the exact one: {"out" (..., Dv), "lse" (...)}.

        |error of out| <= [ sum_x p_x (e^d_x - 1) |out_x - out| + g(4, u) (sum_x p_x e^d_x |out_x| + |out|) ] / (1 - shrinkage)

    over x in {a, b}, p_x = e^(lse_x - lse), d as in `exponential_weights` for a row of two exact scores; then a
    division and one rounding of `out`. lse: `lse_error`, one rounding of `lse`. The error of p common to both parts
    cancels, since sum_x p_x (out_x - out) = 0. Four roundings: each weight's normalisation, its product, the sum.

    Weights may be made as the formula has them, from the rounded lse, and nothing is divided then (FlashAttention's split-K):

        |error of out| <= sum_x p_x (e^e_x - 1) |out_x| + g(4, u) (sum_x p_x e^e_x |out_x| + |out|)
        e_x = lse_error + 3 u |lse_x - lse| + exp_cost

    The larger of the two holds. With `merges_lse` also out_a - sigmoid(lse_b - lse_a) (out_a - out_b), whose sigmoid is off by no
    more, and which rounds either part as it is, whatever it weighs: g(8, u) max_x |out_x|; its lse, lse_a - ln sigmoid(lse_a - lse_b),
    has a logarithm as large as the difference: u (log_ulps + 3) |lse_a - lse_b| more.

    A part that saw nothing (lse = -inf) has no weight, whatever its out. Both empty: bounds 0. NaN or +inf in an lse,
    or a part that is NaN: 0, to be compared by kind.

    >>> from oracles.properties import Arithmetic
    >>> merge_attention_bound(Arithmetic().resolve("float32"), [0.0], -np.inf, [0.0], -np.inf)
    {'out': array([0.]), 'lse': array(0.)}

    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), section 3.1, with the analysis of `exponential_weights`.
    """
    r = roundings(arithmetic)
    parts = np.stack([arguments.widen("out_a", out_a), arguments.widen("out_b", out_b)], axis=-2)       # (..., 2, Dv)
    scores = np.stack([arguments.widen("lse_a", lse_a), arguments.widen("lse_b", lse_b)], axis=-1)      # (..., 2)
    visible = np.isfinite(scores)
    bad = np.any(np.isnan(scores) | (scores == np.inf), axis=-1, keepdims=True)                         # (..., 1)
    w = exponential_weights(r, np.where(visible, scores, 0.0)[..., None, :], np.zeros_like(scores)[..., None, :], visible[..., None, :])
    kind = bad | (visible[..., None] & ~np.isfinite(parts)).any(axis=-2)
    parts = np.where(visible[..., None] & np.isfinite(parts), parts, 0.0)

    shrinkage = row_sum_errors(r, w)[1][..., 0]                                 # (..., 1)
    p, excess, high = (x[..., 0, :, None] for x in (w.p, w.excess, w.high))     # (..., 2, 1)
    out = (p * parts).sum(axis=-2)
    wander = (excess * np.abs(parts - out[..., None, :])).sum(axis=-2)
    with np.errstate(over="ignore"):                                            # then the bound is inf
        size = (high * np.abs(parts)).sum(axis=-2)
        total = size + (1.0 + w.excess_sum[..., 0]) * np.abs(out)
    lost = 4.0 * r.elementwise.eta * (1.0 + np.abs(parts).sum(axis=-2)) * (w.seen[..., 0] > 0.0)
    b = (wander + g(4.0, r.rescale_u) * total + lost) / np.where(shrinkage < 1.0, 1.0 - shrinkage, 1.0)
    of_lse = lse_error(r, w)                                                    # (..., 1, 1)
    apart = np.where(visible, np.abs(np.where(visible, scores, 0.0) - w.lse[..., 0]), 0.0)              # (..., 2)
    b = np.maximum(b, _by_formula(r, p, parts, out, (of_lse[..., 0] + 3.0 * r.elementwise.u * apart + r.exp_cost)[..., None]) + lost)
    if r.declared.merges_lse:
        b = b + g(8.0, r.rescale_u) * np.abs(parts).max(axis=-2)
        of_lse = of_lse + r.elementwise.u * (r.declared.log_ulps + 3.0) * apart.sum(axis=-1)[..., None, None]
    b = b + 3.0 * r.elementwise.u * (np.abs(out) + b)
    hopeless = (shrinkage >= 1.0) | w.hopeless[..., 0] | (size > r.elementwise.largest)
    b_out = np.where(hopeless & np.any(visible, axis=-1, keepdims=True), np.inf, r.out.bound(out, b))
    b_lse = np.where(bad[..., 0] | ~visible.any(axis=-1), 0.0, r.lse.bound(w.lse, of_lse)[..., 0, 0])
    return checked({"out": np.where(kind, 0.0, b_out), "lse": b_lse})


def _by_formula(r: Roundings, p: Float64, parts: Float64, out: Float64, e: Float64) -> Float64:
    """The error of sum_x p_x out_x where each weight p_x (..., 2, 1) is off by a factor of up to e^e_x: (..., Dv)."""
    with np.errstate(over="ignore", invalid="ignore"):                          # then the bound is inf
        grown = np.where(p > 0.0, p * np.exp(e), 0.0)
        b = ((grown - p) * np.abs(parts)).sum(axis=-2) + g(4.0, r.rescale_u) * ((grown * np.abs(parts)).sum(axis=-2) + np.abs(out))
    return np.asarray(np.where(np.isnan(b), np.inf, b))
