"""Laws of distillation and of its gradient: what has nothing to learn, how two terms mix, what a temperature keeps, where a step leads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracles import reference

from .. import bounds
from ..arithmetic import Arithmetic
from ..bounds.sums import g
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
from .losses import (
    a_nan_that_counts_is_seen,
    a_row_of_the_gradient_adds_up_to_nothing,
    adding_one_number_to_all_logits_changes_nothing,
    declared_nan,
    ignored,
    ignored_rows_never_matter,
    logits_may_all_lie_far_below_zero,
    nothing_to_score_is_no_loss,
    renaming_the_classes_changes_nothing,
    result_of,
    twice_the_loss_has_twice_the_gradient,
)


def _scores_something(case: Case) -> bool:
    return bool((case.arrays["targets"] != ignored(case)).any())


def _like_its_teacher(case: Case) -> Case | None:
    if not _scores_something(case) or "alpha" not in case.options:
        return None
    return case.with_arrays(teacher=case.arrays["student"].copy()).with_options(alpha=1.0)


@law(prepare=_like_its_teacher, every=2)
def a_student_like_its_teacher_has_nothing_to_learn(trial: Trial) -> Judgement:
    """KL(p, p) = 0, and so is any mixture of them: with alpha 1 the loss of equal logits is 0. Allowed: the bound."""
    return within(trial.answer, {"loss": np.zeros(())}, trial.allowed)


@law(prepare=_like_its_teacher, every=2)
def a_student_like_its_teacher_stands_still(trial: Trial) -> Judgement:
    """With alpha 1 and equal logits every divergence is at its least: no logit has a gradient. Allowed: the bound."""
    return within(trial.answer, {"dstudent": np.zeros(trial.wanted["dstudent"].shape)}, trial.allowed)


def _impossible_for_both(case: Case) -> Case | None:
    """-inf at the class behind the target, for student and teacher, in each row that counts."""
    y, V = case.arrays["targets"], case.arrays["student"].shape[-1]
    counts = y != ignored(case)
    if V < 2 or not counts.any():
        return None
    at = (np.arange(V) == ((np.where(counts, y, 0) + 1) % V)[..., None]) & counts[..., None]
    return case.with_arrays(**{name: np.where(at, -np.inf, case.arrays[name]).astype(case.arrays[name].dtype)
                               for name in ("student", "teacher")})  # fmt: skip


@law(prepare=_impossible_for_both, not_covered=declared_nan, every=2)
def a_class_impossible_for_both_adds_nothing(trial: Trial) -> Judgement:
    """A class whose logit is -inf for student and teacher, as in a vocabulary that is padded, is in no sum, and has no gradient.

    Not where it is declared to be NaN, 0 times the difference of two infinities. Allowed: the bound.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


@law(every=2, minimise=False)
def alpha_0_is_the_cross_entropy_of_the_targets(trial: Trial) -> Judgement:
    """alpha = 0 leaves the mean cross-entropy of the student at temperature 1, whatever the teacher says. Allowed: the bound."""
    if "alpha" not in trial.subject.declaration.coverage.arguments or not _scores_something(trial.case):
        return NOTHING
    other = trial.on(trial.case.with_options(alpha=0.0))
    case = trial.case
    wanted = reference.cross_entropy(case.arrays["student"], case.arrays["targets"], ignore_index=ignored(case), reduction="mean")
    return pinned(within(other.answer, {"loss": wanted}, other.allowed), trial, other)


@law(every=2, minimise=False)
def alpha_0_is_the_gradient_of_the_targets(trial: Trial) -> Judgement:
    """alpha = 0 leaves the gradient of the student's cross-entropy at temperature 1, whatever the teacher says. Allowed: the bound."""
    if "alpha" not in trial.subject.declaration.coverage.arguments or not _scores_something(trial.case):
        return NOTHING
    other, case = trial.on(trial.case.with_options(alpha=0.0)), trial.case
    wanted = reference.cross_entropy_backward(case.arrays["student"], case.arrays["targets"], case.arrays["dloss"],
                                              ignore_index=ignored(case), reduction="mean")  # fmt: skip
    return pinned(within(other.answer, {"dstudent": wanted}, other.allowed), trial, other)


@law(every=2, minimise=False)
def alpha_mixes_the_two_terms(trial: Trial) -> Judgement:
    """What alpha gives is alpha times what 1 gives and 1 - alpha times what 0 gives. Allowed: the bound, and theirs in the same shares."""
    alpha, name = trial.case.options.get("alpha"), result_of(trial)
    if "alpha" not in trial.subject.declaration.coverage.arguments or not trial.answer or not isinstance(alpha, float):
        return NOTHING
    if alpha in (0.0, 1.0):
        return NOTHING
    soft, hard = (trial.on(trial.case.with_options(alpha=end)) for end in (1.0, 0.0))
    if not soft.answer or not hard.answer:
        return NOTHING
    parts = [(alpha, soft), (1.0 - alpha, hard)]
    wanted = np.asarray(sum(share * one.answer[name].astype(np.float64) for share, one in parts))
    allowed = np.asarray(trial.allowed[name] + sum(share * one.allowed[name] for share, one in parts))
    return pinned(within(trial.answer, {name: wanted}, {name: allowed}), trial, soft, hard)


def _half_logits(case: Case) -> Case | None:
    """alpha 1, temperature 1, logits small enough that twice them is exact."""
    if not _scores_something(case) or "temperature" not in case.options or "alpha" not in case.options:
        return None
    arrays = {name: np.clip(case.arrays[name].astype(np.float64), -60.0, 60.0).astype(case.arrays[name].dtype)
              for name in ("student", "teacher")}  # fmt: skip
    return case.with_arrays(**arrays).with_options(temperature=1.0, alpha=1.0)


@law(prepare=_half_logits, every=2)
def the_square_of_the_temperature_keeps_the_scale(trial: Trial) -> Judgement:
    """Twice the logits at twice the temperature are the same distributions, and T^2 makes their loss four times as large.

    Their gradient twice: it keeps its size beside that of the targets whatever T is. Allowed: the bound of the case at twice the
    temperature.
    """
    name = result_of(trial)
    if "temperature" not in trial.subject.declaration.coverage.arguments:
        return NOTHING
    doubled = {name: (trial.case.arrays[name].astype(np.float64) * 2.0).astype(trial.case.arrays[name].dtype)
               for name in ("student", "teacher")}  # fmt: skip
    other = trial.on(trial.case.with_arrays(**doubled).with_options(temperature=2.0))
    times = 4.0 if name == "loss" else 2.0
    return pinned(within(other.answer, {name: times * trial.wanted[name]}, other.allowed), trial, other)


@law(every=2, minimise=False)
def exchanged_roles_exchange_the_divergences(trial: Trial) -> Judgement:
    """KL(t, s) of one is KL(s, t) of the other; the Jensen-Shannon divergence takes beta for 1 - beta, and is symmetric at 1/2.

    With alpha 1, student and teacher exchanged. Allowed: the bound of the exchanged case.
    """
    case, coverage = trial.case, trial.subject.declaration.coverage
    name, beta = str(case.options["divergence"]), case.options.get("beta")
    other_name = {"forward_kl": "reverse_kl", "reverse_kl": "forward_kl", "jsd": "jsd"}[name]
    if "alpha" not in coverage.arguments or other_name not in coverage.levels("divergence", (other_name,)) or not isinstance(beta, float):
        return NOTHING
    if (other_name != name and "divergence" not in coverage.arguments) or (name == "jsd" and "beta" not in coverage.arguments):
        return NOTHING
    plain = trial.on(case.with_options(alpha=1.0))
    arrays = {"student": case.arrays["teacher"], "teacher": case.arrays["student"]}
    other = trial.on(case.with_arrays(**arrays).with_options(alpha=1.0, divergence=other_name, beta=1.0 - beta))
    return pinned(within(other.answer, plain.wanted, other.allowed), plain, other)


def _from_one(case: Case) -> Case | None:
    """A forward divergence whose gradient is that of the loss itself."""
    if not _scores_something(case) or case.options["divergence"] != "forward_kl":
        return None
    return case.with_arrays(dloss=np.ones((), case.arrays["dloss"].dtype))


@law(prepare=_from_one)
def a_step_against_the_gradient_lowers_the_loss(trial: Trial) -> Judgement:
    """A step of 1 / L along minus the gradient takes at least |dz|^2 / (2 L) off the loss f, with L = 1 / (2 n) for n rows that count.

        f(z - dz / L) <= f(z) - |dz|^2 / (2 L)

    The second derivative of a row is (alpha C(z / T) + (1 - alpha) C(z)) / n, C = diag(p) - p p^T <= 1 / 2 (Boehning 1992,
    doi 10.1007/BF00048682); the forward divergence alone.

    Allowed: n |b|^2 for a gradient off by b; the bounds of both f, and of |dz|^2, in float64.
    """
    given, got = trial.case.arguments(), trial.answer.get("dstudent")
    if got is None or not (np.isfinite(trial.allowed["dstudent"]) & np.isfinite(got.astype(np.float64))).all():
        return NOTHING
    n, wide, dz = float((given["targets"] != ignored(trial.case)).sum()), Arithmetic().resolve("float64"), trial.wanted["dstudent"]
    unsure = bounds.distillation_loss_backward_bound(wide, **given)["dstudent"] + g(dz.size + 4.0, 2.0**-53) * np.abs(dz)
    del given["dloss"]                                                          # it is 1
    stepped = {**given, "student": np.asarray(given["student"], np.float64) - 2.0 * n * got.astype(np.float64)}
    before, after = (float(reference.distillation_loss(**one)) for one in (given, stepped))
    allowed = sum(float(bounds.distillation_loss_bound(wide, **one)["loss"]) for one in (given, stepped))
    allowed += n * float((trial.allowed["dstudent"] ** 2 + 2.0 * np.abs(dz) * unsure).sum())
    missed = np.asarray(max(after - before + n * float((dz**2).sum()), 0.0))
    return pinned(within({"dstudent": missed}, {"dstudent": np.zeros(())}, {"dstudent": np.asarray(allowed)}), trial)


DISTILLATION_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("loss"), minimise=False),
    a_student_like_its_teacher_has_nothing_to_learn,
    alpha_0_is_the_cross_entropy_of_the_targets,
    alpha_mixes_the_two_terms,
    the_square_of_the_temperature_keeps_the_scale,
    exchanged_roles_exchange_the_divergences,
    adding_one_number_to_all_logits_changes_nothing,
    logits_may_all_lie_far_below_zero,
    a_class_impossible_for_both_adds_nothing,
    a_nan_that_counts_is_seen,
    renaming_the_classes_changes_nothing,
    ignored_rows_never_matter,
    nothing_to_score_is_no_loss,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
DISTILLATION_BACKWARD_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("dstudent"), minimise=False),
    a_student_like_its_teacher_stands_still,
    alpha_0_is_the_gradient_of_the_targets,
    alpha_mixes_the_two_terms,
    the_square_of_the_temperature_keeps_the_scale,
    a_step_against_the_gradient_lowers_the_loss,
    a_row_of_the_gradient_adds_up_to_nothing,
    twice_the_loss_has_twice_the_gradient,
    adding_one_number_to_all_logits_changes_nothing,
    logits_may_all_lie_far_below_zero,
    a_class_impossible_for_both_adds_nothing,
    a_nan_that_counts_is_seen,
    renaming_the_classes_changes_nothing,
    ignored_rows_never_matter,
    nothing_to_score_is_no_loss,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
