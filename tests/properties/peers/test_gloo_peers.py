"""PyTorch on two gloo ranks held to the laws of collectives, data, tensor parallelism and ZeRO; optimizers at once do not mix."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import check
from oracles.properties.peers.gloo import OBJECTS, PEERS, all_reduce
from oracles.properties.peers.gloo_ranks import RankError, ranks
from oracles.properties.report import HELD, NOT_COVERED
from oracles.properties.stateful.checker import check_object
from oracles.properties.stateful.zero_model import ADAM

pytestmark = pytest.mark.peers

ALL = [(peer, operation) for peer, operations in PEERS.items() for operation in operations]


@pytest.fixture(autouse=True, scope="module")
def _no_ranks_left() -> Iterator[None]:
    yield
    ranks(2).close()


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


@pytest.mark.parametrize("peer", OBJECTS)
def test_two_sharded_optimizers_at_once_do_not_mix(peer: str) -> None:
    one, other = {"a": np.ones((3, 2)), "b": np.arange(4.0)}, {"a": -np.ones((3, 2)), "b": np.full(4, 0.5)}
    alone = [stepped(attached(peer, given), scale) for given, scale in ((one, 1.0), (other, -3.0))]
    first, second = attached(peer, one), attached(peer, other)
    together = interleaved(first, second)
    for got, want in zip(together, alone):
        assert got[0] == want[0]
        assert {name: x.tobytes() for name, x in got[1].items()} == {name: x.tobytes() for name, x in want[1].items()}


def attached(peer: str, params: dict[str, Any]) -> Any:
    sharded = OBJECTS[peer](1 if peer == "torch_zero_redundancy" else 3, 2, **ADAM)
    sharded.attach(params)
    return sharded


def gradients(scale: float) -> list[list[Any]]:
    return [[scale * (r + 1) * np.ones((3, 2)), scale * np.arange(4.0)] for r in range(2)]


def stepped(sharded: Any, scale: float) -> tuple[float, dict[str, Any]]:
    """The norm and the parameters after one step of two micro-batches."""
    sharded.accumulate(gradients(scale))
    return sharded.step(gradients(2 * scale)), sharded.params()


def interleaved(first: Any, second: Any) -> list[tuple[float, dict[str, Any]]]:
    """The same of both, their micro-batches and steps by turns."""
    first.accumulate(gradients(1.0))
    second.accumulate(gradients(-3.0))
    norms = [first.step(gradients(2.0)), second.step(gradients(-6.0))]
    return [(norms[0], first.params()), (norms[1], second.params())]


def test_ranks_hold_the_optimizers_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(2).close()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    params = {"a": np.ones((3, 2)), "b": np.arange(4.0)}
    kept, dropped = attached("torch_fully_shard", params), attached("torch_zero_redundancy", params)
    both, numbers = held(), [kept.engine, dropped.engine]
    del dropped
    gc.collect()
    last = attached("torch_zero_redundancy", params)
    assert both == [numbers] * 2
    assert held() == [[kept.engine, last.engine]] * 2


def held() -> list[list[int]]:
    return [own["numbers"].tolist() for own in ranks(2).call("rank_calls:engines", [{}, {}], {})]


def test_an_optimizer_whose_ranks_are_lost_says_so() -> None:
    sharded = attached("torch_zero_redundancy", {"a": np.ones((3, 2)), "b": np.arange(4.0)})
    ranks(2).close()
    with pytest.raises(RankError, match=rf"rank 0 of 2 in step: RuntimeError: optimizer {sharded.engine}: this rank does not hold it"):
        sharded.step(gradients(1.0))


def test_what_a_rank_raises_in_an_operation_is_named() -> None:
    with pytest.raises(RankError, match="rank 0 of 2 in all_reduce: KeyError: 'product'"):
        all_reduce([np.ones(1)] * 2, op="product")
