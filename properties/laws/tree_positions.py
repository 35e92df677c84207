"""Laws of the positions of a tree of drafts: the depth of a node, never its index."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..case import Case
from ..law import Judgement, Law, law, within
from ..trial import Trial
from .every_operation import agreement, answers, buffers_are_fully_written, inputs_stay_untouched, repeats_give_the_same_bits


def _star(case: Case) -> Case | None:
    n = case.arrays["parents"].size
    return case.with_arrays(parents=np.full(n, -1, dtype=case.arrays["parents"].dtype)) if n else None


@law(prepare=_star)
def siblings_share_a_position(trial: Trial) -> Judgement:
    """Nodes that all hang on the root all stand at n_past. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _chain(case: Case) -> Case | None:
    n = case.arrays["parents"].size
    return case.with_arrays(parents=np.arange(n, dtype=case.arrays["parents"].dtype) - 1) if n else None


@law(prepare=_chain)
def a_chain_counts_up(trial: Trial) -> Judgement:
    """In a chain the depth is the index: n_past, n_past + 1, … Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


TREE_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("positions"), minimise=False),
    siblings_share_a_position,
    a_chain_counts_up,
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
