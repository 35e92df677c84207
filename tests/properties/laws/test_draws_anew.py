"""Draws anew: a batch that a second call repeats is found wherever it stands, and independent ones are not accused."""

from __future__ import annotations

import numpy as np
import pytest

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
