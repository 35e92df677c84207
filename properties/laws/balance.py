"""Laws of the loss that balances experts, and of its gradient: its two ends, what does not count, and how it adds up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..case import Case
from ..declaration import Declaration
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


def _even(case: Case) -> Case | None:
    """E tokens of equal probabilities, token t at experts t, t + 1, ...: each expert has k assignments."""
    p, ids = case.arrays["probs"], case.arrays["ids"]
    E, k = p.shape[1], ids.shape[1]
    if not len(p) or "mask" in case.arrays:
        return None
    turns = (np.arange(E)[:, None] + np.arange(k)) % E
    return case.with_arrays(probs=np.full((E, E), 1.0 / E).astype(p.dtype), ids=turns)


@law(prepare=_even, every=2)
def a_balanced_router_costs_one(trial: Trial) -> Judgement:
    """Every expert as busy and as probable as every other: 1, for any number k of choices; k where f is declared a share of tokens.

    Allowed: the bound, and what 1 / E is off in the format of the probabilities.
    """
    p, k = trial.case.arrays["probs"].astype(np.float64), trial.case.arrays["ids"].shape[1]
    whole = float(k) if trial.conventions["balance_share"] == "of_tokens" else 1.0
    off = whole * np.abs(p.sum(axis=-1) - 1.0).max()
    return within(trial.answer, {"loss": np.asarray(whole)}, {"loss": np.asarray(trial.allowed["loss"] + off)})


def _crowded(case: Case) -> Case | None:
    """All tokens at expert 0 with probability 1, one choice each."""
    p = case.arrays["probs"]
    if not len(p) or ("mask" in case.arrays and not case.arrays["mask"].any()):
        return None
    one = (np.arange(p.shape[1]) == 0) & np.ones((len(p), 1), np.bool_)
    return case.with_arrays(probs=one.astype(p.dtype), ids=np.zeros((len(p), 1), np.int64))


@law(prepare=_crowded, every=2)
def one_expert_for_all_costs_their_number(trial: Trial) -> Judgement:
    """All tokens at one expert: E, padding or not. Allowed: the bound."""
    return within(trial.answer, {"loss": np.asarray(float(trial.case.arrays["probs"].shape[1]))}, trial.allowed)


def _takes_a_mask(declaration: Declaration) -> str:
    return "" if "mask" in declaration.coverage.arguments else "the subject takes no mask"


def _padded(case: Case) -> Case | None:
    """As many tokens of padding again behind the real ones, all at the last expert with probability 1."""
    p, ids = case.arrays["probs"], case.arrays["ids"]
    T, E = p.shape
    if not T:
        return None
    mask = case.arrays.get("mask", np.ones(T, np.bool_))
    last = (np.arange(E) == E - 1) & np.ones((T, 1), np.bool_)
    behind = np.broadcast_to((E - 1 - np.arange(ids.shape[1])) % E, ids.shape)
    return case.with_arrays(probs=np.concatenate([p, last.astype(p.dtype)]), ids=np.concatenate([ids, behind]),
                            mask=np.concatenate([mask, np.zeros(T, np.bool_)]))


@law(prepare=_padded, every=2, not_covered=_takes_a_mask)
def padding_counts_in_neither_factor(trial: Trial) -> Judgement:
    """As many tokens of padding behind the real ones, crowding one expert: loss and gradient of the real ones alone. Allowed: the bound."""
    return within(trial.answer, trial.wanted, trial.allowed)


@law(every=2, minimise=False)
def tokens_in_another_order_cost_the_same(trial: Trial) -> Judgement:
    """Tokens in reverse order, with their experts and mask: the same loss, the gradient in reverse. Allowed: the bound."""
    if len(trial.case.arrays["probs"]) < 2 or not trial.answer:
        return NOTHING
    names = [name for name in ("probs", "ids", "mask") if name in trial.case.arrays]
    other = trial.on(trial.case.with_arrays(**{name: np.ascontiguousarray(trial.case.arrays[name][::-1]) for name in names}))
    wanted = {name: value[::-1] if value.ndim else value for name, value in trial.wanted.items()}
    return pinned(within(other.answer, wanted, other.allowed), trial, other)


@law(every=2, minimise=False)
def renaming_the_experts_costs_the_same(trial: Trial) -> Judgement:
    """Experts in another order: the same loss, the gradient in that order. Allowed: the bound."""
    p = trial.case.arrays["probs"]
    if not p.size or not trial.answer:
        return NOTHING
    order = np.random.default_rng(p.shape[1]).permutation(p.shape[1])
    other = trial.on(trial.case.with_arrays(probs=np.ascontiguousarray(p[:, order]), ids=np.argsort(order)[trial.case.arrays["ids"]]))
    wanted = {name: value[:, order] if value.ndim else value for name, value in trial.wanted.items()}
    return pinned(within(other.answer, wanted, other.allowed), trial, other)


@law(every=2, minimise=False)
def a_batch_twice_costs_the_same(trial: Trial) -> Judgement:
    """The batch and a copy of it: the same loss, half the gradient for each token. Allowed: the bound of the longer batch."""
    names = [name for name in ("probs", "ids", "mask") if name in trial.case.arrays]
    if not len(trial.case.arrays["probs"]) or not trial.answer:
        return NOTHING
    other = trial.on(trial.case.with_arrays(**{name: np.concatenate([trial.case.arrays[name]] * 2) for name in names}))
    wanted = {name: np.concatenate([value, value]) / 2.0 if value.ndim else value for name, value in trial.wanted.items()}
    return pinned(within(other.answer, wanted, other.allowed), trial, other)


@law(every=2, minimise=False)
def twice_the_coefficient_has_twice_the_gradient(trial: Trial) -> Judgement:
    """The gradient is linear in dloss, which is a number and no switch. Allowed: twice the bound, and that of the doubled case."""
    d = trial.case.arrays["dloss"]
    other = trial.on(trial.case.with_arrays(dloss=np.asarray((2.0 * d.astype(np.float64)).astype(d.dtype))))
    if not trial.answer or not other.answer:
        return NOTHING
    wanted = {"dprobs": 2.0 * trial.answer["dprobs"].astype(np.float64)}
    return pinned(within(other.answer, wanted, {"dprobs": 2.0 * trial.allowed["dprobs"] + other.allowed["dprobs"]}), trial, other)


@law(every=2)
def the_gradient_along_the_probabilities_is_the_loss(trial: Trial) -> Judgement:
    """sum p dp = dloss times the loss, which is linear in p. Allowed: the bounds of the gradient along |p|."""
    if not trial.answer or not trial.case.arrays["probs"].size:
        return NOTHING
    p = trial.case.arrays["probs"].astype(np.float64)
    got = {"dprobs": np.asarray((trial.answer["dprobs"].astype(np.float64) * p).sum())}
    wanted = {"dprobs": np.asarray((trial.wanted["dprobs"] * p).sum())}
    judged = within(got, wanted, {"dprobs": np.asarray((trial.allowed["dprobs"] * np.abs(p)).sum())})
    return pinned(judged, trial)


_SHARED: tuple[Law, ...] = (
    replace(strides_are_respected, minimise=False), inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits,
)  # fmt: skip
_ORDER: tuple[Law, ...] = (
    padding_counts_in_neither_factor, tokens_in_another_order_cost_the_same, renaming_the_experts_costs_the_same,
    a_batch_twice_costs_the_same,
)  # fmt: skip
BALANCE_LAWS: tuple[Law, ...] = (
    answers, replace(agreement("loss"), minimise=False), a_balanced_router_costs_one, one_expert_for_all_costs_their_number, *_ORDER,
    *_SHARED,
)  # fmt: skip
BALANCE_BACKWARD_LAWS: tuple[Law, ...] = (
    answers, replace(agreement("dprobs"), minimise=False), twice_the_coefficient_has_twice_the_gradient,
    the_gradient_along_the_probabilities_is_the_loss, *_ORDER, *_SHARED,
)  # fmt: skip
