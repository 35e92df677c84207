"""How many draws the e-process needs over 1,000 tokens, and how long the exact laws take: the figures of the page, printed."""

from __future__ import annotations

import statistics
import time
from fractions import Fraction

import numpy as np
import pytest

from oracles.properties.exact_law import distance, emission_law, exact_law
from oracles.properties.law_test import LawTest, looks
from oracles.properties.random_models import random_models

pytestmark = pytest.mark.benchmark

ZIPF = 1 / np.arange(1, 1001) / (1 / np.arange(1, 1001)).sum()


def draws_to_reject(distance_: float, most: int, seed: int) -> int:
    """Draws from the Zipf law with half of its outcomes more likely, until the test of the Zipf law rejects; most + 1: never."""
    generator, sign = np.random.default_rng(seed), np.where(np.arange(1000) % 2 == 0, 1.0, -1.0)
    sign -= (sign * ZIPF).sum()
    p = ZIPF * (1 + 2 * distance_ / np.abs(sign * ZIPF).sum() * sign)
    test = LawTest(dict(enumerate(ZIPF.tolist())))
    for n in looks(most):
        test.add(dict(enumerate(generator.multinomial(n - test.total, p / p.sum()).tolist())))
        if test.rejected:
            return n
    return most + 1


@pytest.mark.parametrize(("distance_", "most"), [(0.03, 150_000), (0.01, 2_000_000)])
def test_a_spread_distance_over_a_thousand_tokens_is_found(distance_: float, most: int) -> None:
    needed = [draws_to_reject(distance_, most, seed) for seed in range(5)]
    print(f"\nV = 1000, distance {distance_}: rejected after {needed} draws, median {statistics.median(needed):,.0f}")
    assert max(needed) <= most


def test_the_exact_law_of_four_tokens_and_three_drafts() -> None:
    draft, target = random_models(4, 0)
    start = time.perf_counter()
    law = exact_law(draft, target, k=3)
    seconds = time.perf_counter() - start
    print(f"\nexact law, V = 4, k = 3: {seconds:.2f} s")
    assert distance(law, emission_law(draft, target, k=3)) == Fraction(0)
