"""Every law of padded_positions turns red on what breaks it; its mutant dies, its legal forms live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import check, subject
from oracles.properties.operations import operation_named
from oracles.properties.zoo import keeper

Function = Callable[..., Any]


def off_by_one(present: Any, *, past: int = 0) -> Any:
    return reference.padded_positions(present, past=past) + 1


def floats(present: Any, *, past: int = 0) -> Any:
    return reference.padded_positions(present, past=past).astype(np.float64)


def wrong_without_padding(present: Any, *, past: int = 0) -> Any:
    return reference.padded_positions(present, past=past) + bool(present.all())


def column(present: Any, *, past: int = 0) -> Any:
    """The column itself, padding counted."""
    return np.broadcast_to(np.arange(present.shape[1]), present.shape)[:, past:].copy()


def scribbles(present: Any, *, past: int = 0) -> Any:
    positions = reference.padded_positions(present, past=past)
    present[...] = True
    return positions


def leaves_out(present: Any, positions: Any, *, past: int = 0) -> None:
    positions[..., :-1] = reference.padded_positions(present, past=past)[..., :-1]


class Sometimes:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, present: Any, *, past: int = 0) -> Any:
        self.calls += 1
        return reference.padded_positions(present, past=past) + self.calls % 2


# law: (what breaks it, its declaration)
BREAKERS: dict[str, tuple[Function, dict[str, Any]]] = {
    "answers": (floats, {}),
    "positions_agrees_with_the_oracle": (off_by_one, {}),
    "without_padding_positions_count_up": (wrong_without_padding, {}),
    "padding_on_the_left_moves_nothing": (column, {}),
    "inputs_stay_untouched": (scribbles, {}),
    "buffers_are_fully_written": (leaves_out, {"buffers": ["positions"]}),
    "repeats_give_the_same_bits": (Sometimes().__call__, {"promises": ["deterministic"]}),
}


@pytest.mark.parametrize("law", BREAKERS)
def test_the_law_rejects_what_breaks_it(law: str) -> None:
    function, declared = BREAKERS[law]

    def fresh(present: Any, *, past: int = 0) -> Any:
        return function(present, past=past)

    chosen = function if declared.get("buffers") else fresh
    report = check("padded_positions", subject("padded_positions", **declared)(chosen), budget="quick", laws=(law,))
    assert [verdict.status for verdict in report.verdicts] == ["failed"]


def test_no_law_is_left_out() -> None:
    assert set(BREAKERS) == {law.name for law in operation_named("padded_positions").laws}


@pytest.mark.parametrize("specimen", [s for s in keeper.inhabitants() if s.operation == "padded_positions"], ids=lambda s: s.id)
def test_the_mutant_dies_and_legal_forms_live(specimen: Any) -> None:
    fate = keeper.fate_of(specimen, budget="default")
    assert fate.status == ("killed" if specimen.kind == "mutant" else "lives"), fate.reason
    assert fate.law != "answers"


def test_a_subject_without_a_cache_is_told_what_was_not_covered() -> None:
    report = check("padded_positions", lambda present: reference.padded_positions(present), budget="quick")
    assert report.held
    assert "argument past: the subject does not take it" in report.not_covered
