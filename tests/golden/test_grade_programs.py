"""The judge on calls of objects, and on a program that knows nothing of our code, right and with a fault planted."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.golden.export import READERS, export
from oracles.golden.grade import Grade, grade
from oracles.golden.questions import questions
from oracles.properties import safetensors_file
from oracles.properties.arithmetic import Arithmetic

from .submissions import answer, in_format, losses, run_on_all

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
    assert (losses(one), one.score, one.flags) == ({}, 58, [])


# A line of the program, what stands there instead, the cases that it touches, and the points they cost.
FAULTS: dict[str, tuple[str, str, set[str], int]] = {
    "a window of W keys lets W + 1 through (huggingface/transformers#39408)": (
        "j >= p - left", "j >= p - left - 1", {"window-left", "window-both-lengths", "sinks-softcap-window"}, 6),
    "slopes that rise to the right": ("np.abs(p - j)", "(p - j)", {"alibi-both-sides"}, 2),
    "sinks not in the maximum: e^(sink - m) overflows, and so does lse": (
        "np.maximum(s.max(axis=-1, keepdims=True, initial=-np.inf), sinks)",
        "s.max(axis=-1, keepdims=True, initial=-np.inf); sinks = np.where(sinks - np.maximum(m, 0) > 88, np.inf, sinks)",
        {"sinks-far-above"}, 1),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_costs_the_cases_it_touches_and_no_other(fault: str, exported: Path, tmp_path: Path) -> None:
    line, instead, touched, points = FAULTS[fault]
    assert PROGRAM.count(line) == 1
    one = answered_by(PROGRAM.replace(line, instead), exported, tmp_path)
    assert set(losses(one)) == {f"attention/{name}" for name in touched}
    assert one.score == 58 - points


def softmax(x: Any, axis: int) -> Any:
    """No maximum is subtracted."""
    e = np.exp(x)
    l = e.sum(axis, keepdims=True)
    return {"p": e / np.where(l == 0.0, 1.0, l)}


def log_sum_exp(x: Any, axis: int) -> Any:
    """No maximum is subtracted."""
    return {"lse": np.log(np.exp(x).sum(axis))}


def cross_entropy(logits: Any, targets: Any, **options: Any) -> Any:
    """The mean divides by no less than 1, as it would by a count of tokens."""
    loss = reference.cross_entropy(logits, targets, **options)
    total = options["weights"][targets[targets != -100]].sum() if "weights" in options else 1.0
    return {"loss": loss * total if options["reduction"] == "mean" and total < 1.0 else loss}


def adamw_step(param: Any, grad: Any, m: Any, v: Any, **options: Any) -> Any:
    """0 / 0 where eps is 0."""
    right = dict(zip("pmv", reference.adamw_step(param, grad, m, v, **options)))
    still = (right["m"] == 0.0) & (right["v"] == 0.0) & (options["eps"] == 0.0)
    return {"param": np.where(still, np.nan, right["p"]), "m": right["m"], "v": right["v"]}


# A kernel in float64 with a fault, the case that it touches (nothing is promised of log_sum_exp/largest-numbers), and the points it costs.
KERNELS = [(softmax, "beyond-the-exponential", 1), (log_sum_exp, "beyond-the-exponential", 1), (cross_entropy, "weights-below-one", 1),
           (adamw_step, "eps-zero", 1)]  # fmt: skip


@pytest.mark.parametrize(("kernel", "touched", "points"), KERNELS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_faulty_kernel_loses_the_case_that_was_made_for_it(kernel: Callable[..., Any], touched: str, points: int, tmp_path: Path) -> None:
    for question in questions(operations=[kernel.__name__]):
        path = tmp_path / "answers" / question.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with np.errstate(all="ignore"):
            given = {name: np.asarray(x, np.float64) if name == "x" else x for name, x in question.given.items()}
            got = kernel(**given)
        formats = {name: question.format_of(name, question.resolved(Arithmetic())) for name in got}
        safetensors_file.write(path, {name: in_format(np.asarray(x), formats[name]) for name, x in got.items()})
    (one,) = grade([tmp_path], [kernel.__name__])
    assert list(losses(one)) == [f"{kernel.__name__}/{touched}"]
    assert one.score == one.max_score - points


def test_a_backward_pass_is_answered_without_the_forward_pass_that_is_kept_back(tmp_path: Path) -> None:
    """What is handed out holds no out and no lse, and is enough: every point is earned by who makes them anew."""
    export(tmp_path / "cases", ["attention_backward"])
    given = [set(safetensors_file.read(path)[0]) for path in (tmp_path / "cases" / "inputs" / "attention_backward").iterdir()]
    assert all({"q", "k", "v", "dout"} <= names and not names & {"out", "lse"} for names in given)
    one = answered_by(BACKWARD, tmp_path / "cases", tmp_path, "attention_backward")
    assert (losses(one), one.flags) == ({}, [])
    assert one.score == one.max_score > 3 * len(given)
