"""The command line: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from oracles.properties.operations import OPERATIONS
from oracles.properties.signatures import SIGNATURES
from oracles.properties.softmax import SOFTMAX
from oracles.properties.stateful.names import STATEFUL_NAMES

LAWS = [law.name for law in SOFTMAX.laws]
QUICK = ("--budget", "quick")
STABLE = {"operation", "subject", "held", "arithmetic", "seed", "seconds", "verdicts", "not_covered", "power"}
STABLE_OF_A_VERDICT = {"law", "status", "reason", "cases", "compared", "worst_ratio", "counterexample"}


def test_list_names_every_operation(oracles: Any) -> None:
    ended = oracles("list")
    assert ended.code == 0
    assert [line.split()[0] for line in ended.out.splitlines()] == [*SIGNATURES, *STATEFUL_NAMES]
    assert [row["operation"] for row in oracles("list", "--json").data] == [*SIGNATURES, *STATEFUL_NAMES]


def test_a_right_subject_exits_with_0(oracles: Any) -> None:
    ended = oracles("check", "kernels.py:softmax", *QUICK)
    assert ended.code == 0, ended.out + ended.err
    assert "holds" in ended.out
    assert "p_agrees_with_the_oracle" in ended.out
    assert "inputs in bfloat16: not declared" in ended.out
    assert not Path("failures").exists()


def test_a_broken_subject_exits_with_1_and_says_how_to_see_it_again(oracles: Any) -> None:
    ended = oracles("check", "softmax", "kernels.py:twice", *QUICK)
    assert ended.code == 1
    assert "does not hold: " in ended.out
    (folder,) = {line.split("oracles replay ")[1] for line in ended.out.splitlines() if "p_agrees" in line and "oracles replay" in line}
    assert (Path(folder) / "repro.py").is_file()


def test_json_has_the_stable_keys_and_no_infinities(oracles: Any) -> None:
    data = oracles("check", "softmax", "kernels.py:twice", *QUICK, "--json").data
    assert set(data) >= STABLE
    assert all(set(verdict) >= STABLE_OF_A_VERDICT for verdict in data["verdicts"])
    assert (data["operation"], data["subject"], data["held"], data["seed"]) == ("softmax", "kernels.py:twice", False, 0)
    assert [verdict["law"] for verdict in data["verdicts"]] == LAWS
    assert {verdict["status"] for verdict in data["verdicts"]} == {"held", "failed", "not_covered"}
    exact = next(verdict for verdict in data["verdicts"] if verdict["law"] == "equal_entries_share_exactly")
    assert (exact["worst_ratio"], exact["worst_ratio_infinite"]) == (None, True)
    assert Path(exact["counterexample"], "case.safetensors").is_file()


def test_several_subjects_give_a_list(oracles: Any) -> None:
    ended = oracles("check", "softmax", "kernels.py:softmax", "kernels.py:twice", *QUICK, "--law", "answers", "--law", LAWS[1], "--json")
    assert ended.code == 1
    assert [(report["subject"], report["held"]) for report in ended.data] == [("kernels.py:softmax", True), ("kernels.py:twice", False)]


def test_what_a_subject_prints_stays_out_of_the_json(oracles: Any) -> None:
    assert oracles("check", "softmax", "kernels.py:noisy", *QUICK, "--law", "answers", "--json").data["held"]


def test_the_operation_is_told_by_the_subjects_name_or_declaration(oracles: Any) -> None:
    for subject in ("kernels.py:softmax", "kernels.py:declared"):
        assert oracles("check", subject, *QUICK, "--law", "answers", "--json").data["operation"] == "softmax"


def test_only_the_laws_named_are_judged(oracles: Any) -> None:
    data = oracles("check", "kernels.py:softmax", *QUICK, "--law", LAWS[2], "--law", "answers", "--json").data
    assert [verdict["law"] for verdict in data["verdicts"]] == ["answers", LAWS[2]]


def test_the_seed_and_the_budget_reach_the_report(oracles: Any) -> None:
    data = oracles("check", "kernels.py:softmax", "--budget", "5", "--seed", "7", "--law", "answers", "--json").data
    assert (data["seed"], data["cases"]["random"]) == (7, 5)


def test_in_process_is_the_same(oracles: Any) -> None:
    def judged(*more: str) -> Any:
        data = oracles("check", "kernels.py:softmax", *QUICK, "--json", *more).data
        return [(verdict["law"], verdict["status"], verdict["compared"]) for verdict in data["verdicts"]]

    assert judged() == judged("--in-process")


def test_a_run_that_was_stopped_does_not_hold(oracles: Any) -> None:
    ended = oracles("check", "kernels.py:softmax", "--max-seconds", "0", "--json")
    assert ended.code == 1
    assert ended.data["stopped"].startswith("stopped after 0 s")


def test_formats_can_be_declared(oracles: Any) -> None:
    ended = oracles("check", "kernels.py:softmax", "--dtype", "float16", "--arithmetic", "eager", *QUICK, "--law", "answers", "--json")
    assert ended.code == 0, ended.out
    assert "inputs in float32: not declared" in ended.data["not_covered"]
    assert ended.data["arithmetic"]["probabilities"] == "input"


HALVES = """
import numpy as np

def turn(x, positions, *, base=10000.0):
    R = x.shape[-1]
    t = positions[..., None] * base ** (-np.arange(0, R, 2) / R)
    a, b, cos, sin = x[..., : R // 2], x[..., R // 2 :], np.cos(t), np.sin(t)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
"""


def test_the_values_that_an_option_takes_can_be_declared(oracles: Any) -> None:
    Path("turning.py").write_text(HALVES)
    told = ("check", "rope", "turning.py:turn", *QUICK, "--law", "out_agrees_with_the_oracle")
    assert oracles(*told, "--only", "pairing=half").code == 0
    assert oracles(*told, "--only", "pairing=interleaved").code == 1
    silent = oracles(*told)
    assert (silent.code, "--only pairing=half" in silent.err) == (2, True)


@pytest.mark.parametrize(("word", "told"), [
    ("pairing", "--only: got 'pairing'; want OPTION=VALUE or OPTION=VALUE,VALUE"),
    ("pairing=", "--only: got 'pairing='; want OPTION=VALUE"),
    ("pairing=halves", "only['pairing']: got 'halves'; want one of half, interleaved"),
    ("scaling=none,linaer", "only['scaling']: got 'linaer'; want one of none, linear, ntk, yarn, llama3"),
])  # fmt: skip
def test_values_that_there_are_not_are_bad_usage(word: str, told: str, oracles: Any) -> None:
    Path("turning.py").write_text(HALVES)
    ended = oracles("check", "rope", "turning.py:turn", *QUICK, "--only", word)
    assert ended.code == 2
    assert told in ended.err


def test_junit_has_one_test_a_law(oracles: Any) -> None:
    assert oracles("check", "softmax", "kernels.py:softmax", "kernels.py:twice", *QUICK, "--junit", "out.xml").code == 1
    root = ElementTree.parse("out.xml").getroot()
    assert [suite.get("name") for suite in root] == ["softmax kernels.py:softmax", "softmax kernels.py:twice"]
    for suite in root:
        assert [test.get("name") for test in suite] == LAWS
        assert suite.get("tests") == str(len(LAWS))
        children = [child.tag for test in suite for child in test]
        assert (suite.get("failures"), suite.get("skipped")) == (str(children.count("failure")), str(children.count("skipped")))
    assert root[0].get("failures") == "0"
    assert int(root[1].get("failures", "0")) > 0
    assert [p.name for p in Path().glob("out.xml*")] == ["out.xml"]


# arguments: words of the message
BAD_USAGE = {
    ("check", "sofmax"): "OPERATION: got 'sofmax'; want one of `oracles list`, such as softmax",
    ("check", "sofmax", "kernels.py:softmax"): "OPERATION: got 'sofmax'; want one of `oracles list`, such as softmax",
    ("check", "kernels.py:sofmax"): "SUBJECT: kernels.py has no 'sofmax'; it has ",
    ("check", "kernels.py:twice"): "OPERATION: not given, and twice declares none; want one of `oracles list`",
    ("check", "softmax", "nowhere.py:softmax"): "SUBJECT: no file nowhere.py; want an existing Python file",
    ("check", "softmax", "kernels:nothing"): "SUBJECT: kernels has no 'nothing'; it has ",
    ("check", "kernels.py:softmax", "--law", "fast"): "laws: softmax has no fast; want some of answers, ",
    ("check", "kernels.py:softmax", "--budget", "large"): "budget: got 'large'; want a number of random cases, or one of quick",
    ("check", "kernels.py:softmax", "--layout", "lbhd"): "layout: got 'lbhd'; want one of bhld, blhd",
    ("check", "kernels.py:softmax", "--arithmetic", "fast"): "arithmetic: got 'fast'; want an Arithmetic or one of default",
    ("check", "kernels.py:softmax", "--seed", "one"): "Invalid value for '--seed'",
    ("check", "kernels.py:declared", "--dtype", "float16"): "dtypes: kernels.py:declared declares itself; change its @subject instead",
    ("check", "merge_attention"): "SUBJECT: not given, and we have no port of merge_attention; want file.py:function",
    ("show", "sofmax"): "OPERATION: got 'sofmax'; want one of `oracles list`, such as softmax",
    ("show", "scaler"): "OPERATION: got 'scaler'; want one of `oracles list`, such as loss_scaler",
    ("replay", "nowhere"): "FAILURE: nowhere is no counterexample; want a folder with case.safetensors and report.json",
    ("peers", "sofmax"): "OPERATION: got 'sofmax'; want one of `oracles list`, such as softmax",
    ("invent",): "No such command 'invent'",
}


@pytest.mark.parametrize("arguments", BAD_USAGE, ids=" ".join)
def test_bad_usage_exits_with_2_and_says_what_is_wanted(arguments: tuple[str, ...], oracles: Any) -> None:
    ended = oracles(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert BAD_USAGE[arguments] in " ".join(ended.err.replace("│", " ").split())
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("operation", [operation.name for operation in OPERATIONS])
def test_every_operation_can_be_shown(operation: str, oracles: Any) -> None:
    assert oracles("show", operation).code == 0
    data = oracles("show", operation, "--json").data
    assert (data["operation"], data["results"]) == (operation, list(SIGNATURES[operation].results))
