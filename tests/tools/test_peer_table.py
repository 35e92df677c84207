"""The table of peers: a line each, also for those that are not installed. The peers themselves are tested where they are."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oracles.properties import UsageError, check
from oracles.properties.declaration import declaration_of
from oracles.properties.peers import PEER_MODULES, sglang_allocator
from oracles.properties.peers.offered import OFFERED
from oracles.properties.report import FAILED, HELD, Report, Verdict
from oracles.properties.stateful.names import STATEFUL_NAMES
from oracles.reference import BlockAllocator
from oracles.tools import peer_table
from oracles.tools.peer_table import PeerRow, run_peers

VERDICTS = (Verdict("out_agrees_with_the_oracle", HELD, "", 1, 1000, 0, 0.5, "out[0]"), Verdict("a_broken_law", FAILED, "wrong", 1, 234))
REPORT = Report("attention", "peers:first", {}, {}, 0, 2.0, VERDICTS, (), version="first 1.0")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(operation: str, peer: str, **_: Any) -> Report:
        if peer == "peers:first":
            return REPORT
        raise UsageError("SUBJECT: second cannot be imported; want it: pip install 'oracles[second]'")

    offer(monkeypatch, first=("attention",), second=("softmax", "attention"))
    monkeypatch.setattr(peer_table, "run", run)


def offer(monkeypatch: pytest.MonkeyPatch, **operations: tuple[str, ...]) -> None:
    """These peers and no others."""
    monkeypatch.setattr(peer_table, "PEER_MODULES", dict.fromkeys(operations, "softmax"))
    monkeypatch.setattr(peer_table, "OFFERED", operations)


@pytest.mark.usefixtures("peers")
def test_each_peer_has_a_line_and_a_missing_one_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_peers(["softmax", "attention"], budget="quick", failures=Path("failures"), quiet=False)
    assert [(row.peer, row.operation, row.report is not None) for row in rows] == [
        ("peers:first", "attention", True), ("peers:second", "softmax", False), ("peers:second", "attention", False)]  # fmt: skip
    first, second = (line for line in capsys.readouterr().out.splitlines() if "peers:" in line)
    for words in ("first 1.0", "does not hold", "1,234", "0.5", "a_broken_law"):
        assert words in first
    assert "pip install 'oracles[second]'" in second
    assert second.split()[1:5] == ["softmax,", "attention", "not", "run"]


def test_a_missing_library_has_one_line_for_all_its_peers_and_operations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(operation: str, peer: str, **_: Any) -> Report:
        if peer == "peers:first":
            return REPORT
        raise UsageError(f"SUBJECT: {peer[6:9]} cannot be imported")

    offer(monkeypatch, jax=("attention",), jax_bias=("attention", "softmax"), first=("attention",), mlx=("attention",))
    monkeypatch.setattr(peer_table, "run", run)
    run_peers(["attention", "softmax"], budget="quick", failures=Path("failures"), quiet=False)
    idle = [line.split("SUBJECT: ") for line in capsys.readouterr().out.splitlines() if "SUBJECT" in line]
    assert [(*before.split(), after.split()[0]) for before, after in idle] == [
        ("peers:jax", "and", "1", "more", "attention,", "softmax", "not", "run", "jax"),
        ("peers:mlx", "attention", "not", "run", "mlx")]  # fmt: skip


@pytest.mark.parametrize("peer", PEER_MODULES)
def test_a_peer_offers_what_it_declares(monkeypatch: pytest.MonkeyPatch, peer: str) -> None:
    """Declared as if its library were there: calls import theirs when they are made, Triton's alone at once."""
    module = import_module(f"oracles.properties.peers.{PEER_MODULES[peer]}")
    monkeypatch.setattr(module, "library_versions", lambda name: {"library": "0"})
    monkeypatch.setitem(sys.modules, "oracles.properties.peers.calls.triton_flash", SimpleNamespace(attention=lambda q, k, v, *, causal: q))
    declared = getattr(module.subjects, "__wrapped__", module.subjects)(peer)
    objects = module.objects(peer) if hasattr(module, "objects") else ()
    assert set(OFFERED[peer]) == {declaration_of(function, None).operation for function in declared} | set(objects)


def test_nothing_is_offered_but_by_peers() -> None:
    assert set(OFFERED) == set(PEER_MODULES)


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

    offer(monkeypatch, first=("attention",))
    monkeypatch.setattr(peer_table, "run", run)
    run_peers(["attention"], budget="quick", failures=Path("failures"), quiet=True, max_cases=7)
    assert limits == [7]


OBJECT_REPORT = Report("block_allocator", "peers:object", {}, {}, 0, 2.0, (Verdict("a_kept_law", HELD, "", 5, 77),), (), 3, 2, "object 2.0")


def test_objects_stand_beside_functions_without_a_bound_and_are_put_all_their_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {}

    def run(operation: str, peer: str, *, max_cases: int | None, **_: Any) -> Report:
        limits[operation] = max_cases
        return OBJECT_REPORT if operation == "block_allocator" else REPORT

    offer(monkeypatch, object=("block_allocator", "attention"))
    monkeypatch.setattr(peer_table, "run", run)
    run_peers(["block_allocator", "attention"], budget="quick", failures=Path("failures"), quiet=False, max_cases=7)
    assert limits == {"block_allocator": None, "attention": 7}
    line = next(line for line in capsys.readouterr().out.splitlines() if "object 2.0" in line)
    assert line.split() == ["peers:object", "object", "2.0", "block_allocator", "holds", "5", "77", "2"]


def test_an_object_of_a_peer_is_checked_and_names_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_table, "PEER_MODULES", {"sglang_radix": "sglang_allocator"})
    monkeypatch.setattr(sglang_allocator, "library_versions", lambda name: {"sglang": "0"})
    monkeypatch.setattr(sglang_allocator, "PEERS", {"sglang_radix": BlockAllocator})
    monkeypatch.setattr(peer_table, "run", partial(check, in_process=True))
    (row,) = run_peers(["block_allocator", "token_mask"], budget="0", failures=Path("failures"), quiet=True)
    assert row.report is not None
    assert (row.report.operation, row.report.version, row.report.held) == ("block_allocator", "sglang 0", True)


def test_every_peer_that_makes_objects_says_of_which_operation() -> None:
    modules = [import_module(f"oracles.properties.peers.{module}") for module in set(PEER_MODULES.values())]
    makers = [module for module in modules if hasattr(module, "objects")]
    assert {module.OBJECT for module in makers} <= set(STATEFUL_NAMES)
    assert [module for module in modules if hasattr(module, "OBJECT")] == makers
    assert len(makers) >= 3


def test_a_missing_library_is_said_of_the_operation_of_its_objects_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(operation: str, peer: str, **_: Any) -> Report:
        if peer == "peers:first":
            return OBJECT_REPORT
        raise UsageError("SUBJECT: llguidance cannot be imported; want it: pip install 'oracles[guided]'")

    offer(monkeypatch, first=("block_allocator",), llguidance=("token_mask",))
    monkeypatch.setattr(peer_table, "run", run)
    rows = run_peers(["block_allocator", "token_mask"], budget="quick", failures=Path("failures"), quiet=True)
    assert [(row.peer, row.operation) for row in rows] == [("peers:first", "block_allocator"), ("peers:llguidance", "token_mask")]


@pytest.mark.usefixtures("peers")
def test_a_peer_of_functions_is_not_started_for_an_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_peers(["kv_cache", "attention"], budget="quick", failures=Path("failures"), quiet=False)
    assert {row.operation for row in rows} == {"attention"}
    assert "peers:first kv_cache" not in capsys.readouterr().err


def test_an_operation_that_is_none_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="OPERATION: got 'kv_cash'"):
        run_peers(["block_allocator", "kv_cash"], budget="0", failures=Path("failures"), quiet=True)


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
