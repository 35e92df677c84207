"""Laws of verification: every decision, what stands behind a draft, the ends of [0, 1), and the exact laws of tokens and their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from .. import subject_law
from ..bounds.speculative import admissible_outcomes
from ..bounds.sums import g, roundings
from ..case import Case
from ..enumeration import Distribution, Tokens
from ..enumeration import Law as TokenLaw
from ..exact_law import distance, emission_law, length_law, token_distance
from ..law import NOTHING, Evidence, Judgement, Law, law, within
from ..safetensors_file import Array
from ..trial import Trial
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    pinned,
    repeats_give_the_same_bits,
    strides_are_respected,
)
from .subject_laws import (
    Int64,
    NoAnswerError,
    exactly,
    follows_the_contract,
    integers,
    needs_a_generator,
    needs_uniforms,
    sequentially,
)
from .verified_rows import a_second_call_draws_anew, accepted_tokens_are_the_drafts

GRID = subject_law.GRID
DRAWS = 2**15
MODELS = ("draft_probs", "target_probs")


def _lengths(case: Case) -> Int64:
    from oracles.reference.speculative import lengths

    return lengths(case.arrays["draft_tokens"], case.arrays.get("draft_lengths"))


def _all_of_it(case: Case, **arrays: Array) -> Case:
    """The case with full drafts and other arrays in the formats of its own."""
    kept = {name: array for name, array in case.arrays.items() if name != "draft_lengths"}
    return replace(case, arrays={**kept, **{name: array.astype(kept[name].dtype) for name, array in arrays.items()}}, notes={})


def _shape(case: Case) -> tuple[int, int, int]:
    B, K, V = case.arrays["draft_probs"].shape
    return B, K, V


@law(minimise=False, not_covered=follows_the_contract)
def every_decision_is_right(trial: Trial) -> Judgement:
    """A draft token is accepted iff u q(x) < p(x), and the token after it is the one that sample_u stands for: row by row.

    Where a decision lies within the derived error of a tie, what follows is judged under the subject's own decision. Left out:
    the decisions that may go either way. Allowed: nothing else.
    """
    if not {"tokens", "n_accepted"} <= set(trial.answer):
        return NOTHING
    x, n = trial.case.arrays["draft_tokens"], trial.answer["n_accepted"]
    sets = admissible_outcomes(trial.arithmetic, **trial.case.arguments(), conventions=trial.conventions)
    left_out = 0
    for b, outcomes in enumerate(sets):
        tokens, m = trial.answer["tokens"][b].tolist(), int(n[b])
        left_out += len({accepted for accepted, _ in outcomes}) - 1 + (len(outcomes) > len({a for a, _ in outcomes}))
        legal = [(a, [*x[b, :a].tolist(), token, *[-1] * (len(tokens) - a - 1)]) for a, token in outcomes]
        if (m, tokens) not in legal:
            wanted = ", or ".join(f"{a} accepted and {t}" for a, t in sorted(outcomes)[:3])
            reason = f"row {b}: n_accepted {m} and tokens {tokens}; want {wanted}, which no rounding changes"
            evidence = Evidence(trial.wanted, trial.allowed)
            return Judgement(len(x), left_out, np.inf, f"tokens[{b}]", failed=True, reason=reason, evidence=evidence)
    return Judgement(len(sets), left_out)


def _behind(case: Case) -> Case | None:
    n, (_, K, V) = _lengths(case), _shape(case)
    if "draft_lengths" not in case.arrays or not (n < K).any():
        return None
    behind = np.arange(K) >= n[:, None]
    q, p, x = (case.arrays[name].copy() for name in (*MODELS, "draft_tokens"))
    q[behind], p[:, 1:][behind] = np.nan, np.nan
    return case.with_arrays(draft_probs=q, target_probs=p, draft_tokens=np.where(behind, (x + 1) % V, x))


@law(prepare=_behind)
def what_stands_behind_a_draft_never_matters(trial: Trial) -> Judgement:
    """NaN and other tokens behind draft_lengths change nothing. Allowed: the bound."""
    return within(trial.answer, trial.wanted, trial.allowed)


@law(every=2, minimise=False)
def each_row_stands_alone(trial: Trial) -> Judgement:
    """A draft verified alone gives what it gives in its batch. Allowed: the bounds of both calls."""
    B = len(trial.case.arrays["draft_tokens"])
    if B < 2 or not trial.answer:
        return NOTHING
    b = int(trial.case.hash, 16) % B
    other = trial.on(replace(trial.case.with_arrays(**{n: a[b : b + 1] for n, a in trial.case.arrays.items()}), notes={}))
    here = {name: got[b : b + 1].astype(np.float64) for name, got in trial.answer.items()}
    allowed = {name: trial.allowed[name][b : b + 1] + other.allowed[name] for name in here}
    return pinned(within(other.answer, here, allowed), trial, other)


def _equal_models(case: Case) -> Case | None:
    B, K, V = _shape(case)
    if not B or not K:
        return None
    g_ = np.random.default_rng(int(case.hash, 16))
    p = np.eye(V)[g_.integers(0, V, (B, K + 1))] / 2 + np.eye(V)[g_.integers(0, V, (B, K + 1))] / 2
    x = p[:, :K].argmax(axis=-1)
    return _all_of_it(case, draft_tokens=x, draft_probs=p[:, :K], target_probs=p, accept_u=g_.integers(0, 8, (B, K)) / 8,
                      sample_u=g_.integers(0, 4, B) / 4 + 1 / 8)  # fmt: skip


@law(prepare=_equal_models, every=2)
def equal_models_accept_every_draft(trial: Trial) -> Judgement:
    """Where p = q, u q(x) < p(x) for every u below 1: all drafts are accepted. Allowed: 0 in the number accepted."""
    B, K, _ = _shape(trial.case)
    return within(trial.answer, {"n_accepted": np.full(B, float(K))}, {"n_accepted": np.zeros(B)})


def _disjoint(case: Case) -> Case | None:
    B, K, V = _shape(case)
    if not B or not K or V < 2:
        return None
    g_ = np.random.default_rng(int(case.hash, 16))
    x = g_.integers(0, V, (B, K))
    y = (x + g_.integers(1, V, (B, K))) % V
    p = np.concatenate([np.eye(V)[y], np.eye(V)[y[:, :1]]], axis=1)
    return _all_of_it(case, draft_tokens=x, draft_probs=np.eye(V)[x], target_probs=p,
                      accept_u=np.where(np.arange(B)[:, None] % 2, 0.0, g_.integers(0, 8, (B, K)) / 8))  # fmt: skip


@law(prepare=_disjoint, every=2)
def drafts_the_target_never_gives_are_rejected(trial: Trial) -> Judgement:
    """Where p(x) = 0, x is rejected at once, for u = 0 too, and the only token of p comes out. Allowed: 0."""
    return within(trial.answer, trial.wanted, {name: np.zeros(want.shape) for name, want in trial.wanted.items()})


def _certain(case: Case) -> Case | None:
    """Drafts that are certain for both models, and after each of them a token that tells its row."""
    B, K, V = _shape(case)
    if not B or V < 2:
        return None
    g_ = np.random.default_rng(int(case.hash, 16))
    x = g_.integers(0, V, (B, K + 1))
    for j in range(1, K + 1):
        x[:, j] = np.where(x[:, j] == x[:, j - 1], (x[:, j] + 1) % V, x[:, j])
    changed = _all_of_it(case, draft_tokens=x[:, :K], draft_probs=np.eye(V)[x[:, :K]], target_probs=np.eye(V)[x])
    if "draft_lengths" in case.arrays:
        n = g_.integers(0, K + 1, B)
        x = np.where(np.arange(K) < n[:, None], x[:, :K], x[:, 1:])
        changed = replace(changed, arrays={**changed.arrays, "draft_lengths": n})
    return changed


@law(prepare=_certain, every=2)
def the_bonus_comes_from_the_row_after_the_draft(trial: Trial) -> Judgement:
    """Where every row of the target is certain, the token after an accepted draft of length n is that of row n. Allowed: 0."""
    return within(trial.answer, trial.wanted, {name: np.zeros(want.shape) for name, want in trial.wanted.items()})


@law(minimise=False)
def no_token_without_a_probability_comes_out(trial: Trial) -> Judgement:
    """Every token that comes out has a probability above 0 in the target's row of its place, and lies in the vocabulary.

    At u = 0, at the largest u, and where nothing is left of a residual. Allowed: no other.
    """
    if not {"tokens", "n_accepted"} <= set(trial.answer):
        return NOTHING
    p, compared = trial.case.arrays["target_probs"].astype(np.float64), 0
    for b, tokens in enumerate(trial.answer["tokens"].tolist()):
        for j, token in enumerate(tokens):
            if token == -1:
                break
            compared += 1
            if not 0 <= token < p.shape[-1] or not p[b, j, token] > 0.0:
                reason = f"tokens[{b},{j}] is {token}, to which the target gives nothing"
                return Judgement(compared, worst_ratio=np.inf, worst_at=f"tokens[{b},{j}]", failed=True, reason=reason,
                                 evidence=Evidence(trial.wanted, trial.allowed))  # fmt: skip
    return Judgement(compared)


# The exact law -----------------------------------------------------------------------------------------------------------


class _Models:
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

    def edges(self, x: Tokens) -> list[list[int]]:
        """Where the faces of its boxes should lie: a ratio for each draft token, the edges of every residual and of the bonus."""
        ratios, edges = [], set()
        for j in range(self.K + 1):
            p = self.p[x[:j]]
            q = self.q[x[:j]] if j < self.K else [Fraction(0)] * self.V
            left = [max(a - b, Fraction(0)) for a, b in zip(p, q)]
            left = left if any(left) else list(p)
            edges |= {_up(sum(left[:i], Fraction(0)) / sum(left)) for i in range(1, self.V)}
            if j < self.K and q[x[j]] > p[x[j]]:
                ratios.append([_up(p[x[j]] / q[x[j]])])
            elif j < self.K:
                ratios.append([])
        return [*ratios, sorted(edges)]


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
def _computed(trial: Trial) -> tuple[_Models, subject_law.SubjectLaw | None]:
    """The models of a case and the law of the subject on them: computed once for the laws that ask."""
    models = _Models(trial.case)
    possible = [i for i, weight in enumerate(models.weights) if weight > 0]
    expected = [models.edges(models.x[i]) for i in possible]
    where = np.array(possible, dtype=np.int64)
    try:
        return models, subject_law.subject_law(lambda s, u: _verified(trial, where[s], u), [models.weights[i] for i in possible],
                                               models.K + 1, expected, seed=int(trial.case.hash, 16))  # fmt: skip
    except NoAnswerError:
        return models, None


def _is_law(case: Case) -> Case | None:
    return case if case.notes.get("law") else None


def _tolerance(trial: Trial, K: int, V: int) -> Fraction:
    r = roundings(trial.arithmetic)
    return (K + 1) * V * (Fraction(1, GRID) + Fraction(2.0 * float(g(V + 6.0, r.accumulate.u)) + 16.0 * r.elementwise.u))


def _emissions(found: subject_law.SubjectLaw) -> TokenLaw:
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
    grid and the roundings of a ratio or of two sums.
    """
    models, found = _computed(trial)
    if found is None:
        return NOTHING
    what = f"law of tokens (V = {models.V}, K = {models.K})"
    if found.strays:
        return _tested(trial, models)
    emitted = _emissions(found)
    sound = {y: x for y, x in emitted.items() if y and all(0 <= t < models.V for t in y)}
    lost = sum((x for y, x in emitted.items() if y not in sound), Fraction(0))
    whole = token_distance({**sound, (): lost}, models.target) if sound else Fraction(0)
    return exactly(whole + lost, _tolerance(trial, models.K, models.V), what, found.faces + subject_law.PROBES, Evidence())


@law(prepare=_is_law, not_covered=needs_uniforms)
def the_law_of_their_number_is_the_rules(trial: Trial) -> Judgement:
    """The exact law of how many tokens come out is that of the rule: a missing bonus keeps the law of tokens and breaks this one.

    Allowed: as for the law of tokens. n_accepted, one less, has the same law.
    """
    models, found = _computed(trial)
    if found is None or found.strays:
        return NOTHING
    wanted = length_law(emission_law(models.draft, models.target, k=models.K))
    counted_n: dict[int, Fraction] = {}
    for outcome, probability in found.law.items():
        counted_n[outcome[-1] + 1] = counted_n.get(outcome[-1] + 1, Fraction(0)) + probability
    off = max(_difference(length_law(_emissions(found)), wanted), _difference(counted_n, wanted))
    what = f"law of their number (V = {models.V}, K = {models.K})"
    return exactly(off, _tolerance(trial, models.K, models.V), what, found.faces + subject_law.PROBES, Evidence())


def _difference(a: dict[int, Fraction], b: dict[int, Fraction]) -> Fraction:
    return distance({(n,): p for n, p in a.items()}, {(n,): p for n, p in b.items()})


def _tested(trial: Trial, models: _Models) -> Judgement:
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

    law_of_all: dict[Hashable, Fraction | float] = {y: p for y, p in emission_law(models.draft, models.target, k=models.K).items()}
    try:
        return sequentially(law_of_all, draw, DRAWS, f"law of tokens and their number (V = {models.V}, K = {models.K})", Evidence())
    except NoAnswerError:
        return NOTHING


@law(prepare=_is_law, not_covered=needs_a_generator)
def emissions_pass_the_test_of_their_law(trial: Trial) -> Judgement:
    """For a subject with a generator of its own: an e-process on tokens and their number finds no evidence of 10^9 against their law.

    Drafts are drawn from the draft model. Valid at any stopping time; false alarms 10^-9. What it would have found by then is said.
    """
    return _tested(trial, _Models(trial.case))


VERIFY_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("tokens"), minimise=False, not_covered=follows_the_contract),
    replace(agreement("n_accepted"), minimise=False, not_covered=follows_the_contract),
    every_decision_is_right,
    accepted_tokens_are_the_drafts,
    what_stands_behind_a_draft_never_matters,
    each_row_stands_alone,
    equal_models_accept_every_draft,
    drafts_the_target_never_gives_are_rejected,
    the_bonus_comes_from_the_row_after_the_draft,
    no_token_without_a_probability_comes_out,
    the_law_of_tokens_is_the_targets,
    the_law_of_their_number_is_the_rules,
    emissions_pass_the_test_of_their_law,
    a_second_call_draws_anew,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
