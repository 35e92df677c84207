"""Statistics: intervals and p-values against enumeration, SciPy, and the rates they promise."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import scipy.stats

from oracles.reference import bootstrap_interval, paired_permutation_test, two_sample_law_test
from oracles.reference.statistics import _corrected

VALUES = np.random.default_rng(3).exponential(1.0, 40)
ALPHA = 0.05


# Intervals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [("percentile", "percentile"), ("bca", "BCa")])
def test_an_interval_is_scipys_but_for_the_draws(ours: Any, theirs: str) -> None:
    """Both ends of 20 seeds each: the ranges of the two implementations overlap."""
    intervals = [bootstrap_interval(VALUES, level=0.9, resamples=999, seed=seed, method=ours) for seed in range(20)]
    own = np.array([(interval.low, interval.high) for interval in intervals])
    other = np.array([scipy.stats.bootstrap((VALUES,), np.mean, confidence_level=0.9, n_resamples=999, method=theirs, rng=seed)
                      .confidence_interval for seed in range(20)])  # fmt: skip
    for end in range(2):
        assert own[:, end].min() <= other[:, end].mean() <= own[:, end].max()
        assert other[:, end].min() <= own[:, end].mean() <= other[:, end].max()


def test_the_corrected_interval_of_a_skewed_sample_lies_further_to_its_long_side() -> None:
    plain, corrected = (bootstrap_interval(VALUES, level=0.9, resamples=4000, seed=0, method=m) for m in ("percentile", "bca"))
    assert corrected.high > plain.high
    assert corrected.low > plain.low


def test_a_biased_estimate_moves_both_tails_by_twice_its_bias() -> None:
    """Three in four resamples below the estimate and no skewness: Phi(2 z0 + z), z0 = Phi^-1(3/4)."""
    normal = NormalDist()
    z0 = normal.inv_cdf(0.75)
    tails = _corrected([0.05, 0.95], np.array([0.0, 0.0, 0.0, 2.0]), 1.0, np.array([-1.0, 0.0, 1.0]))
    assert tails == [normal.cdf(z0 + (z0 + normal.inv_cdf(tail))) for tail in (0.05, 0.95)]


def test_every_resample_of_two_values_is_known() -> None:
    """Means 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4: the interval of level 0.9 spans all of them."""
    interval = bootstrap_interval([0.0, 1.0], level=0.9, resamples=2000, seed=0, method="percentile")
    assert (interval.estimate, interval.low, interval.high) == (0.5, 0.0, 1.0)


def test_equal_values_leave_no_room() -> None:
    interval = bootstrap_interval([2.5] * 5, level=0.99, resamples=100, seed=0)
    assert (interval.estimate, interval.low, interval.high) == (2.5, 2.5, 2.5)


def test_one_seed_gives_one_interval_and_another_another() -> None:
    first, again, other = (bootstrap_interval(VALUES, level=0.9, resamples=200, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_statistic_of_ones_own() -> None:
    interval = bootstrap_interval(VALUES, level=0.9, resamples=500, seed=0, statistic=lambda x: float(np.median(x)), method="percentile")
    assert interval.low <= interval.estimate == float(np.median(VALUES)) <= interval.high


# Paired runs -------------------------------------------------------------------------------------------------------------


def enumerated(a: list[int], b: list[int]) -> Fraction:
    """The share of sign patterns with a sum at least as far from 0, in whole numbers."""
    d = [x - y for x, y in zip(a, b)]
    reached = [abs(sum(s * x for s, x in zip(signs, d))) >= abs(sum(d)) for signs in itertools.product((1, -1), repeat=len(d))]
    return Fraction(sum(reached), len(reached))


@pytest.mark.parametrize("seed", range(6))
def test_up_to_sixteen_pairs_every_sign_is_tried(seed: int) -> None:
    a, b = np.random.default_rng(seed).integers(-3, 4, (2, 8))
    assert Fraction(paired_permutation_test(a, b, resamples=1, seed=0)) == enumerated(a.tolist(), b.tolist())


def test_ties_are_not_lost_to_rounding() -> None:
    """0.1 + 0.2 - 0.3 is no 0 in float64; every pattern of these differences that ties in tenths must count."""
    d = [0.1, 0.2, -0.3, 0.7, 0.1]
    tenths = [1, 2, -3, 7, 1]
    wanted = enumerated(tenths, [0] * 5)
    assert Fraction(paired_permutation_test(d, [0.0] * 5, resamples=1, seed=0)) == wanted


def test_many_pairs_are_drawn_and_agree_with_scipy() -> None:
    g = np.random.default_rng(0)
    a = g.standard_normal(30)
    b = a + 0.3 * g.standard_normal(30) + 0.1
    ours = paired_permutation_test(a, b, resamples=5000, seed=0)
    theirs = scipy.stats.permutation_test((a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=5000, rng=1).pvalue
    spread = 5 * np.sqrt(ours * (1 - ours) / 5000 * 2)                          # five standard errors of the difference
    assert abs(ours - theirs) <= spread


# Two samplers ------------------------------------------------------------------------------------------------------------


def fisher(a: tuple[int, int], b: tuple[int, int]) -> Fraction:
    """The share of 2 x 2 tables of the same margins that lie at least as far from what the margins alone would make."""
    n, m, k = sum(a), sum(b), a[0] + b[0]
    middle = Fraction(n * k, n + m)
    tables = {i: Fraction(comb(n, i) * comb(m, k - i), comb(n + m, k)) for i in range(max(0, k - m), min(n, k) + 1)}
    return sum((p for i, p in tables.items() if abs(i - middle) >= abs(a[0] - middle)), Fraction(0))


@pytest.mark.parametrize(("a", "b"), [((8, 2), (3, 7)), ((5, 5), (5, 5)), ((12, 3), (9, 6)), ((1, 0), (0, 1))])
def test_two_outcomes_have_fishers_p_value(a: tuple[int, int], b: tuple[int, int]) -> None:
    """Within five standard errors of the draws."""
    exact, resamples = float(fisher(a, b)), 20_000
    p = two_sample_law_test(a, b, resamples=resamples, seed=0)
    assert abs(p - exact) <= 5 * np.sqrt(exact * (1 - exact) / resamples) + 1 / (1 + resamples)


def three_outcomes(a: tuple[int, ...], b: tuple[int, ...]) -> Fraction:
    """The share of all 2 x 3 tables of the same margins whose Pearson statistic is at least as large, in fractions."""
    n, margin = sum(a), [x + y for x, y in zip(a, b)]
    total = sum(margin)

    def statistic(table: tuple[int, ...]) -> Fraction:
        rows = ((table, n), (tuple(k - x for k, x in zip(margin, table)), total - n))
        return sum((x - Fraction(k * size, total)) ** 2 / Fraction(k * size, total) for row, size in rows for x, k in zip(row, margin))

    tables = [(i, j, n - i - j) for i in range(margin[0] + 1) for j in range(margin[1] + 1) if 0 <= n - i - j <= margin[2]]
    share = {table: Fraction(comb(margin[0], table[0]) * comb(margin[1], table[1]) * comb(margin[2], table[2]), comb(total, n))
             for table in tables}  # fmt: skip
    return sum((p for table, p in share.items() if statistic(table) >= statistic(a)), Fraction(0))


@pytest.mark.parametrize(("a", "b"), [((6, 3, 1), (2, 3, 5)), ((10, 0, 1), (8, 3, 0)), ((5, 2, 2), (5, 4, 0))])
def test_three_outcomes_of_unequal_margins_have_the_p_value_of_all_their_tables(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Within five standard errors of the draws."""
    exact, resamples = float(three_outcomes(a, b)), 20_000
    p = two_sample_law_test(a, b, resamples=resamples, seed=0)
    assert abs(p - exact) <= 5 * np.sqrt(exact * (1 - exact) / resamples) + 1 / (1 + resamples)


def test_one_law_is_rejected_no_more_often_than_promised() -> None:
    """400 pairs of samples of one law with rare outcomes: at 5 % at most what a binomial of 400 reaches once in 10^6."""
    g, p = np.random.default_rng(5), np.array([0.7, 0.28, 0.018, 0.002])
    rejected = sum(two_sample_law_test(*g.multinomial(200, p, 2), resamples=199, seed=seed) <= ALPHA for seed in range(400))
    assert rejected <= scipy.stats.binom.ppf(1 - 1e-6, 400, ALPHA)


def test_another_law_is_found() -> None:
    g = np.random.default_rng(6)
    a, b = g.multinomial(2000, [0.5, 0.3, 0.2]), g.multinomial(2000, [0.4, 0.4, 0.2])
    assert two_sample_law_test(a, b, resamples=999, seed=0) == 1 / 1000


def test_outcomes_that_nobody_saw_do_not_matter() -> None:
    plain = two_sample_law_test([30, 20], [25, 25], resamples=500, seed=0)
    assert two_sample_law_test([30, 0, 20, 0], [25, 0, 25, 0], resamples=500, seed=0) == plain


@pytest.mark.parametrize(("call", "words"), [
    (lambda: bootstrap_interval([1.0], level=0.9, resamples=9, seed=0), r"values: got shape \(1,\); want one axis of at least 2"),
    (lambda: bootstrap_interval([1.0, np.nan], level=0.9, resamples=9, seed=0), "values: got .* not finite"),
    (lambda: bootstrap_interval([1.0, 2.0], level=1.0, resamples=9, seed=0), "level: got 1.0; want 0 < level < 1"),
    (lambda: bootstrap_interval([1.0, 2.0], level=0.9, resamples=9, seed=0, method="t"), "method: got 't'"),  # type: ignore[arg-type]
    (lambda: bootstrap_interval([1.0, 2.0], level=0.9, resamples=9, seed=0, statistic=lambda x: np.inf), "statistic: got inf"),
    (lambda: paired_permutation_test([1.0], [1.0, 2.0], resamples=9, seed=0), "b: got 2 values beside 1 of a"),
    (lambda: two_sample_law_test([1, 2], [1], resamples=9, seed=0), r"b: got shape \(1,\) beside a \(2,\)"),
    (lambda: two_sample_law_test([0, 0], [1, 1], resamples=9, seed=0), "a, b: got 0 and 2 draws; want at least one each"),
    (lambda: two_sample_law_test([-1, 2], [1, 1], resamples=9, seed=0), "a: got numbers from -1 to 2"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
