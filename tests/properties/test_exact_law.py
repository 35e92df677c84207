"""Exact laws as fractions: what is lossless equals the target's chain on every random model, what is broken does not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from oracles.properties.decoding_algorithms import by_block, drafted, normalised, ratio, residual, token_by_token, tree, trial, typical
from oracles.properties.enumeration import Algorithm, Decoding, Model, enumerated_law
from oracles.properties.exact_law import (
    chain,
    completed,
    distance,
    emission_law,
    exact_law,
    length_law,
    mean_length,
    token_distance,
)
from oracles.properties.random_models import KINDS, random_models
from oracles.reference import acceptance_rate

MODELS = range(40)
FEW_MODELS = range(18)                                                          # three of each kind
LENGTHS = {2: 4, 3: 2, 4: 2, 5: 2}
LOSSLESS: dict[str, tuple[Algorithm, dict[int, int]]] = {
    "token by token": (token_by_token, LENGTHS),
    "by block": (by_block, LENGTHS),
    "two drafts": (functools.partial(tree, siblings=2, replace=True), {2: 2, 3: 1, 4: 1, 5: 1}),
    "three drafts": (functools.partial(tree, siblings=3, replace=True), {2: 1, 3: 1}),
    "two drafts without replacement": (functools.partial(tree, siblings=2, replace=False), {2: 2, 3: 2, 4: 1, 5: 1}),
    "three drafts without replacement": (functools.partial(tree, siblings=3, replace=False), {2: 2, 3: 1, 4: 1}),
}


@pytest.mark.parametrize("V", [2, 3, 4, 5])
@pytest.mark.parametrize("name", LOSSLESS)
def test_the_token_law_is_the_targets_as_fractions(name: str, V: int) -> None:
    algorithm, lengths = LOSSLESS[name]
    for seed in () if V not in lengths else MODELS if "by" in name else FEW_MODELS:
        draft, target = random_models(V, seed)
        law = exact_law(draft, target, k=lengths[V], algorithm=algorithm)
        n = max(map(len, law))
        assert completed(law, target, n) == chain(target, n)


@pytest.mark.parametrize("V", [2, 3, 4, 5])
def test_tokens_and_their_number_have_the_law_of_the_formula(V: int) -> None:
    for seed in MODELS:
        draft, target = random_models(V, seed)
        assert exact_law(draft, target, k=LENGTHS[V]) == emission_law(draft, target, k=LENGTHS[V])


@pytest.mark.parametrize("V", [2, 3, 4])
def test_a_block_emits_at_least_as_many_tokens_on_average(V: int) -> None:
    means = []
    for seed in MODELS:
        draft, target = random_models(V, seed)
        means.append([mean_length(exact_law(draft, target, k=2, algorithm=a)) for a in (by_block, token_by_token)])
    assert all(block >= single for block, single in means)
    assert sum(block > single for block, single in means) > len(MODELS) / 4


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_the_acceptance_rate_is_the_probability_of_two_tokens_from_one_draft(seed: int) -> None:
    draft, target = random_models(4, seed)
    p, q = target(()), draft(())
    accepted = length_law(exact_law(draft, target, k=1)).get(2, Fraction(0))
    assert accepted == 1 - sum(abs(a - b) for a, b in zip(p, q)) / 2
    rate = acceptance_rate(np.array(p, float), np.array(q, float))
    assert abs(Fraction(float(rate)) - accepted) <= Fraction(3 * 4, 2**53)


def test_the_kinds_of_models_are_what_they_say() -> None:
    laws = {kind: [m(()) for m in random_models(4, seed)] for seed, kind in enumerate(KINDS)}
    assert min(map(min, laws["positive"])) > 0
    assert min(map(min, laws["zeros"])) == 0
    assert all(len(set(p)) < 4 for p in laws["ties"])
    assert all(a * b == 0 for a, b in zip(*laws["disjoint"]))
    assert laws["equal"][0] == laws["equal"][1]
    assert max(laws["one against many"][0]) == 1 > max(laws["one against many"][1])


def test_a_model_depends_on_its_context() -> None:
    _, target = random_models(4, 0)
    assert target((0,)) != target((1,))


Step = Callable[[Model, Model, int, tuple[int, ...]], Decoding]


def with_rejection(rejected: Step, accept: Callable[[Fraction, Fraction], Fraction] = ratio) -> Algorithm:
    """Token by token, with another draw after a rejection at x[j], or another probability to accept."""
    def algorithm(draft: Model, target: Model, k: int) -> Decoding:
        x = yield from drafted(draft, k)
        for j in range(k):
            if (yield trial(accept(target(x[:j])[x[j]], draft(x[:j])[x[j]]))) == 1:
                return (*x[:j], (yield from rejected(draft, target, j, x)))
        return (*x, (yield target(x)))
    return algorithm


def with_bonus(bonus: Callable[[Model, Model, tuple[int, ...]], Decoding]) -> Algorithm:
    def algorithm(draft: Model, target: Model, k: int) -> Decoding:
        y = yield from token_by_token(draft, target, k)
        return y if len(y) <= k else (*y[:k], *(yield from bonus(draft, target, y[:k])))
    return algorithm


def right(draft: Model, target: Model, j: int, x: tuple[int, ...]) -> Decoding:
    return (yield residual(target(x[:j]), draft(x[:j])))


def from_p(draft: Model, target: Model, j: int, x: tuple[int, ...]) -> Decoding:
    return (yield target(x[:j]))


def absolute_difference(draft: Model, target: Model, j: int, x: tuple[int, ...]) -> Decoding:
    return (yield normalised([abs(a - b) for a, b in zip(target(x[:j]), draft(x[:j]))]))


def rest_on_the_last_token(draft: Model, target: Model, j: int, x: tuple[int, ...]) -> Decoding:
    left = [max(Fraction(0), a - b) for a, b in zip(target(x[:j]), draft(x[:j]))]
    return (yield [*left[:-1], 1 - sum(left[:-1])])


def stale_context(draft: Model, target: Model, j: int, x: tuple[int, ...]) -> Decoding:
    return (yield residual(target(()), draft(())))


def the_rejected_token_zeroed(draft: Model, target: Model, j: int, x: tuple[int, ...]) -> Decoding:
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


def nothing(draft: Model, target: Model, x: tuple[int, ...]) -> Decoding:
    yield [Fraction(1)]
    return ()


def bonus_from_the_draft(draft: Model, target: Model, x: tuple[int, ...]) -> Decoding:
    return ((yield draft(x)),)


def bonus_of_the_context_before(draft: Model, target: Model, x: tuple[int, ...]) -> Decoding:
    return ((yield target(x[:-1])),)


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


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_algorithm_has_another_token_law(name: str) -> None:
    models = [random_models(5, seed) for seed in range(12)]
    found = [token_distance(exact_law(draft, target, k=2, algorithm=BROKEN[name]), target) > 0 for draft, target in models]
    assert sum(found) >= 2


def test_the_same_frame_with_the_right_residual_is_lossless() -> None:
    for seed in range(12):
        draft, target = random_models(4, seed)
        assert token_distance(exact_law(draft, target, k=2, algorithm=with_rejection(right)), target) == 0


def test_a_missing_bonus_keeps_the_token_law_and_breaks_the_length_law() -> None:
    for seed in range(12):
        draft, target = random_models(3, seed)
        law, whole = exact_law(draft, target, k=2, algorithm=with_bonus(nothing)), emission_law(draft, target, k=2)
        assert token_distance(law, target) == 0
        assert (length_law(law) == length_law(whole)) == (3 not in length_law(whole))    # disjoint models never come to the bonus


def test_the_distance_of_two_laws_is_the_largest_difference_of_a_set() -> None:
    third = Fraction(1, 3)
    assert distance({(0,): third, (1,): 2 * third}, {(0,): Fraction(1, 2), (2,): Fraction(1, 2)}) == 2 * third


def test_a_draw_from_weights_that_are_no_distribution_is_an_error() -> None:
    def leaky() -> Decoding:
        return ((yield [Fraction(1, 2), Fraction(1, 3)]),)

    with pytest.raises(ValueError, match="sum to 1"):
        enumerated_law(leaky)
