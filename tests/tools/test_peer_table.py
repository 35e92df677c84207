"""The table of peers: a line each, also for those that are not installed. The peers themselves are tested where they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oracles.properties import UsageError
from oracles.properties.report import FAILED, HELD, Report, Verdict
from oracles.tools import peer_table
from oracles.tools.peer_table import PeerRow, run_peers

VERDICTS = (Verdict("out_agrees_with_the_oracle", HELD, "", 1, 1000, 0, 0.5, "out[0]"), Verdict("a_broken_law", FAILED, "wrong", 1, 234))
REPORT = Report("attention", "peers:first", {}, {}, 0, 2.0, VERDICTS, (), version="first 1.0")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(operation: str, peer: str, **_: Any) -> Report:
        if operation != "attention":
            raise UsageError(f"SUBJECT: {peer} has no {operation}")
        if peer == "peers:first":
            return REPORT
        raise UsageError("SUBJECT: second cannot be imported; want it: pip install 'oracles[second]'")

    monkeypatch.setattr(peer_table, "PEER_MODULES", {"first": "first", "second": "second"})
    monkeypatch.setattr(peer_table, "run", run)


@pytest.mark.usefixtures("peers")
def test_each_peer_has_a_line_and_a_missing_one_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_peers(["softmax", "attention"], budget="quick", failures=Path("failures"), quiet=False)
    assert [(row.peer, row.report is not None) for row in rows] == [("peers:first", True), ("peers:second", False)]
    first, second = (line for line in capsys.readouterr().out.splitlines() if "peers:" in line)
    for words in ("first 1.0", "does not hold", "1,234", "0.5", "a_broken_law"):
        assert words in first
    assert "pip install 'oracles[second]'" in second


@pytest.mark.usefixtures("peers")
def test_what_is_known_to_be_wrong_names_its_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(peer_table, "WRONG", {"first": "a-finding"})
    run_peers(["attention"], budget="quick", failures=Path("failures"), quiet=False)
    said = capsys.readouterr()
    assert "a_broken_law (known: a-finding)" in said.out
    assert "ggml" in said.out
    assert "peers:second attention" in said.err                                 # which is under way


def test_a_limit_on_cases_reaches_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def run(operation: str, peer: str, *, max_cases: int | None, **_: Any) -> Report:
        limits.append(max_cases)
        return REPORT

    monkeypatch.setattr(peer_table, "PEER_MODULES", {"first": "first"})
    monkeypatch.setattr(peer_table, "run", run)
    run_peers(["attention"], budget="quick", failures=Path("failures"), quiet=True, max_cases=7)
    assert limits == [7]


def test_every_peer_that_is_wrong_is_there_and_its_finding_too() -> None:
    findings = (Path(__file__).parents[2] / "docs" / "findings.md").read_text()
    assert set(peer_table.WRONG) <= set(peer_table.PEER_MODULES)
    assert all(f"## {finding}\n" in findings for finding in peer_table.WRONG.values())


@pytest.mark.usefixtures("peers")
def test_no_peer_at_all_is_bad_usage() -> None:
    with pytest.raises(UsageError, match=r"no peer is installed that has such an operation; want one: pip install 'oracles\[peers\]'"):
        run_peers(["softmax"], budget="quick", failures=Path("failures"), quiet=True)


def test_a_row_is_json() -> None:
    assert json.loads(json.dumps(PeerRow("peers:first", "attention", REPORT).to_json()))["report"]["held"] is False
    assert PeerRow("peers:second", "attention", None, "why").to_json() == {
        "peer": "peers:second", "operation": "attention", "reason": "why", "report": None}  # fmt: skip
