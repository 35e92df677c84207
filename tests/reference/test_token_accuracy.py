"""Accuracy of the next token: shifted once, ignored targets aside, whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import token_accuracy

PERFECT = np.eye(4)[[[1, 2, 3, 0]]]                                             # predicts 1, 2, 3 behind 0, 1, 2
TOKENS = np.array([[0, 1, 2, 3]])


def counts(*given: Any, **options: Any) -> tuple[int, int]:
    right, counted = token_accuracy(*given, **options)
    return int(right), int(counted)


def test_a_perfect_predictor_is_right_wherever_something_follows() -> None:
    assert counts(PERFECT, TOKENS) == (3, 3)


def test_one_that_repeats_its_input_is_never_right() -> None:
    assert counts(np.eye(4)[TOKENS], TOKENS) == (0, 3)


def test_an_ignored_token_is_no_target_and_may_stand_before_one() -> None:
    assert counts(PERFECT, np.array([[-100, 1, -100, 3]])) == (2, 2)
    assert counts(PERFECT, np.array([[0, 7, 2, 3]]), ignore_index=7) == (2, 2)


def test_of_equal_logits_the_first_counts() -> None:
    assert counts(np.zeros((1, 3, 2)), np.array([[1, 0, 1]])) == (1, 2)


@pytest.mark.parametrize("shape", [(1, 1), (1, 0), (0, 4)])
def test_rows_too_short_predict_nothing(shape: tuple[int, int]) -> None:
    assert counts(np.zeros((*shape, 3)), np.zeros(shape, dtype=np.int64)) == (0, 0)


@pytest.mark.parametrize(("logits", "tokens", "error", "words"), [
    (np.zeros((1, 2)), TOKENS, ValueError, r"logits: got shape \(1, 2\); want 3 axes"),
    (PERFECT, TOKENS[:, :3], ValueError, r"tokens: got shape \(1, 3\); want \(1, 4\)"),
    (PERFECT, TOKENS + 1, ValueError, "tokens: got numbers from 1 to 4"), (PERFECT, TOKENS * 1.0, TypeError, "tokens: got dtype float64"),
    (np.zeros((1, 4, 0)), TOKENS * 0, ValueError, "want a vocabulary of at least 1"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(logits: Any, tokens: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        token_accuracy(logits, tokens)
