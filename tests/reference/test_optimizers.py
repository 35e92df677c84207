"""AdamW in rationals and decimal arithmetic, its published triggers; the global norm and its clip."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import numpy as np
import pytest

from oracles.reference import adamw_step, clip_grad_norm

U = 2.0**-53
EXACT = Context(prec=60)
USUAL = {"step": 1, "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}


def step(p: float, g: float, m: float = 0.0, v: float = 0.0, **options: Any) -> tuple[float, float, float]:
    new = adamw_step(*([x] for x in (p, g, m, v)), **{**USUAL, **options})
    return float(new[0][0]), float(new[1][0]), float(new[2][0])


def exact_step(p: float, g: float, m: float, v: float, **options: Any) -> list[Decimal]:
    """The formula of the docstring, in decimal arithmetic."""
    o = {name: x if name == "step" else Decimal(float(x)) for name, x in options.items()}
    P, G, M, V = (Decimal(float(x)) for x in (p, g, m, v))
    M = o["beta1"] * M + (1 - o["beta1"]) * G
    V = o["beta2"] * V + (1 - o["beta2"]) * G * G
    root = EXACT.sqrt(V / (1 - o["beta2"] ** o["step"]))
    return [P * (1 - o["lr"] * o["weight_decay"]) - o["lr"] * (M / (1 - o["beta1"] ** o["step"])) / (root + o["eps"]), M, V]


@pytest.mark.parametrize("seed", range(40))
def test_a_step_is_that_of_decimal_arithmetic(seed: int) -> None:
    r = np.random.default_rng(seed)
    options = {"step": int(r.choice([1, 2, 10, 100])), "lr": float(r.choice([1e-3, 0.1])), "beta1": float(r.choice([0.0, 0.5, 0.9])),
               "beta2": float(r.choice([0.5, 0.95, 0.999])), "eps": 1e-8, "weight_decay": float(r.choice([0.0, 0.1]))}  # fmt: skip
    p, g = r.normal(size=2)
    m, v = (0.0, 0.0) if seed % 3 == 0 else (r.normal(), r.random() + 0.1)
    got = step(p, g, m, v, **options)
    exact = exact_step(p, g, m, v, **options)
    loss_of_correction = 4 / (1 - options["beta2"])                             # 1 - beta loses the digits that beta has near 1
    scale = abs(p) + abs(float(exact[0] - Decimal(p)))
    bounds = [(12 + loss_of_correction) * U * scale, 8 * U * (abs(m) + abs(g)), 8 * U * (v + g * g)]
    assert all(abs(float(Decimal(x) - y)) <= b for x, y, b in zip(got, exact, bounds))


def test_eps_is_not_scaled_by_the_correction() -> None:
    """aiqm/torchani#261: g = eps moves by half the learning rate at the first step."""
    p, _, _ = step(0.0, 1e-8, lr=1.0)
    assert abs(p + 0.5) <= 4096 * U


def test_the_decay_is_decoupled_from_the_gradient() -> None:
    """flagos-ai/FlagGems#4988: without a gradient only lr weight_decay param goes, and no moment knows of it."""
    assert step(1.0, 0.0, weight_decay=0.1) == (1.0 - 0.1 * 0.1, 0.0, 0.0)


def test_the_decay_multiplies_the_old_parameter() -> None:
    """huggingface/transformers#14539: lr = .1, decay .5, a move of lr: .85, not .855."""
    assert abs(step(1.0, 1.0, weight_decay=0.5, eps=0.0)[0] - 0.85) <= 4096 * U


def test_nothing_over_nothing_moves_nothing() -> None:
    assert step(3.0, 0.0, eps=0.0) == (3.0, 0.0, 0.0)


def test_the_first_step_moves_by_the_learning_rate() -> None:
    for g in (1e-4, 3.0, -7e5):
        assert abs(step(0.0, g, eps=0.0)[0] + 0.1 * np.sign(g)) <= 4096 * U


def test_a_norm_is_that_of_all_arrays_together() -> None:
    grads, norm = clip_grad_norm([[3.0], [[0.0, 4.0]], np.zeros((0, 2))], max_norm=1.0)
    assert norm == 5.0
    assert [g.shape for g in grads] == [(1,), (1, 2), (0, 2)]
    assert np.abs(grads[0] - 0.6).max() <= 4 * U


def test_what_is_within_the_limit_keeps_its_bits() -> None:
    g = np.random.default_rng(0).normal(size=50)
    (same,), norm = clip_grad_norm([g], max_norm=float(np.linalg.norm(g)) * 2)
    assert same.tobytes() == g.tobytes()
    assert abs(norm - np.linalg.norm(g)) <= 60 * U * norm


def test_squares_that_overflow_do_not_spoil_the_norm() -> None:
    (g,), norm = clip_grad_norm([[3e200, 4e200]], max_norm=10.0)
    assert abs(norm / 5e200 - 1) <= 4 * U
    assert np.abs(g - [6.0, 8.0]).max() <= 16 * U * 8


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_norm_that_is_no_number_shows(bad: float) -> None:
    grads, norm = clip_grad_norm([[1.0], [bad]], max_norm=1.0)
    assert not np.isfinite(norm)
    assert all(np.isnan(g).all() for g in grads)


def test_no_gradients_have_norm_0() -> None:
    assert clip_grad_norm([], max_norm=1.0) == ([], 0.0)
    (g,), norm = clip_grad_norm([[0.0, 0.0]], max_norm=0.0)
    assert (norm, g.tolist()) == (0.0, [0.0, 0.0])


@pytest.mark.parametrize(("given", "told"), [
    ({"step": 0}, "step: got 0; want a whole number >= 1"), ({"beta1": 1.0}, r"beta1: got 1.0; want a number in \[0, 1\)"),
    ({"lr": -1.0}, "lr: got -1.0; want a finite number >= 0"), ({"eps": -1.0}, "eps: got -1.0"),
    ({"weight_decay": -1.0}, "weight_decay: got -1.0"),
])  # fmt: skip
def test_bad_arguments_are_refused_by_name(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        step(1.0, 1.0, **given)
    with pytest.raises(ValueError, match=r"grad: got shape \(2,\); want \(1,\)"):
        adamw_step([1.0], [1.0, 2.0], [0.0], [0.0], **USUAL)
    with pytest.raises(ValueError, match=r"max_norm: got -1\.0; want a finite number >= 0"):
        clip_grad_norm([[1.0]], max_norm=-1.0)
