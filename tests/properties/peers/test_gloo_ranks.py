"""Ranks in processes of their own: they answer, and one that ends, raises or sleeps is an error that names it, in time.

What all that raise say is not covered is not covered, and no late answer is taken for another call's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import worker_process
from oracles.properties.declaration import UsageError
from oracles.properties.peers.gloo_ranks import SECONDS, GlooRanks, RankError

pytestmark = pytest.mark.peers
X = [{"x": np.array([1.0, 2.0])}, {"x": np.array([10.0, 20.0])}]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of the ranks' functions, where the processes find it too."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return "rank_calls"


@pytest.fixture
def ranks(calls: str) -> Iterator[GlooRanks]:
    group = GlooRanks(2, seconds=5.0)
    yield group
    group.close()


def test_every_rank_returns_what_it_has(ranks: GlooRanks) -> None:
    for factor in (1, 3):
        answers = ranks.call("rank_calls:summed", X, {"factor": factor})
        assert [one["x"].tolist() for one in answers] == [[11.0 * factor, 22.0 * factor]] * 2


@pytest.mark.parametrize(("function", "options", "told"), [
    ("ends", {"doomed": 1}, r"^rank 1 of 2 in ends: the process exited with status 7"),
    ("ends", {"doomed": 0}, r"^rank 0 of 2 in ends: the process exited with status 7"),
    ("raises", {}, r"^rank 1 of 2 in raises: KeyError: 'y' \(rank_calls.py:"),
    ("sleeps", {}, r"rank 1 of 2 in sleeps: did not answer within 5 s"),
    ("stalls", {}, r"^rank 1 of 2 in stalls: did not answer within 5 s"),
    ("refuses_beside_one_that_raises", {}, r"^rank 0 of 2 in refuses_beside_one_that_raises: KeyError: 'y' .*; rank 1 .*NotImplemented"),
    ("refuses_beside_one_that_ends", {}, r"^rank 0 of 2 in refuses_beside_one_that_ends: the process exited with status 7"),
])  # fmt: skip
def test_a_rank_that_does_not_answer_is_named_in_time(ranks: GlooRanks, function: str, options: dict[str, Any], told: str) -> None:
    ranks.call("rank_calls:summed", X, {})
    start = time.monotonic()
    with pytest.raises(RankError, match=told):
        ranks.call(f"rank_calls:{function}", X, options)
    assert time.monotonic() - start < ranks.seconds + 7.0 < SECONDS


@pytest.mark.parametrize(("function", "told"), [
    ("refuses", r"^rank 1 of 2 in refuses: NotImplementedError: no kernel for it \(rank_calls.py:"),
    ("all_refuse", r"^rank \d of 2 in all_refuse: NotImplementedError: no kernel for it \(rank_calls.py:"),
])  # fmt: skip
def test_what_is_not_covered_on_a_rank_is_not_covered(ranks: GlooRanks, function: str, told: str) -> None:
    with pytest.raises(NotImplementedError, match=told):
        ranks.call(f"rank_calls:{function}", X, {})
    assert ranks.call("rank_calls:summed", X, {})[1]["x"].tolist() == [11.0, 22.0]


def test_after_an_error_new_ranks_answer(ranks: GlooRanks) -> None:
    with pytest.raises(RankError):
        ranks.call("rank_calls:ends", X, {})
    assert ranks.call("rank_calls:summed", X, {})[1]["x"].tolist() == [11.0, 22.0]


def test_an_answer_to_a_call_that_was_given_up_is_no_other_calls(ranks: GlooRanks) -> None:
    """Rank 0 has its part of the first call, and rank 1 can not be sent its own."""
    with pytest.raises(TypeError, match="of dtype complex128"):
        ranks.call("rank_calls:summed", [X[0], {"x": X[1]["x"].astype(np.complex128)}], {})
    assert ranks.call("rank_calls:summed", [X[1], X[1]], {})[0]["x"].tolist() == [20.0, 40.0]


def test_a_start_has_two_minutes_and_one_that_fails_leaves_no_rank(ranks: GlooRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_process.START_SECONDS == 120.0
    monkeypatch.setattr(worker_process, "START_SECONDS", 0.01)
    with pytest.raises(UsageError, match=r"rank \d did not finish importing within 0.01 s"):
        ranks.call("rank_calls:summed", X, {})
    monkeypatch.undo()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    assert ranks.call("rank_calls:summed", X, {})[1]["x"].tolist() == [11.0, 22.0]


def test_ranks_end_with_who_started_them(ranks: GlooRanks) -> None:
    ranks.call("rank_calls:summed", X, {})
    processes: Any = [process._process for process in ranks._ranks]
    for process in ranks._ranks:
        os.close(process._to)                                                   # as the system does when their starter is killed
        process._to = os.open(os.devnull, os.O_WRONLY)
    assert [process.wait(5.0) for process in processes] == [0, 0]


def test_the_limit_of_a_call_is_thirty_seconds() -> None:
    assert GlooRanks(2).seconds == SECONDS <= 30.0
