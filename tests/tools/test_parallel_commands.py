"""`oracles check parallel`: what it prints, what it refuses, and that its JSON fits the published schema."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from oracles.properties import parallel_layouts
from oracles.tools import parallel_commands
from oracles.tools.command_line import app

SCHEMA = json.loads(resources.files("oracles.tools").joinpath("schemas", "parallel.schema.json").read_text())


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["check", "parallel", *words])


@pytest.mark.parametrize("words", [("--layout", "dp2.tp2.pp2"), ("--layout", "dp2.tp2.pp2", "--zero", "3"),
                                   ("--layout", "tp2", "--forget", "layers.0.w_o"), ("--layout", "dp2", "--train", "3")])  # fmt: skip
def test_the_json_fits_the_schema(words: tuple[str, ...]) -> None:
    result = run(*words, "--json")
    data = json.loads(result.stdout)
    jsonschema.validate(data, SCHEMA)
    assert (result.exit_code, data["held"]) == ((1, False) if "--forget" in words else (0, True))


def test_a_report_without_a_stable_key_is_refused() -> None:
    data = json.loads(run("--layout", "dp2", "--json").stdout)
    for key in ("layout", "held", "verdicts", "finest"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({name: value for name, value in data.items() if name != key}, SCHEMA)


def test_zero_may_stand_in_the_layout_or_beside_it() -> None:
    beside, inside = (json.loads(run("--layout", *words, "--json").stdout) for words in (("dp2", "--zero", "3"), ("dp2.zero3",)))
    assert beside["layout"] == inside["layout"] == "dp2.zero3"


def test_a_layout_is_shown_law_by_law() -> None:
    result = run("--layout", "ep2.tp2")
    assert result.exit_code == 0
    assert "ep2.tp2, experts, 4 ranks" in result.stdout
    assert result.stdout.count("held") == 6
    assert "would have seen a gradient off by" in result.stdout


def test_a_forgotten_all_reduce_is_named() -> None:
    result = run("--layout", "tp2", "--forget", "layers.0.w_o")
    assert result.exit_code == 1
    assert "layers.0.w_o.out partial sum over tp" in result.stdout
    assert "an all_reduce over tp" in result.stdout.replace("\n", " ")


def test_a_sweep_shows_every_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_commands, "SWEEP", parallel_layouts.SWEEP[1:3])
    shown, printed = run("--sweep"), run("--sweep", "--json")
    assert shown.exit_code == printed.exit_code == 0
    assert "2 of 2 layouts hold" in shown.stdout
    data = json.loads(printed.stdout)
    jsonschema.validate(data, SCHEMA)
    assert [report["layout"] for report in data["reports"]] == ["dp2", "dp4"]


def test_a_sweep_in_which_one_fails_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_commands, "SWEEP", (("dp2", "dense"), ("tp2", "dense")))
    own = parallel_layouts.check_layout
    monkeypatch.setattr(parallel_commands, "check_layout", lambda layout, **options: own(
        layout, **options, forget="layers.0.w_o" if layout.tp > 1 else ""))
    result = run("--sweep")
    assert result.exit_code == 1
    assert "1 of 2 layouts hold" in result.stdout
    assert "tp2: every_layer_gets_what_it_takes" in result.stdout


@pytest.mark.parametrize(("words", "message"), [
    ((), "--layout: not given; want one such as dp2.tp2.pp2, or --sweep"),
    (("--layout", "tp3"), "tp: got 8 query heads for 3 ranks; want a multiple of 3"),
    (("--layout", "dp2.xx"), "layout: got 'xx' in 'dp2.xx'; want parts joined by dots"),
    (("--layout", "dp2.zero1", "--zero", "2"), "layout: got zero twice"),
    (("--layout", "dp2", "--model", "odd"), "model: got 'odd'; want one of dense"),
    (("--layout", "tp2", "--forget", "layers.9"), "forget: got 'layers.9'; want one of layers.0.w_o"),
    (("--sweep", "--layout", "dp2"), "--sweep: goes through layouts and models of its own"),
    (("--layout", "dp2", "--train", "2", "--forget", "layers.0.w_o"), "--forget: says nothing of a training run"),
])  # fmt: skip
def test_what_is_not_to_be_run_is_refused(words: tuple[str, ...], message: str) -> None:
    result = run(*words)
    assert str(result.exception).startswith(message)
    assert type(result.exception).__name__ == "UsageError"


def test_the_options_of_parallel_are_refused_elsewhere() -> None:
    result = CliRunner().invoke(app, ["check", "softmax", "--sweep"])
    assert "are for `oracles check parallel`" in str(result.exception)
