"""Laws of writing tokens into a cache: copied bit for bit, the last of a slot wins, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..case import Case
from ..declaration import Declaration
from ..law import NOTHING, Evidence, Judgement, Law, law, within
from ..safetensors_file import Array
from ..trial import Trial
from .every_operation import (
    agreement,
    answers,
    inputs_stay_untouched,
    repeats_give_the_same_bits,
    strides_are_respected,
)

CACHES = {"k_cache": "k", "v_cache": "v"}


def last_writer(case: Case) -> Array:
    """(S,): the token that stands in each slot at the end, -1 where none does."""
    writer = np.full(len(case.arrays["k_cache"]), -1)
    for token, slot in enumerate(case.arrays["slots"].tolist()):
        if slot >= 0:
            writer[slot] = token
    return writer


def patterns(array: Array) -> Array:
    """The bits of every element, NaN and the sign of zero included."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _same_patterns(trial: Trial, wanted: Mapping[str, Array], places: Array) -> Judgement:
    """The judgement that slots (a mask of them) hold these very bits."""
    compared = 0
    for name, want in wanted.items():
        got = trial.answer.get(name)
        if got is None or got.dtype != want.dtype:
            continue
        compared += int(places.sum()) * int(np.prod(want.shape[1:]))
        differs = (patterns(got) != patterns(want)) & places[:, None, None]
        if differs.any():
            at = tuple(int(i) for i in np.argwhere(differs)[0])
            place = f"{name}[{','.join(map(str, at))}]"
            digits = 2 * want.dtype.itemsize
            reason = f"{place} holds the bits {patterns(got)[at]:0{digits}x}; want {patterns(want)[at]:0{digits}x}"
            return Judgement(compared, worst_ratio=np.inf, worst_at=place, failed=True, reason=reason)
    return Judgement(compared)


@law()
def other_slots_keep_their_bits(trial: Trial) -> Judgement:
    """A slot that no token names holds the very bits it held, those of a NaN included: it may be another sequence's. Allowed: 0."""
    return _same_patterns(trial, {name: trial.case.arrays[name] for name in CACHES}, last_writer(trial.case) < 0)


@law()
def tokens_are_copied_bit_for_bit(trial: Trial) -> Judgement:
    """A slot holds the bits of the last token that names it, the sign of a zero included. Allowed: 0."""
    writer = last_writer(trial.case)
    if not len(trial.case.arrays["k"]):
        return NOTHING
    return _same_patterns(trial, {name: trial.case.arrays[token][writer] for name, token in CACHES.items()}, writer >= 0)


def _skipped(case: Case) -> Case | None:
    slots = case.arrays["slots"]
    return case.with_arrays(slots=np.full_like(slots, -1)) if slots.size and case.arrays["k_cache"].size else None


@law(prepare=_skipped, every=2, minimise=True)
def skipped_tokens_write_nothing(trial: Trial) -> Judgement:
    """-1 names no slot, not the last one either: with nothing but -1 the caches stay as they are. Allowed: 0."""
    return _same_patterns(trial, {name: trial.case.arrays[name] for name in CACHES}, np.ones(len(trial.case.arrays["k_cache"]), bool))


def _crowded(case: Case) -> Case | None:
    slots, S = case.arrays["slots"], len(case.arrays["k_cache"])
    if len(slots) < 2 or not S:
        return None
    return case.with_arrays(slots=(np.arange(len(slots)) % max(1, min(S, len(slots) // 2))).astype(slots.dtype))


@law(prepare=_crowded, every=2, minimise=True)
def the_last_token_of_a_slot_wins(trial: Trial) -> Judgement:
    """Of the tokens that name one slot the last stays, in keys and values alike. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _no_tokens(case: Case) -> Case | None:
    return case.with_arrays(k=case.arrays["k"][:0].copy(), v=case.arrays["v"][:0].copy(), slots=case.arrays["slots"][:0].copy())


def _takes_nothing_empty(declaration: Declaration) -> str:
    return "" if declaration.coverage.empty else "the subject refuses what is empty"


@law(prepare=_no_tokens, every=4, not_covered=_takes_nothing_empty)
def no_tokens_change_nothing(trial: Trial) -> Judgement:
    """T = 0 is legal and leaves the caches as they are. Allowed: 0."""
    return _same_patterns(trial, {name: trial.case.arrays[name] for name in CACHES}, np.ones(len(trial.case.arrays["k_cache"]), bool))


@law(every=3)
def tokens_one_by_one_are_tokens_at_once(trial: Trial) -> Judgement:
    """Two calls, the second on what the first left, write what one call with all tokens does: decoding is prefill in parts. Allowed: 0."""
    arrays, T = trial.case.arrays, len(trial.case.arrays["k"])
    if T < 2 or not set(CACHES) <= set(trial.answer):
        return NOTHING
    cut = 1 + int(trial.case.hash, 16) % (T - 1)
    first = trial.on(trial.case.with_arrays(**{name: arrays[name][:cut].copy() for name in ("k", "v", "slots")}))
    if not set(CACHES) <= set(first.answer):
        return NOTHING
    rest = {name: arrays[name][cut:].copy() for name in ("k", "v", "slots")}
    second = trial.on(trial.case.with_arrays(**first.answer, **rest))
    whole = within(second.answer, trial.wanted, trial.allowed)
    if whole.failed:                                                            # evidence: the second call by itself, or the first
        for one in (first, second):
            alone = within(one.answer, one.wanted, one.allowed)
            if alone.failed:
                evidence = Evidence(one.wanted, one.allowed, one.case, of_other=True)
                return Judgement(whole.compared, worst_ratio=whole.worst_ratio, worst_at=whole.worst_at, failed=True,
                                 reason=whole.reason, evidence=evidence)
    return whole


WRITE_KV_LAWS: tuple[Law, ...] = (
    answers,
    agreement("k_cache"),
    agreement("v_cache"),
    skipped_tokens_write_nothing,
    the_last_token_of_a_slot_wins,
    other_slots_keep_their_bits,
    tokens_are_copied_bit_for_bit,
    no_tokens_change_nothing,
    tokens_one_by_one_are_tokens_at_once,
    strides_are_respected,
    inputs_stay_untouched,
    repeats_give_the_same_bits,
)
