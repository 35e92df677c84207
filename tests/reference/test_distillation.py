"""Distillation: divergences in decimal arithmetic, temperature, mixture, ends of beta, published triggers."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import numpy as np
import pytest

from oracles.reference import cross_entropy, distillation_loss

U = 2.0**-53
EXACT = Context(prec=60)


def log_probabilities(z: np.ndarray, T: float) -> list[Decimal]:
    x = [Decimal(float(v)) / Decimal(float(T)) for v in z]
    lse = EXACT.ln(sum((EXACT.exp(v) for v in x), Decimal(0)))
    return [v - lse for v in x]


def exact_kl(p: list[Decimal], q: list[Decimal]) -> Decimal:
    return sum((EXACT.exp(a) * (a - b) for a, b in zip(p, q)), Decimal(0))


def exact_divergence(t: list[Decimal], s: list[Decimal], divergence: str, beta: float) -> Decimal:
    if divergence != "jsd":
        return exact_kl(t, s) if divergence == "forward_kl" else exact_kl(s, t)
    b = Decimal(float(beta))
    m = [EXACT.ln(b * EXACT.exp(x) + (1 - b) * EXACT.exp(y)) for x, y in zip(t, s)]
    return b * exact_kl(t, m) + (1 - b) * exact_kl(s, m)


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jsd"])
@pytest.mark.parametrize("seed", range(6))
def test_the_loss_is_that_of_decimal_arithmetic(seed: int, divergence: str) -> None:
    r = np.random.default_rng(seed)
    V, T, alpha, beta = int(r.integers(1, 7)), (0.5, 1.0, 3.0)[seed % 3], (1.0, 0.25)[seed % 2], (0.5, 0.1)[seed // 2 % 2]
    s, t, y = r.normal(size=(3, V)) * 2, r.normal(size=(3, V)) * 2, r.integers(0, V, 3)
    rows = [exact_divergence(log_probabilities(t[i], T), log_probabilities(s[i], T), divergence, beta) for i in range(3)]
    hard = [-log_probabilities(s[i], 1.0)[y[i]] for i in range(3)]
    exact = Decimal(alpha) * Decimal(T) ** 2 * sum(rows) / 3 + (1 - Decimal(alpha)) * sum(hard) / 3
    got = distillation_loss(s, t, y, temperature=T, alpha=alpha, divergence=divergence, beta=beta)
    spread = 2 * np.abs(np.concatenate([s, t])).max() * max(1.0, 1.0 / T) + np.log(V)
    assert abs(float(Decimal(float(got)) - exact)) <= (V + 16) * U * max(1.0, T**2) * 4 * (1 + spread) ** 2


def loss(s: Any, t: Any, divergence: str, *, T: float = 1.0, beta: float = 0.5) -> float:
    return float(distillation_loss(s, t, np.zeros(len(s), int), temperature=T, alpha=1.0, divergence=divergence, beta=beta))


S, TEACHER = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])


def test_the_sum_over_classes_is_not_averaged() -> None:
    assert round(loss(S, TEACHER, "forward_kl"), 4) == 0.3681                   # HikariTJU/LD#74


def test_beta_is_the_share_of_the_teacher() -> None:
    """huggingface/trl#3043: beta .1, t = (.9, .1), s = (.5, .5): m = (.54, .46)."""
    kl = lambda p, q: float((p * np.log(p / q)).sum())  # noqa: E731
    t, s, m = np.array([0.9, 0.1]), np.array([0.5, 0.5]), np.array([0.54, 0.46])
    assert abs(loss(S, TEACHER, "jsd", beta=0.1) - (0.1 * kl(t, m) + 0.9 * kl(s, m))) <= 64 * U


def test_the_ends_of_beta_are_the_two_divergences() -> None:
    assert loss(S, TEACHER, "jsd", beta=0.0) == loss(S, TEACHER, "forward_kl")
    assert loss(S, TEACHER, "jsd", beta=1.0) == loss(S, TEACHER, "reverse_kl")
    near = 2.0**-20
    assert abs(loss(S, TEACHER, "jsd", beta=near) / near - loss(S, TEACHER, "forward_kl")) < 8 * near


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl"])
def test_a_student_like_its_teacher_has_nothing_to_learn(divergence: str) -> None:
    assert loss(TEACHER, TEACHER, divergence) == 0.0


def test_divergences_of_one_another_are_exchanged() -> None:
    assert loss(S, TEACHER, "reverse_kl") == loss(TEACHER, S, "forward_kl")
    assert abs(loss(S, TEACHER, "jsd") - loss(TEACHER, S, "jsd")) <= 16 * U


def test_temperature_keeps_the_scale_of_gradients() -> None:
    assert loss(2 * S, 2 * TEACHER, "forward_kl", T=2.0) == 4 * loss(S, TEACHER, "forward_kl")


def test_alpha_0_is_the_cross_entropy_whatever_the_teacher_holds() -> None:
    given = {"temperature": 2.0, "alpha": 0.0, "divergence": "jsd"}
    assert distillation_loss(S, TEACHER * np.nan, [1], **given) == cross_entropy(S, [1], reduction="mean")


def test_classes_of_probability_0() -> None:
    certain = np.array([[0.0, -np.inf]])
    assert loss(S, certain, "forward_kl") == np.log(2.0)
    assert loss(certain, S, "forward_kl") == np.inf
    assert loss(certain, certain, "forward_kl") == 0.0


def test_ignored_rows_count_nowhere() -> None:
    s, t = np.concatenate([S, [[np.nan, 0.0]]]), np.concatenate([TEACHER, [[0.0, np.nan]]])
    given = {"temperature": 2.0, "alpha": 0.5, "divergence": "forward_kl"}
    assert distillation_loss(s, t, [0, -100], **given) == distillation_loss(S, TEACHER, [0], **given)
    assert distillation_loss(s, t, [-100, -100], **given) == 0.0


@pytest.mark.parametrize(("given", "told"), [
    ({"temperature": 0.0}, "temperature: got 0.0; want a finite number > 0"),
    ({"alpha": 1.5}, "alpha: got 1.5; want a number in 0..1"),
    ({"beta": -0.5}, "beta: got -0.5; want a number in 0..1"),
    ({"divergence": "kl"}, "divergence: got 'kl'; want one of forward_kl, reverse_kl, jsd"),
    ({"teacher": np.zeros((1, 3))}, r"teacher: got shape \(1, 3\); want \(1, 2\)"),
    ({"targets": [5]}, "targets: got numbers from 5 to 5; want 0..1"),
])  # fmt: skip
def test_bad_arguments_are_refused_by_name(given: dict[str, Any], told: str) -> None:
    arguments = {"student": S, "teacher": TEACHER, "targets": [0], "temperature": 1.0, "alpha": 1.0, "divergence": "jsd", **given}
    with pytest.raises(ValueError, match=told):
        distillation_loss(arguments.pop("student"), arguments.pop("teacher"), arguments.pop("targets"), **arguments)
