"""Lemmas of speculative decoding for an SMT solver: what makes it lossless, for every vocabulary and every length, and what breaks it.

A lemma is a list of queries; a solver that finds no way to make the hypotheses true and the goal false has proven a query.
Induction is ours: its base and its step are queries of their own. How they are put and printed is left to prove.
"""

# ruff: noqa: SIM300 (A and R are symbols, not constants)
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import z3  # type: ignore[import-untyped, import-not-found, unused-ignore]

from oracles.properties.broken_decoding import BROKEN, ratio_unfiltered_residual_filtered, without_bonus
from oracles.properties.enumeration import Algorithm
from oracles.properties.exact_law import completed, exact_law, mean_length

Expr = Any                                                                      # z3 gives its expressions no useful types
Numbers = Sequence[Fraction]


@dataclass(frozen=True)
class Query:
    """Do the hypotheses imply the goal? `shown` are the numbers in which a countermodel is told."""

    part: str
    hypotheses: Sequence[Expr]
    goal: Expr
    shown: Mapping[str, Sequence[Expr]] = field(default_factory=dict)


@dataclass(frozen=True)
class Lemma:
    """A statement in words and as a formula, what we expect of it, and its queries.

    enumerated: for a refuted claim, what the broken algorithm emits for the p and q of a countermodel, by following its
    paths in fractions; it must be what the countermodel says is emitted.
    """

    name: str
    statement: str
    formula: str
    queries: Callable[[], list[Query]]
    enumerated: Callable[[Numbers, Numbers], Numbers] | None = None

    @property
    def expected(self) -> str:
        return "proven" if self.enumerated is None else "refuted"


def least(a: Expr, b: Expr) -> Expr:
    return z3.If(a <= b, a, b)


def positive_part(a: Expr) -> Expr:
    return z3.If(a > 0, a, z3.RealVal(0))


# One token of a vocabulary of any size. A, R: the sums over all tokens of min(p, q) and [p - q]+; a: the probability that the
# token is accepted where it is drafted; r: the probability that it is drawn after a rejection.
p, q, a, r, A, R = z3.Reals("p q a r A R")
DISTRIBUTIONS = [p >= 0, p <= 1, q >= 0, q <= 1]
SUMS = [A + R == 1, A >= 0, R >= 0, R >= positive_part(p - q)]                  # proven by sums_split_the_target
ACCEPT = [a >= 0, a <= 1, z3.Implies(q > 0, a * q == least(p, q))]              # a = min(1, p/q), free where q = 0
RESAMPLE = [r >= 0, r <= 1, z3.Implies(R > 0, r * R == positive_part(p - q))]   # r = [p - q]+ / R, free where R = 0
STEP = [*DISTRIBUTIONS, *SUMS, *ACCEPT, *RESAMPLE]


def _sums() -> list[Query]:
    Sp, Sq, t = z3.Reals("Sp Sq t")

    def split(Sp: Expr, Sq: Expr, A: Expr, R: Expr) -> Expr:
        return z3.And(A + R == Sp, A >= 0, A <= Sp, A <= Sq, R >= 0)

    zero = z3.RealVal(0)
    more = split(Sp + p, Sq + q, A + least(p, q), R + positive_part(p - q))
    return [Query("no token", [], split(zero, zero, zero, zero)),
            Query("one more token", [split(Sp, Sq, A, R), p >= 0, q >= 0], more),
            Query("R holds its new term", [R >= 0], R + positive_part(p - q) >= positive_part(p - q)),
            Query("R keeps its terms", [R >= t, t >= 0], R + positive_part(p - q) >= t)]  # fmt: skip


def _acceptance_rate() -> list[Query]:
    Sp, Sq, D = z3.Reals("Sp Sq D")
    difference = z3.If(p >= q, p - q, q - p)
    return [Query("no token", [], z3.RealVal(0) == 0 + 0 - 2 * z3.RealVal(0)),
            Query("one more token", [D == Sp + Sq - 2 * A], D + difference == (Sp + p) + (Sq + q) - 2 * (A + least(p, q))),
            Query("all tokens", [D == Sp + Sq - 2 * A, Sp == 1, Sq == 1], A == 1 - D / 2)]  # fmt: skip


def _any_length() -> list[Query]:
    T, L = z3.Reals("T L")
    return [Query("k = 0: the bonus", [p >= 0, T >= 0, L == p], L * T == p * T),
            Query("k - 1 to k", [*STEP, T >= 0, T <= 1, L == T], q * a * L + (1 - A) * r * T == p * T)]  # fmt: skip


def _tree() -> list[Query]:
    T, L, M = z3.Reals("T L M")
    return [Query("no sibling left: one token from p", [p >= 0, T >= 0, M == p * T], M == p * T),
            Query("m - 1 siblings to m", [*STEP, T >= 0, T <= 1, L == T, M == r * T], q * a * L + (1 - A) * M == p * T)]  # fmt: skip


def _without_bonus() -> list[Query]:
    T, L = z3.Reals("T L")
    return [Query("k = 0: nothing, the target goes on", [T >= 0, L == T], L == T),
            Query("k - 1 to k", [*STEP, T >= 0, T <= 1, L == T], q * a * L + (1 - A) * r * T == p * T)]  # fmt: skip


def _length() -> list[Query]:
    E, power = z3.Reals("E power")                                              # power = a^k
    return [Query("k = 0", [a >= 0, a <= 1], z3.RealVal(1) * (1 - a) == 1 - a),
            Query("k - 1 to k", [a >= 0, a <= 1, E * (1 - a) == 1 - power], (1 + a * E) * (1 - a) == 1 - a * power)]  # fmt: skip


def _sampled_from_q() -> list[Query]:
    s, S, Ss = z3.Reals("s S Ss")
    sure = [p == q, q > 0, a * q == least(p, q)]
    return [Query("every draft is accepted", sure, a == 1),
            Query("so all that is drafted is emitted: one more token", [S == Ss, a == 1], S + s * a == Ss + s),
            Query("so s is emitted", [*sure, a == 1, S == 1, s * a + (1 - S) * r == p], s == q)]  # fmt: skip


def _ratio_of_p() -> list[Query]:
    p1, S = z3.Reals("p1 S")
    sure = [q == p1, q > 0, a * q == least(p1, q)]
    return [Query("every draft is accepted", sure, a == 1),
            Query("so q is emitted", [*sure, a == 1, S == 1, q * a + (1 - S) * r == p], p1 == p)]  # fmt: skip


PROVEN: tuple[Lemma, ...] = (
    Lemma("sums_split_the_target",
          "For a vocabulary of any size, what draft and target share and what the draft leaves of the target make up the target. "
          "By induction over the tokens.",
          "A = Σ min(p, q), R = Σ [p − q]₊  ⟹  A + R = Σ p, 0 ≤ A ≤ min(Σ p, Σ q), R ≥ [p(x) − q(x)]₊",
          _sums),
    Lemma("one_step_returns_the_target",
          "For every vocabulary, a draft token accepted with probability min(1, p/q), or else a token drawn from the normalised "
          "residual, has the law of the target; tokens with q = 0 and drafts equal to the target included.",
          "a = min(1, p/q), r = [p − q]₊ / R  ⟹  q(x) a(x) + (1 − A) r(x) = p(x)",
          lambda: [Query("", STEP, q * a + (1 - A) * r == p)]),
    Lemma("nothing_left_nothing_rejected",
          "Where the residual is empty, no draft is ever rejected, so that what would be drawn instead never matters.",
          "R = 0  ⟹  1 − A = 0 and p(x) ≤ q(x)",
          lambda: [Query("", [*DISTRIBUTIONS, *SUMS, R == 0], z3.And(1 - A == 0, p <= q))]),
    Lemma("drafts_of_any_length",
          "k drafts in a row, stopped at the first rejection, and one bonus token from the target: completed by the target, the "
          "text has the target's law. By induction over k; T is the target's probability of all tokens that follow.",
          "q(y₁) a(y₁) law_{k−1}(y₂…) + (1 − A) r(y₁) T = p(y₁) T,  law_{k−1} = T",
          _any_length),
    Lemma("trees_of_drafts",
          "Siblings tried in order, the target replaced by its residual after each rejection, an accepted one followed into its "
          "own branch: the target's law, for any number of siblings, each drawn from any distribution that does not depend on the "
          "tests. By induction.",
          "q(y₁) a(y₁) T + (1 − A) law_{m−1}(r; y₁…) = p(y₁) T,  law_{m−1}(r; y₁…) = r(y₁) T",
          _tree),
    Lemma("acceptance_rate_is_one_minus_total_variation",
          "A draft token is accepted with probability one minus the total variation between draft and target. By induction over "
          "the tokens.",
          "Σ min(p, q) = 1 − Σ |p − q| / 2",
          _acceptance_rate),
    Lemma("no_lossless_step_accepts_more",
          "Whatever is drawn after a rejection, a step that returns the target accepts no token more often than min(p, q): this "
          "rule accepts as often as any can.",
          "0 ≤ a ≤ 1, q(x) a(x) + m r(x) = p(x), m r ≥ 0  ⟹  q(x) a(x) ≤ min(p(x), q(x))",
          lambda: [Query("", [q >= 0, a >= 0, a <= 1, R >= 0, r >= 0, q * a + R * r == p], q * a <= least(p, q))]),
    Lemma("emitted_length",
          "With each of k drafts accepted with probability a, a pass emits (1 − a^(k+1)) / (1 − a) tokens on average. By "
          "induction.",
          "E₀ = 1, E_k = 1 + a E_{k−1}  ⟹  E_k (1 − a) = 1 − a^{k+1}",
          _length),
    Lemma("lossless_only_if_sampled_from_q",
          "A step that draws its drafts from s and judges them by q, q positive, is lossless for the target p = q only if s = q.",
          "p = q > 0, law = s a + (1 − S) r = p, S = Σ s a  ⟹  s = q",
          _sampled_from_q),
    Lemma("lossless_only_if_the_ratio_is_the_targets",
          "A step that accepts with min(1, p₁/q) is lossless with the draft q = p₁, positive, only if p₁ is the target.",
          "q = p₁ > 0, law = q a + (1 − S) r = p  ⟹  p₁ = p",
          _ratio_of_p),
    Lemma("lossless_only_if_the_residual_is_theirs",
          "With acceptance min(1, p/q), and something to reject, the law drawn after a rejection can be no other than the "
          "normalised residual of the same p and q.",
          "a = min(1, p/q), A < 1, q a + (1 − A) r = p  ⟹  r (1 − A) = [p − q]₊",
          lambda: [Query("", [*DISTRIBUTIONS, *SUMS, A < 1, least(p, q) + (1 - A) * r == p], r * (1 - A) == positive_part(p - q))]),
    Lemma("missing_bonus_keeps_the_token_law",
          "Without the bonus token the text, completed by the target, still has the target's law: no test of distributions finds "
          "it.",
          "law₀ = T,  q(y₁) a(y₁) law_{k−1} + (1 − A) r(y₁) T = p(y₁) T",
          _without_bonus),
)


@dataclass(frozen=True)
class Pair:
    """A draft and a target over V tokens, and what the rule makes of them."""

    p: list[Expr]
    q: list[Expr]

    @classmethod
    def of(cls, V: int) -> tuple[Pair, list[Expr]]:
        """Symbols, and that they are positive distributions: then no division is by 0."""
        pair = cls(*([z3.Real(f"{name}{i}") for i in range(V)] for name in "pq"))
        return pair, [*(x > 0 for x in pair.p + pair.q), z3.Sum(pair.p) == 1, z3.Sum(pair.q) == 1]

    @property
    def shared(self) -> list[Expr]:
        return [least(p, q) for p, q in zip(self.p, self.q)]

    @property
    def left(self) -> list[Expr]:
        return [positive_part(p - q) for p, q in zip(self.p, self.q)]


def normalised(w: list[Expr]) -> list[Expr]:
    return [x / z3.Sum(w) for x in w]


def step(accepted: list[Expr], after: list[Expr]) -> list[Expr]:
    """What is emitted: accepted drafts, and the draw after a rejection for the rest of the probability."""
    return [x + (1 - z3.Sum(accepted)) * y for x, y in zip(accepted, after)]


def claim(law: Callable[[Pair], list[Expr]], *, V: int = 2, wanted: Callable[[Pair], list[Expr]] = lambda pair: pair.p,
          given: Callable[[Pair], list[Expr]] = lambda pair: []) -> Callable[[], list[Query]]:
    """The claim that a broken rule emits what is wanted, for two positive distributions that differ."""
    def queries() -> list[Query]:
        pair, distributions = Pair.of(V)
        emitted, right = law(pair), wanted(pair)
        differ = [z3.Sum(pair.left) > 0]
        return [Query("", [*distributions, *differ, *given(pair)], z3.And(*(x == y for x, y in zip(emitted, right))),
                      {"p": pair.p, "q": pair.q, "emitted": emitted, "wanted": right})]  # fmt: skip
    return queries


def first_token(algorithm: Algorithm, k: int = 1) -> Callable[[Numbers, Numbers], Numbers]:
    """The law of the first token of a broken algorithm, by following its paths."""
    def law(p: Numbers, q: Numbers) -> Numbers:
        emitted = completed(exact_law(lambda _: q, lambda _: p, k=k, algorithm=algorithm), lambda _: p, 1)
        return [emitted.get((x,), Fraction(0)) for x in range(len(p))]
    return law


def _swapped(pair: Pair) -> list[Expr]:
    return step([z3.If(q >= p, q, q * q / p) for p, q in zip(pair.p, pair.q)], normalised(pair.left))


def _sampled_elsewhere(pair: Pair) -> list[Expr]:
    sampled = normalised([q * q for q in pair.q])
    return step([s * least(p, q) / q for p, q, s in zip(pair.p, pair.q, sampled)], normalised(pair.left))


def _two_filters(pair: Pair) -> list[Expr]:
    return step(pair.shared, normalised([positive_part(t - q) for t, q in zip(_top_two(pair), pair.q)]))


def _top_two(pair: Pair) -> list[Expr]:
    return [*normalised(pair.p[:2]), z3.RealVal(0)]


def _typical(pair: Pair) -> list[Expr]:
    """With two tokens e^-H >= 1/2, so that min(0.09, 0.3 e^-H) = 0.09."""
    return step([z3.If(p > z3.Q(9, 100), q, z3.RealVal(0)) for p, q in zip(pair.p, pair.q)], pair.p)


def _one_target(pair: Pair) -> list[Expr]:
    return step(pair.shared, step(pair.shared, normalised(pair.left)))


def _second_draw(pair: Pair) -> list[Expr]:
    return step([p * q for p, q in zip(pair.p, pair.q)], pair.p)


def _rest_on_the_last(pair: Pair) -> list[Expr]:
    return step(pair.shared, [*pair.left[:-1], 1 - z3.Sum(pair.left[:-1])])


def _absolute(pair: Pair) -> list[Expr]:
    return step(pair.shared, normalised([z3.If(p >= q, p - q, q - p) for p, q in zip(pair.p, pair.q)]))


REFUTED: tuple[Lemma, ...] = (
    Lemma("residual_not_renormalised",
          "Claim: the residual may be drawn from as it is, the missing probability falling on the last token.",
          "r = [p − q]₊, the rest on the last token",
          claim(_rest_on_the_last), first_token(BROKEN["residual not renormalised"])),
    Lemma("ratio_swapped",
          "Claim: a draft may be accepted with min(1, q/p).",
          "a = min(1, q/p)",
          claim(_swapped), first_token(BROKEN["ratio swapped"])),
    Lemma("resampled_from_p",
          "Claim: after a rejection a token may be drawn from the target itself.",
          "r = p",
          claim(lambda pair: step(pair.shared, pair.p)), first_token(BROKEN["residual from p"])),
    Lemma("residual_of_absolute_differences",
          "Claim: the residual may be |p − q|, normalised.",
          "r = |p − q| / Σ |p − q|",
          claim(_absolute), first_token(BROKEN["residual |p - q|"])),
    Lemma("bonus_from_q",
          "Claim: the token after a draft that was accepted whole may be the draft's.",
          "law₀ = q",
          claim(lambda pair: pair.q), first_token(BROKEN["bonus from the draft"], k=0)),
    Lemma("sampled_at_another_temperature",
          "Claim: drafts may be drawn at temperature 1/2 and judged by the draft's law at temperature 1.",
          "s = q² / Σ q², a = min(1, p/q)",
          claim(_sampled_elsewhere), first_token(BROKEN["drafts of another model"])),
    Lemma("ratio_and_residual_of_different_filters",
          "Claim: with top-2 filtering, the ratio may use the target as it is, and the residual the filtered one.",
          "a = min(1, p/q), r = [t − q]₊ / Σ, t = top-2 of p; wanted: t",
          claim(_two_filters, V=3, wanted=_top_two, given=lambda pair: [
              pair.p[0] >= pair.p[1], pair.p[1] > pair.p[2], z3.Or(*(t > q for t, q in zip(_top_two(pair), pair.q)))]),
          first_token(ratio_unfiltered_residual_filtered)),
    Lemma("typical_acceptance",
          "Claim: a draft may be kept where the target finds it typical, and else a token drawn from the target.",
          "a = [p > min(0.09, 0.3 e^{−H(p)})], r = p",
          claim(_typical), first_token(BROKEN["typical acceptance"])),
    Lemma("siblings_against_one_target",
          "Claim: the second of two drafts may be judged by the target as the first was.",
          "law = min(p, q) + (1 − A) (min(p, q) + (1 − A) r)",
          claim(_one_target), first_token(BROKEN["siblings against one target"])),
    Lemma("second_draw_after_a_mismatch",
          "Claim: a draft may be accepted where a draw of the target agrees, and else the target drawn from again.",
          "law = p q + (1 − Σ p q) p",
          claim(_second_draw), first_token(BROKEN["a second draw after a mismatch"])),
    Lemma("missing_bonus_keeps_the_length_law",
          "Claim: without the bonus token a pass with one draft emits as many tokens on average.",
          "1 = 1 + A",
          claim(lambda pair: [z3.RealVal(1)], wanted=lambda pair: [1 + z3.Sum(pair.shared)]),
          lambda p, q: [mean_length(exact_law(lambda _: q, lambda _: p, k=1, algorithm=without_bonus))]),
)

LEMMAS = PROVEN + REFUTED
