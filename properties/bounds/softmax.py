"""Bounds for softmax and log-sum-exp: at once, online over blocks, or merged from parts. Scores' own errors come in as ds.

One analysis serves all: `exponential_weights` says how far each exponential may be from its exact value relative to the
others of its row; what is common to numerator and denominator has gone from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments
from oracles.reference.arguments import Bool, Float64

from .sums import Roundings, checked, roundings

# The largest exponent of e the bounds compute with; rows that need more are given up (inf).
_EXPONENT = 300.0
# Below this, e^d - 1 and 1 - e^-d differ by less than 2 percent: one stands for both.
_SMALL = 2.0**-6


@dataclass(frozen=True)
class Weights:
    """Exact softmax weights of rows (..., R, N) and how far the computed ones may be. Row quantities are (..., R, 1).

        p e^-d <= computed weight <= high = p + excess = p e^d          up to one factor common to the row

    excess_sum and deficit_sum (sum of p - p e^-d) hold the sink's column too. m_keys, m: the exact maximum without and
    with the sink; top: the largest magnitude of the computed one. seen: the number of visible keys. rescalings: how often
    an accumulator may be rescaled, a final merge of parts included. hopeless: rows whose weights may grow beyond what
    float64 holds.
    """

    p: Float64
    excess: Float64
    high: Float64
    d: Float64
    lse: Float64
    m: Float64
    m_keys: Float64
    top: Float64
    seen: Float64
    rescalings: Float64
    excess_sum: Float64
    deficit_sum: Float64
    hopeless: Bool

    def sum_growth(self, r: Roundings) -> Float64:
        """ln of what the roundings of a row sum, or of P V, may multiply a term with: n + 1 additions, T rescalings, a store."""
        return np.asarray((self.seen + 1.0) * np.log1p(r.accumulate.u) + (4.0 * self.rescalings + 1.0) * np.log1p(r.rescale_u))

    def sum_decay(self, r: Roundings) -> Float64:
        """-ln of what they may divide it by."""
        return np.asarray(-(self.seen + 1.0) * np.log1p(-r.accumulate.u) - (4.0 * self.rescalings + 1.0) * np.log1p(-r.rescale_u))


def exponential_weights(r: Roundings, s: Float64, ds: Float64, visible: Bool, sinks: Float64 | None = None) -> Weights:
    """The weights of rows of scores s, known to within ds, over the visible keys and a sink (..., R, 1) of its own.

        d = ds + u (3 gap + 2 X) + (1 + T) exp_cost                              one block, or T rescalings
          + u (3 ln n + 4 X + (log_ulps + 4) ln n)                               where parts may have been merged
        gap = max(s + ds) - s + ds,   X = max(|s| + ds, |m|)

    Term by term. exp(s - m): the subtraction rounds to u gap. exp2(s c - m c): c is rounded, and so are s c and m c,
    which costs up to u (2 gap + |s| + |m|); the rounded m c is the same number wherever it is used, so it counts once.
    Rescaling by exp(m' - m'') costs one exp each, and subtractions that telescope: the rises from the block's maximum
    to the final one and the distance from it down to s sum to gap. Merging parts by their log-sum-exp: that value is
    rounded (m + ln l, with two constants in base 2), subtracted from the largest, and its exp taken again.
    One merge of all parts at once is covered; a merge in pairs rounds the log-sum-exp once more each time, and each of
    those has `merge_attention_bound`.

    T: the visible keys of a row lie in at most floor((span - 2) / tile_min) + 2 blocks, and not in more than there are
    blocks, ceil(N / tile_min), or keys; one rescaling less than blocks, one more for a merge, one more for a sink. A
    block with no visible key rescales by exp(0) = 1, exactly. Each rescaling may round 4 times: an accumulator that is
    kept normalised (FlashAttention-1) is multiplied and divided in each step.

    Source: Blanchard, Higham and Higham 2021 (doi 10.1093/imanum/draa038), section 4, kept non-asymptotic;
    Milakov and Gimelshein 2018 (arXiv 1805.02867) for the rescaling.
    """
    u = r.elementwise.u
    seen = visible.sum(axis=-1, keepdims=True).astype(np.float64)
    rescalings = _rescalings(visible, seen, r.declared.tile_min) + (0.0 if sinks is None else 1.0)
    x = np.where(visible, s, -np.inf)
    m_keys, low = _maximum(x, ds)
    m = m_keys if sinks is None else np.maximum(m_keys, sinks)
    m = np.where(np.isneginf(m), 0.0, m)
    e = np.exp(x - m)
    l = e.sum(axis=-1, keepdims=True) + (0.0 if sinks is None else np.exp(sinks - m))
    logl = np.log(np.where(l > 0.0, l, 1.0))
    p = e / np.where(l > 0.0, l, 1.0)

    top = (x + ds).max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sink_ds = (u + r.scores.u) * np.abs(np.where(np.isneginf(sinks), 0.0, sinks))
        top, low = np.maximum(top, sinks + sink_ds), np.maximum(low, sinks - sink_ds)
    top, low = (np.where(np.isneginf(edge), 0.0, edge) for edge in (top, low))
    largest = np.maximum(np.abs(top), np.abs(low))                              # of the computed maximum
    merged = np.where(rescalings > 1.0, 1.0, 0.0)
    logn = np.log(np.maximum(seen + (sinks is not None), 1.0))
    row = (1.0 + rescalings) * r.exp_cost + merged * u * (7.0 + r.declared.log_ulps) * logn

    def distance(s: Float64, ds: Float64) -> Float64:
        d = (1.0 + 3.0 * u) * ds + 3.0 * u * (top - s) + u * (2.0 + 4.0 * merged) * np.maximum(np.abs(s) + ds, largest) + row
        return np.asarray(np.clip(d, 0.0, np.finfo(np.float64).max))                        # below 0 only where hidden

    d = distance(s, ds)
    excess, hopeless = grown(p, d, x, m + logl)
    excess_sum = excess.sum(axis=-1, keepdims=True)
    small = d.size == 0 or float(d.max()) < _SMALL
    deficit_sum = excess_sum if small else -(p * np.expm1(-d)).sum(axis=-1, keepdims=True)
    if sinks is not None:
        p_sink, d_sink = np.exp(sinks - m - logl), distance(np.where(np.isneginf(sinks), m, sinks), sink_ds)
        sink_excess, sink_hopeless = grown(p_sink, d_sink, sinks, m + logl)
        excess_sum = excess_sum + sink_excess
        deficit_sum = deficit_sum - p_sink * np.expm1(-d_sink)
        hopeless = hopeless | sink_hopeless
    return Weights(p, excess, p + excess, d, m + logl, m, m_keys, largest, seen, rescalings, excess_sum,
                   np.minimum(deficit_sum, 1.0), hopeless)


def _maximum(x: Float64, ds: Float64) -> tuple[Float64, Float64]:
    """The largest score of each row, and what the computed one cannot fall below; -inf where nothing is seen."""
    if x.shape[-1] == 0:
        return np.full((*x.shape[:-1], 1), -np.inf), np.full((*x.shape[:-1], 1), -np.inf)
    place = x.argmax(axis=-1)[..., None]
    m = np.take_along_axis(x, place, axis=-1)
    return m, m - np.take_along_axis(ds, place, axis=-1)


def grown(p: Float64, d: Float64, x: Float64, lse: Float64) -> tuple[Float64, Bool]:
    """p (e^d - 1), where p = e^(x - lse), and the rows in which that is beyond reach.

    For a large d the sum x - lse + d is taken first: an additive mask of -1e30 has a d of 1e24, and still no weight.
    """
    if d.size == 0 or float(d.max()) < 1.0:
        return p * np.expm1(d), np.zeros((*d.shape[:-1], 1), dtype=bool)
    exponent = x - lse + d                                                      # -inf where hidden
    large = np.exp(np.minimum(exponent, _EXPONENT)) - p
    excess = np.where(d < 1.0, p * np.expm1(np.minimum(d, 1.0)), np.maximum(large, 0.0))
    return excess, np.asarray((exponent > _EXPONENT).any(axis=-1, keepdims=True))


def _rescalings(visible: Bool, seen: Float64, tile_min: int) -> Float64:
    if visible.shape[-1] == 0:
        return np.zeros_like(seen)
    first = visible.argmax(axis=-1)[..., None]
    last = visible.shape[-1] - 1 - visible[..., ::-1].argmax(axis=-1)[..., None]
    blocks = np.minimum(np.floor((last - first - 1.0) / tile_min) + 2.0, np.ceil(visible.shape[-1] / tile_min))
    blocks = np.maximum(np.minimum(blocks, seen), 1.0)
    return np.asarray(blocks - 1.0 + (blocks > 1.0))


def row_sum_errors(r: Roundings, w: Weights) -> tuple[Float64, Float64]:
    """The largest relative growth and shrinkage of the computed row sum, each (..., R, 1), the second at most 1.

        growth = (1 + sum p (e^d - 1) + underflow) (1 + u_a)^(n + 1) (1 + u)^(4T + 1) (1 + u_p) - 1
        shrinkage = 1 - (1 - sum p (1 - e^-d) - underflow) (1 - u_a)^(n + 1) (1 - u)^(4T + 1) (1 - u_p)

    u_p and the underflow of P count where the rounded probabilities are summed.
    """
    u_p, lost = 0.0, w.seen * ((1.0 + w.rescalings) * r.elementwise.eta + r.accumulate.eta)
    if r.declared.row_sum_rounded:
        u_p = r.probabilities.u
        lost = lost + np.minimum(r.probabilities.eta * np.exp(np.minimum(w.m - w.lse, 0.0)), w.high).sum(axis=-1, keepdims=True)
    up = np.log1p(w.excess_sum + lost) + w.sum_growth(r) + np.log1p(u_p)
    missing = np.minimum(w.deficit_sum + lost, 1.0)
    with np.errstate(divide="ignore"):
        down = np.log1p(-missing) - w.sum_decay(r) + np.log1p(-u_p)             # -inf where nothing need be left
    return np.asarray(np.expm1(up)), np.asarray(-np.expm1(down))


def lse_error(r: Roundings, w: Weights) -> Float64:
    """The error of a row's log-sum-exp, before it is stored: (..., R, 1).

        max(ln(1 + growth), -ln(1 - shrinkage)) + u log_ulps |ln l| + 3 u (|m| + |ln l|)

    Three roundings of m + ln l: the sum, and in base 2 the two products with ln 2. inf where the row sum may vanish.
    """
    growth, shrinkage = row_sum_errors(r, w)
    with np.errstate(divide="ignore"):
        b = np.maximum(np.log1p(growth), -np.log1p(-shrinkage))
    far = np.where(np.isneginf(w.m_keys), w.m, w.m_keys)                        # the shift may leave the sink out
    logl = np.maximum(np.abs(w.lse - w.m), np.abs(w.lse - far)) + b
    top = np.maximum(w.top, np.abs(far))
    return np.asarray(np.where(w.hopeless, np.inf, b + r.elementwise.u * (r.declared.log_ulps * logl + 3.0 * (top + logl))))


def softmax_bound(arithmetic: ResolvedArithmetic, x: ArrayLike, *, axis: int = -1) -> dict[str, Float64]:
    """How far a legal softmax of x may be from the exact one, element by element: {"p"}, the shape of x.

        |error of p_j| <= p_j ((e^d_j) (1 + 3 u) / (1 - shrinkage) - 1) + underflow,  then one rounding of `out`

    The shrinkage is that of the row sum (`row_sum_errors`), d that of `exponential_weights` with ds = 0. It holds for
    the two-pass form, for the online form over blocks of at least tile_min, and for one merge of parts.

    -inf has no weight and a bound of 0; a row of nothing but -inf too. Where the oracle is NaN (a NaN or +inf in the
    row) the bound is 0 and only the kind is to be compared. inf where the output may overflow its format.

    >>> from oracles.properties import Arithmetic
    >>> bool(softmax_bound(Arithmetic().resolve("float32"), [0.0, 0.0])["p"].max() < 1e-6)
    True

    Source: as `exponential_weights`.
    """
    r = roundings(arithmetic)
    rows = np.moveaxis(arguments.widen("x", x), axis, -1)
    w, bad = _rows(r, rows)
    _, shrinkage = row_sum_errors(r, w)
    u = r.elementwise.u
    ratio = (1.0 + 3.0 * u) / np.where(shrinkage < 1.0, 1.0 - shrinkage, 1.0)
    lost = np.minimum((2.0 + w.rescalings) * r.elementwise.eta, w.high)
    b = w.excess * ratio + w.p * ((3.0 * u + shrinkage) / np.where(shrinkage < 1.0, 1.0 - shrinkage, 1.0)) + lost * ratio
    b = np.where((shrinkage >= 1.0) | w.hopeless, np.where(w.p > 0.0, np.inf, 0.0), b)
    return checked({"p": np.moveaxis(np.where(bad, 0.0, r.out.bound(w.p, b)), -1, axis)})


def log_sum_exp_bound(arithmetic: ResolvedArithmetic, x: ArrayLike, *, axis: int = -1) -> dict[str, Float64]:
    """How far a legal log-sum-exp of x may be from the exact one: {"lse"}, x without that axis.

    `lse_error`, then one rounding of `lse`; online over blocks or at once, as `softmax_bound`. A row of nothing but -inf
    has a bound of 0, and so has one whose oracle is NaN.

    >>> from oracles.properties import Arithmetic
    >>> log_sum_exp_bound(Arithmetic().resolve("float32"), [-np.inf, -np.inf])["lse"]
    array(0.)
    """
    r = roundings(arithmetic)
    rows = np.moveaxis(arguments.widen("x", x), axis, -1)
    w, bad = _rows(r, rows)
    b = r.lse.bound(w.lse, lse_error(r, w))
    return checked({"lse": np.where(bad | (w.seen == 0.0), 0.0, b)[..., 0]})


def _rows(r: Roundings, x: Float64) -> tuple[Weights, Bool]:
    """The weights of rows of exact scores, and the rows whose oracle is NaN."""
    bad = (np.isnan(x) | (x == np.inf)).any(axis=-1, keepdims=True)
    visible = np.isfinite(x)
    return exponential_weights(r, np.where(visible, x, 0.0), np.zeros_like(x), visible), bad
