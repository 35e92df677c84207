"""Pipelines in double-double: the batch as it is, padding hidden, all micro-batches at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.array_lists import spread

from .double_double import DD, exact, where
from .double_double_functions import tanh

Results = dict[str, DD]


def pipeline_loss(token_losses: ArrayLike, lengths: ArrayLike, *, microbatch_size: int) -> Results:
    """loss ()."""
    losses = np.asarray(token_losses).astype(np.float64)
    counted = np.arange(losses.shape[1]) < np.asarray(lengths)[:, None]
    return {"loss": exact(np.where(counted, losses, 0.0)).sum().sum() / float(max(counted.sum(), 1))}


def pipeline_step(x: ArrayLike, targets: ArrayLike, lengths: ArrayLike, weights: Sequence[ArrayLike], *,
                  dropout_mask: ArrayLike | None = None, dropout_p: float = 0.0, **how: Any) -> Results:
    """loss (), dx (B, T, D), dweights.0, … (D, D)."""
    B, T, _ = np.shape(x)
    counted = (np.arange(T) < np.asarray(lengths).reshape(B, 1))[..., None]
    w, n = [exact(one) for one in weights], float(max(counted.sum(), 1))
    scale = exact(1.0) if dropout_mask is None else 1.0 / (1.0 - exact(float(dropout_p)))
    kept = [exact(1.0)] * len(w) if dropout_mask is None else [exact(mask) * scale for mask in np.asarray(dropout_mask)]
    inputs, hidden = [exact(np.where(counted, np.asarray(x).astype(np.float64), 0.0))], list[DD]()
    for weight, z in zip(w, kept):
        hidden.append(tanh(inputs[-1] @ weight))
        inputs.append(hidden[-1] * z)
    error = where(counted, inputs.pop() - exact(targets), 0.0)
    loss, dy, dweights = (error * error).sum().sum().sum() / (2.0 * n), error / n, list[DD]()
    for weight, a, h, z in reversed(list(zip(w, inputs, hidden, kept))):
        slope = dy * z * ((1.0 - h) * (1.0 + h))
        dweights.append(_flat(a).T @ _flat(slope))
        dy = slope @ weight.T
    return {"loss": loss, "dx": dy, **spread("dweights", dweights[::-1])}


def _flat(x: DD) -> DD:
    """(B T, D)."""
    return DD(x.hi.reshape(-1, x.shape[-1]), x.lo.reshape(-1, x.shape[-1]))
