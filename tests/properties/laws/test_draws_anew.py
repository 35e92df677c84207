"""Generators of a subject's own: a batch that a second call repeats is found wherever it stands, and what is added to weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import subject
from oracles.properties.checker import check
from oracles.properties.laws.subject_laws import draws_anew

COINS = np.random.default_rng(1).integers(0, 2, 1000)


def test_independent_calls_share_nothing() -> None:
    judgement = draws_anew(COINS[:128], COINS[200:328], "token")
    assert not judgement.failed
    assert judgement.compared == 128


@pytest.mark.parametrize("moved_on", [0, 1, 32, 63])
def test_a_generator_that_moves_on_by_less_than_a_call_used_is_found(moved_on: int) -> None:
    for first, second in ((0, moved_on), (moved_on, 0)):
        judgement = draws_anew(COINS[first : first + 128], COINS[second : second + 128], "token")
        assert judgement.failed
        assert f"the {128 - moved_on} numbers" in judgement.reason


def test_coins_that_only_mostly_agree_are_not_those_of_the_first_call() -> None:
    other = COINS[:128].copy()
    other[[0, 40, 127]] ^= 1
    assert not draws_anew(COINS[:128], other, "token").failed


@subject("sample", conventions={"uniforms": "own"})
def added_to(probabilities: Any, u: Any) -> Any:
    """A number added to all weights, against the logarithm of 0: nothing beside weights that sum to 1."""
    p = np.asarray(probabilities, np.float64) + 1e-12
    return (np.log(p) + np.random.default_rng().gumbel(size=p.shape)).argmax(-1)


def test_little_weights_show_what_is_added_to_them() -> None:
    report = check("sample", added_to, budget=0, in_process=True, laws=("draws_pass_the_test_of_their_law",))
    reason = report.verdicts[0].reason
    assert not report.held
    assert "deterministic" not in reason                                        # its draws are its own
    assert "law of law" not in reason
