"""Laws of distillation: what has nothing to learn, how its two terms mix, and what a temperature keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracles import reference

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
    adding_one_number_to_all_logits_changes_nothing,
    ignored,
    ignored_rows_never_matter,
    nothing_to_score_is_no_loss,
    renaming_the_classes_changes_nothing,
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


@law(every=2, minimise=False)
def alpha_0_is_the_cross_entropy_of_the_targets(trial: Trial) -> Judgement:
    """alpha = 0 leaves the mean cross-entropy of the student at temperature 1, whatever the teacher says. Allowed: the bound."""
    if "alpha" not in trial.subject.declaration.coverage.arguments or not _scores_something(trial.case):
        return NOTHING
    other = trial.on(trial.case.with_options(alpha=0.0))
    case = trial.case
    wanted = reference.cross_entropy(case.arrays["student"], case.arrays["targets"], ignore_index=ignored(case), reduction="mean")
    return pinned(within(other.answer, {"loss": wanted}, other.allowed), other)


@law(every=2, minimise=False)
def alpha_mixes_the_two_terms(trial: Trial) -> Judgement:
    """loss(alpha) = alpha loss(1) + (1 - alpha) loss(0). Allowed: the bound, and those of the two, in the same shares."""
    alpha = trial.case.options.get("alpha")
    if "alpha" not in trial.subject.declaration.coverage.arguments or not trial.answer or not isinstance(alpha, float):
        return NOTHING
    if alpha in (0.0, 1.0):
        return NOTHING
    soft, hard = (trial.on(trial.case.with_options(alpha=end)) for end in (1.0, 0.0))
    if not soft.answer or not hard.answer:
        return NOTHING
    parts = [(alpha, soft), (1.0 - alpha, hard)]
    wanted = np.asarray(sum(share * one.answer["loss"].astype(np.float64) for share, one in parts))
    allowed = np.asarray(trial.allowed["loss"] + sum(share * one.allowed["loss"] for share, one in parts))
    return pinned(within(trial.answer, {"loss": wanted}, {"loss": allowed}), trial, soft, hard)


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

    So gradients keep their size whatever T is. Allowed: the bound of the case at twice the temperature.
    """
    if "temperature" not in trial.subject.declaration.coverage.arguments:
        return NOTHING
    doubled = {name: (trial.case.arrays[name].astype(np.float64) * 2.0).astype(trial.case.arrays[name].dtype)
               for name in ("student", "teacher")}  # fmt: skip
    other = trial.on(trial.case.with_arrays(**doubled).with_options(temperature=2.0))
    return pinned(within(other.answer, {"loss": 4.0 * trial.wanted["loss"]}, other.allowed), trial, other)


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


DISTILLATION_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("loss"), minimise=False),
    a_student_like_its_teacher_has_nothing_to_learn,
    alpha_0_is_the_cross_entropy_of_the_targets,
    alpha_mixes_the_two_terms,
    the_square_of_the_temperature_keeps_the_scale,
    exchanged_roles_exchange_the_divergences,
    adding_one_number_to_all_logits_changes_nothing,
    renaming_the_classes_changes_nothing,
    ignored_rows_never_matter,
    nothing_to_score_is_no_loss,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
