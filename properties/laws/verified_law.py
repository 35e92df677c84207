"""Exact laws of verification: of the tokens that come out, and of their number, from the subject itself; or an e-process on its draws."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from .. import subject_law
from ..bounds.sums import g, roundings
from ..case import Case
from ..decoding_algorithms import by_block
from ..enumeration import Distribution, Tokens
from ..enumeration import Law as TokenLaw
from ..exact_law import distance, emission_law, exact_law, length_law, token_distance
from ..law import NOTHING, Evidence, Judgement, law
from ..trial import Trial
from .subject_laws import Int64, NoAnswerError, exactly, integers, needs_a_generator, needs_uniforms, sequentially

GRID = subject_law.GRID
DRAWS = 2**15
MODELS = ("draft_probs", "target_probs")


class Models:
    """The draft and the target that a case of every draft stands for, and the weight of each draft."""

    def __init__(self, case: Case) -> None:
        self.x = [tuple(row) for row in case.arrays["draft_tokens"].tolist()]
        rows: list[dict[Tokens, Distribution]] = [{}, {}]
        for known, name in zip(rows, MODELS):
            for x, laws in zip(self.x, case.arrays[name].astype(np.float64).tolist()):
                known.update({x[:j]: [Fraction(p) for p in row] for j, row in enumerate(laws)})
        self.q, self.p = rows
        self.K, self.V = len(self.x[0]), len(self.p[()])
        self.weights = [self._weight(x) for x in self.x]

    def _weight(self, x: Tokens) -> Fraction:
        weight = Fraction(1)
        for j, token in enumerate(x):
            weight *= self.q[x[:j]][token]
        return weight

    def draft(self, context: Tokens) -> Distribution:
        return self.q[context]

    def target(self, context: Tokens) -> Distribution:
        return self.p[context]

    def emissions(self, rule: str) -> TokenLaw:
        """The law that tokens and their number have together by a rule."""
        if rule == "block":
            return exact_law(self.draft, self.target, k=self.K, algorithm=by_block)
        return emission_law(self.draft, self.target, k=self.K)

    def edges(self, x: Tokens, rule: str) -> list[list[int]]:
        """Where the faces of its boxes should lie: a ratio for each draft token, the edges of every residual and of the bonus."""
        K, (w, s) = self.K, self._block(x)
        p = [self.p[x[:j]] for j in range(K + 1)]
        q: list[Distribution] = [self.q[x[:j]] for j in range(K)]
        if rule == "block":
            ratios = [*(left / (left + 1 - w[j]) if left else Fraction(0) for j, left in enumerate(s, start=1)), w[K]]
        else:
            ratios = [p[j][x[j]] / q[j][x[j]] for j in range(K)]
        edges: set[int] = set()
        for j, weight in enumerate([*(w[:K] if rule == "block" else [Fraction(1)] * K), Fraction(1)]):
            left = [max(weight * a - b, Fraction(0)) for a, b in zip(p[j], q[j] if j < K else [Fraction(0)] * self.V)]
            left = left if any(left) else list(p[j])
            edges |= {_up(sum(left[:i], Fraction(0)) / sum(left)) for i in range(1, self.V)}
        return [*([_up(ratio)] if ratio < 1 else [] for ratio in ratios), sorted(edges)]


    def _block(self, x: Tokens) -> tuple[list[Fraction], list[Fraction]]:
        """w_0 … w_K and s_1 … s_{K-1} of `verify_block`."""
        w = [Fraction(1)]
        for j in range(self.K):
            w.append(min(Fraction(1), w[j] * self.p[x[:j]][x[j]] / self.q[x[:j]][x[j]]))
        rows = [(w[j], self.p[x[:j]], self.q[x[:j]]) for j in range(1, self.K)]
        return w, [sum((max(weight * a - b, Fraction(0)) for a, b in zip(p, q)), Fraction(0)) for weight, p, q in rows]

    def steepness(self, rule: str) -> Fraction:
        """How far the faces s / (s + 1 - w) of a block move for a change of what they are made of: sum of 1 / (s + 1 - w), on average."""
        if rule != "block":
            return Fraction(0)
        total = Fraction(0)
        for weight, x in zip(self.weights, self.x):
            w, s = self._block(x) if weight > 0 else ([], [])
            total += sum((weight / (left + 1 - w[j]) for j, left in enumerate(s, start=1) if left + 1 > w[j]), Fraction(0))
        return total


def _up(x: Fraction) -> int:
    return -int(-x * GRID // 1)


def _verified(trial: Trial, scenario: Int64, u: Int64) -> Int64:
    """Rows of tokens (K + 1) and n_accepted for the drafts of the case and uniforms u (n, K + 1) on the grid."""
    given, n = trial.case.arrays, len(scenario)
    K, uniforms = given["draft_tokens"].shape[1], u / GRID
    arrays = {name: given[name][scenario] for name in ("draft_tokens", *MODELS)}
    arrays |= {"accept_u": uniforms[:, :K].astype(given["accept_u"].dtype), "sample_u": uniforms[:, K].astype(given["sample_u"].dtype)}
    got = integers(trial, Case(trial.operation.name, arrays, {}), {"tokens": (n, K + 1), "n_accepted": (n,)})
    return np.concatenate([got["tokens"], got["n_accepted"][:, None]], axis=1)


def _emitted(outcome: tuple[int, ...]) -> Tokens:
    """The tokens of an outcome, up to the first -1."""
    tokens = outcome[:-1]
    return tokens[: tokens.index(-1)] if -1 in tokens else tokens


@lru_cache(maxsize=2)
def computed(trial: Trial) -> tuple[Models, subject_law.SubjectLaw | None]:
    """The models of a case and the law of the subject on them: computed once for the laws that ask."""
    models = Models(trial.case)
    possible = [i for i, weight in enumerate(models.weights) if weight > 0]
    expected = [models.edges(models.x[i], trial.conventions["rule"]) for i in possible]
    where = np.array(possible, dtype=np.int64)
    try:
        return models, subject_law.subject_law(lambda s, u: _verified(trial, where[s], u), [models.weights[i] for i in possible],
                                               models.K + 1, expected, seed=int(trial.case.hash, 16))  # fmt: skip
    except NoAnswerError:
        return models, None


def _is_law(case: Case) -> Case | None:
    return case if case.notes.get("law") else None


def _tolerance(trial: Trial, models: Models) -> Fraction:
    r, K, V = roundings(trial.arithmetic), models.K, models.V
    sums, u = 2.0 * float(g(V + 6.0, r.accumulate.u)), r.elementwise.u
    of_w = 8.0 + r.declared.exp_ulps + (r.declared.log_ulps + 3.0) * (K + 2.0) * math.log(16.0)             # models in sixteenths
    at_faces = models.steepness(trial.conventions["rule"]) * Fraction(sums + (40.0 + of_w * K) * u)
    return (K + 1) * V * (Fraction(1, GRID) + Fraction(sums + 16.0 * u)) + at_faces


def emissions_of(found: subject_law.SubjectLaw) -> TokenLaw:
    emitted: TokenLaw = {}
    for outcome, probability in found.law.items():
        tokens = _emitted(outcome)
        emitted[tokens] = emitted.get(tokens, Fraction(0)) + probability
    return emitted


@law(prepare=_is_law, not_covered=needs_uniforms)
def the_law_of_tokens_is_the_targets(trial: Trial) -> Judgement:
    """The exact law of what comes out, followed by the target, is the target's own chain: the distance is a fraction.

    The law is computed from the subject itself: [0, 1) of every uniform cut where its answers change, for every draft over V tokens
    and K places, with models in sixteenths that know their context; random uniforms test the cuts.
    TV <= (K + 1) V (2^-24 + 2 g(V + 6, u_accumulate) + 16 u): at each of K + 1 places at most V cuts, each within one step of the
    grid and the roundings of a ratio or of two sums. By the rule "block" plus (2 g + 40 u + K e) E[sum_j 1 / (s_j + 1 - w_j)]: a face
    s / (s + 1 - w) moves by at most 1 / (s + 1 - w) of what s, w and 1 + s - w are off, 2 g + 16 u, K e and 24 u, where
    e = (8 + exp_ulps + (log_ulps + 3)(K + 2) ln 16) u is what one more factor of w is off in sixteenths.
    """
    models, found = computed(trial)
    if found is None:
        return NOTHING
    what = f"law of tokens (V = {models.V}, K = {models.K})"
    if found.strays:
        return _tested(trial, models)
    emitted = emissions_of(found)
    sound = {y: x for y, x in emitted.items() if y and all(0 <= t < models.V for t in y)}
    lost = sum((x for y, x in emitted.items() if y not in sound), Fraction(0))
    whole = token_distance({**sound, (): lost}, models.target) if sound else Fraction(0)
    return exactly(whole + lost, _tolerance(trial, models), what, found.faces + subject_law.PROBES, Evidence())


@law(prepare=_is_law, not_covered=needs_uniforms)
def the_law_of_their_number_is_the_rules(trial: Trial) -> Judgement:
    """The exact law of how many tokens come out is that of the rule: a missing bonus keeps the law of tokens and breaks this one.

    Allowed: as for the law of tokens. n_accepted, one less, has the same law.
    """
    models, found = computed(trial)
    if found is None or found.strays:
        return NOTHING
    wanted = length_law(models.emissions(trial.conventions["rule"]))
    counted_n: dict[int, Fraction] = {}
    for outcome, probability in found.law.items():
        counted_n[outcome[-1] + 1] = counted_n.get(outcome[-1] + 1, Fraction(0)) + probability
    off = max(_difference(length_law(emissions_of(found)), wanted), _difference(counted_n, wanted))
    what = f"law of their number (V = {models.V}, K = {models.K})"
    return exactly(off, _tolerance(trial, models), what, found.faces + subject_law.PROBES, Evidence())


def _difference(a: dict[int, Fraction], b: dict[int, Fraction]) -> Fraction:
    return distance({(n,): p for n, p in a.items()}, {(n,): p for n, p in b.items()})


def _tested(trial: Trial, models: Models) -> Judgement:
    """The e-process on tokens and their number together, drafts drawn from the draft model, with uniforms at random."""
    generator = np.random.default_rng(int(trial.case.hash, 16))
    weights = np.array(models.weights, dtype=np.float64)

    def draw(n: int) -> Any:
        counts: Counter[Hashable] = Counter()
        while n > 0:
            size = min(n, 2**13)
            rows = _verified(trial, generator.choice(len(weights), size, p=weights), generator.integers(0, GRID, (size, models.K + 1)))
            counts.update(_emitted(tuple(row)) for row in rows.tolist())
            n -= size
        return counts

    law_of_all: dict[Hashable, Fraction | float] = {y: p for y, p in models.emissions(trial.conventions["rule"]).items()}
    try:
        return sequentially(law_of_all, draw, DRAWS, f"law of tokens and their number (V = {models.V}, K = {models.K})", Evidence())
    except NoAnswerError:
        return NOTHING


@law(prepare=_is_law, not_covered=needs_a_generator)
def emissions_pass_the_test_of_their_law(trial: Trial) -> Judgement:
    """For a subject with a generator of its own: an e-process on tokens and their number finds no evidence of 10^9 against their law.

    Drafts are drawn from the draft model. Valid at any stopping time; false alarms 10^-9. What it would have found by then is said.
    """
    return _tested(trial, Models(trial.case))
