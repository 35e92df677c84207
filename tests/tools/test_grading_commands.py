"""The grader's commands: from a folder of inputs to a class list, with exit codes and every form of the report."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from oracles.golden.export import READERS, export
from oracles.golden.grade import Criterion, Grade
from oracles.golden.grade_report import csv_of, junit_of, markdown_of

PAGE = (Path(__file__).parent.parent.parent / "docs" / "grading.md").read_text()
SCHEMA = json.loads(resources.files("oracles.tools").joinpath("schemas", "grade.schema.json").read_text())
WILD = [
    Grade("=cmd|' /C calc'!A0", [Criterion("softmax/pair", 0, 1, "unreadable: <b>&\"|`x`"), Criterion("softmax/long", 1, 1)], ["a|b"]),
    Grade("full", [Criterion("softmax/pair", 1, 1), Criterion("softmax/long", 1, 1), Criterion("log_sum_exp/x", 0, 0, "not judged")]),
]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class of three that answered softmax: one right, one who left out the longest case, one who handed in nothing."""
    top = tmp_path_factory.mktemp("class")
    export(top / "cases", ["softmax"])
    (top / "right" / "answers" / "softmax").mkdir(parents=True)
    for given in (top / "cases" / "inputs" / "softmax").iterdir():
        answer = top / "right" / "answers" / "softmax" / given.name
        subprocess.run([sys.executable, str(READERS / "softmax.py"), str(given), str(answer)], check=True)
    shutil.copytree(top / "right", top / "short")
    (top / "short" / "answers" / "softmax" / "long.safetensors").unlink()
    (top / "nothing").mkdir()
    return top


def test_full_marks_exit_with_0(oracles: Callable[..., Any], folders: Path) -> None:
    ended = oracles("grade", str(folders / "right"), "--operation", "softmax")
    assert ended.code == 0
    assert ended.out.rstrip().endswith("right: 16 of 16 points")


def test_lost_points_exit_with_1_and_are_named(oracles: Callable[..., Any], folders: Path) -> None:
    ended = oracles("grade", str(folders / "short"), "--operation", "softmax")
    assert ended.code == 1
    assert "softmax/long: 0 of 1: missing: no answers/softmax/long.safetensors" in ended.out


def test_a_class_is_one_line_each(oracles: Callable[..., Any], folders: Path, tmp_path: Path) -> None:
    names = [str(folders / name) for name in ("right", "short", "nothing")]
    files = ["--csv", "class.csv", "--markdown", "class.md", "--junit", "class.xml"]
    ended = oracles("grade", *names, "--operation", "softmax", *files)
    assert ended.code == 1
    assert "1 of 3 have full marks" in ended.out
    rows = list(csv.DictReader((tmp_path / "class.csv").open()))
    assert [(row["submission"], row["score"], row["max_score"], row["missing"], row["softmax"], row["flags"]) for row in rows] == [
        ("right", "16", "16", "0", "16", ""), ("short", "15", "16", "1", "15", ""),
        ("nothing", "0", "16", "16", "0", "holds no answers/")]  # fmt: skip
    assert "softmax/\\*: 0 of 16: missing: all 16 cases" in (tmp_path / "class.md").read_text()
    suites = ElementTree.parse(tmp_path / "class.xml").getroot()
    assert [(suite.get("tests"), suite.get("failures")) for suite in suites] == [("16", "0"), ("16", "1"), ("16", "16")]


def test_json_fits_its_schema(oracles: Callable[..., Any], folders: Path) -> None:
    one = oracles("grade", str(folders / "short"), "--operation", "softmax", "--json").data
    two = oracles("grade", str(folders / "short"), str(folders / "right"), "--operation", "softmax", "--json").data
    for data in (one, two):
        jsonschema.validate(data, SCHEMA)
    assert (one["score"], two[1]["score"]) == (15, 16)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({name: value for name, value in one.items() if name != "criteria"}, SCHEMA)


@pytest.mark.parametrize(("words", "says"), [
    (["nowhere"], "DIR: got nowhere; want a folder"), ([".", "--operation", "softmx"], "--operation: got 'softmx'; want some of"),
    ([".", "--declaration", "nowhere.json"], "--declaration: missing"),
])  # fmt: skip
def test_bad_usage_exits_with_2(words: list[str], says: str, oracles: Callable[..., Any]) -> None:
    ended = oracles("grade", *words)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err


def test_a_report_that_cannot_be_written_is_bad_usage(oracles: Callable[..., Any], folders: Path) -> None:
    ended = oracles("grade", str(folders / "right"), "--operation", "softmax", "--csv", "nowhere/class.csv")
    assert ended.code == 2
    assert "nowhere/class.csv: No such file or directory" in ended.err


def test_export_says_what_it_wrote_and_refuses_a_folder_that_is_there(oracles: Callable[..., Any]) -> None:
    made = oracles("golden", "export", "cases", "--operation", "softmax", "--json")
    assert (made.code, made.data) == (0, {"folder": "cases", "cases": 16, "operations": {"softmax": 16}})
    again = oracles("golden", "export", "cases")
    assert (again.code, again.out) == (2, "")
    assert "cases is there already" in again.err


def test_the_three_commands_of_the_page(tmp_path: Path) -> None:
    """As they stand there, in a shell, with the programs of this environment."""
    commands = PAGE.split("```sh")[1].split("```")[0].strip()
    assert len(commands.splitlines()) == 3
    places = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env=places, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "class.csv").read_text().splitlines()[1] == "ada,16,16,0,16,"


def test_nobody_writes_formulas_or_markup_into_a_report() -> None:
    assert csv_of(WILD).splitlines()[1].startswith("'=cmd")
    text = markdown_of(WILD)
    assert "unreadable: \\<b\\>\\&\"\\|\\`x\\`" in text
    assert "Lost" not in text.split("## full")[1]
    (first, second) = ElementTree.fromstring(junit_of(WILD))
    assert first[0][0].get("message") == "0 of 1: unreadable: <b>&\"|`x`"
    assert (second.get("failures"), second.get("skipped"), second[2][0].tag) == ("0", "1", "skipped")
