"""Legal variants of the pipeline-parallel family: schedules written otherwise, losses weighed otherwise, passes run again as they were."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_pipeline as textbook
from .specimen import variant
from .textbook_decoding import working
from .textbook_pipeline import Array, B, F, Saved

FAMILY = "pipeline-parallel"
Step = tuple[Array, Array, list[Array]]


@variant("schedule", id="schedules-textbook", family=FAMILY)
def all_kinds(kind: str, *, stages: int, microbatches: int, chunks: int = 1) -> Array:
    """All kinds, written as lists."""
    return textbook.schedule(kind, stages=stages, microbatches=microbatches, chunks=chunks)


@variant("schedule", id="gpipe-last-micro-batch-first", family=FAMILY, only={"kind": ["gpipe"]}, source="https://arxiv.org/abs/1811.06965")
def backwards_from_the_last(kind: str, *, stages: int, microbatches: int) -> Array:
    """GPipe's backward passes from the last micro-batch to the first."""
    row = [(F, i, 0) for i in range(microbatches)] + [(B, i, 0) for i in reversed(range(microbatches))]
    return textbook.as_actions([row] * stages)


@variant("schedule", id="gpipe-with-the-memory-of-1f1b", family=FAMILY, only={"kind": ["gpipe", "1f1b"]})
def less_than_asked_for(kind: str, *, stages: int, microbatches: int) -> Array:
    """1F1B for both kinds: less memory than GPipe needs, in the same time."""
    return textbook.schedule("1f1b", stages=stages, microbatches=microbatches)


@variant("pipeline_loss", id="loss-textbook", family=FAMILY, dtypes=["float32", "float64", "float16", "bfloat16"])
def sums_over_all(token_losses: Any, lengths: Any, *, microbatch_size: int) -> Array:
    """Sums of micro-batches over the number of all tokens."""
    return textbook.pipeline_loss(token_losses, lengths, microbatch_size=microbatch_size)


@variant("pipeline_loss", id="loss-of-weighted-means", family=FAMILY, source="https://github.com/huggingface/transformers/pull/34191")
def means_weighed(token_losses: Any, lengths: Any, *, microbatch_size: int) -> Array:
    """Each token's share 1 / N first, then sums of sums: the loss arrives already normalised."""
    f, n = working(token_losses).dtype.type, max(int(np.sum(lengths)), 1)
    shares = working(token_losses) * f(1 / n)
    return np.asarray(sum((one for one, _ in textbook.sums(shares, lengths, microbatch_size)), f(0))).astype(token_losses.dtype)


@variant("pipeline_loss", id="loss-of-one-long-row", family=FAMILY)
def one_long_row(token_losses: Any, lengths: Any, *, microbatch_size: int) -> Array:
    """All tokens in one row, from the last to the first, without micro-batches."""
    row = working(token_losses)[textbook.tokens_of(lengths, token_losses.shape[1])][::-1]
    return np.asarray(row.sum(dtype=row.dtype) / row.dtype.type(max(len(row), 1))).astype(token_losses.dtype)


@variant("pipeline_step", id="step-textbook", family=FAMILY)
def all_forward_then_all_backward(
    x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, chunks: int = 1, accumulation: int = 1,
    dropout_mask: Any = None, dropout_p: float = 0.0,
) -> Step:  # fmt: skip
    """All micro-batches of a run forward, then all of them backward."""
    return textbook.pipeline_step(x, targets, lengths, weights, kind=kind, microbatch_size=microbatch_size, accumulation=accumulation,
                                  dropout_mask=dropout_mask, dropout_p=dropout_p)


def computed_again(piece: int, i: int, saved: list[list[Saved]], weights: list[Array]) -> Saved:
    """tanh again from the saved input, with the mask that was used."""
    y, _, z = saved[i][piece]
    return y, np.tanh(y @ weights[piece]), z


@variant("pipeline_step", id="step-recomputed", family=FAMILY, source="https://arxiv.org/abs/1604.06174")
def forward_again(
    x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, chunks: int = 1, accumulation: int = 1,
    dropout_mask: Any = None, dropout_p: float = 0.0,
) -> Step:  # fmt: skip
    """Each piece's forward pass is run again before its backward pass, with its own mask."""
    return textbook.pipeline_step(x, targets, lengths, weights, kind=kind, microbatch_size=microbatch_size, accumulation=accumulation,
                                  dropout_mask=dropout_mask, dropout_p=dropout_p, recompute=computed_again)


@variant("pipeline_step", id="step-normalised-at-the-end", family=FAMILY)
def divided_once_at_the_end(
    x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, chunks: int = 1, accumulation: int = 1,
    dropout_mask: Any = None, dropout_p: float = 0.0,
) -> Step:  # fmt: skip
    """Sums over tokens in every micro-batch and run, the whole batch from the last sequence to the first, divided by N at the very end."""
    f, n = working(x).dtype.type, max(int(np.sum(lengths)), 1)
    run = [np.array([b]) for b in reversed(range(len(x)))]
    total, dx, dw = textbook.step(x, targets, lengths, weights, run, dropout_mask, dropout_p, share=1.0)
    return np.asarray(total / f(n)).astype(x.dtype), (dx / f(n)).astype(x.dtype), [(w / f(n)).astype(x.dtype) for w in dw]
