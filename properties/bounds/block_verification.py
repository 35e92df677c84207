"""Which outcomes of a verification by block legal rounding allows. What a draw from rounded weights may give is sampling's business."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from oracles.reference.arguments import Float64, Int64

from .sampling import U64
from .sums import Roundings, g

# Weights (V,), their errors (V,) -> the tokens that a draw from them may give.
Drawn = Callable[[Float64, Float64], list[int]]


def block_outcomes(
    r: Roundings, x: Int64, q: Float64, p: Float64, u: Float64, drawn: Drawn, conventions: Mapping[str, str], row_error: float
) -> set[tuple[int, int]]:  # fmt: skip
    """Every (number accepted, token after it) of one row: draft x (n,), q (n, V), p (n + 1, V), u (n,).

        w_j within [w-, w+]    w+- = min(1, w+-_{j-1} (p / q)(x_j) (1 +- e_j)) +- eta
        e_j = |sum q - 1| + |sum p - 1| + (8 + exp_ulps) u + (log_ulps + 3) u (|ln p| + |ln q| + |ln w_{j-1}|)
        s_j within [s-, s+]    s+- = (1 +- g(V + 6, u_accumulate)) sum_x [w+- p (1 +- a) - q (1 -+ b)]+,   a, b = |sum - 1| + 4 u
        j may be accepted      u_j (1 - w+) <= s+ (1 - u_j) + d,   j < n;        u_n < w+ + 4 u
        j must be              u_j (1 - w-) <  s- (1 - u_j) - d,   j < n;        u_n < w- - 4 u
        d = 8 u (u_j (1 + s+) + s+)

    u_j < s / (s + 1 - w) iff u_j (1 - w) < s (1 - u_j), which grows with s and with w; d is what 1 + s - w may lose in any order, by
    a quotient or a product. w is a product of quotients, or the exponential of a sum of logarithms, as released kernels keep it: the
    second term of e_j is the error of such a sum. t may be any j that may be accepted with none behind it that must. The ratio is
    exact, e_j = 0, where p = q and the rows sum to 1 exactly; so is s_j = 0 where w_j = 1 exactly and nothing of p exceeds q.
    """
    n, unit, eta = len(x), r.elementwise.u + U64, r.elementwise.eta
    off_q, off_p = np.abs(q.sum(axis=-1) - 1.0) + row_error, np.abs(p.sum(axis=-1) - 1.0) + row_error
    low, high = np.ones(n + 1), np.ones(n + 1)
    may, must = [True], [True]
    for j in range(1, n + 1):
        own, of_target = q[j - 1, x[j - 1]], p[j - 1, x[j - 1]]
        exact = own == of_target and off_q[j - 1] == off_p[j - 1] == 0.0
        e = 0.0 if exact else off_q[j - 1] + off_p[j - 1] + _of_a_weight(r, own, of_target, low[j - 1])
        low[j], high[j] = (_weight(w, own, of_target, 1.0 + way * e, way * eta) for w, way in ((low[j - 1], -1), (high[j - 1], 1)))
        if j == n:
            may.append(bool(u[j - 1] < high[j] + (4.0 * unit if 0.0 < high[j] < 1.0 else 0.0)))
            must.append(bool(u[j - 1] < low[j] - (4.0 * unit if low[j] < 1.0 else 0.0)))
            continue
        a, b = off_p[j] + 4.0 * unit, off_q[j] + 4.0 * unit
        if off_p[j] == off_q[j] == 0.0 and low[j] == high[j] == 1.0 and (q[j] >= p[j]).all():
            s_low = s_high = 0.0
        else:
            grown = float(g(p.shape[-1] + 6.0, r.accumulate.u + U64))
            s_low = (1.0 - grown) * float(np.maximum(low[j] * p[j] * (1.0 - a) - q[j] * (1.0 + b), 0.0).sum())
            s_high = (1.0 + grown) * float(np.maximum(high[j] * p[j] * (1.0 + a) - q[j] * (1.0 - b), 0.0).sum())
        d = 8.0 * unit * (u[j - 1] * (1.0 + s_high) + s_high)
        may.append(bool(s_high > 0.0 and u[j - 1] * (1.0 - high[j]) <= s_high * (1.0 - u[j - 1]) + d))
        must.append(bool(u[j - 1] * (1.0 - low[j]) < s_low * (1.0 - u[j - 1]) - d))
    outcomes: set[tuple[int, int]] = set()
    for t in range(n, -1, -1):
        if may[t] and t == n:
            outcomes |= {(n, token) for token in drawn(p[n], (off_p[n] + 4.0 * unit) * p[n])}
        elif may[t]:
            outcomes |= {(t, token) for token in _after(unit, q[t], p[t], low[t], high[t], off_q[t], off_p[t], drawn, conventions)}
        if must[t]:
            break
    return outcomes


def _of_a_weight(r: Roundings, own: float, of_target: float, w: float) -> float:
    """What one more factor of w may be off, relatively, by a quotient and a product or by a difference and a sum of logarithms."""
    logs = sum(abs(float(np.log(x))) for x in (own, of_target, w) if x > 0.0)
    return (r.elementwise.u + U64) * (8.0 + r.declared.exp_ulps + (r.declared.log_ulps + 3.0) * logs)


def _weight(w: float, own: float, of_target: float, factor: float, eta: float) -> float:
    """One end of w_j; a draft that only the target gives anything has a ratio beyond every number, one that it does not has 0."""
    if of_target == 0.0 or w == 0.0:
        return 0.0
    return float(min(1.0, max(0.0, w * of_target * max(factor, 0.0) / own + eta))) if own > 0.0 else 1.0


def _after(
    unit: float, q: Float64, p: Float64, low: float, high: float, off_q: float, off_p: float, drawn: Drawn, conventions: Mapping[str, str]
) -> list[int]:  # fmt: skip
    """The tokens that may be drawn from [w p - q]+, w within [low, high]; any of the target's where nothing may be left."""
    if off_q == off_p == 0.0 and low == high == 1.0 and (q >= p).all():         # nothing is left, and no rounding brings it back
        return np.flatnonzero(p > 0.0).tolist() if conventions["zero_residual"] == "any" else drawn(p, 4.0 * unit * p)
    w = (low + high) / 2.0
    left = np.maximum(w * p / p.sum() - q / q.sum(), 0.0)
    error = np.where(p > 0.0, ((off_p + 4.0 * unit) * w + (high - low) / 2.0) * p + (off_q + 4.0 * unit) * q, 0.0)
    error = np.where((left == 0.0) & (w * p + error < q), 0.0, error)
    if left.sum() <= 4.0 * error.sum():
        return np.flatnonzero(p > 0.0).tolist()
    return drawn(left, error)
