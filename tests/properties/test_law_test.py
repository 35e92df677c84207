"""The e-process: it rejects what is off, an impossible outcome at once, and holds its rate of false alarms at every look."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from oracles.properties.law_test import LawTest, log_evidence, looks


def spread(p: np.ndarray, distance: float) -> np.ndarray:
    """p with every second outcome more likely, the others less, at this total variation."""
    sign = np.where(np.arange(len(p)) % 2 == 0, 1.0, -1.0)
    sign -= (sign * p).sum()
    return p * (1 + 2 * distance / np.abs(sign * p).sum() * sign)


def run(p: np.ndarray, drawn: np.ndarray, most: int, seed: int) -> LawTest:
    test, generator = LawTest(dict(enumerate(p.tolist()))), np.random.default_rng(seed)
    for n in looks(most):
        counts = generator.multinomial(n - test.total, drawn / drawn.sum())
        test.add(dict(enumerate(counts.tolist())))
        if test.rejected:
            break
    return test


ZIPF = 1 / np.arange(1, 9) / (1 / np.arange(1, 9)).sum()


@pytest.mark.parametrize(("distance", "most"), [(0.1, 8_000), (0.03, 60_000), (0.01, 500_000)])
def test_a_distance_over_eight_outcomes_is_found(distance: float, most: int) -> None:
    assert all(run(ZIPF, spread(ZIPF, distance), most, seed).rejected for seed in range(10))


def test_the_law_itself_is_not_rejected() -> None:
    assert not any(run(ZIPF, ZIPF, 100_000, seed).rejected for seed in range(20))


def test_evidence_against_the_truth_is_rare_at_every_look() -> None:
    """Ville: P(E ever reaches 10) <= 1/10. Of 400 runs, 40 are allowed on average; 70 would be five standard deviations more."""
    reached = 0
    for seed in range(400):
        generator, counts = np.random.default_rng(seed), np.zeros(8)
        for _ in range(40):
            counts += generator.multinomial(50, ZIPF)
            if log_evidence(counts, ZIPF) >= math.log(10.0):
                reached += 1
                break
    assert reached <= 70


def test_an_impossible_outcome_rejects_at_once() -> None:
    test = LawTest({"a": Fraction(1), "b": Fraction(0)})
    test.add({"a": 1000})
    assert not test.rejected
    test.add({"b": 1})
    assert test.rejected
    assert test.impossible == "b"


def test_the_evidence_of_two_outcomes_is_the_mean_of_beta_binomials() -> None:
    """By hand for one draw of probability 1/4: DirMult = c p / c = p, so E = 1 for every c; for two equal draws (c p + 1)/(c + 1)/p."""
    from oracles.properties.law_test import CONCENTRATIONS

    assert abs(log_evidence(np.array([1.0, 0.0]), np.array([0.25, 0.75]))) < 2.0**-30
    by_hand = sum((c * 0.25 + 1) / (c + 1) / 0.25 for c in CONCENTRATIONS) / len(CONCENTRATIONS)
    assert abs(log_evidence(np.array([2.0, 0.0]), np.array([0.25, 0.75])) - math.log(by_hand)) < 2.0**-30


def test_what_would_have_been_found_is_found() -> None:
    held = run(ZIPF, ZIPF, 50_000, 1)
    distance = held.smallest_distance()
    assert 0.005 < distance < 0.05
    assert sum(run(ZIPF, spread(ZIPF, 1.25 * distance), 50_000, seed).rejected for seed in range(20)) >= 19


def test_without_draws_nothing_would_have_been_found() -> None:
    assert LawTest({0: 0.5, 1: 0.5}).smallest_distance() == 1.0


def test_a_law_that_does_not_sum_to_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"law: got probabilities of sum 0\.75; want none below 0 and a sum of 1"):
        LawTest({0: 0.5, 1: 0.25})
