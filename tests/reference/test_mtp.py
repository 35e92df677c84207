"""The loss of multi-token prediction: which token each head is scored on, means and weights, and the digits of the loss."""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from oracles.reference import mtp_loss, mtp_positions

U = 2.0**-53
EXACT = decimal.Context(prec=60)


def cross_entropy(z: np.ndarray, target: int) -> Decimal:
    total = Decimal(0)
    for x in z:
        total = EXACT.add(total, EXACT.exp(Decimal(float(x))))
    return EXACT.subtract(EXACT.ln(total), Decimal(float(z[target])))


def sure(tokens: list[int], V: int, j: int, *, margin: float = 800.0) -> np.ndarray:
    """Logits (T, V) that are sure of the token j places on, the text taken as a ring: its loss is 0, that of others the margin."""
    z = np.zeros((len(tokens), V))
    for t in range(len(tokens)):
        z[t, tokens[(t + j) % len(tokens)]] = margin
    return z


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_that_of_decimal_arithmetic(seed: int) -> None:
    r = np.random.default_rng(seed)
    K, T, V = 3, 7, 5
    z, tokens, w = r.normal(size=(K, T, V)) * 3, r.integers(0, V, T), r.random(K)
    mean = [sum(cross_entropy(z[j - 1, t], tokens[t + j]) for t in range(T - j)) / (T - j) for j in range(1, K + 1)]
    exact = sum(Decimal(float(weight)) * loss for weight, loss in zip(w, mean))
    spread = 2 * (z.max() - z.min()) + np.abs(z).max()
    bound = w.sum() * (V + 8 + spread + 2 * T) * U * spread
    assert abs(float(mtp_loss(z, tokens, weights=w)) - float(exact)) <= bound


def test_head_j_is_scored_on_the_token_j_places_on() -> None:
    tokens = [0, 1, 2, 3, 4, 5]                                                 # radixark/miles#2215
    z = np.stack([sure(tokens, 6, 1), sure(tokens, 6, 2)])
    assert mtp_loss(z, tokens) == 0.0
    assert mtp_loss(z[::-1], tokens) == 2 * 800.0


def test_the_last_j_positions_have_no_token() -> None:
    assert mtp_positions(3, 5).sum(axis=1).tolist() == [4, 3, 2]
    assert mtp_positions(3, 2).sum(axis=1).tolist() == [1, 0, 0]
    assert mtp_positions(2, 0).shape == (2, 0)


def test_packed_documents_are_not_predicted_from_one_another() -> None:
    tokens, documents = [1, 2, 3, 7, 8, 9], [0, 0, 0, 1, 1, 1]                  # areal-project/AReaL#1445
    z = np.stack([sure(tokens, 10, 1), sure(tokens, 10, 2)])
    z[0, 2], z[1, [1, 2]] = np.nan, np.nan                                      # what looks into the next document
    assert mtp_loss(z, tokens, segments=documents) == 0.0


def test_the_loss_of_two_documents_is_that_of_each_alone_averaged() -> None:
    r = np.random.default_rng(0)
    z, tokens = r.normal(size=(2, 10, 4)), r.integers(0, 4, 10)
    one, other = mtp_loss(z[:, :5], tokens[:5]), mtp_loss(z[:, 5:], tokens[5:])
    both = mtp_loss(z, tokens, segments=np.repeat([3, -7], 5))
    assert abs(both - (one + other) / 2) <= 16 * U * both


def test_twice_the_text_has_the_same_loss() -> None:
    r = np.random.default_rng(1)
    z, tokens = r.normal(size=(2, 6, 4)), r.integers(0, 4, 6)                   # NVIDIA/Megatron-LM#1532
    once = mtp_loss(z, tokens)
    twice = mtp_loss(np.concatenate([z, z], axis=1), np.concatenate([tokens, tokens]), segments=np.repeat([0, 1], 6))
    assert abs(once - twice) <= 32 * U * once


def test_weights_count_each_heads_mean() -> None:
    tokens = [0, 1, 0, 1]
    z = np.stack([sure(tokens, 2, 2), sure(tokens, 2, 1)])                      # both heads wrong everywhere: 800 each
    assert mtp_loss(z, tokens) == 1600.0
    assert mtp_loss(z, tokens, weights=[0.25, 0.5]) == 600.0


def test_ignored_tokens_are_no_targets_and_do_not_count() -> None:
    tokens = [0, 1, -100, 1]
    z = np.zeros((1, 4, 2))
    z[0, 0, 1], z[0, 1] = 800.0, np.nan                                         # position 1 looks at the ignored token
    assert abs(mtp_loss(z, tokens) - np.log(2.0) / 2) <= 2 * U                 # positions 0 and 2: losses 0 and ln 2
    assert mtp_loss(z, [0, 1, 7, 1], ignore_index=7) == mtp_loss(z, tokens)


def test_a_head_without_a_position_adds_nothing() -> None:
    assert mtp_loss(np.full((3, 1, 2), np.nan), [0]) == 0.0
    assert mtp_loss(np.zeros((1, 2, 2)), [0, -100]) == 0.0


def test_a_sure_head_keeps_the_digits_of_its_loss() -> None:
    loss = mtp_loss([[[40.0, 0.0], [0.0, 0.0]]], [0, 0])
    exact = float(cross_entropy(np.array([40.0, 0.0]), 0))
    assert abs(loss - exact) <= 4 * np.spacing(exact)


@pytest.mark.parametrize(("changed", "error", "words"), [
    ({"logits": np.zeros((2, 3))}, ValueError, r"logits: got shape \(2, 3\); want 3 axes"),
    ({"logits": np.zeros((1, 2, 0))}, ValueError, "want a vocabulary of at least 1"),
    ({"logits": np.zeros((1, 2, 3), int)}, TypeError, "logits: got dtype int64"),
    ({"tokens": [0, 3]}, ValueError, "tokens: got numbers from 0 to 3"),
    ({"tokens": [0, -1]}, ValueError, "tokens: got numbers from -1 to 0; want 0..2 or ignore_index = -100"),
    ({"tokens": [0, 1, 2]}, ValueError, r"tokens: got shape \(3,\); want \(2,\)"),
    ({"tokens": [0.0, 1.0]}, TypeError, "tokens: got dtype float64"),
    ({"weights": [1.0, 1.0]}, ValueError, r"weights: got shape \(2,\); want \(1,\)"),
    ({"segments": [0]}, ValueError, r"segments: got shape \(1,\); want \(2,\)"),
])
def test_bad_input_is_refused_by_name(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    given = {"logits": np.zeros((1, 2, 3)), "tokens": [0, 1], **changed}
    with pytest.raises(error, match=words):
        mtp_loss(given.pop("logits"), given.pop("tokens"), **given)
