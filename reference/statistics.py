"""Statistics of measurements: an interval for an estimate, a test of paired runs, a test that two samplers have one law.

Draws are those of NumPy's generator with the seed that is handed in. Draws held to a known law, looked at as often as one
likes, are the business of `properties.law_test`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Int64

EXACT_SIGNS = 16                                                                # pairs up to which all 2^n signs are gone through


@dataclass(frozen=True)
class Interval:
    """An estimate and the two ends of its interval."""

    estimate: float
    low: float
    high: float


def bootstrap_interval(
    values: ArrayLike, *, level: float, resamples: int, seed: int, statistic: Callable[[Float64], float] | None = None,
    method: Literal["bca", "percentile"] = "bca",
) -> Interval:  # fmt: skip
    """A confidence interval of a statistic (None: the mean) of independent values, by resampling.

        percentile   the (1 - level) / 2 and (1 + level) / 2 quantiles of the statistic of resamples
        bca          the quantiles Phi(z0 + (z0 + z) / (1 - a (z0 + z))), z those of the normal law; z0 from the share of resamples
                     below the estimate (half of those equal to it), a from the skewness of the jackknife

    values (n,), n >= 2. Approximate: its coverage is that of `level` only as n grows. Where all values agree, both ends do.

    >>> interval = bootstrap_interval([1.0, 2.0, 4.0, 8.0], level=0.9, resamples=2000, seed=0)
    >>> interval.estimate, interval.low < 3.75 < interval.high
    (3.75, True)

    Raises ValueError for fewer than 2 values, a level outside (0, 1) and a statistic that is not finite.
    Source: Efron 1987 (doi 10.1080/01621459.1987.10478410); Efron and Tibshirani 1993, chapter 14.
    """
    x = _sample("values", values, least=2)
    level = _share("level", level)
    resamples = arguments.whole_number("resamples", resamples, least=1)
    if method not in ("bca", "percentile"):
        raise ValueError(f"method: got {method!r}; want bca or percentile")
    of = statistic or (lambda sample: float(sample.mean()))
    estimate = float(of(x))
    g = np.random.default_rng(arguments.whole_number("seed", seed, least=0))
    theta = np.array([of(x[g.integers(0, len(x), len(x))]) for _ in range(resamples)])
    if not (np.isfinite(theta).all() and math.isfinite(estimate)):
        raise ValueError(f"statistic: got {estimate}, and not finite on some resample; want finite numbers")
    tails = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
    if method == "bca":
        tails = _corrected(tails, theta, estimate, np.array([of(np.delete(x, i)) for i in range(len(x))]))
    low, high = np.quantile(theta, tails)
    return Interval(estimate, float(low), float(high))


def _corrected(tails: list[float], theta: Float64, estimate: float, jackknife: Float64) -> list[float]:
    normal, below = NormalDist(), float(((theta < estimate).sum() + (theta <= estimate).sum()) / 2 / len(theta))
    if not 0.0 < below < 1.0:                                                   # all resamples on one side: nothing to correct by
        return tails
    z0, d = normal.inv_cdf(below), jackknife.mean() - jackknife
    spread = float((d * d).sum())
    a = 0.0 if spread == 0.0 else float((d**3).sum()) / (6.0 * spread**1.5)
    shifted = [z0 + normal.inv_cdf(tail) for tail in tails]
    return [normal.cdf(z0 + z / (1.0 - a * z)) for z in shifted]


def paired_permutation_test(a: ArrayLike, b: ArrayLike, *, resamples: int, seed: int) -> float:
    """The two-sided p-value of the hypothesis that each pair could as well have come in the other order.

        T = |sum (a_i - b_i)|;   p = share of the 2^n signs s with |sum s_i (a_i - b_i)| >= T, all of them up to n = 16
        beyond that p = (1 + number of drawn signs with that) / (1 + resamples)

    a, b (n,), n >= 1. P(p <= alpha) <= alpha under the hypothesis, for every n: sums are compared with all roundings allowed
    for, so that a tie is never lost.

    >>> paired_permutation_test([3.0, 2.0, 4.0, 5.0], [2.0, 1.0, 2.0, 3.0], resamples=1000, seed=0)
    0.125

    Raises ValueError for lengths that differ or no pair. Source: Fisher 1935, The Design of Experiments, section 21; the 1 that is added:
    Phipson and Smyth 2010 (doi 10.2202/1544-6115.1585).
    """
    x = _sample("a", a, least=1)
    y = _sample("b", b, least=1)
    if len(x) != len(y):
        raise ValueError(f"b: got {len(y)} values beside {len(x)} of a; want as many")
    resamples = arguments.whole_number("resamples", resamples, least=1)
    d, n = x - y, len(x)
    slack = 2.0 * n * np.finfo(np.float64).eps * float(np.abs(d).sum())         # of the two sums compared
    least = abs(float(d.sum())) - slack
    if n <= EXACT_SIGNS:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)    # (2^n, n)
        return float((np.abs(signs @ d) >= least).mean())
    g = np.random.default_rng(arguments.whole_number("seed", seed, least=0))
    reached = sum(abs(float(d @ (1.0 - 2.0 * g.integers(0, 2, n)))) >= least for _ in range(resamples))
    return (1 + reached) / (1 + resamples)


def two_sample_law_test(a: ArrayLike, b: ArrayLike, *, resamples: int, seed: int) -> float:
    """The p-value of the hypothesis that two samplers of outcomes 0 .. V - 1 have one law, from how often each gave each outcome.

        X^2 = sum over both samples and all outcomes of (n - e)^2 / e,   e what the margins alone would make
        p = (1 + number of shared-out tables with X^2 at least as large) / (1 + resamples)

    a, b (V,) counts. Tables are drawn with both margins fixed, so that P(p <= alpha) <= alpha however rare an outcome is: the
    chi-square approximation is not used (with one outcome of probability 1e-6 and 10^4 draws it rejects at 1e-9 a hundredth
    of the time). p is never below 1 / (1 + resamples).

    >>> two_sample_law_test([500, 500], [510, 490], resamples=999, seed=0) > 0.05
    True
    >>> two_sample_law_test([500, 500], [700, 300], resamples=999, seed=0)
    0.001

    Raises ValueError for counts of different lengths, negative ones, and a sample without draws.
    Source: Pearson 1900; permutation: Hope 1968 (doi 10.1111/j.2517-6161.1968.tb00759.x).
    """
    x, y = (arguments.integers(name, n, least=0, most=10**9) for name, n in (("a", a), ("b", b)))
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"b: got shape {y.shape} beside a {x.shape}; want one axis of the same length")
    if not x.sum() or not y.sum() or x.sum() + y.sum() >= 10**9:                # more is past NumPy's generator
        raise ValueError(f"a, b: got {x.sum()} and {y.sum()} draws; want at least one each, and fewer than 10^9 together")
    resamples = arguments.whole_number("resamples", resamples, least=1)
    margin = x + y
    seen = margin > 0
    g = np.random.default_rng(arguments.whole_number("seed", seed, least=0))
    drawn = g.multivariate_hypergeometric(margin[seen], int(x.sum()), size=resamples)
    # With both margins fixed X^2 is, but for a factor, the sum of (a - e)^2 / margin: the same order of tables.
    least = _distance(x[seen][None], margin[seen], int(x.sum()))[0]
    slack = 8.0 * np.finfo(np.float64).eps * seen.sum() * least
    reached = int((_distance(drawn, margin[seen], int(x.sum())) >= least - slack).sum())
    return (1 + reached) / (1 + resamples)


def _distance(tables: Int64, margin: Int64, draws: int) -> Float64:
    expected = margin * (draws / margin.sum())
    return np.asarray(((tables - expected) ** 2 / margin).sum(axis=-1))


def _sample(name: str, values: ArrayLike, *, least: int) -> Float64:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) < least or not np.isfinite(x).all():
        raise ValueError(f"{name}: got shape {x.shape}{'' if np.isfinite(x).all() else ' with numbers that are not finite'}; "
                         f"want one axis of at least {least} finite numbers")  # fmt: skip
    return x


def _share(name: str, value: float) -> float:
    share = arguments.real_number(name, value)
    if not 0.0 < share < 1.0:
        raise ValueError(f"{name}: got {share}; want 0 < {name} < 1")
    return share
