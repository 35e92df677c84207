"""Laws of a step of AdamW: what the first step moves, what decays, what stays, and inputs whose step is exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..safetensors_file import Array
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

ARRAYS = ("param", "grad", "m", "v")
NUMBERS = ("lr", "beta1", "beta2", "eps", "weight_decay")
USUAL = {"bias_correction": "on", "adam_eps": "outside", "decay": "old"}


def _number(case: Case, name: str) -> float:
    value = case.options[name]
    assert isinstance(value, int | float)
    return float(value)


def _fresh(case: Case) -> Case | None:
    """The first step, moments 0."""
    if not case.arrays["param"].size:
        return None
    return case.with_arrays(**{name: np.zeros_like(case.arrays[name]) for name in ("m", "v")}).with_options(step=1)


@law(prepare=_fresh, every=2)
def the_first_step_moves_by_the_learning_rate(trial: Trial) -> Judgement:
    """From moments of 0 the bias correction leaves m^ = g and v^ = g^2: the step is lr g / (|g| + eps). Allowed: the bound.

    Only where the bias is corrected, eps stands outside the root, and the old parameter decays by lr.
    """
    if any(trial.conventions[name] != usual for name, usual in USUAL.items()):
        return NOTHING
    case = trial.case
    p, g = (case.arrays[name].astype(np.float64) for name in ("param", "grad"))
    d = np.abs(g) + _number(case, "eps")
    move = np.where(d > 0.0, g / np.where(d > 0.0, d, 1.0), 0.0)
    wanted = p * (1.0 - _number(case, "lr") * _number(case, "weight_decay")) - _number(case, "lr") * move
    return within(trial.answer, {"param": wanted}, trial.allowed)


def _without_gradient(case: Case) -> Case | None:
    fresh = _fresh(case)
    return fresh.with_arrays(grad=np.zeros_like(case.arrays["grad"])) if fresh else None


@law(prepare=_without_gradient, every=2)
def without_a_gradient_only_the_decay_is_left(trial: Trial) -> Judgement:
    """With no gradient and no moments param becomes param (1 - lr weight_decay), and m and v stay 0. Allowed: the bound; of m and v 0.

    param (1 - weight_decay) where that is declared.
    """
    p = trial.case.arrays["param"].astype(np.float64)
    zero = np.zeros(p.shape)
    rate = 1.0 if trial.conventions["decay"] == "without_lr" else _number(trial.case, "lr")
    wanted = {"param": p * (1.0 - rate * _number(trial.case, "weight_decay")), "m": zero, "v": zero}
    return within(trial.answer, wanted, {"param": trial.allowed["param"], "m": zero, "v": zero})


def _nothing_over_nothing(case: Case) -> Case | None:
    still = _without_gradient(case)
    return still.with_options(eps=0.0) if still else None


@law(prepare=_nothing_over_nothing, every=3)
def nothing_over_nothing_moves_nothing(trial: Trial) -> Judgement:
    """With eps = 0, no gradient and no moments the quotient is 0 / 0: param only decays, or is NaN where that is declared.

    Allowed: the bound.
    """
    if "eps" not in trial.subject.declaration.coverage.arguments:
        return NOTHING
    return within(trial.answer, {"param": trial.wanted["param"]}, trial.allowed)


def _no_rate(case: Case) -> Case | None:
    return case.with_options(lr=0.0) if case.arrays["param"].size else None


@law(prepare=_no_rate, every=3)
def a_learning_rate_of_0_moves_nothing(trial: Trial) -> Judgement:
    """With lr = 0 param keeps its bits, decay or not, while the moments go on. Allowed: 0.

    A gradient that is inf, or whose square is, makes NaN of its element even so. Not where the decay is declared to know no lr.
    """
    if "lr" not in trial.subject.declaration.coverage.arguments or trial.conventions["decay"] == "without_lr":
        return NOTHING
    p = trial.case.arrays["param"].astype(np.float64)
    return within(trial.answer, {"param": p}, {"param": np.where(np.isinf(trial.allowed["param"]), np.inf, 0.0)})


def _powers_of_two(case: Case) -> Case | None:
    """Gradients that are powers of two, small whole parameters, numbers whose powers and roots are exact."""
    if not case.arrays["param"].size:
        return None
    shape = case.arrays["param"].shape
    i = np.arange(int(np.prod(shape))).reshape(shape)
    arrays = {"param": i % 17 - 8, "grad": (1 - 2 * (i % 2)) * 2.0 ** (i % 5 - 2), "m": 0 * i, "v": 0 * i}
    exact = case.with_arrays(**{name: np.asarray(x, np.float64).astype(case.arrays[name].dtype) for name, x in arrays.items()})
    return exact.with_options(step=1, lr=0.125, beta1=0.5, beta2=0.75, eps=0.0, weight_decay=0.5)


@law(prepare=_powers_of_two, every=2)
def powers_of_two_step_exactly(trial: Trial) -> Judgement:
    """Where gradients are powers of two, beta1 = 1/2, beta2 = 3/4, eps = 0, every root and quotient is exact: so is the step.

    sqrt(v) / sqrt(1 - beta2) = (|g| / 2) / (1 / 2) too, in whichever order. Allowed: 0.
    """
    if not set(NUMBERS) <= trial.subject.declaration.coverage.arguments:
        return NOTHING
    return within(trial.answer, trial.wanted, {name: np.zeros(w.shape) for name, w in trial.wanted.items()})


def _first_is_nan(case: Case) -> Case | None:
    """NaN in the first gradient, where there is a rate to step with."""
    if not case.arrays["grad"].size or not _number(case, "lr"):
        return None
    grad = case.arrays["grad"].copy()
    grad.flat[0] = np.nan
    return case.with_arrays(grad=grad)


@law(prepare=_first_is_nan, every=2)
def a_nan_makes_its_own_element_nan(trial: Trial) -> Judgement:
    """NaN in one gradient is NaN in its parameter and moments, not a step of 0 that nobody sees, and in no other. Allowed: the bound."""
    allowed = {name: np.where(np.isnan(wanted), 0.0, trial.allowed[name]) for name, wanted in trial.wanted.items()}
    return within(trial.answer, trial.wanted, allowed)


@law(every=3, minimise=False)
def elements_do_not_know_each_other(trial: Trial) -> Judgement:
    """The elements in reverse are stepped as they were: each by its own gradient and moments. Allowed: the bound."""
    if not trial.case.arrays["param"].size:
        return NOTHING

    def back(x: Array) -> Array:
        return np.array(np.reshape(np.reshape(x, -1)[::-1], np.shape(x)))       # one element without axes stays without

    other = trial.on(trial.case.with_arrays(**{name: back(trial.case.arrays[name]) for name in ARRAYS}))
    got = {name: back(x) for name, x in other.answer.items()}
    return pinned(within(got, trial.wanted, {name: back(a) for name, a in other.allowed.items()}), trial, other)


ADAM_LAWS: tuple[Law, ...] = (
    answers,
    *(replace(agreement(name), minimise=False) for name in ("param", "m", "v")),
    the_first_step_moves_by_the_learning_rate,
    without_a_gradient_only_the_decay_is_left,
    nothing_over_nothing_moves_nothing,
    a_learning_rate_of_0_moves_nothing,
    powers_of_two_step_exactly,
    a_nan_makes_its_own_element_nan,
    elements_do_not_know_each_other,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
