"""Error bounds of losses over rows of logits: cross-entropy and its gradient, over a cut vocabulary too. The rest: distillation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments
from oracles.reference.arguments import Bool, Float64
from oracles.reference.scored_rows import ScoredRows, scored_rows

from .softmax import Weights, exponential_weights, lse_error, row_sum_errors
from .sums import Roundings, checked, compound, g, relative_cost, roundings

# Bounds and oracles are computed in float64: that rounding is counted once more in every term.
_OWN = 2.0**-53


def cross_entropy_bound(
    arithmetic: ResolvedArithmetic, logits: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str,
) -> dict[str, Float64]:  # fmt: skip
    """How far a legal loss may be from the exact one: {"loss"}, () or the shape of the targets.

        a row   A E + (g(n + 6, u) + 6 u) sum_c a_c (|lse| + |z_c|) + e u w_y (|lse| + |z_y|)
                + |z_loss| w (2 |lse| E' + E'^2 + 6 u lse^2),   E' = E + u |lse|
        a sum   sum of the rows' errors + g(N, u) sum |loss|,       a mean   both sums grown by (1 + 6 u) / (1 - u)^N, over sum w

    E = lse_error(row), A = sum_c a_c, n the classes with weight, e = 1 where the label is smoothed: 1 - label_smoothing rounds
    absolutely. It holds for lse - z_c and for log-probabilities that are stored and gathered. Then one rounding of `out`. 0 for
    rows that are ignored; inf where a row cannot be bounded, and where lse^2, the sum over the classes of a smoothed label or that
    over the rows may overflow the format it is made in, though the result does not.

    >>> from oracles.properties import Arithmetic
    >>> bool(cross_entropy_bound(Arithmetic().resolve("float32"), np.zeros((1, 2)), [0], reduction="mean")["loss"] < 2e-6)
    True
    """
    r = roundings(arithmetic)
    rows = scored_rows(logits, targets, weights=weights, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    if not rows.y.size:
        return {"loss": np.zeros(rows.shape if reduction == "none" else ())}
    loss, error = row_losses(r, rows, float(label_smoothing), abs(float(z_loss)))
    if reduction == "none":
        return checked({"loss": rows.spread(np.where(np.isfinite(loss), r.out.bound(loss, error), error))})
    total, most, growth = float(error.sum()), float(np.abs(loss).sum()), float(g(float(loss.size), coarser(r)))
    over = 1.0
    if np.isfinite(most) and (1.0 + growth) * (most + total) > r.accumulate.largest:
        return {"loss": np.asarray(np.inf)}                                     # the sum may overflow where the mean does not
    if reduction == "mean":
        over = float(rows.w.sum())
        growth = float(compound(growth, np.expm1(loss.size * relative_cost(coarser(r))), 6.0 * coarser(r)))
    if not np.isfinite(most) or over == 0.0:
        return {"loss": np.asarray(0.0 if np.isfinite(total) else np.inf)}     # inf and nothing else; no weight: what is declared
    return checked({"loss": r.out.bound(np.asarray(most / over), np.asarray((total * (1.0 + growth) + growth * most) / over))})


def cross_entropy_backward_bound(
    arithmetic: ResolvedArithmetic, logits: ArrayLike, targets: ArrayLike, dloss: ArrayLike, *, weights: ArrayLike | None = None,
    ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str,
) -> dict[str, Float64]:  # fmt: skip
    """How far a legal gradient may be from the exact one: {"dlogits"}, the shape of the logits.

        |g| ((p + P) B' + P |B| + (g(N, u) + 8 u) (p |B| + a) + e u w),   B = A + 2 z_loss w lse
        B' = (g(V, u) + 4 u) A + 2 |z_loss| w (E + 5 u |lse|)

    P the larger of the errors of p as a quotient and as e^(z - lse); the rest as in `cross_entropy_bound`. Then one rounding of
    `out`. 0 for rows that are ignored.

    >>> from oracles.properties import Arithmetic
    >>> a = Arithmetic().resolve("float32")
    >>> bool(cross_entropy_backward_bound(a, np.zeros((1, 2)), [0], 1.0, reduction="mean")["dlogits"].max() < 4e-6)
    True
    """
    r, u = roundings(arithmetic), coarser(roundings(arithmetic))
    rows = scored_rows(logits, targets, weights=weights, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    shape = rows.shape if reduction == "none" else ()
    each = np.abs(np.broadcast_to(arguments.widen("dloss", dloss, shape).reshape(-1), rows.counts.shape)[rows.counts])[:, None]
    total = rows.w.sum() if reduction == "mean" else 1.0
    if not rows.y.size or total == 0.0:
        return {"dlogits": np.zeros(np.shape(logits))}
    w, V = rows.w[:, None], rows.z.shape[-1]
    z, _, row, bad = weights_of(r, rows.z, 0.0)
    E = lse_error(r, row)
    p_error = probability_errors(r, row, E, z)
    A, lse, z_loss = rows.a.sum(axis=-1, keepdims=True), np.abs(row.lse), abs(float(z_loss))
    smoothed = 1.0 if label_smoothing else 0.0
    pull, pull_error = A, (g(float(V), u) + 4.0 * u) * A
    if z_loss:
        pull, pull_error = A + 2.0 * z_loss * w * lse, pull_error + 2.0 * z_loss * w * (E + 5.0 * u * lse)
    size = row.p * pull + rows.a
    with np.errstate(invalid="ignore"):
        error = (row.p + p_error) * pull_error + p_error * pull + (g(float(rows.y.size), u) + 8.0 * u) * size + smoothed * u * w
        error = each / total * error + (V + 8.0) * r.elementwise.eta
    error = np.where(np.isnan(error) | bad, np.inf, error)
    return checked({"dlogits": rows.spread(r.out.bound(each / total * size, error))})


def vocab_parallel_cross_entropy_bound(
    arithmetic: ResolvedArithmetic, shards: ArrayLike, targets: ArrayLike, **options: Any
) -> dict[str, Float64]:  # fmt: skip
    """`cross_entropy_bound` of the whole vocabulary, where every shard, of however few classes, may rescale and be merged.

    >>> from oracles.properties import Arithmetic
    >>> a = Arithmetic().resolve("float32")
    >>> bool(vocab_parallel_cross_entropy_bound(a, np.zeros((2, 1, 2)), [0], reduction="mean")["loss"] < 6e-6)
    True
    """
    parts = arguments.widen("shards", shards)
    return cross_entropy_bound(replace(arithmetic, tile_min=1), np.concatenate(list(parts), axis=-1), targets, **options)


def next_token_targets_bound(arithmetic: ResolvedArithmetic, tokens: ArrayLike) -> dict[str, Float64]:
    """How far targets may be from the exact ones: {"targets"}, 0 everywhere, whatever the arithmetic: tokens are moved, not computed.

        |error| = 0

    >>> from oracles.properties import Arithmetic
    >>> next_token_targets_bound(Arithmetic().resolve("float32"), [1, 2, 3])["targets"]
    array([0., 0., 0.])
    """
    return {"targets": np.zeros(np.asarray(tokens).shape)}


def probability_errors(r: Roundings, row: Weights, E: Float64, x: Float64) -> Float64:
    """The error of each probability of rows of scores x: the larger of that of the quotient and that of e^(x - lse).

    As in `softmax_bound`; and p (e^(E + 2 u (|x - lse| + |lse|) + exp_cost) - 1), where lse is rounded before it is subtracted.
    """
    u = r.elementwise.u
    _, shrinkage = row_sum_errors(r, row)
    left = np.where(shrinkage < 1.0, 1.0 - shrinkage, 1.0)
    quotient = row.excess * (1.0 + 3.0 * u) / left + row.p * (3.0 * u + shrinkage) / left
    quotient = np.where((shrinkage >= 1.0) | row.hopeless, np.inf, quotient)
    exponent = np.minimum(E + 2.0 * u * (np.abs(x - row.lse) + np.abs(row.lse)) + r.exp_cost, 300.0)
    lost = (3.0 + row.rescalings) * r.elementwise.eta
    return np.asarray(np.where(row.p > 0.0, np.maximum(quotient, row.p * np.expm1(exponent)), 0.0) + lost)


def coarser(r: Roundings) -> float:
    """The coarser of the two formats that are computed in."""
    return max(r.elementwise.u, r.accumulate.u) + _OWN


def weights_of(r: Roundings, z: Float64, relative: float) -> tuple[Float64, Float64, Weights, Any]:
    """Rows with 0 for -inf, their sizes, their softmax weights where each is known to `relative` of itself, and rows without any."""
    visible = np.isfinite(z)
    shown = np.where(visible, z, 0.0)
    bad = (np.isnan(z) | (z == np.inf)).any(axis=-1, keepdims=True) | ~visible.any(axis=-1, keepdims=True)
    return shown, np.abs(shown), exponential_weights(r, shown, relative * np.abs(shown), visible), bad


def row_losses(r: Roundings, rows: ScoredRows, smoothing: float, z_loss: float) -> tuple[Float64, Float64]:
    """The loss of each row, (n,), and its error before anything is added up; inf where nothing is promised of the row."""
    u = coarser(r)
    _, z_abs, row, bad = weights_of(r, rows.z, 0.0)
    E, lse = lse_error(r, row), np.abs(row.lse)
    n = float(rows.z.shape[-1]) if smoothing else 1.0
    with np.errstate(invalid="ignore"):
        each = np.where(rows.a > 0.0, rows.a * (row.lse - rows.z), 0.0)
    loss = each.sum(axis=-1) + (z_loss * rows.w * row.lse[:, 0] ** 2 if z_loss else 0.0)
    size = (rows.a * (lse + z_abs)).sum(axis=-1)
    error = rows.a.sum(axis=-1) * E[:, 0] + (float(g(n + 6.0, u)) + 6.0 * u) * size + (n + 8.0) * r.elementwise.eta
    if smoothing:
        y_abs = np.take_along_axis(z_abs, rows.y[:, None], axis=-1)[:, 0]
        error = error + u * rows.w * (lse[:, 0] + y_abs)
    if z_loss:
        wide = (E + u * lse)[:, 0]
        error = error + z_loss * rows.w * (2.0 * lse[:, 0] * wide + wide**2 + 6.0 * u * lse[:, 0] ** 2)
    error = np.where(np.isinf(loss), 0.0, error)
    return loss, np.where(bad[:, 0] | _overflows(r, z_abs, E, lse, smoothing, z_loss), np.inf, error)


def _overflows(r: Roundings, z_abs: Float64, E: Float64, lse: Float64, smoothing: float, z_loss: float) -> Bool:
    """Rows of which something on the way to a loss may pass the largest number of its format, (n,)."""
    most, over = (lse + E)[:, 0], np.zeros(len(lse), bool)
    if z_loss:
        over = 1.01 * most * most > r.elementwise.largest                       # 1.01: its roundings, of 16 bits too
    if smoothing:
        V = z_abs.shape[-1]
        over = over | ((1.0 + g(float(V), coarser(r))) * (V * most + z_abs.sum(axis=-1)) > r.accumulate.largest)
    return np.asarray(over)
