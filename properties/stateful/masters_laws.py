"""Laws of weights with masters behind them: what holds after every call, whatever formats and order of work they have.

They need nothing but NumPy and their neighbours, so that a repro can carry a copy. Numbers are such that every sum, step and square
is exact in float32: nothing is allowed for rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .masters_model import MastersMoment
from .play import SILENT, Found, SequenceLaw, answers, sequence_law


@sequence_law()
def an_overflow_skips_the_step(m: MastersMoment) -> Found:
    """step says False where what was gathered holds a NaN or inf, and True elsewhere."""
    if not m.in_order or m.call.method != "step":
        return SILENT
    had = "a NaN or inf" if m.overflow else "none"
    return Found(1, f"{m.call} says {m.taken}, the gradient having {had}" if m.taken == m.overflow else "")


@sequence_law()
def a_skipped_step_changes_nothing(m: MastersMoment) -> Found:
    """After a step that overflowed, weights, masters, moments and the number of steps are what they were before it."""
    if not m.in_order or m.call.method != "step" or not m.overflow:
        return SILENT
    return _same(m, "weights", "master", "m", "v", "step")


@sequence_law("state")
def gradients_are_added_up_wide(m: MastersMoment) -> Found:
    """The first moment, with beta1 = 0, is the sum of all gradients gathered since the last step, over loss_scale; the second its square.

    256 additions of 2^-9 to 1 are 1.5; in bfloat16 the sum stays 1.
    """
    return _same(m, "m", "v") if m.in_order and m.call.method == "step" and not m.overflow else SILENT


@sequence_law()
def weights_are_the_masters_rounded(m: MastersMoment) -> Found:
    """weights() is round(master) in fmt, after every call, of the masters as they must be: no step is lost below their last place."""
    return SILENT if not m.in_order or m.since_load or m.since_resume else _same(m, "weights")


@sequence_law("state")
def a_step_moves_the_masters_by_the_rate_of_its_number(m: MastersMoment) -> Found:
    """The t-th step that is taken, skipped ones not counted, moves each master by lr[t], and `step` is t; other calls move none."""
    return SILENT if not m.in_order or m.overflow or m.since_load or m.since_resume else _same(m, "master", "step")


@sequence_law()
def loaded_weights_are_stepped_from(m: MastersMoment) -> Found:
    """load(weights) reaches the masters: the weights are those, rounded, and the next steps go on from them."""
    return _same(m, "weights", "master") if m.in_order and m.since_load else SILENT


@sequence_law("resume")
def a_resumed_run_goes_on_bit_for_bit(m: MastersMoment) -> Found:
    """After resume(state) masters, moments and number of steps are those of the state, to the last bit, and so are later steps."""
    return _same(m, "weights", "master", "m", "v", "step") if m.in_order and m.since_resume else SILENT


def _same(m: MastersMoment, *names: str) -> Found:
    """That what is looked at is what it must be, exactly."""
    got: dict[str, Any] = {"weights": m.weights, **(m.contents or {})}
    want = {"weights": m.wanted_weights, **m.wanted}
    compared = 0
    for name in (name for name in names if name in got):
        a, b = np.atleast_1d(got[name]), np.atleast_1d(want[name])
        compared += b.size
        if not np.array_equal(a, b):
            i = int(np.flatnonzero(a != b)[0]) if a.shape == b.shape else 0
            return Found(compared, f"{name}[{i}] is {a.ravel()[i]:.9g} after {m.call}; want {b.ravel()[i]:.9g}")
    return Found(compared)


MASTERS_LAWS: tuple[SequenceLaw, ...] = (
    answers,
    an_overflow_skips_the_step,
    a_skipped_step_changes_nothing,
    gradients_are_added_up_wide,
    a_step_moves_the_masters_by_the_rate_of_its_number,
    loaded_weights_are_stepped_from,
    a_resumed_run_goes_on_bit_for_bit,
    weights_are_the_masters_rounded,
)
