"""Error bounds of losses over rows of logits: cross-entropy, its gradient, and distillation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments
from oracles.reference.arguments import Float64
from oracles.reference.scored_rows import ScoredRows, counted_targets, scored_rows

from .softmax import Weights, exponential_weights, lse_error, row_sum_errors
from .sums import Roundings, checked, g, roundings

# Bounds and oracles are computed in float64: that rounding is counted once more in every term.
_OWN = 2.0**-53


def cross_entropy_bound(
    arithmetic: ResolvedArithmetic, logits: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str,
) -> dict[str, Float64]:  # fmt: skip
    """How far a legal loss may be from the exact one: {"loss"}, () or the shape of the targets.

        a row   A E + (g(n + 6, u) + 6 u) sum_c a_c (|lse| + |z_c|) + e u w_y (|lse| + |z_y|)
                + |z_loss| w (2 |lse| E' + E'^2 + 6 u lse^2),   E' = E + u |lse|
        a sum   sum of the rows' errors + g(N, u) sum |loss|,       a mean   that, + (g(N, u) + 6 u) sum |loss|, over sum w

    E = lse_error(row), A = sum_c a_c, n the classes with weight, e = 1 where the label is smoothed: 1 - label_smoothing rounds
    absolutely. It holds for lse - z_c and for log-probabilities that are stored and gathered. Then one rounding of `out`. 0 for
    rows that are ignored; inf where a row cannot be bounded.

    >>> from oracles.properties import Arithmetic
    >>> bool(cross_entropy_bound(Arithmetic().resolve("float32"), np.zeros((1, 2)), [0], reduction="mean")["loss"] < 2e-6)
    True
    """
    r = roundings(arithmetic)
    rows = scored_rows(logits, targets, weights=weights, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    if not rows.y.size:
        return {"loss": np.zeros(rows.shape if reduction == "none" else ())}
    loss, error = _row_losses(r, rows, float(label_smoothing), abs(float(z_loss)))
    if reduction == "none":
        return checked({"loss": rows.spread(np.where(np.isfinite(loss), r.out.bound(loss, error), error))})
    total, most, growth = float(error.sum()), float(np.abs(loss).sum()), float(g(float(loss.size), _u(r)))
    over = 1.0
    if reduction == "mean":
        over, growth = float(rows.w.sum()), 2.0 * growth + 6.0 * _u(r)
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
    r, u = roundings(arithmetic), _u(roundings(arithmetic))
    rows = scored_rows(logits, targets, weights=weights, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    shape = rows.shape if reduction == "none" else ()
    each = np.abs(np.broadcast_to(arguments.widen("dloss", dloss, shape).reshape(-1), rows.counts.shape)[rows.counts])[:, None]
    total = rows.w.sum() if reduction == "mean" else 1.0
    if not rows.y.size or total == 0.0:
        return {"dlogits": np.zeros(np.shape(logits))}
    w, V = rows.w[:, None], rows.z.shape[-1]
    z, _, row, bad = _weights_of(r, rows.z, 0.0)
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
    >>> bool(vocab_parallel_cross_entropy_bound(a, np.zeros((2, 1, 2)), [0], reduction="mean")["loss"] < 4e-6)
    True
    """
    parts = arguments.widen("shards", shards)
    return cross_entropy_bound(replace(arithmetic, tile_min=1), np.concatenate(list(parts), axis=-1), targets, **options)


def distillation_loss_bound(
    arithmetic: ResolvedArithmetic, student: ArrayLike, teacher: ArrayLike, targets: ArrayLike, *, temperature: float, alpha: float,
    divergence: str, beta: float = 0.5, ignore_index: int = -100,
) -> dict[str, Float64]:  # fmt: skip
    """How far a legal loss may be from the exact one: {"loss"}, one number.

        x = z / T, known to 3 u |x|;   L = E + 3 u (|lse| + |x|) + 3 u |x|                    a log-probability
        KL(p, q)   sum_c (p + P) (L_p + L_q + 3 u (|ln p| + |ln q|)) + P |ln p - ln q|,   + g(V, u) of sum_c p |ln p - ln q|
        of the mixture   L_m = max(L_t, L_s) + exp_cost + u (4 + log_ulps (|ln m| + 1) + 4 max(|ln t|, |ln s|))

    E, P as above. The mean over the rows, times alpha T^2, and (1 - alpha) times the bound of the cross-entropy; 12 u for the
    factors and the sum. Then one rounding of `out`.

    >>> from oracles.properties import Arithmetic
    >>> z = np.zeros((1, 2))
    >>> a, options = Arithmetic().resolve("float32"), {"temperature": 1.0, "alpha": 1.0, "divergence": "jsd"}
    >>> bool(distillation_loss_bound(a, z, z, [0], **options)["loss"] < 1e-5)
    True
    """
    r, u = roundings(arithmetic), _u(roundings(arithmetic))
    zs, zt = arguments.widen("student", student), arguments.widen("teacher", teacher)
    V = zs.shape[-1]
    y, counts = counted_targets(targets, zs.shape[:-1], V, ignore_index)
    if not y.size:
        return {"loss": np.zeros(())}
    hard, hard_error = 0.0, 0.0
    if alpha < 1.0:
        scored = scored_rows(zs, targets, weights=None, ignore_index=ignore_index, label_smoothing=0.0, reduction="mean")
        losses, errors = _row_losses(r, scored, 0.0, 0.0)
        growth = 2.0 * float(g(float(y.size), u)) + 6.0 * u
        hard, hard_error = float(losses.mean()), float(errors.mean() + growth * np.abs(losses).mean())
    student_side, teacher_side = (_log_probabilities(r, z.reshape(-1, V)[counts] / temperature) for z in (zs, zt))
    soft, soft_error = _divergence(r, teacher_side, student_side, divergence, float(beta))
    growth = float(g(float(y.size), u)) + 6.0 * u
    most = alpha * temperature**2 * float(soft.mean()) + (1.0 - alpha) * hard
    error = alpha * temperature**2 * float(soft_error.mean() + growth * soft.mean()) + (1.0 - alpha) * hard_error
    error += 12.0 * u * (most + error + hard) + 8.0 * r.elementwise.eta * (1.0 + temperature**2)
    return checked({"loss": r.out.bound(np.asarray(most), np.asarray(error))})


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


def _u(r: Roundings) -> float:
    """The coarser of the two formats that are computed in."""
    return max(r.elementwise.u, r.accumulate.u) + _OWN


def _weights_of(r: Roundings, z: Float64, relative: float) -> tuple[Float64, Float64, Weights, Any]:
    """Rows with 0 for -inf, their sizes, their softmax weights where each is known to `relative` of itself, and rows without any."""
    visible = np.isfinite(z)
    shown = np.where(visible, z, 0.0)
    bad = (np.isnan(z) | (z == np.inf)).any(axis=-1, keepdims=True) | ~visible.any(axis=-1, keepdims=True)
    return shown, np.abs(shown), exponential_weights(r, shown, relative * np.abs(shown), visible), bad


def _row_losses(r: Roundings, rows: ScoredRows, smoothing: float, z_loss: float) -> tuple[Float64, Float64]:
    """The loss of each row, (n,), and its error before anything is added up; inf where nothing is promised of the row."""
    u = _u(r)
    _, z_abs, row, bad = _weights_of(r, rows.z, 0.0)
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
    return loss, np.where(bad[:, 0], np.inf, error)


def _log_probabilities(r: Roundings, x: Float64) -> tuple[Float64, Float64, Float64, Float64]:
    """ln p, its error L, p, its error P of rows of logits over a temperature."""
    u = _u(r)
    shown, x_abs, row, bad = _weights_of(r, x, 3.0 * u)
    E = lse_error(r, row)
    L = E + 3.0 * u * (np.abs(row.lse) + x_abs) + 3.0 * u * x_abs
    P = probability_errors(r, row, E, shown)
    log_p = np.where(np.isfinite(x), x - row.lse, -np.inf)
    return log_p, np.where(bad, np.inf, L), row.p, np.where(bad, np.inf, P + row.p * np.expm1(np.minimum(3.0 * u * x_abs, 300.0)))


_Side = tuple[Float64, Float64, Float64, Float64]


def _divergence(r: Roundings, t: _Side, s: _Side, divergence: str, beta: float) -> tuple[Float64, Float64]:
    """sum |terms| of the divergence of each row, and its error."""
    if divergence == "forward_kl" or (divergence == "jsd" and beta == 0.0):
        return _kl(r, t, s)
    if divergence == "reverse_kl" or (divergence == "jsd" and beta == 1.0):
        return _kl(r, s, t)
    log_m = np.logaddexp(t[0] + np.log(beta), s[0] + np.log1p(-beta))
    far = np.maximum(np.abs(t[0]), np.abs(s[0]))
    L_m = np.maximum(t[1], s[1]) + r.exp_cost + _u(r) * (4.0 + r.declared.log_ulps * (np.abs(log_m) + 1.0) + 4.0 * far)
    m = (log_m, L_m, t[2], t[3])
    (of_t, t_error), (of_s, s_error) = _kl(r, t, m), _kl(r, s, m)
    return beta * of_t + (1.0 - beta) * of_s, beta * t_error + (1.0 - beta) * s_error + 4.0 * _u(r) * (of_t + of_s)


def _kl(r: Roundings, p: _Side, q: _Side) -> tuple[Float64, Float64]:
    """sum_c p |ln p - ln q| of each row, and the error of KL(p, q). Rows where q lacks a class of p are left open: inf."""
    u = _u(r)
    with np.errstate(invalid="ignore"):
        apart = np.where(p[2] > 0.0, np.abs(p[0] - q[0]), 0.0)
        each = (p[2] + p[3]) * (p[1] + q[1] + 3.0 * u * (np.abs(p[0]) + np.abs(q[0]))) + p[3] * apart
        size = (p[2] * apart).sum(axis=-1)
        error = each.sum(axis=-1) + float(g(p[2].shape[-1] + 2.0, u)) * size + 4.0 * p[2].shape[-1] * r.elementwise.eta
    open_row = ~np.isfinite(error)
    return np.where(open_row, 0.0, size), np.where(open_row, np.inf, error)
