"""Error bound of the loss of multi-token prediction: log-sum-exps of rows, their means, and the weighted sum over heads."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments
from oracles.reference.arguments import Float64
from oracles.reference.mtp import mtp_positions

from .softmax import exponential_weights, lse_error
from .sums import checked, g, roundings


def mtp_loss_bound(arithmetic: ResolvedArithmetic, logits: ArrayLike, tokens: ArrayLike, *, weights: ArrayLike | None = None,
                   segments: ArrayLike | None = None, ignore_index: int = -100) -> dict[str, Float64]:
    """How far a legal loss may be from the exact one: {"loss"}, one number.

        each term   lse_error(row) + 2 u (|lse| + |z| + |loss|)
        the head    ((1 + G) sum of the terms' errors + G sum |loss|) / n,  G = g(T, u_accumulate) + 3 u
        the whole   sum_j |w_j| (error of head j + (g(K, u_accumulate) + 3 u) |mean_j|), then one rounding of `out`

    n the positions that count. lse_error is that of `log_sum_exp_bound`. 0 where no position counts; inf where a row cannot be
    bounded, where the sum over positions may overflow `accumulate`, and where a logit that counts is a NaN or +inf, which makes
    the loss NaN.

    >>> from oracles.properties import Arithmetic
    >>> bool(mtp_loss_bound(Arithmetic().resolve("float32"), np.zeros((1, 3, 2)), [0, 1, 0])["loss"] < 2e-6)
    True
    """
    r = roundings(arithmetic)
    z = arguments.widen("logits", logits, ndim=3)
    K, T = z.shape[:2]
    ids = np.asarray(tokens, dtype=np.int64)
    w = np.ones(K) if weights is None else np.abs(arguments.widen("weights", weights, (K,)))
    u, most, total = r.elementwise.u + 2.0**-53, 0.0, 0.0
    for j, scored in enumerate(mtp_positions(K, T, segments=segments), start=1):
        t = np.flatnonzero(scored)
        t = t[ids[t + j] != ignore_index]
        if not len(t):
            continue
        rows = z[j - 1, t]
        if np.isnan(rows).any() or np.isposinf(rows).any():
            return {"loss": np.asarray(np.inf)}
        visible = np.isfinite(rows)
        row = exponential_weights(r, np.where(visible, rows, 0.0), np.zeros_like(rows), visible)
        target = np.take_along_axis(rows, ids[t + j][:, None], axis=-1)
        loss = row.lse - target                                                 # (n, 1), inf for a target of -inf
        finite = np.where(np.isfinite(loss), np.abs(loss), 0.0)
        terms = lse_error(r, row) + 2.0 * u * (np.abs(row.lse) + np.where(np.isfinite(target), np.abs(target), 0.0) + finite)
        growth = float(g(float(len(t)), r.accumulate.u + 2.0**-53)) + 3.0 * u
        mean, error = float(finite.mean()), float(((1.0 + growth) * terms.sum() + growth * finite.sum()) / len(t))
        if (1.0 + growth) * float(finite.sum() + terms.sum()) > r.accumulate.largest:
            return {"loss": np.asarray(np.inf)}                                 # the sum may overflow where the mean does not
        if not np.isfinite(loss).all() and w[j - 1] != 0.0:
            return {"loss": np.asarray(0.0)}                                    # inf, and nothing else
        most += w[j - 1] * mean
        total += w[j - 1] * (error + (float(g(float(K), r.accumulate.u + 2.0**-53)) + 3.0 * u) * (mean + error))
    return checked({"loss": r.out.bound(np.asarray(most), np.asarray(total)) if most or total else np.asarray(0.0)})
