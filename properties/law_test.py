"""Law test: draws held to a law by an e-process, valid at any stopping time. Subjects that take uniforms are `subject_law`'s business."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

ALPHA = 1e-9                                                                    # rate of false alarms, over all looks together
# Concentrations of the Dirichlet priors, each around the law itself, in equal parts: small ones see gross errors, large ones fine ones.
CONCENTRATIONS = (3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6)

Float64 = NDArray[np.float64]


class LawTest:
    """Evidence against draws being independent and of a law p, as a martingale under it.

        E_n = mean over c of DirichletMultinomial(counts; c p) / prod_i p_i^counts_i
        rejected once E >= 1 / alpha, at any time; at once by an outcome of probability 0

    Under the law E[E_n] = 1, and by Ville's inequality P(E ever reaches 1 / alpha) <= alpha: no number of looks changes that.
    A test that does not reject proves nothing; it says which distance it would have found.

    >>> fair = LawTest({"heads": 0.5, "tails": 0.5})
    >>> fair.add({"heads": 520, "tails": 480})
    >>> fair.rejected, fair.total
    (False, 1000)
    >>> fair.add({"heads": 900})
    >>> fair.rejected
    True

    law: outcomes and their probabilities, fractions or floats, of sum 1; those of probability 0 may be left out.
    Raises ValueError for probabilities that are negative or do not sum to 1.
    Source: Ville 1939; Ramdas et al. 2023 (arXiv 2210.01948), section 3; the mixture: Robbins 1970 (doi 10.1214/aoms/1177696786).
    """

    def __init__(self, law: Mapping[Hashable, Fraction | float], *, alpha: float = ALPHA) -> None:
        possible = {outcome: float(p) for outcome, p in law.items() if p != 0}
        self.p: Float64 = np.array([*possible.values()], dtype=np.float64)
        if (self.p < 0.0).any() or abs(math.fsum(self.p) - 1.0) > len(self.p) * 2.0**-50:
            raise ValueError(f"law: got probabilities of sum {math.fsum(self.p)}; want none below 0 and a sum of 1")
        self.alpha = alpha
        self.impossible: Hashable | None = None
        self._places = {outcome: i for i, outcome in enumerate(possible)}
        self.counts: Float64 = np.zeros(len(self.p))

    def add(self, counts: Mapping[Hashable, int]) -> None:
        """More draws, counted by outcome."""
        for outcome, n in counts.items():
            if n and outcome not in self._places:
                self.impossible = outcome
            elif n:
                self.counts[self._places[outcome]] += n

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def log_evidence(self) -> float:
        """ln E so far; inf after an impossible outcome."""
        return math.inf if self.impossible is not None else log_evidence(self.counts, self.p)

    @property
    def rejected(self) -> bool:
        return self.log_evidence >= -math.log(self.alpha)

    def smallest_distance(self) -> float:
        """The smallest total variation, spread over all outcomes, that as many draws would have found.

        Half of the outcomes are taken more likely by a factor 1 + d, the others less so, and the counts are those that are expected:
        what chance adds to them is evidence too, and left out. 1 where no distance would have been found.
        """
        sign = np.empty(len(self.p))
        sign[np.argsort(self.p)] = np.where(np.arange(len(self.p)) % 2 == 0, 1.0, -1.0)
        sign -= float(np.sum(sign * self.p))

        def found(d: float) -> tuple[bool, float]:
            p = np.maximum(self.p * (1.0 + d * sign), 0.0)
            p /= p.sum()
            return log_evidence(self.total * p, self.p) >= -math.log(self.alpha), float(np.abs(p - self.p).sum()) / 2

        low, high = 0.0, 1.0
        if not found(high)[0]:
            return 1.0
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (low, middle) if found(middle)[0] else (middle, high)
        return found(high)[1]


def log_evidence(counts: Float64, p: Float64) -> float:
    """ln of the mean over c of DirichletMultinomial(counts; c p) / prod p^counts; 0 without counts.

    >>> log_evidence(np.zeros(2), np.array([0.5, 0.5]))
    0.0
    """
    seen, n = counts > 0, float(counts.sum())
    k, q = counts[seen], p[seen]
    likelihood = float(np.sum(k * np.log(q)))
    logs = [math.lgamma(c) - math.lgamma(n + c) + _rises(c * q, k) - likelihood for c in CONCENTRATIONS]
    top = max(logs)
    return top + math.log(sum(math.exp(x - top) for x in logs) / len(logs))


def _rises(a: Float64, k: Float64) -> float:
    """sum of ln Gamma(a + k) - ln Gamma(a)."""
    return math.fsum(math.lgamma(x + y) - math.lgamma(x) for x, y in zip(a.tolist(), k.tolist()))


def looks(most: int) -> Iterable[int]:
    """Numbers of draws after which to look: from 256 on, each 1.25 times the last, and `most` itself."""
    n = 256
    while n < most:
        yield n
        n += n // 4
    yield most
