"""Laws of softmax, log-sum-exp and the merge of partial attention results."""

from __future__ import annotations

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


def _length(case: Case) -> int:
    axis = case.options.get("axis", -1)
    assert isinstance(axis, int)
    return int(case.arrays["x"].shape[axis])


def _equal_entries(case: Case) -> Case | None:
    n = _length(case) if case.arrays["x"].size else 0
    x = case.arrays["x"]
    return None if n == 0 or n & (n - 1) else case.with_arrays(x=np.full_like(x, 1.5))


@law(prepare=_equal_entries, every=2)
def equal_entries_share_exactly(trial: Trial) -> Judgement:
    """2^n equal entries have softmax 2^-n exactly: e^0 = 1, their sum 2^n, and the quotient a power of two. Allowed: 0."""
    n = _length(trial.case)
    return within(trial.answer, {"p": np.full(trial.case.arrays["x"].shape, 1.0 / n)}, {"p": np.zeros(trial.case.arrays["x"].shape)})


def _one_entry(case: Case) -> Case | None:
    if not case.arrays["x"].size:
        return None
    axis = case.options.get("axis", -1)
    assert isinstance(axis, int)
    rows = np.full(case.arrays["x"].shape, -np.inf)
    at = int(case.hash, 16) % _length(case)
    np.moveaxis(rows, axis, -1)[..., at] = -2.75
    return case.with_arrays(x=rows.astype(case.arrays["x"].dtype))


@law(prepare=_one_entry, every=2)
def one_finite_entry_takes_all(trial: Trial) -> Judgement:
    """Among entries of -inf the only finite one has probability 1, the others 0, and the log-sum-exp is that entry. Allowed: 0."""
    x = trial.case.arrays["x"].astype(np.float64)
    wanted = {"p": np.where(np.isfinite(x), 1.0, 0.0)} if "p" in trial.wanted else {"lse": np.full(trial.wanted["lse"].shape, -2.75)}
    return within(trial.answer, wanted, {name: np.zeros(w.shape) for name, w in wanted.items()})


def _nothing_finite(case: Case) -> Case | None:
    return case.with_arrays(x=np.full_like(case.arrays["x"], -np.inf)) if case.arrays["x"].size else None


@law(prepare=_nothing_finite, every=4)
def nothing_but_minus_infinity_is_empty(trial: Trial) -> Judgement:
    """A row of nothing but -inf is a row of hidden keys: softmax 0, log-sum-exp -inf, never NaN; or what the subject declared.

    Allowed: 0 for zeros, -inf and a declared NaN, the bound of equal entries for declared equal shares.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


def _nothing_seen(case: Case) -> Case | None:
    if not case.arrays["out_a"].size:
        return None
    return case.with_arrays(out_b=np.zeros_like(case.arrays["out_b"]), lse_b=np.full_like(case.arrays["lse_b"], -np.inf))


@law(prepare=_nothing_seen, every=2)
def the_empty_part_is_neutral(trial: Trial) -> Judgement:
    """Merging with (0, -inf) gives the other part back bit for bit: its weight is e^0 = 1, the other's 0. Allowed: 0.

    Two empty parts stay empty.
    """
    wanted = {"out": trial.case.arrays["out_a"].astype(np.float64), "lse": trial.case.arrays["lse_a"].astype(np.float64)}
    wanted["out"] = np.where(np.isneginf(wanted["lse"])[..., None], 0.0, wanted["out"])
    return within(trial.answer, wanted, {name: np.zeros(w.shape) for name, w in wanted.items()})


@law(every=2)
def the_order_of_parts_does_not_matter(trial: Trial) -> Judgement:
    """merge(b, a) agrees with the oracle's merge(a, b). Allowed: the bound of the exchanged call, which is another computation."""
    names = {"out_a": "out_b", "lse_a": "lse_b", "out_b": "out_a", "lse_b": "lse_a"}
    other = trial.on(trial.case.with_arrays(**{name: trial.case.arrays[source] for name, source in names.items()}))
    return within(other.answer, trial.wanted, other.allowed) if other.answer else NOTHING


@law(every=3)
def three_parts_merge_in_any_order(trial: Trial) -> Judgement:
    """merge(merge(a, b), c) = merge(a, merge(b, c)), c being a with its rows in reverse: the merge is associative.

    Judged against the oracle's merge of the subject's own first merge, for each of the two orders. Allowed: the bound of that merge.
    """
    a, b = (trial.case.arrays["out_a"], trial.case.arrays["lse_a"]), (trial.case.arrays["out_b"], trial.case.arrays["lse_b"])
    if not trial.answer or not {"out", "lse"} <= set(trial.answer) or trial.answer["lse"].dtype != b[1].dtype or not a[0].size:
        return NOTHING
    c = (np.ascontiguousarray(a[0][::-1]), np.ascontiguousarray(a[1][::-1]))
    first = (trial.answer["out"], trial.answer["lse"])
    names = ("out_a", "lse_a", "out_b", "lse_b")
    left = trial.on(trial.case.with_arrays(**dict(zip(names, (*first, *c)))))
    right_inner = trial.on(trial.case.with_arrays(**dict(zip(names, (*b, *c)))))
    if not left.answer or not {"out", "lse"} <= set(right_inner.answer):
        return NOTHING
    right = trial.on(trial.case.with_arrays(**dict(zip(names, (*a, right_inner.answer["out"], right_inner.answer["lse"])))))
    judged = within(left.answer, left.wanted, left.allowed)
    if not judged.failed and right.answer:
        judged = within(right.answer, right.wanted, right.allowed)
    return pinned(judged, trial, left, right_inner, right)


_COMMON: tuple[Law, ...] = (strides_are_respected, inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits)

SOFTMAX_LAWS: tuple[Law, ...] = (
    answers,
    agreement("p"),
    equal_entries_share_exactly,
    one_finite_entry_takes_all,
    nothing_but_minus_infinity_is_empty,
    *_COMMON,
)
LOG_SUM_EXP_LAWS: tuple[Law, ...] = (
    answers,
    agreement("lse"),
    one_finite_entry_takes_all,
    nothing_but_minus_infinity_is_empty,
    *_COMMON,
)
MERGE_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    agreement("lse"),
    the_empty_part_is_neutral,
    the_order_of_parts_does_not_matter,
    three_parts_merge_in_any_order,
    *_COMMON,
)
