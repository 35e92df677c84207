"""Laws of attention over packed sequences of different lengths, empty ones among them."""

from __future__ import annotations

import numpy as np

from ..case import Case
from ..law import Judgement, Law, law, within
from ..trial import Trial
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    repeats_give_the_same_bits,
    same_bits,
)


def _several_sequences(case: Case) -> Case | None:
    return case if len(case.arrays["cu_q"]) > 2 and case.arrays["q"].size and case.arrays["v"].size else None


@law(prepare=_several_sequences, every=2)
def sequences_do_not_see_each_other(trial: Trial) -> Judgement:
    """With other keys and values in the last sequence, the rows of all other sequences keep their bits.

    The lengths are the same, so every row meets the same sums in the same order. Allowed: 0, where the subject repeats itself.
    """
    case, arrays = trial.case, {}
    first = int(case.arrays["cu_k"][-2])
    for name in ("k", "v"):
        changed = case.arrays[name].copy()
        changed[first:] = -changed[first:, :, ::-1]
        arrays[name] = changed
    Tq, rows = case.arrays["q"].shape[0], int(case.arrays["cu_q"][-2])
    kept = np.arange(Tq) < rows
    equal = {name: np.broadcast_to(kept if name == "lse" else kept[:, None, None], got.shape) for name, got in trial.answer.items()
             if name in ("out", "lse", "dq")}  # fmt: skip
    return same_bits(trial, trial.on(case.with_arrays(**arrays)), equal)


@law(prepare=_several_sequences, every=3)
def sequences_without_keys_are_empty(trial: Trial) -> Judgement:
    """Queries of a sequence that has no keys have output 0 and log-sum-exp -inf, at their own places. Allowed: 0."""
    empty = np.isneginf(trial.wanted["lse"])                                    # (Hq, Tq)
    allowed = {"out": np.where(empty.T[..., None], 0.0, np.inf), "lse": np.where(empty, 0.0, np.inf)}
    allowed["out"] = np.broadcast_to(allowed["out"], trial.wanted["out"].shape)
    return within(trial.answer, trial.wanted, allowed)


_COMMON: tuple[Law, ...] = (inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits)

PACKED_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    agreement("lse"),
    sequences_do_not_see_each_other,
    sequences_without_keys_are_empty,
    *_COMMON,
)
PACKED_BACKWARD_LAWS: tuple[Law, ...] = (answers, agreement("dq"), agreement("dk"), agreement("dv"), *_COMMON)
