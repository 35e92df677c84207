"""Pipeline schedules: in which order the stages run their passes, and what that costs. Numbers are left to `pipeline_parallel`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import arguments
from .arguments import Array, Int64

# What a stage does with a micro-batch: its forward pass, its backward pass, and, where that is split, the gradient of its weights.
FORWARD, BACKWARD, WEIGHT = 0, 1, 2
KINDS = ("gpipe", "1f1b", "interleaved", "zero_bubble")


@dataclass(frozen=True)
class Schedule:
    """The order of work on every stage of a pipeline.

    actions   (stages, n, 3) int64: rows (op, micro-batch, chunk) in the order in which the stage does them
    chunks    pieces of the model on each stage: chunk c of stage s is piece c * stages + s
    split     BACKWARD is the gradient of the input alone, and WEIGHT that of the weights; otherwise BACKWARD is both
    """

    actions: Int64
    chunks: int = 1
    split: bool = False

    def timeline(self, durations: Sequence[float] = (1.0, 1.0, 1.0)) -> tuple[Array, Array]:
        """When each action starts and ends, (stages, n) float64: as soon as its stage is free and what it needs is there.

        durations of FORWARD, BACKWARD and WEIGHT of one chunk. FORWARD needs that of the piece before, BACKWARD that of the
        piece after (of the last piece: its own FORWARD), WEIGHT its own BACKWARD. Sending takes no time.

        >>> schedule("gpipe", stages=2, microbatches=1).timeline()[0]
        array([[0., 3.],
               [1., 2.]])

        Raises ValueError where an action waits for one that comes after it, or for one that never comes.
        """
        stages, n, _ = self.actions.shape
        starts, ends = np.zeros((stages, n)), np.zeros((stages, n))
        done: dict[tuple[int, int, int], float] = {}                            # (op, micro-batch, piece) -> when it ended
        place, free = [0] * stages, [0.0] * stages
        while any(place[s] < n for s in range(stages)):
            moved = False
            for s in range(stages):
                while place[s] < n:
                    op, microbatch, chunk = (int(x) for x in self.actions[s, place[s]])
                    needs = self._needs(op, microbatch, chunk, s)
                    if not all(key in done for key in needs):
                        break
                    start = max([free[s], *(done[key] for key in needs)])
                    free[s] = start + durations[op]
                    starts[s, place[s]], ends[s, place[s]] = start, free[s]
                    done[op, microbatch, chunk * stages + s] = free[s]
                    place[s], moved = place[s] + 1, True
            if not moved:
                stuck = next(s for s in range(stages) if place[s] < n)
                op, microbatch, chunk = (int(x) for x in self.actions[stuck, place[stuck]])
                raise ValueError(f"actions: stage {stuck} waits for ever with action {place[stuck]}, {'FBW'[op]} of micro-batch "
                                 f"{microbatch} (chunk {chunk}); want what it needs before it")  # fmt: skip
        return starts, ends

    def _needs(self, op: int, microbatch: int, chunk: int, stage: int) -> list[tuple[int, int, int]]:
        stages = len(self.actions)
        piece = chunk * stages + stage
        if op == FORWARD:
            return [(FORWARD, microbatch, piece - 1)] if piece else []
        if op == WEIGHT:
            return [(BACKWARD, microbatch, piece)]
        last = piece == self.chunks * stages - 1
        return [(FORWARD, microbatch, piece)] + ([] if last else [(BACKWARD, microbatch, piece + 1)])

    def bubble(self, durations: Sequence[float] = (1.0, 1.0, 1.0)) -> float:
        """The share of all stages' time that is spent waiting; 0 where there is nothing to do.

        >>> schedule("1f1b", stages=4, microbatches=8).bubble() == 3 / 11
        True
        """
        if self.actions.size == 0:
            return 0.0
        starts, ends = self.timeline(durations)
        return float(1.0 - (ends - starts).sum() / (len(self.actions) * ends.max()))

    def peak_activations(self) -> Int64:
        """The most inputs of chunks that each stage holds at once, (stages,): from FORWARD to the gradient of its weights.

        >>> schedule("1f1b", stages=4, microbatches=8).peak_activations()
        array([4, 3, 2, 1])
        """
        ops = self.actions[:, :, 0]
        held = np.cumsum((ops == FORWARD).astype(np.int64) - (ops == (WEIGHT if self.split else BACKWARD)), axis=1)
        return np.asarray(held.max(axis=1, initial=0))


def schedule(kind: str, *, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """The order in which the stages of a pipeline work on the micro-batches of one step: a `Schedule`.

        gpipe         all forward passes, then all backward passes
        1f1b          p - s forward passes on stage s, then one backward and one forward in turn, then what is left
        interleaved   the same with `chunks` pieces of the model on each stage, micro-batches in groups of p
        zero_bubble   1f1b with the gradient of the weights apart, done where the stage would wait (ZB-H1)

    p stages, m micro-batches, v chunks. Idle share and activations held, where forward and both parts of the backward pass take
    one unit each (without the split both parts are one, of any length):

        gpipe         (p - 1) / (m + p - 1)                          m
        1f1b          (p - 1) / (m + p - 1)                          min(m, p - s)
        interleaved   (p - 1) / (v m + p - 1)                        min(v m, 2 (p - s - 1) + (v - 1) p + 1) chunks, v > 1
        zero_bubble   1 - 3 m / max(3 m + p - 1, 2 m + 2 p - 1)      min(m, p)

    A pipeline without micro-batches has nothing to do.

    >>> schedule("1f1b", stages=2, microbatches=2).actions[0].tolist()
    [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]]

    Raises ValueError for an unknown kind, chunks beside a kind other than interleaved, and micro-batches that are no multiple of
    the stages where they are interleaved.
    Source: Huang et al. 2019 (arXiv 1811.06965), section 2.3; Narayanan et al. 2019 (arXiv 1806.03377), section 3.2, and 2021
    (arXiv 2104.04473), section 2.2; Qi et al. 2023 (arXiv 2401.10241), section 2.1.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}; want one of {', '.join(KINDS)}")
    p, m, v = (arguments.whole_number(name, n, least=least) for name, n, least in
               (("stages", stages, 1), ("microbatches", microbatches, 0), ("chunks", chunks, 1)))  # fmt: skip
    if v > 1 and kind != "interleaved":
        raise ValueError(f"chunks: got {v} for kind {kind!r}; want 1, or kind 'interleaved'")
    if kind == "interleaved" and m % p:
        raise ValueError(f"microbatches: got {m} for {p} stages; want a multiple of {p} to interleave them")
    if kind == "zero_bubble":
        return Schedule(_zero_bubble(p, m), split=True)
    rows = [_alternating(_forwards(p, m, v), _warm(kind, p, m, v, s), v) for s in range(p)]
    return Schedule(np.array(rows, dtype=np.int64).reshape(p, 2 * m * v, 3), chunks=v)


def schedule_limits(kind: str, *, stages: int, microbatches: int, chunks: int = 1) -> tuple[float, Int64]:
    """The idle share and the activations (stages,) of the table in `schedule`: what a schedule of that kind need not exceed.

    >>> schedule_limits("gpipe", stages=4, microbatches=4)
    (0.42857142857142855, array([4, 4, 4, 4]))
    """
    p, m, v, s = stages, microbatches, chunks, np.arange(stages, dtype=np.int64)
    if m == 0:
        return 0.0, np.zeros(p, dtype=np.int64)
    if kind == "zero_bubble":
        return 1.0 - 3.0 * m / max(3 * m + p - 1, 2 * m + 2 * p - 1), np.full(p, min(m, p), dtype=np.int64)
    most = {"gpipe": np.full(p, m, dtype=np.int64), "1f1b": np.minimum(m, p - s),
            "interleaved": np.minimum(v * m, 2 * (p - s - 1) + (v - 1) * p + 1)}  # fmt: skip
    return (p - 1) / (v * m + p - 1), most["1f1b" if kind == "interleaved" and v == 1 else kind]


def _forwards(p: int, m: int, v: int) -> list[tuple[int, int]]:
    """(micro-batch, chunk) of the forward passes in their order: p micro-batches through all chunks, then the next p."""
    if v == 1:
        return [(i, 0) for i in range(m)]
    return [(first + i, chunk) for first in range(0, m, p) for chunk in range(v) for i in range(p)]


def _warm(kind: str, p: int, m: int, v: int, s: int) -> int:
    """How many forward passes stage s does before it alternates."""
    return m if kind == "gpipe" else min(v * m, p - s - 1 if v == 1 else 2 * (p - s - 1) + (v - 1) * p)


def _alternating(forwards: list[tuple[int, int]], warm: int, v: int) -> list[tuple[int, int, int]]:
    """`warm` forward passes, then a forward and a backward in turn, then the backward passes that are left."""
    f = [(FORWARD, *x) for x in forwards]
    b = [(BACKWARD, microbatch, v - 1 - chunk) for microbatch, chunk in forwards]
    turns = [action for pair in zip(f[warm:], b) for action in pair]
    return [*f[:warm], *turns, *b[len(f) - warm :]]


def _zero_bubble(p: int, m: int) -> Int64:
    """ZB-H1: p - s forward passes on stage s, then B, W and F in turn, each W s places behind its B: p activations are held at most."""
    rows = []
    for s in range(p):
        warm = min(p - s, m)
        row = [(FORWARD, i, 0) for i in range(warm)]
        for i in range(m):
            row.append((BACKWARD, i, 0))
            row += [(WEIGHT, i - s, 0)] if i >= s else []
            row += [(FORWARD, i + warm, 0)] if i + warm < m else []
        rows.append([*row, *((WEIGHT, i, 0) for i in range(max(m - s, 0), m))])
    return np.array(rows, dtype=np.int64).reshape(p, 3 * m, 3)
