"""The exact law of a subject from the subject itself: rules with a known law give it, as fractions; what is hidden between cuts strays."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import subject
from oracles.properties.cases.speculative import VERIFY_CASES, VerifyRecipe
from oracles.properties.declaration import declaration_of
from oracles.properties.exact_law import distance, emission_law
from oracles.properties.laws import verified_law as laws
from oracles.properties.operations import operation_named
from oracles.properties.subject_law import GRID, subject_law
from oracles.properties.subjects import InProcess
from oracles.properties.trial import Trial

ONE = [Fraction(1)]


def law_of(rule: Any, d: int) -> dict[tuple[int, ...], Fraction]:
    return subject_law(lambda s, u: rule(u).astype(np.int64), ONE, d, [[[] for _ in range(d)]], seed=1).law


@pytest.mark.parametrize("border", [1, 12345, GRID // 3, GRID - 1])
def test_a_border_anywhere_is_found_to_the_last_step(border: int) -> None:
    law = law_of(lambda u: u[:, :1] < border, 1)
    assert law == {(1,): Fraction(border, GRID), (0,): Fraction(GRID - border, GRID)}


def test_two_uniforms_make_boxes() -> None:
    law = law_of(lambda u: np.where(u[:, :1] < GRID // 4, 7, np.where(u[:, 1:] < GRID // 8, 1, 2)), 2)
    assert law == {(7,): Fraction(1, 4), (1,): Fraction(3, 32), (2,): Fraction(21, 32)}


def test_what_hides_between_two_cuts_is_seen_by_the_probes() -> None:
    hidden = subject_law(lambda s, u: ((u[:, :1] > GRID // 2 + GRID // 100) & (u[:, :1] < GRID // 2 + GRID // 20)).astype(np.int64), ONE, 1,
                         [[[]]], seed=1)  # fmt: skip
    assert hidden.strays > 0


def test_an_answer_of_noise_has_no_law() -> None:
    generator = np.random.default_rng(0)
    assert subject_law(lambda s, u: generator.integers(0, 2, (len(u), 1)), ONE, 1, [[[]]], seed=1).strays > 0


def computed(function: Any, V: int, K: int, seed: int) -> tuple[Any, Any]:
    declared = subject("speculative_verify")(function)
    case = VERIFY_CASES.build(VerifyRecipe(K=K, V=V, models="law", seed=seed))
    trial = Trial(operation_named("speculative_verify"), InProcess(declared, declaration_of(declared, "speculative_verify")), case)
    return laws.computed(trial)


def verify(draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None) -> Any:
    return reference.speculative_verify(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths)


@pytest.mark.parametrize(("V", "K", "seed"), [(2, 1, 0), (3, 1, 1), (2, 2, 2), (3, 2, 4), (2, 3, 5)])
def test_the_oracle_has_the_law_of_the_formula_but_for_the_grid(V: int, K: int, seed: int) -> None:
    models, found = computed(verify, V, K, seed)
    assert found.strays == 0
    off = distance(laws.emissions_of(found), emission_law(models.draft, models.target, k=K))
    assert off <= (K + 1) * V * Fraction(1, GRID)


def test_four_tokens_and_three_drafts_take_seconds() -> None:
    """The fast port, all 64 drafts of three tokens over four."""
    from oracles.tools.own_ports import verify_a_batch_at_once

    start = time.monotonic()
    models, found = computed(verify_a_batch_at_once, 4, 3, 0)
    off = distance(laws.emissions_of(found), emission_law(models.draft, models.target, k=3))
    assert found.strays == 0
    assert off <= 16 * Fraction(1, GRID)
    assert time.monotonic() - start < 120
