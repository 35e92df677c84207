"""Laws of positions in padded rows: padding counts nothing, and a cache does not move what follows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..trial import Trial
from .every_operation import agreement, answers, buffers_are_fully_written, inputs_stay_untouched, repeats_give_the_same_bits


def _full(case: Case) -> Case | None:
    present = case.arrays["present"]
    return case.with_arrays(present=np.ones_like(present)) if present.size else None


@law(prepare=_full, every=2)
def without_padding_positions_count_up(trial: Trial) -> Judgement:
    """With nothing but tokens the position is the column. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _shifted(case: Case) -> Case:
    """Three columns of padding more on the left, in the cache too."""
    present = np.pad(case.arrays["present"], ((0, 0), (3, 0)))
    return case.with_arrays(present=present).with_options(past=int(case.options.get("past", 0) or 0) + 3)  # type: ignore[arg-type]


def _takes_past(case: Case) -> Case | None:
    return case if case.arrays["present"].size else None


@law(prepare=_takes_past)
def padding_on_the_left_moves_nothing(trial: Trial) -> Judgement:
    """Columns of padding before the first token, cached with what follows, leave every position as it is. Allowed: 0."""
    if "past" not in trial.subject.declaration.coverage.arguments:
        return Judgement(reason="the subject takes no past")
    other = trial.on(_shifted(trial.case))
    return within(other.answer, trial.wanted, trial.allowed) if other.answer else NOTHING


PADDED_POSITIONS_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("positions"), minimise=False),
    without_padding_positions_count_up,
    padding_on_the_left_moves_nothing,
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
