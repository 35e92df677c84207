"""Laws of the clipping of gradients: within the limit, in one direction, untouched below it, one norm for the whole list."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..array_lists import whole_name
from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..trial import Trial
from .every_operation import agreement, answers, inputs_stay_untouched, pinned, repeats_give_the_same_bits


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(float((x.astype(np.float64) ** 2).sum()) for x in arrays)))


def _limit(case: Case) -> float:
    limit = case.options["max_norm"]
    assert isinstance(limit, float)
    return limit


@law(minimise=False)
def grads_agree_with_the_oracle(trial: Trial) -> Judgement:
    """|g' - oracle's g'| <= bound(subject's arithmetic) + bound(oracle's arithmetic), in every array of the list; none is missing."""
    wanted = {name: value for name, value in trial.wanted.items() if whole_name(name) == "grads"}
    missing = [name for name in wanted if name not in trial.answer]
    if not trial.answer:
        return NOTHING
    if missing:
        return Judgement(1, worst_ratio=np.inf, failed=True, reason=f"{', '.join(missing)}: not returned")
    return within(trial.answer, wanted, trial.allowed)


@law(every=2, minimise=False)
def the_clipped_norm_is_within_the_limit(trial: Trial) -> Judgement:
    """The norm of what is returned is at most max_norm. Allowed: the norm of the bounds, by the triangle inequality."""
    got = [value for name, value in trial.answer.items() if whole_name(name) == "grads"]
    allowed = _norm([value for name, value in trial.allowed.items() if whole_name(name) == "grads"])
    if not got or not np.isfinite(allowed):
        return NOTHING
    over = max(_norm(got) - _limit(trial.case), 0.0)
    name, allowed = "norm of grads - max_norm", allowed + 2.0**-52 * _limit(trial.case)
    return pinned(within({name: np.asarray(over)}, {name: np.zeros(())}, {name: np.asarray(allowed)}), trial)


def _loose(case: Case) -> Case:
    return case.with_options(max_norm=4.0 * _norm(list(case.arrays.values())) + 1.0)


@law(prepare=_loose, every=2)
def below_the_limit_every_bit_is_kept(trial: Trial) -> Judgement:
    """Gradients whose norm is a quarter of the limit come back as they are. Allowed: 0."""
    wanted = {name: array.astype(np.float64) for name, array in trial.case.arrays.items()}
    return within(trial.answer, wanted, {name: np.zeros(w.shape) for name, w in wanted.items()})


def _three_and_four(case: Case) -> Case | None:
    """3 in the first array, 4 in the last, 0 elsewhere."""
    names = [name for name, array in case.arrays.items() if array.size]
    if len(names) < 2:
        return None
    new = {name: np.zeros_like(array) for name, array in case.arrays.items()}
    new[names[0]].flat[0], new[names[-1]].flat[-1] = 3, 4
    return case.with_arrays(**new).with_options(max_norm=2.5)


@law(prepare=_three_and_four)
def the_norm_is_that_of_the_whole_list(trial: Trial) -> Judgement:
    """3 in one array and 4 in another have norm 5, not 3 and 4, not 7: with a limit of 2.5 they become 1.5 and 2. Allowed: the bound."""
    wanted = {name: array.astype(np.float64) / 2.0 for name, array in trial.case.arrays.items()}
    if trial.conventions["clip_denominator"] != "norm":
        wanted = {name: value for name, value in trial.wanted.items() if name != "norm"}
    return within(trial.answer, {**wanted, "norm": np.asarray(5.0)}, trial.allowed)


def _last_is_nan(case: Case) -> Case | None:
    """NaN in the last place of the last array that has any."""
    names = [name for name, array in case.arrays.items() if array.size]
    if not names:
        return None
    last = case.arrays[names[-1]].copy()
    last.flat[-1] = np.nan
    return case.with_arrays(**{names[-1]: last})


@law(prepare=_last_is_nan, every=2)
def a_nan_is_seen_in_the_norm(trial: Trial) -> Judgement:
    """One NaN in one gradient, and the norm is NaN: by it the caller sees that the step is to be left out. The gradients are open."""
    return within(trial.answer, {"norm": np.asarray(np.nan)}, {"norm": np.zeros(())})


CLIP_LAWS: tuple[Law, ...] = (
    answers,
    grads_agree_with_the_oracle,
    replace(agreement("norm"), minimise=False),
    the_clipped_norm_is_within_the_limit,
    below_the_limit_every_bit_is_kept,
    the_norm_is_that_of_the_whole_list,
    a_nan_is_seen_in_the_norm,
    inputs_stay_untouched,
    repeats_give_the_same_bits,
)
