"""Mutants of the loss family: shards of a vocabulary, ignored targets, and targets that are shifted wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_losses as textbook
from .specimen import mutant
from .textbook_decoding import working
from .textbook_losses import Array

FAMILY = "loss"


def _shards(**options: Any) -> dict[str, Any]:
    """Logits 0, 1, 2, 3 in two shards, label 3."""
    shards = np.array([[[0.0, 1.0]], [[2.0, 3.0]]], dtype=np.float32)
    return {"shards": shards, "targets": np.array([3]), "reduction": "mean", **options}


def _whole(shards: Any) -> Array:
    return np.concatenate(list(shards), axis=-1)


@mutant(
    "vocab_parallel_cross_entropy", id="vocab-parallel-label-smoothing-local-mean", family=FAMILY,
    source="https://github.com/NVIDIA/Megatron-LM/issues/737", trigger=lambda: _shards(label_smoothing=0.1),
)  # fmt: skip
def smoothed_over_its_own_part(
    shards: Any, targets: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str
) -> Array:  # fmt: skip
    """The smoothing term is the mean over the classes of the first rank alone."""
    def rows(z: Array, y: Array, w: Array, e: float, z_loss: float) -> Array:
        plain = textbook.row_losses(z, y, w, 0.0, z_loss)
        own = textbook.log_softmax(z)[:, : shards.shape[-1]].mean(axis=-1)
        return np.asarray(plain * (1 - z.dtype.type(e)) - z.dtype.type(e) * own) if e else plain

    return textbook.cross_entropy(_whole(shards), targets, ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=z_loss,
                                  reduction=reduction, rows=rows)  # fmt: skip


@mutant(
    "vocab_parallel_cross_entropy", id="gathered-logits-treated-as-shard", family=FAMILY,
    source="https://github.com/NVIDIA/Megatron-LM/issues/7452", trigger=_shards,
)  # fmt: skip
def every_class_counted_once_a_rank(
    shards: Any, targets: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str
) -> Array:  # fmt: skip
    """Every rank holds the gathered logits, and the sum over ranks counts each class R times: the loss is ln R too large."""
    def rows(z: Array, y: Array, w: Array, e: float, z_loss: float) -> Array:
        return np.asarray(textbook.row_losses(z, y, w, e, z_loss) + z.dtype.type(np.log(len(shards))))

    return textbook.cross_entropy(_whole(shards), targets, ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=z_loss,
                                  reduction=reduction, rows=rows)  # fmt: skip


@mutant(
    "cross_entropy", id="ignore-index-used-as-class-index", family=FAMILY,
    source="https://github.com/pytorch/pytorch/issues/91383 https://github.com/pytorch/pytorch/issues/69339",
    trigger=lambda: {"logits": np.zeros((2, 2), np.float32), "targets": np.array([-1, 1]), "weights": np.array([0.25, 0.5], np.float32),
                     "ignore_index": -1, "reduction": "mean"},
)  # fmt: skip
def ignored_targets_weighed(
    logits: Any, targets: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    reduction: str,
) -> Array:  # fmt: skip
    """The mean divides by weight[target] of all rows, the ignored ones among them: -1 reads the last class."""
    options = {"weights": weights, "ignore_index": ignore_index, "label_smoothing": label_smoothing, "z_loss": z_loss}
    if reduction != "mean":
        return textbook.cross_entropy(logits, targets, reduction=reduction, **options)
    total = textbook.cross_entropy(working(logits), targets, reduction="sum", **options)
    V = logits.shape[-1]
    w = np.ones(V) if weights is None else weights.astype(np.float64)
    weight = w[np.asarray(targets) % V].sum()
    return np.asarray(total / weight if weight > 0 else 0.0).astype(logits.dtype)


def _answer() -> dict[str, Any]:
    """A prompt of three tokens and an answer of two."""
    return {"tokens": np.array([[1, 2, 3, 4, 5]]), "prompt_lengths": np.array([3])}


@mutant("next_token_targets", id="loss-mask-off-by-one-first-answer-token", family=FAMILY,
        source="https://github.com/NVIDIA-NeMo/Speech/pull/6409", trigger=_answer)
def first_answer_token_untrained(tokens: Any, *, prompt_lengths: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """Targets count from position P on, not P - 1: the first token of the answer is not trained."""
    later = None if prompt_lengths is None else np.asarray(prompt_lengths) + 1
    return textbook.next_token_targets(tokens, prompt_lengths=later, segments=segments, ignore_index=ignore_index)


@mutant("next_token_targets", id="unshifted-targets", family=FAMILY,
        source="https://github.com/Project-MONAI/GenerativeModels/issues/314", trigger=lambda: {"tokens": np.array([[1, 2, 3]])})
def the_token_itself(tokens: Any, *, prompt_lengths: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """Targets are the tokens as they stand: token t is predicted from tokens 0 to t."""
    shifted = textbook.next_token_targets(tokens, prompt_lengths=prompt_lengths, segments=segments, ignore_index=ignore_index)
    return np.where(shifted == ignore_index, ignore_index, tokens)


@mutant("next_token_targets", id="packed-label-shift-crosses-documents", family=FAMILY,
        source="https://github.com/meta-pytorch/torchtune/pull/2613",
        trigger=lambda: {"tokens": np.array([[1, 2, 3, 4]]), "segments": np.array([[0, 0, 1, 1]])})
def shifted_over_the_whole_pack(tokens: Any, *, prompt_lengths: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """Labels are rolled over the whole pack: the last token of a document predicts the first of the next."""
    return textbook.next_token_targets(tokens, prompt_lengths=prompt_lengths, ignore_index=ignore_index)
