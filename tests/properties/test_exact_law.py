"""Exact laws as fractions: what is lossless equals the target's chain on every random model, what is broken does not."""

from __future__ import annotations

import doctest
import functools
import importlib
from fractions import Fraction

import numpy as np
import pytest

from oracles.properties.broken_decoding import BROKEN, right, with_rejection, without_bonus
from oracles.properties.decoding_algorithms import by_block, token_by_token, tree
from oracles.properties.enumeration import Algorithm, Decoding, enumerated_law
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
        law, whole = exact_law(draft, target, k=2, algorithm=without_bonus), emission_law(draft, target, k=2)
        assert token_distance(law, target) == 0
        assert (length_law(law) == length_law(whole)) == (3 not in length_law(whole))    # disjoint models never come to the bonus


def test_two_drafts_without_replacement_of_two_tokens_never_miss() -> None:
    draft, target = random_models(2, 0)
    again, without = (exact_law(draft, target, k=1, algorithm=functools.partial(tree, siblings=2, replace=r)) for r in (True, False))
    assert set(length_law(again)) == {1, 2}
    assert length_law(without) == {2: 1}


def test_the_distance_of_two_laws_is_the_largest_difference_of_a_set() -> None:
    third = Fraction(1, 3)
    assert distance({(0,): third, (1,): 2 * third}, {(0,): Fraction(1, 2), (2,): Fraction(1, 2)}) == 2 * third


def test_a_draw_from_weights_that_are_no_distribution_is_an_error() -> None:
    def leaky() -> Decoding:
        return ((yield [Fraction(1, 2), Fraction(1, 3)]),)

    with pytest.raises(ValueError, match="sum to 1"):
        enumerated_law(leaky)


@pytest.mark.parametrize("name", ["enumeration", "exact_law", "random_models"])
def test_the_examples_print_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"oracles.properties.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
