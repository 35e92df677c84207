"""The keeper: what becomes of a specimen, each fate shown with a small one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oracles.properties.declaration import UsageError
from oracles.properties.zoo import keeper, textbook
from oracles.properties.zoo.specimen import Specimen, mutant, specimens_in, variant

SOURCE = "https://example.org/1"


def three_entries() -> dict[str, Any]:
    return {"x": np.array([0.0, 1.0, 2.0])}


@mutant("softmax", id="first-entry-doubled", source=SOURCE, trigger=three_entries)
def first_entry_doubled(x: Any, *, axis: int = -1) -> Any:
    """The first probability of each row is twice what it should be."""
    p = textbook.softmax(x, axis=axis)
    np.moveaxis(p, axis, -1)[..., :1] *= 2
    return p


@mutant("softmax", id="only-in-one-long-row", source=SOURCE, trigger=lambda: {"x": np.zeros(100_003)})
def only_in_one_long_row(x: Any, *, axis: int = -1) -> Any:
    """Rows of exactly 100003 entries are halved, which no case is long enough to show."""
    return textbook.softmax(x, axis=axis) / (2 if x.shape[axis] == 100_003 else 1)


@mutant("softmax", id="without-trigger", source=SOURCE)
def without_trigger(x: Any, *, axis: int = -1) -> Any:
    """Everything is zero."""
    return np.zeros_like(x)


@mutant("softmax", id="right-on-its-trigger", source=SOURCE, trigger=three_entries)
def right_on_its_trigger(x: Any, *, axis: int = -1) -> Any:
    """Nothing is wrong with it."""
    return textbook.softmax(x, axis=axis)


@mutant("softmax", id="raises-on-its-trigger", source=SOURCE, trigger=three_entries)
def raises_on_its_trigger(x: Any, *, axis: int = -1) -> Any:
    """It divides by zero."""
    return 1 / 0


@mutant("softmax", id="crashes-in-a-case", source=SOURCE, trigger=three_entries)
def crashes_in_a_case(x: Any, *, axis: int = -1) -> Any:
    """Wrong for one axis, an exception for three."""
    if x.ndim > 1:
        raise IndexError("more than one axis")
    return first_entry_doubled(x, axis=axis)


@mutant("softmax", id="wrong-shape", source=SOURCE, trigger=three_entries)
def wrong_shape(x: Any, *, axis: int = -1) -> Any:
    """One entry is lost."""
    return textbook.softmax(x, axis=axis)[..., 1:]


@mutant("softmax", id="takes-an-axis-that-is-not-there", source=SOURCE, trigger=lambda: {**three_entries(), "axis": 3})
def takes_any_axis(x: Any, *, axis: int = -1) -> Any:
    """An axis past the last is taken for the last."""
    return textbook.softmax(x, axis=min(axis, x.ndim - 1))


@mutant("softmax", id="harmless", source=SOURCE, equivalent=True)
def harmless(x: Any, *, axis: int = -1) -> Any:
    """One is added to every entry first, which changes nothing."""
    return textbook.softmax(x, axis=axis)


@mutant("softmax", id="harmful-control", source=SOURCE, equivalent=True)
def harmful_control(x: Any, *, axis: int = -1) -> Any:
    """Said to be harmless."""
    return first_entry_doubled(x, axis=axis)


@variant("softmax", id="legal")
def legal(x: Any, *, axis: int = -1) -> Any:
    """The textbook's own."""
    return textbook.softmax(x, axis=axis)


@variant("softmax", id="illegal")
def illegal(x: Any, *, axis: int = -1) -> Any:
    """A variant that is none."""
    return first_entry_doubled(x, axis=axis)


@variant("softmax", id="refuses-all")
def refuses_all(x: Any, *, axis: int = -1) -> Any:
    """It takes nothing."""
    raise NotImplementedError("no softmax today")


def fate(function: Any, **options: Any) -> keeper.Fate:
    (specimen,) = specimens_in(SimpleNamespace(function=function))
    return keeper.fate_of(specimen, budget="quick", **options)


def test_a_mutant_that_a_law_breaks_on_is_killed() -> None:
    found = fate(first_entry_doubled)
    assert (found.status, found.law) == ("killed", "p_agrees_with_the_oracle")
    assert found.worst_ratio > 1.0
    assert "wanted" in found.reason


def test_a_mutant_that_no_case_shows_is_missed() -> None:
    found = fate(only_in_one_long_row)
    assert (found.status, found.law, found.reason) == ("missed", "", "")


@pytest.mark.parametrize(("function", "reason"), [
    (without_trigger, "it has no trigger"),
    (right_on_its_trigger, "it agrees with the oracle on its own trigger"),
    (raises_on_its_trigger, "on its trigger: ZeroDivisionError: division by zero"),
    (wrong_shape, "on its trigger: p: got shape (2,); want (3,)"),
    (crashes_in_a_case, "dies by a crash, not by a law: IndexError: more than one axis"),
])  # fmt: skip
def test_a_mutant_that_shows_nothing_is_invalid(function: Any, reason: str) -> None:
    found = fate(function)
    assert (found.status, found.reason) == ("invalid", reason)


def test_a_mutant_that_answers_what_the_oracle_refuses_is_valid() -> None:
    assert fate(takes_any_axis).status == "missed"                              # valid: no law of softmax asks for a refusal


def test_a_mutant_that_refuses_what_the_oracle_refuses_is_invalid() -> None:
    function = mutant("softmax", id="refuses", source=SOURCE, trigger=lambda: {**three_entries(), "axis": 3})(refuses_such_axes)
    assert fate(function).reason == "on its trigger: it refuses like the oracle, which says axis: got 3 for x of shape (3,); want -1..0"


def refuses_such_axes(x: Any, *, axis: int = -1) -> Any:
    """Refuses what the oracle refuses."""
    return textbook.softmax(x, axis=axis)


@pytest.mark.parametrize("function", [legal, harmless])
def test_what_is_legal_lives(function: Any) -> None:
    found = fate(function)
    assert (found.status, found.law, found.worst_ratio) == ("lives", "", 0.0)


@pytest.mark.parametrize("function", [illegal, harmful_control])
def test_what_is_said_to_be_legal_and_breaks_a_law_is_a_false_alarm(function: Any) -> None:
    found = fate(function)
    assert (found.status, found.law) == ("false alarm", "p_agrees_with_the_oracle")


def test_a_variant_that_answers_nothing_is_invalid() -> None:
    found = fate(refuses_all)
    assert (found.status, found.reason) == ("invalid", "no softmax today")


def test_a_mutant_is_run_until_it_dies_and_a_variant_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = []
    judge = keeper.judge_one
    monkeypatch.setattr(keeper, "judge_one", lambda run, index, recipe: (cases.append(index), judge(run, index, recipe)))
    fate(illegal)
    to_the_end = len(cases)
    cases.clear()
    fate(first_entry_doubled)
    assert len(cases) == 1 < to_the_end


def test_all_are_visited_in_order_and_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    found = keeper.visit(only_ids("legal", "first-entry-doubled"), budget="quick", progress=lambda done, total: told.append((done, total)))
    assert [f.status for f in found] == ["lives", "killed"]
    assert told == [(1, 2), (2, 2)]


def only_ids(*wanted: str) -> list[Specimen]:
    here = {s.id: s for s in specimens_in(SimpleNamespace(**globals()))}
    return [here[id] for id in wanted]


def test_an_unknown_family_is_bad_usage() -> None:
    with pytest.raises(UsageError, match=r"family: got astrology; want some of softmax, masking"):
        keeper.inhabitants(("softmax", "astrology"))


def test_only_the_wanted_families_come() -> None:
    assert {s.family for s in keeper.inhabitants(("gqa", "softmax"))} == {"gqa", "softmax"}


def test_ids_are_unique() -> None:
    ids = [s.id for s in keeper.inhabitants()]
    assert len(ids) == len(set(ids))


def test_a_folder_adds_its_specimens(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oracles.properties.zoo.specimen import variant\n"
        "@variant('softmax', id='mine')\ndef mine(x, *, axis=-1):\n    'Mine.'\n"
    )
    assert [s.id for s in keeper.inhabitants((), tmp_path)] == ["mine"]


def test_a_folder_without_specimens_is_bad_usage(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match="has no Python file that marks a mutant or a variant"):
        keeper.inhabitants((), tmp_path)
