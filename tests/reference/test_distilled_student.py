"""A student trained in NumPy: no step makes it worse, it comes down as fast as the theorem says, and to the teacher where it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds import distillation_loss_backward_bound, distillation_loss_bound
from oracles.properties.bounds.sums import g
from oracles.reference import distillation_loss, distillation_loss_backward, distilled_student

U, WIDE = 2.0**-53, Arithmetic().resolve("float64")
OPTIONS = {"alpha": 1.0, "divergence": "forward_kl"}


def lesson(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, the weights of a teacher that the student can be, its logits, and targets."""
    r = np.random.default_rng(seed)
    x, best = r.normal(size=(40, 6)), r.normal(size=(6, 4))
    return x, best, x @ best, r.integers(0, 4, 40)


def smoothness(x: np.ndarray) -> float:
    return float(np.linalg.norm(x, 2)) ** 2 / (2 * len(x))


def rounding(x: np.ndarray, w: np.ndarray, t: np.ndarray, y: np.ndarray, T: float, alpha: float) -> tuple[float, np.ndarray]:
    """What float64 allows of the loss at w, and of each number of its gradient x^T dz, product and sums of C and n terms in it."""
    given: dict[str, Any] = {"temperature": T, "alpha": alpha, "divergence": "forward_kl"}
    (n, C), logits = x.shape, x @ w
    moved = g(C + 1.0, U) * (np.abs(x) @ np.abs(w))                             # of the logits
    dz = np.abs(distillation_loss_backward(logits, t, y, 1.0, **given))
    off = distillation_loss_backward_bound(WIDE, logits, t, y, 1.0, **given)["dstudent"] + moved.max() / (2 * n)
    loss = float(distillation_loss_bound(WIDE, logits, t, y, **given)["loss"] + (moved * (dz + off)).sum())
    return loss, np.abs(x).T @ (off + g(n + 1.0, U) * dz)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
@pytest.mark.parametrize("T", [1.0, 3.0])
def test_every_step_takes_off_what_the_gradient_promises(T: float, alpha: float) -> None:
    x, _, t, y = lesson(0)
    L, given = smoothness(x), {"temperature": T, "alpha": alpha, "divergence": "forward_kl"}
    _, losses = distilled_student(x, t, y, steps=20, temperature=T, alpha=alpha)
    for k in range(20):
        w, _ = distilled_student(x, t, y, steps=k, temperature=T, alpha=alpha)
        gradient = x.T @ distillation_loss_backward(x @ w, t, y, 1.0, **given)
        promised = float((gradient**2).sum()) / (2 * L)
        (one, off), (two, _) = rounding(x, w, t, y, T, alpha), rounding(x, w - gradient / L, t, y, T, alpha)
        unsure = one + two + float((2 * np.abs(gradient) * off + off**2).sum()) / L
        assert losses[k + 1] <= losses[k] - promised + unsure
        assert unsure < promised / 1000
    assert (np.diff(losses) < 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_it_comes_down_at_least_as_fast_as_the_theorem_says(seed: int) -> None:
    x, best, t, y = lesson(seed)
    _, losses = distilled_student(x, t, y, steps=300, temperature=2.0)
    k = np.arange(1, 301)
    assert (losses[1:] <= smoothness(x) * float((best**2).sum()) / (2 * k)).all()


def test_a_student_that_can_be_its_teacher_becomes_it() -> None:
    """A hundredth of the first loss after as many steps as the theorem asks for: so near is the cross-entropy to the teacher's entropy."""
    x, best, t, y = lesson(0)
    first = float(distillation_loss(np.zeros_like(t), t, y, temperature=1.0, **OPTIONS))
    enough = int(np.ceil(100 * smoothness(x) * float((best**2).sum()) / (2 * first)))
    assert enough < 2_000
    w, losses = distilled_student(x, t, y, steps=enough, temperature=1.0)
    assert losses[0] == first
    assert losses[-1] <= first / 100
    p, log_s = np.exp(t - np.log(np.exp(t).sum(-1, keepdims=True))), x @ w - np.log(np.exp(x @ w).sum(-1, keepdims=True))
    entropy, cross = -(p * np.log(p)).sum(-1).mean(), -(p * log_s).sum(-1).mean()
    unsure, _ = rounding(x, w, t, y, 1.0, 1.0)
    assert -unsure <= cross - entropy <= first / 100 + unsure


def test_a_step_twice_as_long_as_the_limit_makes_it_worse() -> None:
    """2 / L is where descent ends: one example of two classes, its teacher near the uniform student, reaches the bound."""
    x, t, y = np.ones((1, 1)), np.array([[2.0**-6, 0.0]]), np.array([0])
    dz = distillation_loss_backward(np.zeros((1, 2)), t, y, 1.0, temperature=1.0, **OPTIONS)
    at = lambda step: float(distillation_loss(-step * dz, t, y, temperature=1.0, **OPTIONS))  # noqa: E731
    L = smoothness(x)
    assert at(1 / L) < at(0.0) < at(2.1 / L)


@pytest.mark.parametrize(("given", "told"), [
    ({"x": np.zeros((2, 3))}, r"x: got shape \(2, 3\) with nothing but zeros"),
    ({"teacher": np.zeros((3, 2))}, "teacher: got 3 rows beside 2 of x"),
    ({"steps": -1}, "steps: got -1; want a whole number >= 0"),
    ({"temperature": 0.0}, "temperature: got 0.0; want a finite number > 0"),
])  # fmt: skip
def test_bad_arguments_are_refused_by_name(given: dict[str, Any], told: str) -> None:
    whole = {"x": np.eye(2), "teacher": np.eye(2), "targets": [0, 1], "steps": 1, "temperature": 1.0, **given}
    with pytest.raises(ValueError, match=told):
        distilled_student(**whole)
