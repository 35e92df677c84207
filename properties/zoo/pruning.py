"""Mutants of pruning: masks that prune nothing, that look at the wrong magnitude, that are not the last, that pile up."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_quantization as textbook
from .specimen import mutant
from .textbook import Array

FAMILY = "pruning"


def history(sparsities: list[float], *, n: int = 16) -> dict[str, Any]:
    """Arguments of gradual_masks: one layer of N(0, 1), other weights at each step."""
    drawn = np.random.default_rng(1).standard_normal((len(sparsities), 1, n)).astype(np.float32)
    return {"history": drawn, "sparsities": np.array(sparsities), "scope": "layer"}


@mutant(
    "prune_2_4", id="nm-mask-all-true", family=FAMILY, source="https://github.com/NVIDIA/apex/issues/1387",
    trigger=lambda: {"w": np.arange(16.0, dtype=np.float32).reshape(4, 4), "axis": 1},
)  # fmt: skip
def nothing_is_pruned(w: Any, *, axis: int) -> Array:
    """The mask is the one it was made with, all True: what was computed is never copied into it."""
    mask = np.ones(w.shape, bool)
    textbook.two_four(w, axis)
    return mask


@mutant(
    "prune_2_4", id="nm-mask-magnitude-with-offset-codes", family=FAMILY, source="https://github.com/IST-DASLab/Sparse-Marlin/pull/4",
    trigger=lambda: {"w": np.array([[-8.0, 0.0, 1.0, -1.0]], np.float32), "axis": 1},
)  # fmt: skip
def codes_with_an_offset_are_ranked(w: Any, *, axis: int) -> Array:
    """Weights are ranked by codes with an offset, as if those were magnitudes: the most negative go first."""
    rising = np.argsort(np.argsort(w.astype(np.float64), axis=axis, kind="stable"), axis=axis, kind="stable")
    return textbook.two_four(rising + 1.0, axis)


@mutant(
    "gradual_masks", id="progressive-mask-left-at-end", family=FAMILY,
    source="https://github.com/intel/neural-compressor/pull/1250 https://github.com/intel/neural-compressor/pull/1211",
    trigger=lambda: history([0.25, 0.5]),
)  # fmt: skip
def last_mask_is_not_taken(history: Any, *, sparsities: Any, scope: str) -> Array:
    """At the end the mask of the step before is still in use."""
    masks = textbook.gradual(history, sparsities, scope)
    return np.concatenate([masks[:-1], masks[-2:-1]]) if len(masks) > 1 else masks


@mutant(
    "gradual_masks", id="mask-multiplied-over-iterations", family=FAMILY, source="https://github.com/pytorch/pytorch/pull/65293",
    trigger=lambda: history([0.5] * 10),
)  # fmt: skip
def masks_pile_up(history: Any, *, sparsities: Any, scope: str) -> Array:
    """Each step ranks all weights anew and multiplies its mask into the one before: more and more is gone."""
    fresh = [textbook.magnitude(w, float(sparsity), scope) for w, sparsity in zip(history, sparsities)]
    return np.logical_and.accumulate(np.array(fresh).reshape(history.shape), axis=0)
