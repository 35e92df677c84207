"""Mutants of the pipeline-parallel family: what is computed again comes out otherwise, and gradients are divided once too often."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_pipeline as textbook
from .specimen import mutant
from .textbook_decoding import working
from .textbook_pipeline import Array, Saved

FAMILY = "pipeline-parallel"
GITHUB = "https://github.com"
Step = tuple[Array, Array, list[Array]]


def _small(**options: Any) -> dict[str, Any]:
    """Four sequences of two tokens through two pieces of width 2, in micro-batches of one."""
    g = np.random.default_rng(1)
    arrays = {name: g.standard_normal((4, 2, 2)).astype(np.float32) for name in ("x", "targets")}
    weights = {f"weights.{i}": g.standard_normal((2, 2)).astype(np.float32) for i in range(2)}
    return {**arrays, "lengths": np.array([2, 1, 2, 2]), **weights, "kind": "1f1b", "microbatch_size": 1, **options}


def _dropped() -> dict[str, Any]:
    return _small(dropout_mask=np.random.default_rng(2).uniform(size=(2, 4, 2, 2)) < 0.5, dropout_p=0.5)


def drawn_anew(piece: int, i: int, saved: list[list[Saved]], weights: list[Array]) -> Saved:
    """The mask that a generator gives which has moved on: what it gave the last token and channel comes first."""
    y, h, z = saved[i][piece]
    return y, h, z if np.ndim(z) == 0 else np.roll(z.reshape(-1), 1).reshape(z.shape)


@mutant("pipeline_step", id="recompute-draws-new-dropout-mask", family=FAMILY, trigger=_dropped,
        source=f"{GITHUB}/allenai/OLMo-core/pull/828 {GITHUB}/pytorch/pytorch/issues/190758")
def another_mask(x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, chunks: int = 1,
                 accumulation: int = 1, dropout_mask: Any = None, dropout_p: float = 0.0) -> Step:  # fmt: skip
    """The forward pass that is run again for the backward pass draws another dropout mask than the one whose loss was taken."""
    return textbook.pipeline_step(x, targets, lengths, weights, kind=kind, microbatch_size=microbatch_size, accumulation=accumulation,
                                  dropout_mask=dropout_mask, dropout_p=dropout_p, recompute=drawn_anew)


def of_two_replicas(piece: int, i: int, saved: list[list[Saved]], weights: list[Array]) -> Saved:
    """Half of the features of what was saved comes from the replica that works on the next micro-batch."""
    y, h, z = saved[i][piece]
    other = saved[(i + 1) % len(saved)][piece][0]
    if other.shape != y.shape or piece == 0:
        return y, h, z
    half = y.shape[-1] // 2
    mixed = np.concatenate([y[..., :half], other[..., half:]], axis=-1)
    return mixed, np.tanh(mixed @ weights[piece]), z


@mutant("pipeline_step", id="recompute-uses-other-process-group", family=FAMILY, trigger=_small,
        source=f"{GITHUB}/NVIDIA/Megatron-LM/issues/7452")
def gathered_elsewhere(x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, chunks: int = 1,
                       accumulation: int = 1, dropout_mask: Any = None, dropout_p: float = 0.0) -> Step:  # fmt: skip
    """Activations saved in halves are gathered over another group of ranks when they are used again: half is another replica's."""
    return textbook.pipeline_step(x, targets, lengths, weights, kind=kind, microbatch_size=microbatch_size, accumulation=accumulation,
                                  dropout_mask=dropout_mask, dropout_p=dropout_p, recompute=of_two_replicas)


@mutant("pipeline_step", id="schedule-divides-already-normalised-loss", family=FAMILY, trigger=_small,
        source=f"{GITHUB}/areal-project/AReaL/pull/1273")
def divided_twice(x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, chunks: int = 1,
                  accumulation: int = 1, dropout_mask: Any = None, dropout_p: float = 0.0) -> Step:  # fmt: skip
    """Losses that are already shares of the mean over all tokens are divided by the number of micro-batches once more."""
    f, counts = working(x).dtype.type, textbook.tokens_of(lengths, x.shape[1])
    dx, dw, total = np.zeros(x.shape, f), [np.zeros(np.shape(w), f) for w in weights], f(0)
    for run in textbook.runs_of(len(x), microbatch_size, accumulation):
        share = 1 / max(int(counts.sum()), 1) / max(len(run), 1)
        loss, gradient, new = textbook.step(x, targets, lengths, weights, run, dropout_mask, dropout_p, share=share)
        total, dx, dw = f(total + loss * f(max(len(run), 1))), dx + gradient, [a + b for a, b in zip(dw, new)]
    return np.asarray(total).astype(x.dtype), dx.astype(x.dtype), [w.astype(x.dtype) for w in dw]


@mutant("pipeline_step", id="pipeline-scale-applied-every-accumulation-step", family=FAMILY, trigger=lambda: _small(accumulation=2),
        source=f"{GITHUB}/pytorch/torchtitan/pull/1732")
def scaled_at_every_run(x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, chunks: int = 1,
                        accumulation: int = 1, dropout_mask: Any = None, dropout_p: float = 0.0) -> Step:  # fmt: skip
    """After every run all stored gradients are divided by its micro-batches, those of earlier runs again: a moving average."""
    f, counts = working(x).dtype.type, textbook.tokens_of(lengths, x.shape[1])
    dx, dw, total = np.zeros(x.shape, f), [np.zeros(np.shape(w), f) for w in weights], f(0)
    for run in textbook.runs_of(len(x), microbatch_size, accumulation):
        n = max(len(run), 1)
        loss, gradient, new = textbook.step(x, targets, lengths, weights, run, dropout_mask, dropout_p,
                                            share=n / max(int(counts.sum()), 1))  # fmt: skip
        total, dx, dw = f(total + loss / f(n)), dx + gradient / f(n), [(a + b) / f(n) for a, b in zip(dw, new)]
    return np.asarray(total).astype(x.dtype), dx.astype(x.dtype), [w.astype(x.dtype) for w in dw]
