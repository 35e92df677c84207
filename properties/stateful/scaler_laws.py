"""Laws of a loss scaler: what holds after every call, whatever it keeps its scale and its arrays in.

They need nothing but NumPy and their neighbours, so that a repro can carry a copy. Scales are powers of two and gradients small
whole numbers, so that products and quotients are exact in float32: nothing is allowed for rounding.
"""

from __future__ import annotations

import numpy as np

from .play import SILENT, Found, SequenceLaw, answers, sequence_law
from .scaler_model import LARGEST, SMALLEST, ScalerMoment

LOAD = "load"


@sequence_law()
def the_scale_stays_finite_and_positive(m: ScalerMoment) -> Found:
    """0 < value <= the largest number of float32 after every call: a scale of 0 or inf makes every later gradient NaN or inf.

    Where growth or backoff would pass the normal numbers of float32, any scale in between is legal.
    """
    if not m.in_order:
        return SILENT
    return Found(1, "" if 0.0 < m.value <= LARGEST else f"value is {m.value} after {m.call}; it was {m.value_before:g}")


@sequence_law()
def only_update_moves_the_scale(m: ScalerMoment) -> Found:
    """The scale is init_scale at first, and changes in update and load alone: the gradients of one iteration were scaled by one number."""
    if not m.in_order or m.call.method in ("update", LOAD):
        return SILENT
    return Found(1, "" if m.value == m.value_before else f"value went from {m.value_before:g} to {m.value:g} in {m.call}")


@sequence_law()
def the_loss_is_multiplied_by_the_scale(m: ScalerMoment) -> Found:
    """scale(loss) = loss value, exactly, however often it is asked."""
    if not m.in_order or m.call.method != "scale" or not m.exact or abs(m.call.args[0] * m.value_before) > LARGEST:
        return SILENT
    want = m.call.args[0] * m.value_before
    return Found(1, "" if m.answer.value == want else f"{m.call} is {m.answer.value:g}; want {want:g}, the scale being {m.value_before:g}")


@sequence_law()
def gradients_are_divided_by_the_scale_once(m: ScalerMoment) -> Found:
    """unscale(grads) = grads / value, exactly, in every iteration, whatever became of the step of the one before.

    A step that the caller left out, for a large norm say, leaves nothing behind (Haian-Jin/LVSM#19). Finite gradients are compared.
    """
    if not m.in_order or m.call.method != "unscale" or not m.exact:
        return SILENT
    compared = 0
    for i, (sent, got) in enumerate(zip(m.sent, m.got)):
        want = sent / m.value_before
        exact = np.isfinite(sent) & (np.abs(want) <= LARGEST) & ((np.abs(want) >= SMALLEST) | (want == 0.0))
        compared += int(exact.sum())
        wrong = np.flatnonzero(exact & (got != want))
        if len(wrong):
            j = wrong[0]
            return Found(compared, f"gradient {sent[j]:g} at [{i}][{j}] of {m.call} is {got[j]:g}; want {want[j]:g}, "
                         f"the scale being {m.value_before:g}")  # fmt: skip
    return Found(compared)


@sequence_law()
def found_inf_tells_of_nan_and_inf(m: ScalerMoment) -> Found:
    """found_inf holds iff one of all gradients, of whichever array and place, is NaN, inf or -inf, or becomes so by the scale."""
    if not m.in_order or m.call.method != "unscale":
        return SILENT
    return Found(1, f"{m.call} says found_inf {m.found}" if m.found != m.overflow else "")


@sequence_law()
def an_overflow_skips_the_step(m: ScalerMoment) -> Found:
    """step says False where a gradient was NaN or inf, and True elsewhere: the caller's schedule goes on by what it says."""
    if not m.in_order or m.call.method != "step":
        return SILENT
    had = "NaN or inf" if m.overflow else "neither NaN nor inf"
    return Found(1, f"step says {m.taken}, the gradients having {had}" if m.taken == m.overflow else "")


@sequence_law()
def a_skipped_step_changes_nothing(m: ScalerMoment) -> Found:
    """Where a gradient was NaN or inf, parameter, moments, number of steps and schedule are what they were before the step.

    A count or a schedule that goes on makes Adam's bias correction and the learning rate those of a step that never was
    (huggingface/accelerate#4242).
    """
    if not m.in_order or m.call.method != "step" or not m.overflow:
        return SILENT
    return _loop_is(m)


@sequence_law()
def a_step_is_made_by_step_alone_and_once(m: ScalerMoment) -> Found:
    """The caller's update is called once by a step whose gradients are finite, with the unscaled gradients, and by nothing else."""
    return SILENT if not m.in_order or (m.call.method == "step" and m.overflow) else _loop_is(m)


def _loop_is(m: ScalerMoment) -> Found:
    wrong = [f"{name} is {m.training[name]:g} after {m.call}; want {want:g}" for name, want in m.wanted_training.items()
             if m.training[name] != want]  # fmt: skip
    return Found(len(m.wanted_training), wrong[0] if wrong else "")


@sequence_law()
def an_overflow_backs_the_scale_off(m: ScalerMoment) -> Found:
    """After an iteration with a NaN or inf, value' = value backoff_factor."""
    return _moved(m) if m.in_order and m.call.method == "update" and m.overflow else SILENT


@sequence_law()
def the_scale_grows_after_growth_interval_clean_updates(m: ScalerMoment) -> Found:
    """After growth_interval updates without overflow, one after another, value' = value growth_factor, and stays as it is before.

    An iteration whose step the caller left out counts: its gradients did not overflow.
    """
    return _moved(m) if m.in_order and m.call.method == "update" and not m.overflow and not m.loaded else SILENT


@sequence_law(LOAD)
def a_loaded_scaler_goes_on_as_the_saved_one(m: ScalerMoment) -> Found:
    """load(state) gives another scaler the scale of the saved one, and its run: the next growth comes when it would have come."""
    if not m.in_order or not m.loaded or m.call.method not in (LOAD, "update") or m.overflow:
        return SILENT
    return _moved(m)


def _moved(m: ScalerMoment) -> Found:
    if m.wanted_value is None:
        return SILENT
    was = f"it was {m.value_before:g}, {'an overflow' if m.overflow else 'time to grow' if m.grown else 'no overflow'}"
    return Found(1, "" if m.value == m.wanted_value else f"value is {m.value:g} after {m.call}; want {m.wanted_value:g}: {was}")


SCALER_LAWS: tuple[SequenceLaw, ...] = (
    answers,
    the_scale_stays_finite_and_positive,
    only_update_moves_the_scale,
    the_loss_is_multiplied_by_the_scale,
    gradients_are_divided_by_the_scale_once,
    found_inf_tells_of_nan_and_inf,
    an_overflow_skips_the_step,
    a_skipped_step_changes_nothing,
    a_step_is_made_by_step_alone_and_once,
    an_overflow_backs_the_scale_off,
    the_scale_grows_after_growth_interval_clean_updates,
    a_loaded_scaler_goes_on_as_the_saved_one,
)
