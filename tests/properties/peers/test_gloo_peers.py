"""PyTorch on two gloo ranks held to the laws of collectives, data, tensor parallelism and ZeRO; a rank that is lost is named."""

from __future__ import annotations

import time

import numpy as np
import pytest

from oracles.properties import check
from oracles.properties.peers.gloo import OBJECTS, PEERS
from oracles.properties.report import HELD, NOT_COVERED
from oracles.properties.stateful.checker import check_object

pytestmark = pytest.mark.peers

ALL = [(peer, operation) for peer, operations in PEERS.items() for operation in operations]


@pytest.mark.parametrize(("peer", "operation"), ALL)
def test_two_ranks_keep_the_laws(peer: str, operation: str) -> None:
    report = check(operation, f"peers:{peer}", budget="quick", max_seconds=200.0, call_seconds=150.0)
    for verdict in report.verdicts:
        assert verdict.status in (HELD, NOT_COVERED), f"{verdict.law}: {verdict.reason} {verdict.case}"
    assert sum(verdict.status == HELD for verdict in report.verdicts) >= 4
    assert all(verdict.compared > 0 for verdict in report.verdicts if verdict.status == HELD)


@pytest.mark.parametrize("peer", OBJECTS)
def test_two_sharded_ranks_take_the_step_of_one(peer: str) -> None:
    report = check_object("zero", f"peers:{peer}", budget=0, call_seconds=150.0)
    held = {verdict.law: verdict for verdict in report.verdicts if verdict.status == HELD}
    assert {verdict.status for verdict in report.verdicts} <= {HELD, NOT_COVERED}
    assert held["parameters_follow_the_step_of_one_rank"].compared > 0
    assert held["the_norm_is_that_of_the_whole_gradient"].compared > 0


def test_a_rank_that_dies_is_named_with_what_it_was_doing() -> None:
    from oracles.properties.peers.calls.gloo_ranks import RankLost, Ranks

    ranks = Ranks(seconds=30.0)
    try:
        ranks.ask("all_reduce", [(np.ones(1), "sum")] * 2)
        for doomed in (1, 0):
            began = time.monotonic()
            with pytest.raises(RankLost, match=f"rank {doomed} ended with exit status 17 during crash"):
                ranks.ask("crash", [(rank, doomed) for rank in range(2)])
            assert time.monotonic() - began < 30.0 + 60.0 * (doomed == 0)       # the second pair has to be started first
        assert ranks.ask("all_reduce", [(np.ones(1), "sum")] * 2)[1].tolist() == [2.0]
    finally:
        ranks.close()


def test_a_rank_that_hangs_is_named_within_the_limit() -> None:
    from oracles.properties.peers.calls.gloo_ranks import RankLost, Ranks

    ranks = Ranks(seconds=3.0)
    try:
        ranks.ask("all_reduce", [(np.ones(1), "sum")] * 2)
        began = time.monotonic()
        with pytest.raises(RankLost, match="rank 1 did not answer stall within 3 s"):
            ranks.ask("stall", [(rank, 1) for rank in range(2)])
        assert time.monotonic() - began < 10.0
    finally:
        ranks.close()
