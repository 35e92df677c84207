"""The gradient of cross-entropy with respect to the logits, by hand. The loss itself is left to losses."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64
from .scored_rows import ScoredRows, log_sums, scored_rows


def cross_entropy_backward(
    logits: ArrayLike, targets: ArrayLike, dloss: ArrayLike, *, weights: ArrayLike | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str,
) -> Float64:  # fmt: skip
    """dloss times the derivative of `cross_entropy`: float64, the shape of the logits.

        dz_c = g (p_c (sum_c a_c + 2 z_loss w_y lse) - a_c)
        g = dloss_i for "none",   dloss for "sum",   dloss / sum_i w_y for "mean"

    a, w as in `cross_entropy`. dloss: one number, or (...) for reduction "none". Each row sums to 2 g z_loss w_y lse: to 0
    without z_loss, with label smoothing too. Rows that are ignored have 0, whatever their logits hold; so have all rows of a
    mean of weight 0.

    >>> cross_entropy_backward([[0.0, 0.0]], [1], 1.0, reduction="mean")
    array([[ 0.5, -0.5]])
    >>> float(cross_entropy_backward([[40.0, 0.0]], [0], 1.0, reduction="sum")[0, 0]) == -float(np.exp(-40.0))
    True

    Raises as `cross_entropy`; ValueError for another shape of dloss.
    Error bound: (V + 8 + 3 (m - z)) u |g| (p_c (sum a + 2 z_loss w |lse|) + a_c); without smoothing and z_loss relative to dz
    itself at the target too, since p_y - 1 is computed as -(sum of the others) / l.
    Source: Bridle 1990 (doi 10.1007/978-3-642-76153-9_28); z_loss: arXiv 2204.02311.
    """
    rows = scored_rows(logits, targets, weights=weights, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    shape = rows.shape if reduction == "none" else ()
    g = np.broadcast_to(arguments.widen("dloss", dloss, shape).reshape(-1), rows.counts.shape)[rows.counts]      # (n,)
    if reduction == "mean":
        total = rows.w.sum()
        g = g / total if total > 0.0 else np.zeros_like(g)
    return rows.spread(g[:, None] * _row_gradients(rows, arguments.real_number("z_loss", z_loss)))


def _row_gradients(rows: ScoredRows, z_loss: float) -> Float64:
    """The derivative of each row's loss: (n, V)."""
    z, a, y = rows.z, rows.a, rows.y[:, None]
    with np.errstate(invalid="ignore"):
        m, rest = log_sums(z)                                                   # (n, 1)
        e = np.exp(z - m)
        p = e / e.sum(axis=-1, keepdims=True)
        pull = a.sum(axis=-1, keepdims=True)
        if z_loss:
            pull = pull + 2.0 * z_loss * rows.w[:, None] * (m + rest)
        dz = p * pull - a
        # p_y pull - a_y = p_y (pull - a_y) - a_y (1 - p_y): nothing cancels where one class takes nearly all
        others = e.copy()
        np.put_along_axis(others, y, 0.0, axis=-1)
        missing = others.sum(axis=-1, keepdims=True) / e.sum(axis=-1, keepdims=True)                # 1 - p_y
        a_y = np.take_along_axis(a, y, axis=-1)
        p_y = np.take_along_axis(p, y, axis=-1)
        np.put_along_axis(dz, y, p_y * (pull - a_y) - a_y * missing, axis=-1)
    return np.asarray(dz)
