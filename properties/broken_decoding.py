"""Broken decoding algorithms in fractions: each a fault that has been shipped, to hold exact laws, lemmas and tests against.

They have the form of `decoding_algorithms` and are right but for the one thing their name says.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from fractions import Fraction

from .decoding_algorithms import drafted, normalised, ratio, residual, token_by_token, trial, typical
from .enumeration import Algorithm, Decoding, Distribution, Model, Tokens

Rejected = Callable[[Model, Model, int, Tokens], Generator[Distribution, int, int]]      # draft, target, place of the rejection, drafts


def with_rejection(rejected: Rejected, accept: Callable[[Fraction, Fraction], Fraction] = ratio) -> Algorithm:
    """Token by token, with another draw after a rejection at x[j], or another probability to accept."""

    def algorithm(draft: Model, target: Model, k: int) -> Decoding:
        x = yield from drafted(draft, k)
        for j in range(k):
            if (yield trial(accept(target(x[:j])[x[j]], draft(x[:j])[x[j]]))) == 1:
                return (*x[:j], (yield from rejected(draft, target, j, x)))
        return (*x, (yield target(x)))

    return algorithm


def with_bonus(bonus: Callable[[Model, Model, Tokens], Decoding]) -> Algorithm:
    """Token by token, with another token, or none, after a draft that was accepted whole."""

    def algorithm(draft: Model, target: Model, k: int) -> Decoding:
        y = yield from token_by_token(draft, target, k)
        return y if len(y) <= k else (*y[:k], *(yield from bonus(draft, target, y[:k])))

    return algorithm


def right(draft: Model, target: Model, j: int, x: Tokens) -> Generator[Distribution, int, int]:
    return (yield residual(target(x[:j]), draft(x[:j])))


def from_p(draft: Model, target: Model, j: int, x: Tokens) -> Generator[Distribution, int, int]:
    return (yield target(x[:j]))


def absolute_difference(draft: Model, target: Model, j: int, x: Tokens) -> Generator[Distribution, int, int]:
    return (yield normalised([abs(a - b) for a, b in zip(target(x[:j]), draft(x[:j]))]))


def rest_on_the_last_token(draft: Model, target: Model, j: int, x: Tokens) -> Generator[Distribution, int, int]:
    left = [max(Fraction(0), a - b) for a, b in zip(target(x[:j]), draft(x[:j]))]
    return (yield [*left[:-1], 1 - sum(left[:-1], Fraction(0))])


def stale_context(draft: Model, target: Model, j: int, x: Tokens) -> Generator[Distribution, int, int]:
    return (yield residual(target(()), draft(())))


def the_rejected_token_zeroed(draft: Model, target: Model, j: int, x: Tokens) -> Generator[Distribution, int, int]:
    p = [Fraction(0) if i == x[j] else a for i, a in enumerate(target(x[:j]))]
    return (yield normalised(p) if any(p) else target(x[:j]))


def swapped(p: Fraction, q: Fraction) -> Fraction:
    return min(Fraction(1), q / p) if p else Fraction(1)


def drafts_of_another_model(draft: Model, target: Model, k: int) -> Decoding:
    """Drawn from the draft with its probabilities squared, judged as if drawn from the draft."""
    x = yield from drafted(lambda context: normalised([a * a for a in draft(context)]), k)
    for j in range(k):
        p, q = target(x[:j]), draft(x[:j])
        if (yield trial(ratio(p[x[j]], q[x[j]]))) == 1:
            return (*x[:j], (yield residual(p, q)))
    return (*x, (yield target(x)))


def a_second_draw_after_a_mismatch(draft: Model, target: Model, k: int) -> Decoding:
    """Accepts where a draw of the target agrees, else draws again: ml-explore/mlx-swift-lm#459."""
    x = yield from drafted(draft, k)
    for j in range(k):
        if (yield target(x[:j])) != x[j]:
            return (*x[:j], (yield target(x[:j])))
    return (*x, (yield target(x)))


def siblings_against_one_target(draft: Model, target: Model, k: int) -> Decoding:
    p, q = target(()), draft(())
    x = [(yield q), (yield q)]
    for token in x:
        if (yield trial(ratio(p[token], q[token]))) == 0:
            return (token,)
    return ((yield residual(p, q)),)


def siblings_of_one_draft_without_replacement(draft: Model, target: Model, k: int) -> Decoding:
    p, q = target(()), draft(())
    first = yield q
    rest = [Fraction(0) if i == first else a for i, a in enumerate(q)]
    x = [first, (yield normalised(rest))] if any(rest) else [first]
    for token in x:
        if (yield trial(ratio(p[token], q[token]))) == 0:
            return (token,)
        p = residual(p, q)
    return ((yield p),)


def nothing(draft: Model, target: Model, x: Tokens) -> Decoding:
    yield [Fraction(1)]
    return ()


def bonus_from_the_draft(draft: Model, target: Model, x: Tokens) -> Decoding:
    return ((yield draft(x)),)


def bonus_of_the_context_before(draft: Model, target: Model, x: Tokens) -> Decoding:
    return ((yield target(x[:-1])),)


def top_two(p: Distribution) -> Distribution:
    """p without all but its two largest, renormalised; ties by lowest index."""
    kept = sorted(range(len(p)), key=lambda i: (-p[i], i))[:2]
    return normalised([a if i in kept else Fraction(0) for i, a in enumerate(p)])


def ratio_unfiltered_residual_filtered(draft: Model, target: Model, k: int) -> Decoding:
    """The text is to have the law of the target's top two, but drafts are judged by the target as it is."""
    x = yield from drafted(draft, k)
    for j in range(k):
        p, q = target(x[:j]), draft(x[:j])
        if (yield trial(ratio(p[x[j]], q[x[j]]))) == 1:
            return (*x[:j], (yield residual(top_two(p), q)))
    return (*x, (yield top_two(target(x))))


without_bonus = with_bonus(nothing)                                             # lossless in tokens, not in their number

BROKEN: dict[str, Algorithm] = {
    "residual from p": with_rejection(from_p),
    "residual |p - q|": with_rejection(absolute_difference),
    "residual not renormalised": with_rejection(rest_on_the_last_token),
    "residual of the first context": with_rejection(stale_context),
    "residual without the rejected token": with_rejection(the_rejected_token_zeroed),
    "ratio swapped": with_rejection(right, swapped),
    "bonus from the draft": with_bonus(bonus_from_the_draft),
    "bonus of the context before": with_bonus(bonus_of_the_context_before),
    "drafts of another model": drafts_of_another_model,
    "a second draw after a mismatch": a_second_draw_after_a_mismatch,
    "siblings against one target": siblings_against_one_target,
    "siblings of one draft without replacement": siblings_of_one_draft_without_replacement,
    "typical acceptance": typical,
}
