"""Pipelines in ball arithmetic: the whole batch at once, in no micro-batches, by no schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.array_lists import spread

from .balls import elementwise, exact, product, total
from .certified import Balls, flint


def pipeline_loss(token_losses: ArrayLike, lengths: ArrayLike, *, microbatch_size: int) -> dict[str, Balls]:
    """loss: the sum of all tokens before the lengths, over their number; 0 without any."""
    losses = np.asarray(token_losses).astype(np.float64)
    counted = np.arange(losses.shape[1]) < np.asarray(lengths)[:, None]
    return {"loss": np.asarray(total(exact(losses[counted])) / max(int(counted.sum()), 1), dtype=object)}


def pipeline_step(x: ArrayLike, targets: ArrayLike, lengths: ArrayLike, weights: Sequence[ArrayLike], *,
                  dropout_mask: ArrayLike | None = None, dropout_p: float = 0.0, **how: Any) -> dict[str, Balls]:
    """loss, dx (B, T, D), dweights.0, …: what `how` says of kinds and micro-batches changes nothing."""
    B, T, D = np.shape(x)
    counted = (np.arange(T) < np.asarray(lengths).reshape(B, 1)).reshape(-1)
    w, tokens = [exact(one) for one in weights], exact(np.asarray(x).reshape(-1, D))[counted]               # (N, D)
    n = max(len(tokens), 1)
    kept = [exact(np.ones(tokens.shape))] * len(w)
    if dropout_mask is not None:
        scale = 1 / (1 - flint().arb(float(dropout_p)))
        kept = [exact(np.asarray(mask).reshape(-1, D)[counted]) * scale for mask in np.asarray(dropout_mask)]
    inputs, hidden = [tokens], []
    for weight, z in zip(w, kept):
        hidden.append(elementwise(flint().arb.tanh, product(inputs[-1], weight)))
        inputs.append(z * hidden[-1])
    error = inputs.pop() - exact(np.asarray(targets).reshape(-1, D))[counted]
    loss, dy, dweights = total(error * error) / (2 * n), error / n, list[Balls]()
    for weight, a, h, z in reversed(list(zip(w, inputs, hidden, kept))):
        slope = dy * z * (1 - h * h)
        dweights.append(product(a.T, slope))
        dy = product(slope, weight.T)
    dx = exact(np.zeros((B * T, D)))
    dx[counted] = dy
    return {"loss": np.asarray(loss, dtype=object), "dx": dx.reshape(B, T, D), **spread("dweights", dweights[::-1])}
