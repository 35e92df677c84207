"""Laws of the targets of next-token prediction: one place on, answers from their first token, documents by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..trial import Trial
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    pinned,
    repeats_give_the_same_bits,
    strides_are_respected,
)


def _counting(case: Case) -> Case | None:
    """Tokens that say where they stand, in one document without a prompt."""
    x = case.arrays["tokens"]
    if not x.size:
        return None
    return replace(case, arrays={"tokens": np.arange(x.size).reshape(x.shape)})


@law(prepare=_counting, every=2)
def a_text_that_counts_is_one_further(trial: Trial) -> Judgement:
    """Of the tokens 0, 1, 2, … the target at t is t + 1, never t; the last of a row is ignored. Allowed: 0."""
    x = trial.case.arrays["tokens"]
    wanted = (x + 1).astype(np.float64)
    ignored = trial.case.options.get("ignore_index", -100)
    wanted[:, -1] = float(ignored) if isinstance(ignored, int) else np.nan
    return within(trial.answer, {"targets": wanted}, {"targets": np.zeros(wanted.shape)})


def _prompted(case: Case) -> Case | None:
    """One document a row, prompts of all lengths from 1 on."""
    x = case.arrays["tokens"]
    if x.size == 0 or x.shape[1] < 2:
        return None
    return replace(case, arrays={"tokens": x, "prompt_lengths": 1 + np.arange(len(x)) % (x.shape[1] - 1)})


@law(prepare=_prompted, every=2)
def every_token_of_an_answer_is_trained(trial: Trial) -> Judgement:
    """T tokens with a prompt of P leave T - P targets: the first token of the answer is predicted from the last of the prompt.

    Allowed: 0.
    """
    if "prompt_lengths" not in trial.subject.declaration.coverage.arguments or not trial.answer:
        return NOTHING
    ignored = trial.case.options.get("ignore_index", -100)
    counted = {"targets": (trial.answer["targets"] != ignored).sum(axis=1)}
    wanted = (trial.case.arrays["tokens"].shape[1] - trial.case.arrays["prompt_lengths"]).astype(np.float64)
    return pinned(within(counted, {"targets": wanted}, {"targets": np.zeros(wanted.shape)}), trial)


def _packed(case: Case) -> Case | None:
    """Documents of three tokens, their numbers falling: the first of a document is known by its token."""
    x = case.arrays["tokens"]
    if not x.size:
        return None
    place = np.broadcast_to(np.arange(x.shape[1]), x.shape)
    return replace(case, arrays={"tokens": np.where(place % 3 == 0, 7, 8), "segments": -(place // 3)})


@law(prepare=_packed, every=2)
def no_document_predicts_the_next(trial: Trial) -> Judgement:
    """The first token of a document, 7, is nobody's target: not of the document before it, not of the row's end. Allowed: 0."""
    if "segments" not in trial.subject.declaration.coverage.arguments or not trial.answer:
        return NOTHING
    found = {"targets": (trial.answer["targets"] == 7).sum(axis=1)}
    wanted = np.zeros(len(trial.case.arrays["tokens"]))
    return pinned(within(found, {"targets": wanted}, {"targets": wanted}), trial)


TARGET_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("targets"), minimise=False),
    a_text_that_counts_is_one_further,
    every_token_of_an_answer_is_trained,
    no_document_predicts_the_next,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
