"""Every law of a step on master weights turns red on an implementation that breaks what it states, and none on the oracle itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties.operations import operation_named
from oracles.reference import FloatFormat, master_weight_step

from .test_decoding_laws_can_fail import failure

Given = dict[str, Any]
Function = Callable[[Given], Any]
A = "master_weight_step"


def right(given: Given) -> Any:
    return master_weight_step(**{"max_norm": None, **given})


def changing(which: int, change: Callable[[Any, Given], Any]) -> Function:
    """The oracle, one of its results changed."""
    def broken(given: Given) -> Any:
        results = list(right(given))
        results[which] = change(results[which], given)
        return tuple(results)

    return broken


def decays_all_the_same(given: Given) -> Any:
    """A step that is left out for an overflow still moves m."""
    results = list(right(given))
    if not np.isfinite(given["grad"].astype(np.float64)).all():
        results[2] = results[2] * 0.9 + 1e-3
    return tuple(results)


def half_scaled(given: Given) -> Any:
    return right({**given, "loss_scale": min(given["loss_scale"], 2.0**16)})


def narrow(given: Given) -> Any:
    kept = FloatFormat(given["fmt"]).round(given["master"].astype(np.float64)).astype(given["master"].dtype)
    return right({**given, "master": kept})


BREAKERS: dict[str, Function] = {
    "answers": lambda given: right(given)[0].reshape(-1, 1, 1),
    "weights_agrees_with_the_oracle": changing(0, lambda x, given: x + 1.0),
    "master_agrees_with_the_oracle": changing(1, lambda x, given: x * (1 + 1e-9)),
    "m_agrees_with_the_oracle": changing(2, lambda x, given: x * (1 + 1e-9)),
    "v_agrees_with_the_oracle": changing(3, lambda x, given: x * (1 + 1e-9)),
    "weights_are_the_master_rounded_once": changing(0, lambda x, given: x * (1 + 2.0**-12)),
    "a_gradient_that_overflowed_changes_nothing": decays_all_the_same,
    "the_scale_of_the_loss_cancels": half_scaled,
    "no_update_is_lost": narrow,
}
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
