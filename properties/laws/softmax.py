"""Laws of softmax, log-sum-exp and the merge of partial attention results."""

from __future__ import annotations

import numpy as np

from oracles.reference import FloatFormat

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


def _length(case: Case) -> int:
    axis = case.options.get("axis", -1)
    assert isinstance(axis, int)
    return int(case.arrays["x"].shape[axis])


def _equal_entries(case: Case) -> Case | None:
    n = _length(case) if case.arrays["x"].size else 0
    x = case.arrays["x"]
    return None if n == 0 or n & (n - 1) else case.with_arrays(x=np.full_like(x, 1.5))


def rounds_equal_shares(declaration: Declaration) -> str:
    return "e^(x - lse) rounds ln 2^n" if declaration.arithmetic.merges_lse else ""


@law(prepare=_equal_entries, every=2, not_covered=rounds_equal_shares)
def equal_entries_share_exactly(trial: Trial) -> Judgement:
    """2^n equal entries have softmax 2^-n exactly: e^0 = 1, their sum 2^n, and the quotient a power of two. Allowed: 0.

    Not of a softmax that is the exp of its logarithm, e^(x - lse), which rounds ln 2^n: it declares `merges_lse`.
    """
    n = _length(trial.case)
    return within(trial.answer, {"p": np.full(trial.case.arrays["x"].shape, 1.0 / n)}, {"p": np.zeros(trial.case.arrays["x"].shape)})


def _one_entry(case: Case) -> Case | None:
    if not case.arrays["x"].size:
        return None
    axis = case.options.get("axis", -1)
    assert isinstance(axis, int)
    rows = np.full(case.arrays["x"].shape, -np.inf)
    number = int(case.hash, 16)
    far = min(1024.0, FloatFormat(case.arrays["x"].dtype.name).max / 2)
    np.moveaxis(rows, axis, -1)[..., number % _length(case)] = (-2.75, far, -far)[number // _length(case) % 3]
    return case.with_arrays(x=rows.astype(case.arrays["x"].dtype))


@law(prepare=_one_entry, every=2)
def one_finite_entry_takes_all(trial: Trial) -> Judgement:
    """Among entries of -inf the only finite one, near 0 or as far as 1024 from it, has probability 1, and the log-sum-exp is that entry.

    A maximum that passes some entries over, or starts at 0, makes e^x overflow or vanish. Allowed: 0 for p; for the log-sum-exp the
    bound, since kernels in base 2 multiply by log2 e and back.
    """
    x = trial.case.arrays["x"].astype(np.float64)
    if "p" in trial.wanted:
        return within(trial.answer, {"p": np.where(np.isfinite(x), 1.0, 0.0)}, {"p": np.zeros(x.shape)})
    return within(trial.answer, trial.wanted, trial.allowed)


def _nothing_finite(case: Case) -> Case | None:
    return case.with_arrays(x=np.full_like(case.arrays["x"], -np.inf)) if case.arrays["x"].size else None


def _one_nan(case: Case) -> Case | None:
    """A NaN in the row that the hash names, at the place it names; the other rows as they are."""
    x = case.arrays["x"].copy()
    if not x.size:
        return None
    x[np.unravel_index(int(case.hash, 16) % x.size, x.shape)] = np.nan
    return case.with_arrays(x=x) if np.isnan(x.astype(np.float64)).any() else None              # not every format has one


@law(prepare=_one_nan, every=4)
def a_nan_makes_its_row_nan(trial: Trial) -> Judgement:
    """A NaN in a row makes all of it NaN, and its log-sum-exp; the other rows are what they were. Set to 0, a fault upstream is hidden.

    Allowed: 0 in its row, where the kind alone is compared, and the bound in the others.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


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
    """Merging with (0, -inf) gives the other part back: out bit for bit, its weight being e^0 = 1 and the other's 0.

    Two empty parts stay empty. Allowed: 0 for out; for the log-sum-exp the bound, since kernels in base 2 multiply by log2 e and back.
    """
    wanted = {"out": trial.case.arrays["out_a"].astype(np.float64), "lse": trial.wanted["lse"]}
    wanted["out"] = np.where(np.isneginf(wanted["lse"])[..., None], 0.0, wanted["out"])
    return within(trial.answer, wanted, {"out": np.zeros(wanted["out"].shape), "lse": trial.allowed["lse"]})


def _one_unknown(case: Case) -> Case | None:
    """A part whose out and lse are NaN in one row, as attention over a key of NaN leaves it."""
    out, lse = case.arrays["out_b"].copy(), case.arrays["lse_b"].copy()
    if not out.size:
        return None
    row = np.unravel_index(int(case.hash, 16) % lse.size, lse.shape)
    out[row], lse[row] = np.nan, np.nan
    return case.with_arrays(out_b=out, lse_b=lse)


@law(prepare=_one_unknown, every=4)
def a_part_of_nan_makes_its_row_nan(trial: Trial) -> Judgement:
    """A row of NaN in a part, log-sum-exp too, is a row of NaN in the merge: NaN is not nothing. The other rows are what they were.

    Allowed: 0 in that row, where the kind alone is compared, and the bound in the others.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


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
    a_nan_makes_its_row_nan,
    *_COMMON,
)
LOG_SUM_EXP_LAWS: tuple[Law, ...] = (
    answers,
    agreement("lse"),
    one_finite_entry_takes_all,
    nothing_but_minus_infinity_is_empty,
    a_nan_makes_its_row_nan,
    *_COMMON,
)
MERGE_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    agreement("lse"),
    the_empty_part_is_neutral,
    a_part_of_nan_makes_its_row_nan,
    the_order_of_parts_does_not_matter,
    three_parts_merge_in_any_order,
    *_COMMON,
)
