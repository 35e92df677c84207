"""Textbook forms of pipelines: schedules as lists, losses and steps in float32 (float64 for float64), of which specimens change a step.

Nothing here comes from the oracles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .textbook_decoding import working

Array = NDArray[Any]
F, B, W = 0, 1, 2
Row = list[tuple[int, int, int]]


def one_forward_one_backward(p: int, m: int, s: int) -> Row:
    """p - s - 1 forward passes, then one of each in turn, then what is left."""
    warm = min(p - s - 1, m)
    row = [(F, i, 0) for i in range(warm)]
    for i in range(m):
        row += ([(F, i + warm, 0)] if i + warm < m else []) + [(B, i, 0)]
    return row


def interleaved(p: int, m: int, v: int, s: int) -> Row:
    """Groups of p micro-batches through all chunks of the stage."""
    total = m * v

    def nth(k: int, back: bool) -> tuple[int, int, int]:
        group, place = divmod(k, p * v)
        chunk = place // p
        return (B, group * p + place % p, v - 1 - chunk) if back else (F, group * p + place % p, chunk)

    warm = min(total, 2 * (p - s - 1) + (v - 1) * p if v > 1 else p - s - 1)
    row = [nth(k, False) for k in range(warm)]
    for k in range(total):
        row += ([nth(k + warm, False)] if k + warm < total else []) + [nth(k, True)]
    return row


def zero_bubble(p: int, m: int, s: int) -> Row:
    """1F1B with one forward pass more to begin with, and each W s places behind its B."""
    warm = min(p - s, m)
    row = [(F, i, 0) for i in range(warm)]
    for i in range(m):
        row += [(B, i, 0)] + ([(W, i - s, 0)] if i >= s else []) + ([(F, i + warm, 0)] if i + warm < m else [])
    return row + [(W, i, 0) for i in range(max(m - s, 0), m)]


def rows_of(kind: str, p: int, m: int, v: int) -> list[Row]:
    """One list of actions a stage."""
    if kind == "gpipe":
        return [[(F, i, 0) for i in range(m)] + [(B, i, 0) for i in range(m)] for _ in range(p)]
    if kind == "interleaved":
        return [interleaved(p, m, v, s) for s in range(p)]
    return [(zero_bubble if kind == "zero_bubble" else one_forward_one_backward)(p, m, s) for s in range(p)]


def as_actions(rows: Sequence[Row]) -> Array:
    """Rows as an array (stages, n, 3)."""
    return np.array(rows, dtype=np.int64).reshape(len(rows), -1, 3)


def schedule(kind: str, *, stages: int, microbatches: int, chunks: int = 1) -> Array:
    """The schedule of a kind."""
    return as_actions(rows_of(kind, stages, microbatches, chunks))


# Losses ------------------------------------------------------------------------------------------------------------------


def tokens_of(lengths: Any, T: int) -> Array:
    """Which places count, (B, T)."""
    return np.asarray(np.arange(T) < np.asarray(lengths)[:, None])


def sums(token_losses: Any, lengths: Any, size: int) -> Iterator[tuple[Array, int]]:
    """The sum and the number of tokens of each micro-batch."""
    x, counts = working(token_losses), tokens_of(lengths, token_losses.shape[1])
    for first in range(0, len(x), size):
        inside = counts[first : first + size]
        yield x[first : first + size][inside].sum(dtype=x.dtype), int(inside.sum())


def pipeline_loss(token_losses: Any, lengths: Any, *, microbatch_size: int) -> Array:
    """All sums added up, over the number of all tokens."""
    f, n, total = working(token_losses).dtype.type, max(int(np.sum(lengths)), 1), working(token_losses).dtype.type(0)
    for one, _ in sums(token_losses, lengths, microbatch_size):
        total = f(total + one)
    return np.asarray(f(total / f(n))).astype(token_losses.dtype)


# Steps -------------------------------------------------------------------------------------------------------------------

Saved = tuple[Array, Array, Any]                                                # input, tanh, what dropout multiplies with
Recompute = Callable[[int, int, list[list[Saved]], list[Array]], Saved]         # (piece, micro-batch, all that was saved, weights)


def as_saved(piece: int, i: int, saved: list[list[Saved]], weights: list[Array]) -> Saved:
    """The backward pass reads what its own forward pass saved."""
    return saved[i][piece]


def runs_of(B: int, size: int, accumulation: int) -> list[list[Array]]:
    """The sequences of each micro-batch of each run."""
    return [[part[first : first + size] for first in range(0, len(part), size)] for part in np.array_split(np.arange(B), accumulation)]


def step(x: Any, targets: Any, lengths: Any, weights: Sequence[Any], microbatches: Sequence[Array], dropout_mask: Any, dropout_p: float,
         *, recompute: Recompute = as_saved, share: float | None = None) -> tuple[Array, Array, list[Array]]:
    """Loss, dx and dweights of some micro-batches, forward and backward; share: what each token's loss is multiplied with, 1 / N."""
    f, w = working(x).dtype.type, [working(one) for one in weights]
    counts = tokens_of(lengths, x.shape[1])[..., None]
    scale = f(1 / max(int(counts.sum()), 1) if share is None else share)
    total, dx, dw = f(0), np.zeros(x.shape, f), [np.zeros(one.shape, f) for one in w]
    outputs, saved = [], list[list[Saved]]()
    for rows in microbatches:
        y, kept = np.where(counts[rows], working(x)[rows], f(0)), list[Saved]()
        for i, one in enumerate(w):
            z = f(1) if dropout_mask is None else dropout_mask[i, rows] * f(1 / (1 - dropout_p))
            h = np.tanh(y @ one)
            kept.append((y, h, z))
            y = z * h
        outputs.append(y)
        saved.append(kept)
    for i, rows in enumerate(microbatches):
        error = np.where(counts[rows], outputs[i] - working(targets)[rows], f(0))
        total = f(total + (error * error).sum(dtype=f) * f(0.5) * scale)
        dy = error * scale
        for piece in reversed(range(len(w))):
            y, h, z = recompute(piece, i, saved, w)
            dz = dy * z * (1 - h * h)
            dw[piece] = dw[piece] + y.reshape(-1, y.shape[-1]).T @ dz.reshape(-1, dz.shape[-1])
            dy = dz @ w[piece].T
        dx[rows] = dy
    return np.asarray(total), dx, dw


def pipeline_step(x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, chunks: int = 1,
                  accumulation: int = 1, dropout_mask: Any = None, dropout_p: float = 0.0,
                  recompute: Recompute = as_saved) -> tuple[Array, Array, list[Array]]:  # fmt: skip
    """All micro-batches forward, then all of them backward, run after run."""
    f = working(x).dtype.type
    total, dx, dw = f(0), np.zeros(x.shape, f), [np.zeros(np.shape(one), f) for one in weights]
    for run in runs_of(len(x), microbatch_size, accumulation):
        loss, gradient, new = step(x, targets, lengths, weights, run, dropout_mask, dropout_p, recompute=recompute)
        total, dx, dw = f(total + loss), dx + gradient, [a + b for a, b in zip(dw, new)]
    return np.asarray(total).astype(x.dtype), dx.astype(x.dtype), [one.astype(x.dtype) for one in dw]
