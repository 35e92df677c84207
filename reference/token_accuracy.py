"""Accuracy of the next token, counted: which of the predictions that have something to predict are right."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Int64


def token_accuracy(logits: ArrayLike, tokens: ArrayLike, *, ignore_index: int = -100) -> tuple[Int64, Int64]:
    """How many predictions of the next token are right, and how many there are: int64 of no axis each.

        right = #{(b, t): tokens[b, t + 1] != ignore_index and argmax logits[b, t] = tokens[b, t + 1]},   t = 0 .. T - 2

    logits (B, T, V), tokens (B, T) in 0..V - 1 or ignore_index. The prediction at the last position has no target; of equal
    logits the first counts. A quotient is left to the caller: of 0 predictions there is none.

    >>> token_accuracy([[[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]], [[0, 1, 1]])
    (array(1), array(2))

    Raises ValueError or TypeError that names the argument, what came and what is wanted. Exact.
    Source: Open-Superintelligence-Lab/5-dollar-llm#67, where predictions met labels that were not shifted.
    """
    x = arguments.widen("logits", logits, ndim=3)
    B, T, V = x.shape
    ignored = arguments.whole_number("ignore_index", ignore_index, least=-(2**31))
    ids = np.asarray(tokens)
    kept = ids != ignored
    arguments.integers("tokens", np.where(kept, ids, 0) if ids.dtype.kind in "iu" else ids, (B, T), least=0, most=max(V - 1, 0))
    if V == 0:
        raise ValueError(f"logits: got shape {x.shape}; want a vocabulary of at least 1")
    right = kept[:, 1:] & (x[:, :-1].argmax(axis=-1) == ids[:, 1:])
    return np.asarray(right.sum(), dtype=np.int64), np.asarray(kept[:, 1:].sum(), dtype=np.int64)
