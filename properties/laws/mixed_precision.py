"""Laws of a step on master weights: what overflowed changes nothing, nothing small is lost, the scale of the loss cancels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracles.reference import FloatFormat

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
)

RESULTS = ("weights", "master", "m", "v")
STEPS = 8


@law(every=2, minimise=False)
def weights_are_the_master_rounded_once(trial: Trial) -> Judgement:
    """weights = round(master') in fmt, of the master that the subject returns itself. Allowed: 0."""
    if not {"weights", "master"} <= set(trial.answer):
        return NOTHING
    wanted = FloatFormat(str(trial.case.options["fmt"])).round(trial.answer["master"].astype(np.float64))
    return within(trial.answer, {"weights": wanted}, {"weights": np.zeros(wanted.shape)})


def _overflowed(case: Case) -> Case | None:
    grad = case.arrays["grad"].copy()
    if not grad.size:
        return None
    grad.flat[grad.size // 2] = np.inf if int(case.hash, 16) % 2 else np.nan
    return case.with_arrays(grad=grad)


@law(prepare=_overflowed, every=2)
def a_gradient_that_overflowed_changes_nothing(trial: Trial) -> Judgement:
    """One NaN or inf in the gradient, and master, m, v keep their bits; the weights are the old master rounded. Allowed: 0."""
    wanted = {name: trial.case.arrays[name].astype(np.float64) for name in ("master", "m", "v")}
    wanted["weights"] = FloatFormat(str(trial.case.options["fmt"])).round(wanted["master"])
    return within(trial.answer, wanted, {name: np.zeros(w.shape) for name, w in wanted.items()})


@law(every=2, minimise=False)
def the_scale_of_the_loss_cancels(trial: Trial) -> Judgement:
    """Four times the gradient at four times the scale is the same step. Allowed: the bound of the scaled case."""
    if "loss_scale" not in trial.subject.declaration.coverage.arguments:
        return NOTHING
    scale = trial.case.options["loss_scale"]
    assert isinstance(scale, float)
    grad = (trial.case.arrays["grad"].astype(np.float64) * 4.0).astype(trial.case.arrays["grad"].dtype)
    other = trial.on(trial.case.with_arrays(grad=grad).with_options(loss_scale=scale * 4.0))
    return pinned(within(other.answer, trial.wanted, other.allowed), trial, other)


def _small_steps(case: Case) -> Case | None:
    """Masters of 1 that move by 2^-14 a step: far below half a unit in the last place of either format."""
    if not case.arrays["grad"].size:
        return None
    zero = np.zeros_like(case.arrays["grad"])
    ones = case.with_arrays(grad=zero + 1, master=zero + 1, m=zero, v=zero)
    return ones.with_options(loss_scale=1.0, max_norm=None, step=1, lr=2.0**-14, beta1=0.0, beta2=0.0, eps=0.0, weight_decay=0.0)


@law(prepare=_small_steps, every=2)
def no_update_is_lost(trial: Trial) -> Judgement:
    """Eight steps of 2^-14 from 1, each on the master the subject returned, end at 1 - 2^-11 exactly. Allowed: 0.

    In the weights' own format each of them would round to nothing.
    """
    needed = {"loss_scale", "max_norm", "step", "lr", "beta1", "beta2", "eps", "weight_decay"}
    if not needed <= trial.subject.declaration.coverage.arguments:
        return NOTHING
    one, judgement = trial, NOTHING
    for step in range(1, STEPS + 1):
        if not {"master", "m", "v"} <= set(one.answer):
            return NOTHING
        wanted = np.full(trial.case.arrays["grad"].shape, 1.0 - step * 2.0**-14)
        judgement = within(one.answer, {"master": wanted}, {"master": np.zeros(wanted.shape)})
        if judgement.failed:
            evidence = judgement.evidence if one is trial else replace(judgement.evidence, other=one.case, of_other=True)
            return replace(judgement, evidence=evidence)
        state = {name: one.answer[name] for name in ("master", "m", "v")}
        one = trial.on(one.case.with_arrays(**state).with_options(step=step + 1))
    return judgement


MASTER_LAWS: tuple[Law, ...] = (
    answers,
    *(replace(agreement(name), minimise=False) for name in RESULTS),
    weights_are_the_master_rounded_once,
    a_gradient_that_overflowed_changes_nothing,
    the_scale_of_the_loss_cancels,
    no_update_is_lost,
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
