"""Pipeline parallelism: stages that run micro-batches in the order of a schedule, and the loss that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Bool, Float64, Int64
from .pipeline_schedule import BACKWARD, FORWARD, Schedule, schedule


class Stage(Protocol):
    """One piece of a model. What forward saves is all that the backward pass has to go on from."""

    def forward(self, x: Float64, microbatch: int) -> tuple[Float64, Any]:
        """The output, and what is saved for the backward pass."""

    def backward_input(self, saved: Any, dy: Float64) -> Float64:
        """The gradient of the input."""

    def backward_weight(self, saved: Any, dy: Float64) -> list[Float64]:
        """The gradients of the weights."""


@dataclass(frozen=True)
class PipelineRun:
    """What a pipeline computed. losses, dinputs: one a micro-batch; gradients: one list a piece; peak: most saved at once, a stage."""

    losses: list[float]
    dinputs: list[Float64]
    gradients: list[list[Float64]]
    peak: list[int]


def run_schedule(order: Schedule, pieces: Sequence[Stage], inputs: Sequence[Float64],
                 loss: Callable[[Float64, int], tuple[float, Float64]]) -> PipelineRun:
    """Run the pieces of a model through a schedule: piece i stands on stage i mod p, messages pass between neighbours.

    loss(y, micro-batch) gives the micro-batch's share of the loss and its gradient; shares and gradients are added up as they come.
    Every message is sent once and taken once; activations are kept from FORWARD until the gradient of the weights is taken.

    Raises ValueError where the pieces are not those of the schedule, or an action needs what is not there.
    Source: Huang et al. 2019 (arXiv 1811.06965), section 2; the split backward pass: Qi et al. 2023 (arXiv 2401.10241).
    """
    stages, last = len(order.actions), len(order.actions) * order.chunks - 1
    if len(pieces) != last + 1:
        raise ValueError(f"pieces: got {len(pieces)}; want {last + 1}, {order.chunks} on each of {stages} stages")
    starts, _ = order.timeline()
    messages: dict[tuple[int, int, int], Float64] = {(FORWARD, i, 0): x for i, x in enumerate(inputs)}
    saved: dict[tuple[int, int], Any] = {}                                      # (micro-batch, piece) -> what forward saved
    received: dict[tuple[int, int], Float64] = {}                               # its dy, where WEIGHT is still to come
    losses, gradients = [0.0] * len(inputs), [list[Float64]() for _ in pieces]
    held, peak = [0] * stages, [0] * stages
    for _, s, place in sorted((starts[s, place], s, place) for s, place in np.ndindex(*starts.shape)):
        op, i, chunk = (int(x) for x in order.actions[s, place])
        piece = chunk * stages + s
        if op == FORWARD:
            y, saved[i, piece] = pieces[piece].forward(messages.pop((FORWARD, i, piece)), i)
            if piece == last:
                losses[i], messages[BACKWARD, i, piece] = loss(y, i)
            else:
                messages[FORWARD, i, piece + 1] = y
            held[s] += 1
            peak[s] = max(peak[s], held[s])
            continue
        if op == BACKWARD:
            received[i, piece] = messages.pop((BACKWARD, i, piece))
            messages[BACKWARD, i, piece - 1] = pieces[piece].backward_input(saved[i, piece], received[i, piece])
        if op != BACKWARD or not order.split:
            new = pieces[piece].backward_weight(saved.pop((i, piece)), received.pop((i, piece)))
            gradients[piece] = [old + one for old, one in zip(gradients[piece], new)] if gradients[piece] else new
            held[s] -= 1
    return PipelineRun(losses, [messages[BACKWARD, i, -1] for i in range(len(inputs))], gradients, peak)


def pipeline_loss(token_losses: ArrayLike, lengths: ArrayLike, *, microbatch_size: int) -> Float64:
    """The mean loss over all tokens of a batch, summed up micro-batch by micro-batch: float64 ().

        loss = sum over micro-batches of (sum over its tokens t < lengths[b] of token_losses[b, t]) / N,   N = sum of all lengths

    The mean over all tokens, not the mean of the micro-batches' means, which would favour short sequences: N is that of the whole
    batch, known before the first micro-batch. token_losses (B, T), lengths (B,); the last micro-batch may be short. No tokens: 0.
    What stands behind a length does not count, NaN and inf included.

    >>> float(pipeline_loss([[1.0, 9.0, 9.0], [4.0, 4.0, 4.0]], [1, 3], microbatch_size=1))
    3.25

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: (N + 2) u of the mean of |loss|.
    Source: the report of ml-explore/mlx-lm#1413; huggingface/transformers#34191.
    """
    losses = arguments.widen("token_losses", token_losses, ndim=2)
    counted = token_mask_of(lengths, *losses.shape)
    size = arguments.whole_number("microbatch_size", microbatch_size, least=1)
    tokens, total = max(int(counted.sum()), 1), 0.0
    for first in range(0, len(losses), size):
        rows = slice(first, first + size)
        total += float(losses[rows][counted[rows]].sum()) / tokens
    return np.asarray(total)


def token_mask_of(lengths: ArrayLike, B: int, T: int) -> Bool:
    """Which of T places each of B sequences has: (B, T).

    >>> token_mask_of([1, 2], 2, 2).tolist()
    [[True, False], [True, True]]
    """
    return np.asarray(np.arange(T) < arguments.integers("lengths", lengths, (B,), least=0, most=T)[:, None])


@dataclass(frozen=True)
class TanhStage:
    """y = z tanh(x W), z what dropout multiplies with: one array for each micro-batch, or None. Saved: x and tanh, and which z it was."""

    weight: Float64
    factors: Sequence[Float64] | None = None

    def forward(self, x: Float64, microbatch: int) -> tuple[Float64, Any]:
        z = np.float64(1.0) if self.factors is None else self.factors[microbatch]
        h = np.tanh(x @ self.weight)
        return z * h, (x, h, z)

    def _before(self, saved: Any, dy: Float64) -> Float64:
        _, h, z = saved
        return np.asarray(dy * z * ((1.0 - h) * (1.0 + h)))

    def backward_input(self, saved: Any, dy: Float64) -> Float64:
        return np.asarray(self._before(saved, dy) @ self.weight.T)

    def backward_weight(self, saved: Any, dy: Float64) -> list[Float64]:
        x, dz = saved[0], self._before(saved, dy)
        return [np.asarray(x.reshape(-1, x.shape[-1]).T @ dz.reshape(-1, dz.shape[-1]))]


def pipeline_step(x: ArrayLike, targets: ArrayLike, lengths: ArrayLike, weights: Sequence[ArrayLike], *, kind: str, microbatch_size: int,
                  chunks: int = 1, accumulation: int = 1, dropout_mask: ArrayLike | None = None,
                  dropout_p: float = 0.0) -> tuple[Float64, Float64, list[Float64]]:
    """Loss and gradients of a model of P pieces, run by a pipeline: loss (), dx (B, T, D), and dweights, P arrays (D, D).

        y_0 = x;    y_i = dropout_i(tanh(y_{i-1} W_i));    loss = 1/N sum over tokens t < lengths[b] of |y_P - targets|^2 / 2

    x, targets (B, T, D), lengths (B,), weights P arrays (D, D), N the number of tokens of the whole batch. dropout_mask
    (P, B, T, D), True = kept, multiplies by kept / (1 - dropout_p); recomputed or not, a token keeps its mask. kind, chunks: as in
    `schedule`, on P / chunks stages; the batch is cut into `accumulation` parts, each of which runs through the schedule in
    micro-batches of microbatch_size sequences. None of these changes the result, which is that of the whole batch at once; tokens
    behind a length get and give no gradient. N = 0: all 0.

    >>> one = np.ones((1, 1, 1))
    >>> loss, dx, (dw,) = pipeline_step(0.0 * one, one, [1], [one[0]], kind="gpipe", microbatch_size=1)
    >>> float(loss), dx.item(), dw.item()
    (0.5, -1.0, 0.0)

    Raises ValueError or TypeError that names the argument, what came and what is wanted. Error bound: `properties.bounds`.
    Source: Huang et al. 2019 (arXiv 1811.06965), section 2; one normaliser for all micro-batches: areal-project/AReaL#1273.
    """
    x = arguments.widen("x", x, ndim=3)
    B, T, D = x.shape
    targets = arguments.widen("targets", targets, x.shape)
    counted = token_mask_of(lengths, B, T)[..., None]
    wide = [arguments.widen(f"weights[{i}]", w, (D, D)) for i, w in enumerate(weights)]
    size, runs, v = (arguments.whole_number(name, n, least=1) for name, n in
                     (("microbatch_size", microbatch_size), ("accumulation", accumulation), ("chunks", chunks)))  # fmt: skip
    if not wide or len(wide) % v:
        raise ValueError(f"weights: got {len(wide)} pieces for {v} chunks on each stage; want a multiple of {v}, at least one")
    kept, factor = arguments.dropout(dropout_mask, dropout_p, (len(wide), B, T, D))
    tokens = max(int(counted.sum()), 1)
    total, dx, dweights = 0.0, np.zeros(x.shape), [np.zeros((D, D)) for _ in wide]
    for part in np.array_split(np.arange(B), runs):
        rows = [part[first : first + size] for first in range(0, len(part), size)]
        factors = [None if kept is None else [kept[i, r] * factor for r in rows] for i in range(len(wide))]
        order = schedule(kind, stages=len(wide) // v, microbatches=len(rows), chunks=v)
        run = run_schedule(order, [TanhStage(w, z) for w, z in zip(wide, factors)], [np.where(counted[r], x[r], 0.0) for r in rows],
                           _mean_square(targets, counted, rows, tokens))  # fmt: skip
        total += sum(run.losses)
        for r, new in zip(rows, run.dinputs):
            dx[r] = new
        dweights = [old + new[0] if new else old for old, new in zip(dweights, run.gradients)]
    return np.asarray(total), dx, dweights


def _mean_square(targets: Float64, counted: Bool, rows: Sequence[Int64], tokens: int) -> Callable[[Float64, int], tuple[float, Array]]:
    """A micro-batch's share of the loss over all tokens, and its gradient."""

    def loss(y: Float64, microbatch: int) -> tuple[float, Array]:
        r = rows[microbatch]
        error = np.where(counted[r], y - targets[r], 0.0)
        return float((error * error).sum()) / (2.0 * tokens), error / tokens

    return loss
