"""The census of the zoo: its counts, its JSON, its table, and the command `oracles zoo --extra`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from oracles.properties.zoo import keeper
from oracles.properties.zoo.specimen import Specimen, mutant, specimens_in, variant
from oracles.tools.command_line import app
from oracles.tools.zoo_table import Census, take_census

KEYS = {"mutants", "killed", "missed", "variants", "false_alarms", "families", "seconds", "median_seconds_to_kill", "kills"}

STRANGERS = '''
import numpy as np
from oracles.properties.zoo.specimen import mutant, variant


def exponentials(x, axis):
    m = x.max(axis=axis, keepdims=True, initial=-np.inf)
    return np.exp(x - np.where(np.isinf(m), 0, m))


def softmax(x, axis):
    e = exponentials(x, axis)
    l = e.sum(axis=axis, keepdims=True)
    return e / np.where(l == 0, 1, l)


@mutant("softmax", id="sum-forgotten", source="https://example.org/1", family="sums", trigger=lambda: {"x": np.zeros(2)})
def unnormalised(x, *, axis=-1):
    """The division by the sum is forgotten."""
    return exponentials(x, axis)


@variant("softmax", id="two-passes", family="sums")
def two_passes(x, *, axis=-1):
    """The maximum first, then the sum."""
    return softmax(x, axis)
'''
FALSE_ALARM = '''

@variant("softmax", id="no-variant", family="sums")
def no_variant(x, *, axis=-1):
    """The half of it."""
    return softmax(x, axis) / 2
'''


def specimen(kind: str, id: str, family: str) -> Specimen:
    def softmax(x: Any) -> Any:
        """A stand-in that is never called."""

    mark = variant("softmax", id=id, family=family) if kind == "variant" else mutant(
        "softmax", id=id, source="https://example.org/1", family=family, equivalent=kind == "control")  # fmt: skip
    return specimens_in(SimpleNamespace(softmax=mark(softmax)))[0]


def fate(kind: str, id: str, family: str, status: str, *, law: str = "", seconds: float = 1.0, ratio: float = 0.0) -> keeper.Fate:
    return keeper.Fate(specimen(kind, id, family), status, law, f"why {id}" if status not in ("killed", "lives") else "", seconds, ratio)


CENSUS = Census((
    fate("mutant", "dead-1", "one", "killed", law="some_law", seconds=1.0, ratio=7.0),
    fate("mutant", "dead-2", "two", "killed", law="other_law", seconds=3.0, ratio=float("inf")),
    fate("mutant", "alive", "two", "missed"),
    fate("mutant", "hollow", "two", "invalid"),
    fate("variant", "good", "one", "lives"),
    fate("variant", "accused", "two", "false alarm", law="some_law"),
    fate("control", "mute", "one", "invalid"),
), "quick", 9.5)  # fmt: skip


def test_the_json_has_the_stable_keys() -> None:
    data = CENSUS.to_json()
    assert set(data) >= KEYS
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_counts_are_those_of_the_fates() -> None:
    data = CENSUS.to_json()
    assert (data["mutants"], data["killed"], data["missed"]) == (4, 2, ["alive", "hollow"])
    assert (data["variants"], data["controls"], data["false_alarms"]) == (2, 1, ["accused", "mute"])
    assert (data["seconds"], data["median_seconds_to_kill"]) == (9.5, 2.0)


def test_each_family_has_its_own_counts() -> None:
    families = CENSUS.to_json()["families"]
    assert list(families) == ["one", "two"]
    assert (families["one"]["mutants"], families["one"]["killed"], families["one"]["false_alarms"]) == (1, 1, ["mute"])
    assert (families["two"]["mutants"], families["two"]["missed"], families["two"]["false_alarms"]) == (3, ["alive", "hollow"], ["accused"])


def test_each_kill_is_told_with_its_law_and_an_infinite_ratio_is_null() -> None:
    assert CENSUS.to_json()["kills"] == [
        {"id": "dead-1", "law": "some_law", "seconds": 1.0, "worst_ratio": 7.0},
        {"id": "dead-2", "law": "other_law", "seconds": 3.0, "worst_ratio": None},
    ]


def test_every_failure_has_its_reason() -> None:
    assert CENSUS.to_json()["reasons"] == {
        "alive": "missed: why alive", "hollow": "invalid: why hollow", "accused": "false alarm: why accused", "mute": "invalid: why mute",
    }  # fmt: skip


@pytest.mark.parametrize(("kept", "good"), [
    (("dead-1", "good"), True), (("dead-1", "alive"), False), (("dead-1", "hollow"), False), (("dead-1", "accused"), False),
    (("dead-1", "mute"), False), ((), False),
])  # fmt: skip
def test_a_census_is_good_only_if_all_die_and_nobody_is_accused(kept: tuple[str, ...], good: bool) -> None:
    assert Census(tuple(f for f in CENSUS.fates if f.specimen.id in kept), "quick", 1.0).good is good


def test_nothing_killed_has_no_median() -> None:
    assert Census(CENSUS.fates[2:], "quick", 1.0).to_json()["median_seconds_to_kill"] is None


def test_the_table_names_every_specimen_and_the_two_numbers() -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, closed with the process
    console.print(CENSUS.view())
    text = console.export_text()
    assert all(f.specimen.id in text for f in CENSUS.fates)
    assert "killed 2 of 4 mutants; 2 false alarms among 3 legal implementations; budget quick, 9.5 s" in text
    assert "accused: false alarm: why accused" in text


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a mutant and a variant of somebody else, and a zoo that has no others."""
    monkeypatch.setattr(keeper, "ZOO_MODULES", {})
    (tmp_path / "strangers.py").write_text(STRANGERS)
    return tmp_path


def test_a_users_mutant_dies_and_a_users_variant_lives(strangers: Path) -> None:
    census = take_census(None, extra=strangers, budget="quick", seed=0)
    assert [(f.specimen.id, f.status) for f in census.fates] == [("sum-forgotten", "killed"), ("two-passes", "lives")]
    assert census.seconds >= max(f.seconds for f in census.fates)


def test_the_command_prints_json_and_exits_with_0(strangers: Path) -> None:
    result = CliRunner().invoke(app, ["zoo", "--extra", str(strangers), "--budget", "quick", "--json"])
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert (data["mutants"], data["killed"], data["variants"], data["false_alarms"]) == (1, 1, 1, [])
    assert list(data["families"]) == ["sums"]


def test_a_false_alarm_makes_the_command_exit_with_1(strangers: Path) -> None:
    with (strangers / "strangers.py").open("a") as file:
        file.write(FALSE_ALARM)
    result = CliRunner().invoke(app, ["zoo", "--extra", str(strangers), "--budget", "quick"])
    assert result.exit_code == 1
    assert "no-variant: false alarm: p" in result.stdout
