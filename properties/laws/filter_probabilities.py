"""Laws of the filters on logits: what is kept, how it is renormalised, and what must not move it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..bounds.sampling import FilterParameters, decisions_of_row, parameters_of_rows, renormalised
from ..bounds.sums import g, roundings
from ..case import Case
from ..comparison import Float64
from ..law import NOTHING, Evidence, Judgement, Law, law, within
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

RESULT = "probabilities"


def rows_of(case: Case) -> tuple[Float64, list[FilterParameters]]:
    """The logits (rows, V) in float64, and the parameters of each row."""
    given = dict(case.arguments())
    z = np.asarray(given.pop("logits"), np.float64)
    return z.reshape(-1, z.shape[-1]), parameters_of_rows(z.shape[:-1], **given)


@law(minimise=False)
def kept_tokens_are_the_oracles(trial: Trial) -> Judgement:
    """A token is dropped (probability 0) or kept (above 0) as the oracle decides.

    Left out: tokens whose decision a legal rounding may turn (`filter_probabilities_bound`), and kept ones so unlikely that they
    may underflow. Allowed: no other.
    """
    if RESULT not in trial.answer:
        return NOTHING
    z, rows = rows_of(trial.case)
    got = trial.answer[RESULT].astype(np.float64).reshape(z.shape)
    compared = left_out = 0
    for i, row in enumerate(rows):
        kept, dropped = decisions_of_row(trial.arithmetic, z[i], row, trial.conventions)
        p, allowed = renormalised(trial.arithmetic, z[i], row.temperature, ~dropped)
        kept &= p > 2.0 * allowed
        wrong = (kept & ~(got[i] > 0.0)) | (dropped & (got[i] != 0.0))
        compared, left_out = compared + int((kept | dropped).sum()), left_out + int((~kept & ~dropped).sum())
        if wrong.any():
            at = f"{RESULT}[{i},{int(np.flatnonzero(wrong)[0])}]"
            what = "kept" if dropped[np.flatnonzero(wrong)[0]] else "dropped"
            reason = f"{at} is {what}, which no rounding makes it ({int(wrong.sum())} such in this row)"
            return Judgement(compared, left_out, np.inf, at, failed=True, reason=reason, evidence=Evidence(trial.wanted, trial.allowed))
    return Judgement(compared, left_out)


def _as_kept(trial: Trial) -> tuple[dict[str, Float64], dict[str, Float64]]:
    """Probabilities and their bound where what the subject kept is taken as given."""
    z, rows = rows_of(trial.case)
    got = trial.answer[RESULT].reshape(z.shape)
    pairs = [renormalised(trial.arithmetic, z[i], row.temperature, np.asarray(got[i] > 0)) for i, row in enumerate(rows)]
    shape = trial.case.arrays["logits"].shape
    p, allowed = (np.array(part, dtype=np.float64).reshape(shape) for part in zip(*pairs))
    return {RESULT: p}, {RESULT: allowed}


@law(minimise=False)
def what_is_kept_is_renormalised(trial: Trial) -> Judgement:
    """Whatever a subject keeps has the probabilities w_i / sum of the kept w, w = e^((z - m) / T): rows with open decisions too.

    Allowed: the bound given what is kept.
    """
    if RESULT not in trial.answer or not trial.answer[RESULT].size or not (trial.answer[RESULT] > 0).any(axis=-1).all():
        return NOTHING
    wanted, allowed = _as_kept(trial)
    return within(trial.answer, wanted, allowed)


@law(every=2, minimise=False)
def kept_probabilities_sum_to_one(trial: Trial) -> Judgement:
    """What is kept sums to 1: the quotients share one sum, so the errors of the weights cancel.

    Allowed: g(3 V + 6, u_accumulate) + 12 u, one rounding of `out` of each, and V of its underflows.
    """
    got = trial.answer.get(RESULT)
    if got is None or not got.size:
        return NOTHING
    r, V = roundings(trial.arithmetic), got.shape[-1]
    u = r.elementwise.u + 2.0**-53
    allowed = float(g(3.0 * V + 6.0, r.accumulate.u + 2.0**-53)) + 12.0 * u + r.out.u + V * (r.out.eta + 2.0 * r.elementwise.eta)
    sums = got.astype(np.float64).sum(axis=-1)
    judged = within({"sum": sums}, {"sum": np.ones(sums.shape)}, {"sum": np.full(sums.shape, allowed)})
    return replace(judged, evidence=Evidence(trial.wanted, trial.allowed))


def _zero_temperature(case: Case) -> Case | None:
    if "temperature" not in case.arguments() or not case.arrays["logits"].size:
        return None
    arrays = {name: array for name, array in case.arrays.items() if name != "temperature"}
    return replace(case, arrays=arrays, options={**case.options, "temperature": 0.0})


@law(prepare=_zero_temperature, every=2)
def temperature_zero_takes_the_first_of_the_largest(trial: Trial) -> Judgement:
    """Temperature 0 gives probability 1 to the first of the largest logits and 0 to all others, whatever the other filters.

    Which of several largest ones is left open where the subject says so. Allowed: 0.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


def _equal_logits(case: Case) -> Case | None:
    z = case.arrays["logits"]
    V = z.shape[-1]
    if not z.size or V & (V - 1) or "top_p" not in case.arguments():
        return None
    arrays = {"logits": np.full_like(z, 0.5)}
    k = max(V // 2, 1)
    filters = {"top_k": k} if "top_k" in case.arguments() else {}
    return replace(case, arrays=arrays, options={**filters, "top_p": 0.5 if int(case.hash, 16) % 2 else 0.75})


@law(prepare=_equal_logits, every=1)
def equal_logits_keep_exactly_their_share(trial: Trial) -> Judgement:
    """Of 2^n equal logits, top-k keeps k and top_p = 3/4 three quarters of those, at least one: every sum is exact.

    Which of them is told by the declared ties. Allowed: in number none; of each probability, the bound given what is kept.
    """
    got = trial.answer.get(RESULT)
    if got is None:
        return NOTHING
    wanted = (trial.wanted[RESULT] > 0).sum(axis=-1)
    judged = within({"kept": (got > 0).sum(axis=-1)}, {"kept": wanted.astype(np.float64)}, {"kept": np.zeros(wanted.shape)})
    ties = {trial.conventions["top_k_ties"], trial.conventions["top_p_ties"]}
    if not judged.failed and "any" not in ties:
        where = np.asarray(trial.wanted[RESULT] > 0, dtype=np.float64)
        judged = within({"is_kept": np.asarray(got > 0, dtype=np.float64)}, {"is_kept": where}, {"is_kept": np.zeros(where.shape)})
    return replace(judged, evidence=Evidence(trial.wanted, {RESULT: np.zeros(got.shape)}))


def _lowered(case: Case) -> Case | None:
    """Logits beyond the top-k lowered to -inf."""
    z, rows = rows_of(case)
    if "top_k" not in case.arguments() or not z.size or any(row.top_k is None or row.temperature == 0.0 for row in rows):
        return None
    if not np.isinf(np.asarray(-np.inf).astype(case.arrays["logits"].dtype)):
        return None
    new = z.copy()
    for i, row in enumerate(rows):
        order = np.argsort(-z[i], kind="stable")
        new[i, order[row.top_k :]] = -np.inf
    return case.with_arrays(logits=new.reshape(case.arrays["logits"].shape).astype(case.arrays["logits"].dtype))


@law(prepare=lambda case: case if _lowered(case) is not None else None, every=2)
def no_logit_that_top_k_drops_matters(trial: Trial) -> Judgement:
    """Lowering what top-k drops to -inf changes nothing: the later filters see the renormalised rest.

    Not for a subject that declares top_p to be a share of all, or ties to be kept all. Allowed: the bound of the lowered case,
    none where a decision is open in either.
    """
    if trial.conventions["top_p_of"] == "all" or trial.conventions["top_k_ties"] != "lowest":
        return NOTHING
    lowered = _lowered(trial.case)
    other = trial.on(lowered) if lowered is not None else trial
    allowed = {RESULT: np.where(np.isinf(trial.allowed[RESULT]), np.inf, other.allowed[RESULT])}
    return pinned(within(other.answer, trial.wanted, allowed), trial, other)


def _shifted(case: Case) -> Case | None:
    """All logits a whole number larger, where that is exact."""
    z = case.arrays["logits"]
    with np.errstate(over="ignore", invalid="ignore"):
        moved = (z.astype(np.float64) + 8.0).astype(z.dtype)
        exact = np.array_equal(moved.astype(np.float64) - 8.0, z.astype(np.float64))
    return case.with_arrays(logits=moved) if exact and z.size else None


def _rounded_logits(case: Case) -> Case | None:
    z = case.arrays["logits"]
    rounded = case.with_arrays(logits=np.asarray(np.rint(z.astype(np.float64) * 4) / 4).astype(z.dtype))
    return rounded if _shifted(rounded) is not None else None


@law(prepare=_rounded_logits, every=2)
def adding_one_number_to_all_logits_changes_nothing(trial: Trial) -> Judgement:
    """softmax(z + c) = softmax(z). Allowed: the bound of the shifted case, none where a decision is open in either."""
    shifted = _shifted(trial.case)
    if shifted is None:
        return NOTHING
    other = trial.on(shifted)
    allowed = {RESULT: np.where(np.isinf(trial.allowed[RESULT]), np.inf, other.allowed[RESULT])}
    return pinned(within(other.answer, trial.wanted, allowed), trial, other)


@law(every=3, minimise=False)
def permuting_the_vocabulary_permutes(trial: Trial) -> Judgement:
    """A row in which no two finite logits are equal does not depend on the order of its tokens.

    Allowed: the bound of the permuted case, none where a decision is open in either.
    """
    z, _ = rows_of(trial.case)
    if not z.size:
        return NOTHING
    order = np.random.default_rng(z.shape[-1]).permutation(z.shape[-1])
    other = trial.on(trial.case.with_arrays(logits=np.ascontiguousarray(trial.case.arrays["logits"][..., order])))
    tied = [np.unique(row[np.isfinite(row)]).size < np.isfinite(row).sum() for row in z]
    free = np.array(tied).reshape(trial.case.arrays["logits"].shape[:-1])[..., None]
    open_ = free | np.isinf(trial.allowed[RESULT][..., order])
    allowed = {RESULT: np.where(open_, np.inf, other.allowed[RESULT])}
    return pinned(within(other.answer, {RESULT: trial.wanted[RESULT][..., order]}, allowed), trial, other)


def _neutral(case: Case) -> Case | None:
    given, V = case.arguments(), case.arrays["logits"].shape[-1]
    neutral: dict[str, float | int] = {"top_k": V + 3, "top_p": 1.0, "min_p": 0.0}
    taken = {name: value for name, value in neutral.items() if name in given}
    if not taken or not case.arrays["logits"].size:
        return None
    arrays = {name: array for name, array in case.arrays.items() if name not in taken}
    return replace(case, arrays=arrays, options={**case.options, **taken})


@law(prepare=_neutral)
def neutral_parameters_filter_nothing(trial: Trial) -> Judgement:
    """top_k beyond the vocabulary, top_p = 1 and min_p = 0 keep every token that has a probability.

    Left out: tokens so unlikely that a sum cannot tell them from nothing. Allowed: the bound.
    """
    kept = kept_tokens_are_the_oracles.judge(trial)
    return kept if kept.failed else within(trial.answer, trial.wanted, trial.allowed) if trial.answer else NOTHING


@law(every=3, minimise=False)
def each_row_stands_alone(trial: Trial) -> Judgement:
    """A row alone, with its own parameters, gives what it gives among others. Allowed: the bounds of both calls."""
    z = trial.case.arrays["logits"]
    if z.ndim < 2 or len(z) < 2 or RESULT not in trial.answer:
        return NOTHING
    i = int(trial.case.hash, 16) % len(z)
    other = trial.on(trial.case.with_arrays(**{name: array[i : i + 1] for name, array in trial.case.arrays.items()}))
    here = {RESULT: trial.answer[RESULT][i : i + 1].astype(np.float64)}
    allowed = {RESULT: trial.allowed[RESULT][i : i + 1] + other.allowed[RESULT]}
    return pinned(within(other.answer, here, allowed), trial, other)


FILTER_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement(RESULT), minimise=False),
    kept_tokens_are_the_oracles,
    what_is_kept_is_renormalised,
    kept_probabilities_sum_to_one,
    temperature_zero_takes_the_first_of_the_largest,
    equal_logits_keep_exactly_their_share,
    no_logit_that_top_k_drops_matters,
    adding_one_number_to_all_logits_changes_nothing,
    permuting_the_vocabulary_permutes,
    neutral_parameters_filter_nothing,
    each_row_stands_alone,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
