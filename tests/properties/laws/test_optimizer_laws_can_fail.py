"""Every law of AdamW turns red on an implementation that breaks what it states, and none on the oracle itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties.operations import operation_named
from oracles.reference import adamw_step

from .test_decoding_laws_can_fail import failure

Given = dict[str, Any]
Function = Callable[[Given], Any]
A = "adamw_step"


def right(given: Given) -> Any:
    return adamw_step(**given)


def given_other(**changes: Callable[[Given], Any]) -> Function:
    """The oracle on changed arguments."""
    return lambda given: right({**given, **{name: change(given) for name, change in changes.items()}})


def changing(which: int, change: Callable[[Any, Given], Any]) -> Function:
    """The oracle, one of its results changed."""
    def broken(given: Given) -> Any:
        results = list(right(given))
        results[which] = change(results[which], given)
        return tuple(results)

    return broken


def without_correction(given: Given) -> Any:
    return right({**given, "step": 2**62})


def backwards(given: Given) -> Any:
    return given["grad"] if given["grad"].flags.c_contiguous else np.ascontiguousarray(given["grad"])[..., ::-1]


BREAKERS: dict[str, Function] = {
    "answers": lambda given: right(given)[0].reshape(-1, 1, 1),
    "param_agrees_with_the_oracle": changing(0, lambda x, given: x * (1 + 1e-9)),
    "m_agrees_with_the_oracle": changing(1, lambda x, given: x * (1 + 1e-9)),
    "v_agrees_with_the_oracle": changing(2, lambda x, given: x * (1 + 1e-9)),
    "the_first_step_moves_by_the_learning_rate": without_correction,
    "without_a_gradient_only_the_decay_is_left": given_other(
        grad=lambda given: given["grad"].astype(np.float64) + given["weight_decay"] * given["param"].astype(np.float64),
        weight_decay=lambda given: 0.0),
    "a_learning_rate_of_0_moves_nothing": given_other(lr=lambda given: max(given["lr"], 1e-6)),
    "powers_of_two_step_exactly": given_other(eps=lambda given: max(given["eps"], 1e-12)),
    "elements_do_not_know_each_other": given_other(
        grad=lambda given: given["grad"].astype(np.float64) * (1 + 1e-6 * np.arange(given["grad"].size).reshape(given["grad"].shape))),
    "strides_are_respected": given_other(grad=backwards),
}  # fmt: skip
# One object for all operations: shown to fail on the filters of decoding.
SHARED = {"inputs_stay_untouched", "buffers_are_fully_written", "repeats_give_the_same_bits"}


@pytest.mark.parametrize("law", BREAKERS)
def test_the_law_rejects_what_breaks_it(law: str) -> None:
    assert failure(A, law, BREAKERS[law], {}), f"{law} accepts an implementation that breaks it"


@pytest.mark.parametrize("law", BREAKERS)
def test_the_law_accepts_the_oracle(law: str) -> None:
    assert failure(A, law, right, {}) == ""


def test_no_law_is_left_out() -> None:
    assert {law.name for law in operation_named(A).laws} <= set(BREAKERS) | SHARED


def test_a_step_without_correction_is_judged_as_declared() -> None:
    declared = {"conventions": {"bias_correction": "off"}}
    assert failure(A, "param_agrees_with_the_oracle", without_correction, declared) == ""
    assert failure(A, "param_agrees_with_the_oracle", right, declared)
