"""A program of another language behind `cmd:`: a C implementation of attention, compiled here, right and with a fault planted."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic, UsageError, check
from oracles.properties.case import Case
from oracles.properties.command_subject import command_subject, to_file
from oracles.properties.operations import operation_named
from oracles.properties.outcome import RAISED, REFUSED, RETURNED
from oracles.properties.run import begin, judge_one, recipes_of
from oracles.properties.subjects import InProcess, open_subject
from oracles.tools.command_line import main

SOURCE = Path(__file__).with_name("attention_program.c").read_text()
CASE = Case("attention", {"q": np.ones((1, 2, 3, 4)), "k": np.ones((1, 1, 3, 4)), "v": np.arange(9.0).reshape(1, 1, 3, 3)},
            {"causal": "bottom_right", "scale": 0.5})  # fmt: skip


def compiled(source: str, folder: Path, name: str) -> Path:
    (folder / f"{name}.c").write_text(source)
    subprocess.run(["cc", "-O2", "-o", str(folder / name), str(folder / f"{name}.c"), "-lm"], check=True)
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return compiled(SOURCE, folder, "right")


@pytest.fixture(scope="module")
def faulty(folder: Path) -> Path:
    line = "long row = (b * Hq + h) * Lq + i, head = b * Hkv + h / (Hq / Hkv), seen = causal ? i + Lk - Lq + 1 : Lk;"
    assert SOURCE.count(line) == 1
    return compiled(SOURCE.replace(line, line.replace("Lq + 1 : Lk", "Lq : Lk")), folder, "faulty")


def oracles(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["oracles", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_program_holds(program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(program.parent)
    assert oracles(monkeypatch, "check", "attention", "cmd:./right", "--dtype", "float32", "--budget", "quick", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    compared = {v["law"]: v["compared"] for v in report["verdicts"] if v["status"] == "held"}
    assert compared["out_agrees_with_the_oracle"] > 0
    assert compared["lse_agrees_with_the_oracle"] > 0
    assert not any("refused" in line for line in report["not_covered"])


def test_a_fault_in_the_program_is_found_and_its_repro_runs(
    program: Path, faulty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(faulty.parent)
    monkeypatch.setattr("oracles.properties.checker.SHRINK_SECONDS", 2.0)
    law = "out_agrees_with_the_oracle"
    arguments = ("check", "attention", "cmd:./faulty", "--dtype", "float32", "--budget", "quick", "--law", law, "--failures", str(tmp_path))
    assert oracles(monkeypatch, *arguments, "--json") == 1
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert (verdict["law"], verdict["status"]) == (law, "failed")
    monkeypatch.chdir(tmp_path)                                                 # from another folder than it was found in
    assert oracles(monkeypatch, "replay", verdict["counterexample"], "--json") == 1
    again = [sys.executable, f"{verdict['counterexample']}/repro.py"]
    wrong = subprocess.run(again, capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout.startswith(f"{law}: FAILS: out[")) == (1, True), wrong.stdout + wrong.stderr
    assert subprocess.run([*again, f"cmd:{program}"], check=False).returncode == 0


def test_status_77_is_a_refusal_that_is_not_covered(program: Path) -> None:
    opened = open_subject(f"cmd:{program}", "attention", in_process=True)
    assert opened.run(CASE, {}).kind == RETURNED
    outcome = opened.run(CASE.with_options(causal="top_left"), {})
    assert (outcome.kind, outcome.message) == (REFUSED, "only bottom_right")
    report = check("attention", f"cmd:{program}", budget="quick", laws=("answers",), declared={"dtypes": ["float16"]})
    assert not report.held
    assert report.verdicts[0].status == "not_covered"
    assert "only float32 and float64" in report.verdicts[0].reason


# what the program is: the end of the message
PROGRAMS = {
    "exit 3": "the program exits with status 3",
    "echo 'out of memory' >&2; exit 1": "the program exits with status 1: out of memory",
    "kill -9 $$": "the program was killed by SIGKILL",
    "exit 0": "the program wrote no out.safetensors",
    "echo nonsense > $2": "out.safetensors: data: got a header length of",
}


@pytest.mark.parametrize("text", PROGRAMS)
def test_a_program_that_fails_is_told_from_one_that_refuses(text: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    outcome = open_subject(f"cmd:{script}", "attention", in_process=True).run(CASE, {})
    assert outcome.kind == RAISED
    assert PROGRAMS[text] in outcome.message


def test_a_program_takes_what_is_declared_and_else_causal_and_scale() -> None:
    assert command_subject("true", "attention", {})[1].coverage.arguments == {"causal", "scale"}
    declaration = command_subject("true", "attention", {"takes": ["window", "causal"]})[1]
    assert declaration.coverage.arguments == {"window", "causal"}
    assert command_subject("true", "attention", {"takes": ["scale"]})[1].coverage.causal == (None,)
    assert command_subject("true", "softmax", {})[1].coverage.arguments == {"axis"}


def test_an_argument_that_the_operation_does_not_have_cannot_be_declared() -> None:
    with pytest.raises(UsageError, match=r"takes: attention has no optional argument windows; want some of causal, window"):
        command_subject("true", "attention", {"takes": ["windows"]})


def test_a_program_needs_the_name_of_its_operation() -> None:
    with pytest.raises(UsageError, match="OPERATION: not given; want it, since the program true cannot declare itself"):
        command_subject("true", None, {})


def test_a_choice_without_a_default_is_told_to_a_program_or_declared() -> None:
    assert command_subject("true", "rope", {})[1].coverage.arguments == {"pairing"}
    declaration = command_subject("true", "rope", {"takes": ["base"], "only": {"pairing": ["half"]}})[1]
    assert (declaration.coverage.arguments, declaration.coverage.only) == ({"base"}, (("pairing", ("half",)),))
    with pytest.raises(UsageError, match=r"takes: true is not told pairing of rope; want it there, or only={...} with one value"):
        command_subject("true", "rope", {"takes": ["base"]})


def test_a_record_is_told_field_by_field() -> None:
    record = {"kind": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "truncate": True}
    tensors, metadata = to_file({"x": np.zeros(2), "pairing": "half", "scaling": record})
    assert list(tensors) == ["x"]
    assert metadata == {"pairing": "half", "scaling.kind": "yarn", "scaling.factor": "40.0", "scaling.truncate": "True",
                        "scaling.original_max_position_embeddings": "4096"}  # fmt: skip


# A program that reads the fields of the record again: linear alone.
ROTATION = f"""#!{sys.executable}
import sys
from safetensors import safe_open
from safetensors.numpy import save_file
import numpy as np
with safe_open(sys.argv[1], "np") as file:
    told, x, p = file.metadata(), file.get_tensor("x"), file.get_tensor("positions")
factor = float(told.get("scaling.factor", "1"))
assert told.get("scaling.kind", "linear") == "linear", told
R = x.shape[-1]
t = p.astype(float)[..., None] * 10000.0 ** (-np.arange(0, R, 2) / R) / factor
a, b = (slice(0, R // 2), slice(R // 2, R)) if told["pairing"] == "half" else (slice(0, R, 2), slice(1, R, 2))
out = x.astype(float)
out[..., a], out[..., b] = x[..., a] * np.cos(t) - x[..., b] * np.sin(t), x[..., b] * np.cos(t) + x[..., a] * np.sin(t)
save_file({{"out": out.astype(x.dtype)}}, sys.argv[2])
"""


@pytest.mark.parametrize(("text", "status"), [(ROTATION, "held"), (ROTATION.replace("/ factor", "/ (1 + 0 * factor)"), "failed")])
def test_a_program_gets_the_fields_of_a_record(text: str, status: str, tmp_path: Path) -> None:
    script = tmp_path / "rotation.py"
    script.write_text(text)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    declared = {"takes": ["pairing", "scaling"], "only": {"scaling": ["none", "linear"]}, "dtypes": ["float32"],
                "arithmetic": Arithmetic(elementwise="float64")}  # fmt: skip
    subject_of_it = InProcess(*command_subject(str(script), "rope", declared))
    run = begin(operation_named("rope"), subject_of_it, ("out_agrees_with_the_oracle",))
    designed, _ = recipes_of(run, "quick", 0)
    scaled = [recipe for recipe in designed if recipe.scaling == "linear" and recipe.T * recipe.B]
    for recipe in scaled[:4]:
        judge_one(run, 0, recipe)
    (tally,) = run.tallies
    assert ("failed" if tally.failure else "held") == status
    assert tally.failure or tally.compared > 0


def test_arguments_are_tensors_and_words() -> None:
    arguments: dict[str, Any] = {"x": np.arange(3.0), "scale": 0.1, "axis": -1, "window": (None, 2), "causal": None, "side": "left"}
    tensors, metadata = to_file(arguments)
    assert metadata == {"causal": "none", "side": "left"}
    assert {name: (array.dtype.name, array.tolist()) for name, array in tensors.items()} == {
        "x": ("float64", [0.0, 1.0, 2.0]), "scale": ("float64", 0.1), "axis": ("int64", -1), "window": ("int64", [-1, 2])}  # fmt: skip


def test_an_array_without_axes_stays_one() -> None:
    tensors, _ = to_file({"targets": np.array(3), "grads": [np.array(0.5), np.ones((2, 3)).T]})
    assert {name: array.shape for name, array in tensors.items()} == {"targets": (), "grads.0": (), "grads.1": (3, 2)}
