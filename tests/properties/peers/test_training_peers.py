"""Released losses and optimizers held to the laws: what should hold does, and what is declared is needed."""

from __future__ import annotations

import pytest

from oracles.properties import check
from oracles.properties.loading import load
from oracles.properties.peers.training import PEERS
from oracles.properties.report import FAILED, HELD, NOT_COVERED

pytestmark = pytest.mark.peers

ALL = [(peer, operation) for peer, operations in PEERS.items() for operation in operations]


@pytest.mark.parametrize(("peer", "operation"), ALL)
def test_a_released_library_keeps_the_laws(peer: str, operation: str) -> None:
    report = check(operation, f"peers:{peer}", budget="quick", max_seconds=100.0, call_seconds=100.0)
    for verdict in report.verdicts:
        assert verdict.status in (HELD, NOT_COVERED), f"{verdict.law}: {verdict.reason} {verdict.case}"
    assert sum(verdict.status == HELD for verdict in report.verdicts) >= 6
    assert all(verdict.compared > 0 for verdict in report.verdicts if verdict.status == HELD)


@pytest.mark.parametrize(("peer", "operation"), [(peer, next(iter(operations))) for peer, operations in PEERS.items()])
def test_a_peer_says_which_version_it_is(peer: str, operation: str) -> None:
    _, declaration = load(f"peers:{peer}", operation)
    assert any(character.isdigit() for character in declaration.version)


def test_a_mean_of_no_target_is_nan_in_pytorch_and_must_be_declared() -> None:
    from oracles.properties.declaration import subject
    from oracles.properties.peers.calls.training import torch_cross_entropy

    undeclared = subject("cross_entropy", framework="torch")(torch_cross_entropy)
    (verdict,) = check("cross_entropy", undeclared, budget="quick", laws=("nothing_to_score_is_no_loss",)).verdicts
    assert verdict.status == FAILED
    assert "is nan, wanted 0" in verdict.reason
