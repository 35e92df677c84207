"""Subjects in workers and in process: what misbehaves is a verdict that says how, never the end of the checker."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import UsageError, check, checker, subject
from oracles.properties.case import Case
from oracles.properties.outcome import DIED, HUNG, RETURNED
from oracles.properties.report import Report, Verdict
from oracles.properties.run import DEATHS
from oracles.properties.subjects import InWorker, open_subject

BROKEN = Path(__file__).with_name("broken_subjects.py")
LAWS = ("answers", "out_agrees_with_the_oracle", "lse_agrees_with_the_oracle", "inputs_stay_untouched")

# function: the law that fails first, words of the reason
ANYWHERE = {
    "returns_nan": ("out_agrees_with_the_oracle", "is nan, wanted"),
    "returns_nan_log_sum_exp": ("lse_agrees_with_the_oracle", "is nan, wanted"),
    "returns_zeros": ("out_agrees_with_the_oracle", "is 0, wanted"),
    "returns_the_mean": ("out_agrees_with_the_oracle", "of what is allowed"),
    "returns_a_view": ("inputs_stay_untouched", "out with q shares memory"),
    "returns_a_wrong_shape": ("answers", "out: got shape (1, 1, 1, 1, 1); want (1, 1, 1, 1)"),
    "returns_a_wrong_dtype": ("answers", "out: got dtype float16; want float32"),
    "returns_something_lazy": ("answers", "out: got Lazy"),
    "returns_something_unreadable": ("answers", "could not be read: RuntimeError: the graph was not executed"),
    "returns_nothing": ("answers", "out: got None; want an array"),
    "returns_too_much": ("answers", "returned 3 values; want out, lse"),
    "returns_a_number": ("answers", "out: got float 0.5; want an array"),
    "returns_other_names": ("answers", "returned a dict with 'output'; want some of out, lse"),
    "raises": ("answers", "ZeroDivisionError: a tile of no rows"),
    "leaves_by_sys_exit": ("answers", "SystemExit: 0"),
    "changes_its_inputs": ("inputs_stay_untouched", "k was changed"),
}
IN_A_WORKER = {
    "returns_objects": ("answers", "out of dtype object; want arrays of numbers"),
    "kills_its_process": ("answers", "the process killed by SIGKILL"),
    "ends_its_process": ("answers", "the process exited with status 3; its last words: out of tiles"),
    "ends_its_process_quietly": ("answers", "the process exited with status 0"),
}


@pytest.fixture(autouse=True)
def little_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "SHRINK_SECONDS", 0.6)


def run(function: str, *, in_process: bool = False, **options: Any) -> Report:
    return check("attention", f"{BROKEN}:{function}", budget="quick", in_process=in_process,
                 **{"laws": LAWS, "declared": {"dtypes": ["float32"]}, **options})  # fmt: skip


def verdict(report: Report, law: str) -> Verdict:
    return next(v for v in report.verdicts if v.law == law)


def assert_breaks(report: Report, law: str, words: str) -> None:
    assert not report.held
    assert next(v.law for v in report.verdicts if v.status == "failed") == law
    assert words in verdict(report, law).reason


@pytest.mark.parametrize("function", ANYWHERE)
def test_what_is_broken_fails_in_process(function: str) -> None:
    assert_breaks(run(function, in_process=True), *ANYWHERE[function])


@pytest.mark.parametrize("function", ["returns_nan", "returns_a_view", "returns_a_wrong_dtype", "returns_something_lazy", "raises",
                                      "leaves_by_sys_exit", "changes_its_inputs"])  # fmt: skip
def test_what_is_broken_fails_in_a_worker_as_in_process(function: str) -> None:
    assert_breaks(run(function), *ANYWHERE[function])


@pytest.mark.parametrize("function", IN_A_WORKER)
def test_what_ends_its_process_fails_in_a_worker(function: str) -> None:
    assert_breaks(run(function, laws=("answers",)), *IN_A_WORKER[function])


def test_an_object_array_fails_in_process() -> None:
    assert_breaks(run("returns_objects", in_process=True), "answers", "out: got dtype object; want float32")


def test_its_own_input_has_the_wrong_shape_where_sizes_differ_and_shares_memory_where_not() -> None:
    report = run("returns_its_input", in_process=True)
    assert_breaks(report, "answers", "out: got shape")
    assert "out with q shares memory" in verdict(report, "inputs_stay_untouched").reason
    assert "the subject returns no lse" in verdict(report, "lse_agrees_with_the_oracle").reason
    assert verdict(report, "lse_agrees_with_the_oracle").status == "not_covered"


def test_what_never_returns_is_stopped_and_said_so() -> None:
    report = run("never_returns", call_seconds=0.3)
    assert_breaks(report, "answers", "did not return within 0.3 s")
    assert "stopped: the subject did not return within 0.3 s" in report.stopped


def test_a_hang_fails_the_check_whatever_laws_are_judged() -> None:
    report = run("never_returns", call_seconds=0.3, laws=("out_agrees_with_the_oracle",))
    assert not report.held
    assert report.verdicts[0].status == "error"


def test_a_process_that_closes_its_pipe_and_goes_on_is_ended() -> None:
    opened = InWorker(f"{BROKEN}:closes_all_files_and_waits", "attention", seconds=0.3)
    outcome = opened.run(CASE, {})
    opened.close()
    assert (outcome.kind, outcome.message) == (DIED, "the process closed its pipe, and did not end within 0.3 s")


def test_a_process_that_dies_again_and_again_stops_the_run() -> None:
    report = run("ends_its_process")
    assert f"stopped: the subject's process ended {DEATHS} times" in report.stopped
    assert {v.status for v in report.verdicts} == {"failed", "error"}


def test_what_it_prints_disturbs_nothing() -> None:
    report = run("prints_a_lot", laws=("answers", "out_agrees_with_the_oracle"))
    assert [v.status for v in report.verdicts] == ["held", "held"]


def test_refusing_everything_is_not_covered_and_does_not_hold() -> None:
    report = run("refuses_everything", laws=None)
    assert not report.held
    assert {v.status for v in report.verdicts} == {"not_covered"}
    assert sum(v.compared for v in report.verdicts) == 0
    assert "attention of any kind" in verdict(report, "answers").reason
    assert any("calls refused with NotImplementedError, the last: attention of any kind" in line for line in report.not_covered)


# file text, function: words of the message
UNUSABLE = {
    "fails on import": ("import a_module_that_is_not_there", "f", "fails on import: ModuleNotFoundError: No module named 'a_module_that"),
    "raises on import": ("raise RuntimeError('no GPU')", "f", "fails on import: RuntimeError: no GPU"),
    "has a syntax error": ("def f(q, k, v:\n", "f", "SyntaxError"),
    "has no such function": ("def g(q, k, v): ...\n", "f", "has no 'f'; it has g"),
    "names something that is no function": ("f = 3", "f", "is int; want a function"),
    "exits on import": ("import sys\nsys.exit(4)", "f", "fails on import: SystemExit: 4"),
    "kills itself on import": ("import os\nos._exit(5)", "f", "ended the process while being imported: the process exited with status 5"),
    "takes no arguments": ("def f(): ...", "f", "f: takes nothing; want attention's arguments q, k, v"),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_a_file_that_cannot_be_used_is_bad_usage_that_says_why(what: str, tmp_path: Path) -> None:
    text, function, words = UNUSABLE[what]
    file = tmp_path / "kernel_file.py"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        check("attention", f"{file}:{function}")
    assert words in str(raised.value)


@pytest.mark.parametrize(("spec", "words"), [
    ("nowhere.py:f", "SUBJECT: no file nowhere.py; want an existing Python file"),
    ("nowhere_at_all:f", "SUBJECT: nowhere_at_all cannot be imported"),
    ("attention", "SUBJECT: got 'attention'; want module:function, file.py:function, peers:name or cmd:PROGRAM"),
    ("peers:nobody", "SUBJECT: got peers:nobody; want one of peers:torch_sdpa"),
    ("cmd:./nowhere", "SUBJECT: no program './nowhere'; want cmd:PROGRAM, a file that can be run"),
    ("cmd:", "SUBJECT: no program ''; want cmd:PROGRAM"),
])  # fmt: skip
def test_a_subject_that_is_not_there_is_bad_usage(spec: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_subject(spec, "attention", in_process=True)
    assert words in str(raised.value)


CASE = Case("attention", {name: np.ones((1, 1, 2, 3), np.float32) for name in "qkv"}, {"causal": None})


def test_a_worker_answers_bit_for_bit_as_the_function_in_this_process() -> None:
    spec = f"{BROKEN.with_name('short_attention.py')}:attention"
    answers = []
    for in_process in (True, False):
        opened = open_subject(spec, "attention", in_process=in_process)
        answers.append(opened.run(CASE, {}))
        opened.close()
    assert [a.kind for a in answers] == [RETURNED, RETURNED]
    assert {n: a.tobytes() for n, a in answers[0].outputs.items()} == {n: a.tobytes() for n, a in answers[1].outputs.items()}


@pytest.mark.parametrize(("misbehaves", "kind"), [("time.sleep(600)", HUNG), ("os._exit(1)", DIED)])
def test_a_worker_that_died_or_hung_is_started_again(misbehaves: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "only_once.py").write_text(
        "import os, pathlib, time\n\ndef kernel(q, k, v):\n    seen = pathlib.Path(__file__).with_suffix('.seen')\n"
        f"    if not seen.exists():\n        seen.touch()\n        {misbehaves}\n    return q\n")
    opened = InWorker(f"{tmp_path / 'only_once.py'}:kernel", "attention", seconds=2)
    assert [opened.run(CASE, {}).kind for _ in range(2)] == [kind, RETURNED]
    opened.close()
    opened.close()                                                              # closing twice does no harm


def test_a_partial_without_a_name_can_be_a_subject() -> None:
    def attention(q: Any, k: Any, v: Any, *, factor: float, causal: Any = None) -> Any:
        return np.zeros_like(q) * factor

    opened = open_subject(functools.partial(attention, factor=2.0), "attention")
    assert opened.declaration.name == "partial"


def test_a_declaration_reaches_the_worker_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "declared_kernel.py"
    file.write_text("from oracles.properties import subject\n\n"
                    "@subject('attention', layout='blhd', dtypes=['bfloat16'], head_dims=[8, 16])\n"
                    "def kernel(q, k, v, *, causal, scale=None): ...\n")  # fmt: skip
    in_worker, here = (open_subject(f"{file}:kernel", None, in_process=in_process) for in_process in (False, True))
    in_worker.close()
    assert in_worker.declaration == here.declaration
    assert here.declaration.coverage.head_dims == (8, 16)


def test_a_subject_that_declares_itself_is_not_declared_again(tmp_path: Path) -> None:
    @subject("attention")
    def kernel(q: Any, k: Any, v: Any, *, causal: Any) -> Any: ...

    assert open_subject(kernel, "attention").declaration.coverage.arguments == {"causal"}
    file = tmp_path / "declared_twice.py"
    file.write_text("from oracles.properties import subject\n\n@subject('attention')\ndef kernel(q, k, v): ...\n")
    with pytest.raises(UsageError, match=r"layout: .*declares itself; change its @subject instead"):
        open_subject(f"{file}:kernel", "attention", in_process=True, declared={"layout": "blhd"})
