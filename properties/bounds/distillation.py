"""Error bounds of distillation: the loss, whose divergence loses digits where student and teacher meet, and its gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments
from oracles.reference.arguments import Float64
from oracles.reference.scored_rows import counted_targets, scored_rows

from .losses import coarser, probability_errors, row_losses, weights_of
from .softmax import lse_error
from .sums import Roundings, checked, g, roundings

# ln p, its error, p, its error of rows.
_Side = tuple[Float64, Float64, Float64, Float64]


def distillation_loss_bound(
    arithmetic: ResolvedArithmetic, student: ArrayLike, teacher: ArrayLike, targets: ArrayLike, *, temperature: float, alpha: float,
    divergence: str, beta: float = 0.5, ignore_index: int = -100,
) -> dict[str, Float64]:  # fmt: skip
    """How far a legal loss may be from the exact one: {"loss"}, one number.

        x = z / T, known to 3 u |x|;   L = E + 3 u (|lse| + |x|) + 3 u |x|                    a log-probability
        KL(p, q)   sum_c (p + P) (L_p + L_q + 3 u (|ln p| + |ln q|)) + P |ln p - ln q|,   + g(V + 2, u) of that and of sum_c p |ln p - ln q|
        of the mixture   L_m = max(L_t, L_s) + exp_cost + u (4 + log_ulps (|ln m| + 1) + 4 max(|ln t|, |ln s|))

    E, P as above. The mean over the rows, times alpha T^2, and (1 - alpha) times the bound of the cross-entropy; 12 u for the
    factors and the sum. Then one rounding of `out`. inf where a row cannot be bounded, or the sum over the rows may overflow.

    >>> from oracles.properties import Arithmetic
    >>> z = np.zeros((1, 2))
    >>> a, options = Arithmetic().resolve("float32"), {"temperature": 1.0, "alpha": 1.0, "divergence": "jsd"}
    >>> bool(distillation_loss_bound(a, z, z, [0], **options)["loss"] < 1e-5)
    True
    """
    r, u = roundings(arithmetic), coarser(roundings(arithmetic))
    zs, zt = arguments.widen("student", student), arguments.widen("teacher", teacher)
    V = zs.shape[-1]
    y, counts = counted_targets(targets, zs.shape[:-1], V, ignore_index)
    if not y.size:
        return {"loss": np.zeros(())}
    hard, hard_error = 0.0, 0.0
    if alpha < 1.0:
        scored = scored_rows(zs, targets, weights=None, ignore_index=ignore_index, label_smoothing=0.0, reduction="mean")
        losses, errors = row_losses(r, scored, 0.0, 0.0)
        growth = 2.0 * float(g(float(y.size), u)) + 6.0 * u
        hard, hard_error = float(losses.mean()), float((1.0 + growth) * errors.mean() + growth * np.abs(losses).mean())
    student_side, teacher_side = (_log_probabilities(r, z.reshape(-1, V)[counts] / temperature) for z in (zs, zt))
    soft, soft_error = _divergence(r, teacher_side, student_side, divergence, float(beta))
    growth = float(g(float(y.size), u)) + 6.0 * u
    if (1.0 + growth) * max(1.0, temperature**2) * float((soft + soft_error).sum()) > min(r.accumulate.largest, r.elementwise.largest):
        return {"loss": np.asarray(np.inf)}                                     # the sum may overflow where the mean does not
    most = alpha * temperature**2 * float(soft.mean()) + (1.0 - alpha) * hard
    error = alpha * temperature**2 * float((1.0 + growth) * soft_error.mean() + growth * soft.mean()) + (1.0 - alpha) * hard_error
    error += 12.0 * u * (most + error + hard) + 8.0 * r.elementwise.eta * (1.0 + temperature**2)
    return checked({"loss": r.out.bound(np.asarray(most), np.asarray(error))})


def distillation_loss_backward_bound(
    arithmetic: ResolvedArithmetic, student: ArrayLike, teacher: ArrayLike, targets: ArrayLike, dloss: ArrayLike, *, temperature: float,
    alpha: float, divergence: str, beta: float = 0.5, ignore_index: int = -100,
) -> dict[str, Float64]:  # fmt: skip
    """How far a legal gradient may be from the exact one: {"dstudent"}, the shape of the student.

        forward    S + P_t + (s + S) sum P_t + (g(V, u) + 4 u) (1 + sum P_t) (s + S + t + P_t)
        otherwise  (s + S) (2 D + K' + sum S + (g(V + 2, u) + 6 u) (|d| + K + 2)) + S (|d| + K + 2)

    S, P_t the errors of s and t, d = ln s - ln q with error D, q the teacher or the mixture, K and K' the sum and the error of
    KL(s, q). Automatic differentiation makes s sum t - t of the forward divergence: all t of a row share the rounding of their
    log-sum-exp, which moves that sum by u |lse|, and s - t has nothing of it. The 2 is what a gradient by way of ln s adds and
    takes away again: (ln s + 1 - ln q) s, less s times its sum. That of the targets as in `cross_entropy_backward_bound`. Both
    times their share of dloss / n, with 12 u for the factors and the sum.
    Then one rounding of `out`. 0 for rows that are ignored; inf where a row cannot be bounded.

    >>> from oracles.properties import Arithmetic
    >>> z, options = np.zeros((1, 2)), {"temperature": 1.0, "alpha": 1.0, "divergence": "jsd"}
    >>> a = Arithmetic().resolve("float32")
    >>> bool(distillation_loss_backward_bound(a, z, z, [0], 1.0, **options)["dstudent"].max() < 1e-5)
    True
    """
    r, u = roundings(arithmetic), coarser(roundings(arithmetic))
    zs, zt = arguments.widen("student", student), arguments.widen("teacher", teacher)
    V = zs.shape[-1]
    y, counts = counted_targets(targets, zs.shape[:-1], V, ignore_index)
    if not y.size:
        return {"dstudent": np.zeros(zs.shape)}
    each = abs(float(np.asarray(dloss, np.float64))) / y.size
    size, error = np.zeros((y.size, V)), np.zeros((y.size, V))
    if alpha < 1.0:
        _, _, p, P = _log_probabilities(r, zs.reshape(-1, V)[counts])
        own = p + (np.arange(V) == y[:, None])
        size += (1.0 - alpha) * own
        error += (1.0 - alpha) * (P + (p + P) * (g(float(V), u) + 4.0 * u) + 8.0 * u * own)
    if alpha > 0.0:
        s, t = (_log_probabilities(r, z.reshape(-1, V)[counts] / temperature) for z in (zs, zt))
        slope, slope_error = _slope(r, t, s, divergence, float(beta))
        size += alpha * temperature * slope
        error += alpha * temperature * slope_error
    factors = 12.0 * u + float(g(float(y.size), u))
    error = each * ((1.0 + factors) * error + factors * size)
    error += (V + 8.0) * r.elementwise.eta * (1.0 + temperature)
    whole = np.zeros((counts.size, V))
    whole[counts] = np.where(np.isnan(error), np.inf, r.out.bound(each * size, error))
    return checked({"dstudent": whole.reshape(zs.shape)})


def _slope(r: Roundings, t: _Side, s: _Side, divergence: str, beta: float) -> tuple[Float64, Float64]:
    """The size of each part of a row's gradient, and its error."""
    u, V = coarser(r), t[2].shape[-1]
    if divergence == "forward_kl" or (divergence == "jsd" and beta == 0.0):
        off, most = t[3].sum(axis=-1, keepdims=True), s[2] + s[3] + t[2] + t[3]      # off: of the sum of t, which is 1
        return s[2] + t[2], s[3] + t[3] + (s[2] + s[3]) * off + (g(float(V), u) + 4.0 * u) * (1.0 + off) * most
    mixed = divergence == "jsd" and beta < 1.0
    q = _mixture(r, t, s, beta) if mixed else t
    share = 1.0 - beta if mixed else 1.0
    K, K_error = (part[:, None] for part in _kl(r, s, q))
    with np.errstate(invalid="ignore"):
        d = np.where(s[2] > 0.0, np.abs(s[0] - q[0]), 0.0)
        D = s[1] + q[1] + 3.0 * u * (np.abs(s[0]) + np.abs(q[0]))
        wide = d + K + 2.0
        spread = 2.0 * D + K_error + s[3].sum(axis=-1, keepdims=True) + (g(V + 2.0, u) + 6.0 * u) * wide
        error = np.where(np.isneginf(s[0]), 0.0, (s[2] + s[3]) * spread + s[3] * wide)
    return share * s[2] * wide, share * error


def _log_probabilities(r: Roundings, x: Float64) -> _Side:
    """ln p, its error L, p, its error P of rows of logits over a temperature."""
    u = coarser(r)
    shown, x_abs, row, bad = weights_of(r, x, 3.0 * u)
    E = lse_error(r, row)
    L = E + 3.0 * u * (np.abs(row.lse) + x_abs) + 3.0 * u * x_abs
    P = probability_errors(r, row, E, shown)
    log_p = np.where(np.isfinite(x), x - row.lse, -np.inf)
    return log_p, np.where(bad, np.inf, L), row.p, np.where(bad, np.inf, P + row.p * np.expm1(np.minimum(3.0 * u * x_abs, 300.0)))


def _divergence(r: Roundings, t: _Side, s: _Side, divergence: str, beta: float) -> tuple[Float64, Float64]:
    """sum |terms| of the divergence of each row, and its error."""
    if divergence == "forward_kl" or (divergence == "jsd" and beta == 0.0):
        return _kl(r, t, s)
    if divergence == "reverse_kl" or (divergence == "jsd" and beta == 1.0):
        return _kl(r, s, t)
    m = _mixture(r, t, s, beta)
    (of_t, t_error), (of_s, s_error) = _kl(r, t, m), _kl(r, s, m)
    return beta * of_t + (1.0 - beta) * of_s, beta * t_error + (1.0 - beta) * s_error + 4.0 * coarser(r) * (of_t + of_s)


def _mixture(r: Roundings, t: _Side, s: _Side, beta: float) -> _Side:
    """ln m and its error; nobody asks for m itself."""
    log_m = np.logaddexp(t[0] + np.log(beta), s[0] + np.log1p(-beta))
    far = np.maximum(np.abs(t[0]), np.abs(s[0]))
    L_m = np.maximum(t[1], s[1]) + r.exp_cost + coarser(r) * (4.0 + r.declared.log_ulps * (np.abs(log_m) + 1.0) + 4.0 * far)
    return log_m, L_m, t[2], t[3]


def _kl(r: Roundings, p: _Side, q: _Side) -> tuple[Float64, Float64]:
    """sum_c p |ln p - ln q| of each row, and the error of KL(p, q). Rows where q lacks a class of p are left open: inf."""
    u = coarser(r)
    with np.errstate(invalid="ignore"):
        apart = np.where(p[2] > 0.0, np.abs(p[0] - q[0]), 0.0)
        each = (p[2] + p[3]) * (p[1] + q[1] + 3.0 * u * (np.abs(p[0]) + np.abs(q[0]))) + p[3] * apart
        each = np.where(np.isneginf(p[0]), 0.0, each)                           # a class that p has not is left out, whatever q has
        size = (p[2] * apart).sum(axis=-1)
        growth = float(g(p[2].shape[-1] + 2.0, u))
        error = (1.0 + growth) * each.sum(axis=-1) + growth * size + 4.0 * p[2].shape[-1] * r.elementwise.eta
    open_row = ~np.isfinite(error)
    return np.where(open_row, 0.0, size), np.where(open_row, np.inf, error)
