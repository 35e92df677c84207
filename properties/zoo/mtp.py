"""Mutants of the family of multi-token prediction: labels, documents and means."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_decoding as textbook
from .specimen import mutant
from .textbook_decoding import Array

FAMILY = "mtp"


def _text(T: int, K: int = 1, **options: Any) -> dict[str, Any]:
    """Arguments of mtp_loss: tokens 0, 1, …, logits N(0, 1) from a fixed seed."""
    logits = np.random.default_rng(1).standard_normal((K, T, T)).astype(np.float32)
    return {"logits": logits, "tokens": np.arange(T), **options}


@mutant(
    "mtp_loss", id="mtp-roll-ignores-pack-boundary", family=FAMILY, source="https://github.com/areal-project/AReaL/pull/1445",
    trigger=lambda: _text(6, segments=np.array([0, 0, 0, 1, 1, 1])),
)  # fmt: skip
def rolled_over_the_whole_pack(logits: Any, tokens: Any, *, weights: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """Labels are rolled over the flat pack: the last tokens of a document are scored on the next one's."""
    return textbook.mtp_loss(logits, tokens, weights=weights, ignore_index=ignore_index)


@mutant("mtp_loss", id="mtp-loss-summed-not-averaged", family=FAMILY, source="https://github.com/NVIDIA/Megatron-LM/issues/1532",
        trigger=lambda: _text(6, K=2))
def later_heads_summed(logits: Any, tokens: Any, *, weights: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """The first head is averaged over the tokens, the others are summed: twice the text is twice their loss."""
    K = len(logits)
    w = np.ones(K) if weights is None else np.asarray(weights, np.float64)
    first, others = (np.where((np.arange(K) == 0) == head, w, 0.0) for head in (True, False))
    options = {"segments": segments, "ignore_index": ignore_index}
    wide = textbook.working(logits)
    mean = textbook.mtp_loss(wide, tokens, weights=first, **options)
    return np.asarray(mean + textbook.mtp_loss(wide, tokens, weights=others, reduce=sum, **options)).astype(logits.dtype)


@mutant("mtp_loss", id="mtp-labels-shifted-twice", family=FAMILY, source="https://github.com/radixark/miles/pull/2215",
        trigger=lambda: _text(6))
def labels_one_further(logits: Any, tokens: Any, *, weights: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """Labels that the caller has shifted are shifted again: head j is scored on token t + j + 1."""
    return textbook.mtp_loss(logits, tokens, weights=weights, segments=segments, ignore_index=ignore_index, shift=1)
