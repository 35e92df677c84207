"""Laws of the loss of multi-token prediction: which token each head is scored on, what does not count, and how means and weights add."""

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

IGNORE = -100


def _pointing(case: Case) -> Case | None:
    """Logits that give each head all of its weight on the token it is scored on."""
    z, tokens = case.arrays["logits"], case.arrays["tokens"]
    K, T, V = z.shape
    if not z.size or V < 2 or T < 2 or "segments" in case.arrays:
        return None
    tokens = np.where(tokens == IGNORE, np.arange(T) % V, tokens)
    at = np.zeros((K, T, V))
    for j in range(1, K + 1):
        for t in range(T - j):
            at[j - 1, t, tokens[t + j]] = 1.0
    return case.with_arrays(tokens=tokens, logits=np.where(at > 0, 0.0, -200.0).astype(z.dtype))


@law(prepare=_pointing)
def the_right_token_costs_nothing(trial: Trial) -> Judgement:
    """Heads that put all weight on token t + j have a loss of 0: e^-200 is lost beside 1. Allowed: the bound."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _uncounted(case: Case) -> Case | None:
    """NaN in the logits at every position that no head is scored on."""
    z, tokens, segments = (case.arrays.get(name) for name in ("logits", "tokens", "segments"))
    if z is None or tokens is None or not z.size or not np.isnan(np.asarray(np.nan).astype(z.dtype)):
        return None
    K, T, _ = z.shape
    new, documents = z.copy(), np.zeros(T) if segments is None else segments
    for j in range(1, K + 1):
        for t in range(T):
            if t + j >= T or documents[t + j] != documents[t] or tokens[t + j] == IGNORE:
                new[j - 1, t] = np.nan
    return case.with_arrays(logits=new)


@law(prepare=_uncounted, every=2)
def positions_that_do_not_count_never_matter(trial: Trial) -> Judgement:
    """NaN past the end, across documents and before ignored tokens changes nothing. Allowed: the bound."""
    return within(trial.answer, trial.wanted, trial.allowed)


@law(every=2, minimise=False)
def twice_the_text_is_the_same_loss(trial: Trial) -> Judgement:
    """The text and a copy of it, as documents of their own, have the loss of one: it is a mean. Allowed: the bound of the longer text."""
    case = trial.case
    if "segments" not in trial.subject.declaration.coverage.arguments or not case.arrays["logits"].size:
        return NOTHING
    T = case.arrays["tokens"].size
    segments = case.arrays.get("segments", np.zeros(T, dtype=np.int64))
    twice = case.with_arrays(logits=np.concatenate([case.arrays["logits"]] * 2, axis=1), tokens=np.concatenate([case.arrays["tokens"]] * 2),
                             segments=np.concatenate([segments, segments + 2 * T + 1]))  # fmt: skip
    other = trial.on(twice)
    return pinned(within(other.answer, trial.wanted, other.allowed), trial, other)


@law(every=2, minimise=False)
def heads_add_up(trial: Trial) -> Judgement:
    """The loss of all heads is the sum of each head's, the others at weight 0. Allowed: the bounds of all of them."""
    K = trial.case.arrays["logits"].shape[0]
    if "weights" not in trial.subject.declaration.coverage.arguments or K < 2 or not trial.answer:
        return NOTHING
    w = trial.case.arrays.get("weights", np.ones(K, dtype=np.float32))
    alone = [trial.on(trial.case.with_arrays(weights=np.where(np.arange(K) == j, w, 0).astype(w.dtype))) for j in range(K)]
    if not all(one.answer for one in alone):
        return NOTHING
    total = {"loss": np.asarray(sum(one.answer["loss"].astype(np.float64) for one in alone))}
    allowed = {"loss": np.asarray(trial.allowed["loss"] + sum(one.allowed["loss"] for one in alone))}
    return pinned(within(trial.answer, total, allowed), trial, *alone)


@law(every=2, minimise=False)
def renaming_tokens_changes_nothing(trial: Trial) -> Judgement:
    """Tokens and the columns of the logits renamed alike. Allowed: the bound of the renamed case."""
    z, tokens = trial.case.arrays["logits"], trial.case.arrays["tokens"]
    if not z.size:
        return NOTHING
    order = np.random.default_rng(z.shape[-1]).permutation(z.shape[-1])
    names = np.argsort(order)
    renamed = np.where(tokens == IGNORE, tokens, names[np.where(tokens == IGNORE, 0, tokens)])
    other = trial.on(trial.case.with_arrays(logits=np.ascontiguousarray(z[..., order]), tokens=renamed))
    return pinned(within(other.answer, trial.wanted, other.allowed), trial, other)


def _ignored(case: Case) -> Case | None:
    return case.with_arrays(tokens=np.full_like(case.arrays["tokens"], IGNORE)) if case.arrays["logits"].size else None


@law(prepare=_ignored, every=2)
def nothing_to_score_is_no_loss(trial: Trial) -> Judgement:
    """Where every token is ignored the loss is 0, never NaN. Allowed: 0."""
    return within(trial.answer, {"loss": np.zeros(())}, {"loss": np.zeros(())})


MTP_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("loss"), minimise=False),
    the_right_token_costs_nothing,
    positions_that_do_not_count_never_matter,
    twice_the_text_is_the_same_loss,
    heads_add_up,
    renaming_tokens_changes_nothing,
    nothing_to_score_is_no_loss,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
