"""Distillation: divergences in decimal arithmetic, gradients by a complex step, temperature, mixture, ends of beta, published triggers."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds import distillation_loss_backward_bound
from oracles.reference import cross_entropy, cross_entropy_backward, distillation_loss, distillation_loss_backward

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


# The gradient ---------------------------------------------------------------------------------------------------------


def complex_loss(s: np.ndarray, t: np.ndarray, y: np.ndarray, T: float, alpha: float, divergence: str, beta: float) -> complex:
    """The loss of complex logits of the student, formula by formula."""
    def log_softmax(x: np.ndarray) -> np.ndarray:
        m = x.real.max(axis=-1, keepdims=True)
        return x - m - np.log(np.exp(x - m).sum(axis=-1, keepdims=True))

    def kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return (np.exp(p) * (p - q)).sum(axis=-1)

    p, q = log_softmax(t / T), log_softmax(s / T)
    if divergence == "jsd":
        m = np.log(beta * np.exp(p) + (1 - beta) * np.exp(q))
        rows = beta * kl(p, m) + (1 - beta) * kl(q, m)
    else:
        rows = kl(p, q) if divergence == "forward_kl" else kl(q, p)
    hard = -np.take_along_axis(log_softmax(s), y[:, None], axis=-1)
    return complex(alpha * T**2 * rows.mean() + (1 - alpha) * hard.mean())


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jsd"])
@pytest.mark.parametrize("seed", range(6))
def test_the_gradient_is_that_of_a_complex_step(seed: int, divergence: str) -> None:
    """Im f(z + i h) / h has no difference that cancels. The bound of float64 once for the oracle, and four times for complex products,
    which round to sqrt(5) u, in the other route (Brent, Percival and Zimmermann 2007, doi 10.1090/S0025-5718-07-01931-X)."""
    r, h = np.random.default_rng(seed), 2.0**-100
    V, T, alpha, beta = int(r.integers(1, 7)), (0.5, 1.0, 3.0)[seed % 3], (1.0, 0.25, 0.0)[seed // 2], (0.5, 0.1)[seed // 2 % 2]
    s, t, y, dloss = r.normal(size=(3, V)) * 2, r.normal(size=(3, V)) * 2, r.integers(0, V, 3), 1.5
    slopes = np.zeros(s.shape)
    for at in np.ndindex(s.shape):
        moved = s.astype(np.complex128)
        moved[at] += 1j * h
        slopes[at] = dloss * (complex_loss(moved, t, y, T, alpha, divergence, beta).imag / h)
    options = {"temperature": T, "alpha": alpha, "divergence": divergence, "beta": beta}
    bound = distillation_loss_backward_bound(Arithmetic().resolve("float64"), s, t, y, dloss, **options)["dstudent"]
    assert (np.abs(distillation_loss_backward(s, t, y, dloss, **options) - slopes) <= 5 * bound).all()
    assert bound.max() < 2.0**-40                                               # nothing is left open


def slope(s: Any, t: Any, divergence: str, *, T: float = 1.0, alpha: float = 1.0, beta: float = 0.5) -> Any:
    given = {"temperature": T, "alpha": alpha, "divergence": divergence, "beta": beta}
    return distillation_loss_backward(s, t, np.zeros(len(s), int), 1.0, **given)


def test_the_forward_gradient_is_student_less_teacher() -> None:
    assert (slope(S, TEACHER, "forward_kl") == np.exp(S) - np.exp(TEACHER)).all()


def test_t_squared_over_t_leaves_t() -> None:
    assert (slope(2 * S, 2 * TEACHER, "reverse_kl", T=2.0) == 2 * slope(S, TEACHER, "reverse_kl")).all()


def test_a_student_like_its_teacher_stands_still() -> None:
    assert not slope(TEACHER, TEACHER, "forward_kl").any()
    assert not slope(TEACHER, TEACHER, "reverse_kl").any()


def test_the_ends_of_beta_have_the_gradients_of_the_two_divergences() -> None:
    assert (slope(S, TEACHER, "jsd", beta=0.0) == slope(S, TEACHER, "forward_kl")).all()
    assert (slope(S, TEACHER, "jsd", beta=1.0) == slope(S, TEACHER, "reverse_kl")).all()
    near = 2.0**-60                                                             # 1 - beta is 1, and the mixture still the student
    assert np.abs(slope(S, TEACHER, "jsd", beta=near)).max() < 2.0**-50


def test_alpha_0_is_the_gradient_of_the_cross_entropy_whatever_the_teacher_holds() -> None:
    assert (slope(S, TEACHER * np.nan, "jsd", alpha=0.0) == cross_entropy_backward(S, [0], 1.0, reduction="mean")).all()


def test_ignored_rows_have_no_gradient_and_share_no_mean() -> None:
    s, t = np.concatenate([S, [[np.nan, 0.0]]]), np.concatenate([TEACHER, [[0.0, np.nan]]])
    given = {"temperature": 2.0, "alpha": 0.5, "divergence": "jsd"}
    dz = distillation_loss_backward(s, t, [0, -100], 1.0, **given)
    assert (dz == np.concatenate([distillation_loss_backward(S, TEACHER, [0], 1.0, **given), [[0.0, 0.0]]])).all()
    assert not distillation_loss_backward(s, t, [-100, -100], 1.0, **given).any()


def test_a_class_the_student_excludes_stays_out() -> None:
    certain = np.array([[0.0, -np.inf]])
    assert slope(certain, S, "reverse_kl").tolist() == [[0.0, 0.0]]
    assert slope(certain, S, "forward_kl").tolist() == [[0.5, -0.5]]


def test_dloss_is_one_number() -> None:
    with pytest.raises(ValueError, match=r"dloss: got shape \(1,\); want \(\)"):
        distillation_loss_backward(S, TEACHER, [0], [1.0], temperature=1.0, alpha=1.0, divergence="jsd")


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
    arrays = [arguments.pop(name) for name in ("student", "teacher", "targets")]
    with pytest.raises(ValueError, match=told):
        distillation_loss(*arrays, **arguments)
    with pytest.raises(ValueError, match=told):
        distillation_loss_backward(*arrays, 1.0, **arguments)
