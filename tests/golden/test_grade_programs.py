"""The judge on calls of objects, and on a program that knows nothing of our code, right and with a fault planted."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oracles.golden.export import READERS, export
from oracles.golden.grade import Grade, grade
from oracles.properties import safetensors_file

from .submissions import answer, losses, run_on_all

# Calls on objects ---------------------------------------------------------------------------------------------------------

REPEAT = "answers/token_mask/repeat.json"
CALLS: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "another answer": (lambda calls: calls[0]["answer"].reverse() or calls, "call 0, token_mask("),
    "a number for a truth": (lambda calls: [{"answer": [int(x) for x in calls[0]["answer"]]}, *calls[1:]], "call 0, token_mask("),
    "a fraction": (lambda calls: [calls[0], {"answer": {**calls[1]["answer"], "state": 1.0}}, *calls[2:]], "call 1, advance("),
    "no refusal": (lambda calls: [*calls[:-1], {"answer": None}], "call 5, advance("),
    "another refusal": (lambda calls: [*calls[:-1], {"raises": "KeyError"}], "call 5, advance("),
    "a call too few": (lambda calls: calls[:-1], "5 calls; want"),
    "no list": (lambda calls: {}, "no calls; want"),
}  # fmt: skip


@pytest.mark.parametrize("fault", CALLS)
def test_calls_must_be_answered_exactly(fault: str, tmp_path: Path) -> None:
    answer(tmp_path, ["token_mask"])
    content = json.loads((tmp_path / REPEAT).read_text())
    (tmp_path / REPEAT).write_text(json.dumps({"calls": CALLS[fault][0](content["calls"])}))
    (one,) = grade([tmp_path], ["token_mask"])
    assert list(losses(one)) == ["token_mask/repeat"]
    assert losses(one)["token_mask/repeat"].startswith(CALLS[fault][1])


# A program of its own -----------------------------------------------------------------------------------------------------

PROGRAM = Path(__file__).with_name("attention_program.py").read_text()
# Its forward pass, and the gradients that follow from it.
BACKWARD = PROGRAM.rpartition("tensor_files.write(")[0] + Path(__file__).with_name("backward_program.py").read_text()


def answered_by(program: str, exported: Path, tmp_path: Path, operation: str = "attention") -> Grade:
    shutil.copy(READERS / "tensor_files.py", tmp_path)
    (tmp_path / "program.py").write_text(program)
    run_on_all([sys.executable, str(tmp_path / "program.py")], exported, operation, tmp_path / "student")
    (one,) = grade([tmp_path / "student"], [operation])
    return one


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    export(tmp_path_factory.mktemp("export") / "cases", ["attention"])
    return tmp_path_factory.getbasetemp() / "export0" / "cases"


def test_a_program_that_is_right_has_full_marks(exported: Path, tmp_path: Path) -> None:
    one = answered_by(PROGRAM, exported, tmp_path)
    assert (losses(one), one.score, one.flags) == ({}, 54, [])


def test_a_planted_fault_costs_the_cases_it_touches_and_no_other(exported: Path, tmp_path: Path) -> None:
    """A window of W keys lets W + 1 through (huggingface/transformers#39408)."""
    assert PROGRAM.count("j >= p - left") == 1
    one = answered_by(PROGRAM.replace("j >= p - left", "j >= p - left - 1"), exported, tmp_path)
    assert set(losses(one)) == {f"attention/{name}" for name in ("window-left", "window-both-lengths", "sinks-softcap-window")}
    assert one.score == 54 - 6


def test_a_backward_pass_is_answered_without_the_forward_pass_that_is_kept_back(tmp_path: Path) -> None:
    """What is handed out holds no out and no lse, and is enough: every point is earned by who makes them anew."""
    export(tmp_path / "cases", ["attention_backward"])
    given = [set(safetensors_file.read(path)[0]) for path in (tmp_path / "cases" / "inputs" / "attention_backward").iterdir()]
    assert all({"q", "k", "v", "dout"} <= names and not names & {"out", "lse"} for names in given)
    one = answered_by(BACKWARD, tmp_path / "cases", tmp_path, "attention_backward")
    assert (losses(one), one.flags) == ({}, [])
    assert one.score == one.max_score > 3 * len(given)
