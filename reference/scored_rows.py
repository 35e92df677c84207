"""Scored rows: the rows of logits that a loss counts, and the weight it gives to each class of each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Bool, Float64, Int64, Shape

REDUCTIONS = ("mean", "sum", "none")


@dataclass(frozen=True)
class ScoredRows:
    """The n rows that count, of all N there are.

    z (n, V) logits, y (n,) targets, a (n, V) weights of the classes, w (n,) weight of the target's class, counts (N,) which rows
    count, shape: that of the targets.
    """

    z: Float64
    y: Int64
    a: Float64
    w: Float64
    counts: Bool
    shape: Shape

    def spread(self, rows: Float64) -> Float64:
        """Numbers (n, ...) of the rows that count at their places among all N rows, 0 elsewhere."""
        whole = np.zeros((self.counts.size, *rows.shape[1:]))
        whole[self.counts] = rows
        return whole.reshape((*self.shape, *rows.shape[1:]))


def scored_rows(
    logits: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None, ignore_index: int, label_smoothing: float, reduction: str,
) -> ScoredRows:  # fmt: skip
    """The rows whose target is not ignore_index.

        a_c = w_c ((1 - e) [c = y] + e / V),   e = label_smoothing,   w = 1 where no weights are given

    >>> rows = scored_rows(np.zeros((2, 4)), [1, -100], weights=None, ignore_index=-100, label_smoothing=0.5, reduction="mean")
    >>> rows.a, rows.counts
    (array([[0.125, 0.625, 0.125, 0.125]]), array([ True, False]))

    Raises TypeError or ValueError naming the argument, what came and what is wanted.
    Source: Szegedy et al. 2016 (arXiv 1512.00567), section 7; with weights as in torch.nn.functional.cross_entropy.
    """
    z = arguments.widen("logits", logits)
    if z.ndim == 0 or z.shape[-1] == 0:
        raise ValueError(f"logits: got shape {z.shape}; want (..., V) with a vocabulary of at least 1")
    V = z.shape[-1]
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: got {reduction!r}; want one of {', '.join(REDUCTIONS)}")
    e = arguments.real_number("label_smoothing", label_smoothing)
    if not 0.0 <= e <= 1.0:
        raise ValueError(f"label_smoothing: got {e}; want a number in 0..1")
    y, counts = counted_targets(targets, z.shape[:-1], V, ignore_index)
    w = np.ones(V) if weights is None else arguments.widen("weights", weights, (V,))
    if not ((w >= 0.0) & np.isfinite(w)).all():
        raise ValueError(f"weights: got numbers from {w.min()} to {w.max()}; want finite numbers >= 0")
    one_hot = y[:, None] == np.arange(V)                                        # (n, V)
    a = w * ((1.0 - e) * one_hot + e / V)
    return ScoredRows(z.reshape(counts.size, V)[counts], y, a, w[y], counts, z.shape[:-1])


def counted_targets(targets: ArrayLike, shape: Shape, V: int, ignore_index: int) -> tuple[Int64, Bool]:
    """The targets that count, and which of all (flat) do. Raises ValueError for a class outside 0..V-1."""
    ignored = arguments.whole_number("ignore_index", ignore_index, least=-2**63)
    y = arguments.integers("targets", targets, shape, least=-2**63, most=2**63 - 1).reshape(-1)
    counts = y != ignored
    y = y[counts]
    if ((y < 0) | (y >= V)).any():
        raise ValueError(f"targets: got numbers from {y.min()} to {y.max()}; want 0..{V - 1} or ignore_index = {ignored}")
    return y, counts


def log_sums(z: Float64) -> tuple[Float64, Float64]:
    """The largest logit m of each row and lse - m, each (n, 1): the sum of the others goes through log1p.

        e^(z - m) = e^d (1 + r),   d = fl(z - m),   r = (z - m) - d exactly: of a small sum, |z - m| u would be seen

    A row with a NaN or +inf, or of nothing but -inf, has m = NaN. Source of r: Knuth, The Art of Computer Programming 2, 4.2.2.
    """
    top = z.argmax(axis=-1)[:, None]
    m = np.take_along_axis(z, top, axis=-1)
    m = np.where(np.isinf(m), np.nan, m)
    with np.errstate(invalid="ignore", over="ignore"):
        d = z - m
        back = d - z
        r = (z - (d - back)) - (m + back)                                       # of z = -inf it is NaN, and d is exact
        e = np.exp(d) * (1.0 + np.where(np.isfinite(r), r, 0.0))
    np.put_along_axis(e, top, 0.0, axis=-1)
    return m, np.log1p(e.sum(axis=-1, keepdims=True))
