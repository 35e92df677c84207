"""Mixed precision: updates that vanish without a master, steps that are left out, the state machine of the loss scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from oracles.reference import FloatFormat, LossScaler, TorchStream, adamw_step, master_weight_step

USUAL: dict[str, Any] = {"loss_scale": 1.0, "max_norm": None, "step": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
                         "weight_decay": 0.0, "fmt": "bfloat16"}  # fmt: skip


def run(master: float, steps: int, *, grad: float = 0.0, **options: Any) -> tuple[float, float]:
    """Weight and master after some steps with one gradient."""
    state = tuple(np.array([x]) for x in (master, 0.0, 0.0))
    for t in range(1, steps + 1):
        weights, *state = master_weight_step([grad], *state, **{**USUAL, **options, "step": t})
    return float(weights[0]), float(state[0][0])


def test_a_decay_that_bfloat16_would_lose_is_kept_in_the_master() -> None:
    """Nerogar/OneTrainer#996: w = 1, lr = 1e-3, decay .01, 1000 steps: .99005; each step alone rounds to nothing in bfloat16."""
    weight, master = run(1.0, 1000, weight_decay=0.01)
    assert abs(master - (1 - 1e-5) ** 1000) <= 2000 * 2.0**-53
    assert round(master, 5) == 0.99005
    assert weight == 0.98828125                                                 # the bfloat16 nearest to it
    rounded = FloatFormat("bfloat16")
    w = np.asarray(1.0)
    for _ in range(1000):
        w = rounded.round(w * (1 - 1e-3 * 0.01))
    assert w == 1.0


def test_an_update_that_vanishes_in_float16_does_not_in_the_master() -> None:
    assert FloatFormat("float16").round(0.5 + 1e-6) == 0.5
    weight, master = run(0.5, 1, grad=-1.0, lr=1e-6, fmt="float16")
    assert (weight, round(master, 9)) == (0.5, 0.500001)


def test_the_share_of_small_gradients_that_float16_keeps() -> None:
    """10,000 gradients from N(0, (1e-7)^2), PyTorch's generator at seed 0: 7,622 are not 0 in float16, 9,998 of those of a loss times 1024.

    torch.randn(10000) * 1e-7 gives the same two counts. Kept is |g| > 2^-25: in the mean 2 (1 - Phi(2^-25 / 1e-7)) = .76569, or .99977.
    """
    g = TorchStream(0).randn(10_000) * np.float32(1e-7)
    half = FloatFormat("float16")
    kept = {scale: np.count_nonzero(half.round(g * np.float32(scale))) for scale in (1, 1024)}
    assert kept == {1: 7622, 1024: 9998}
    assert {scale: np.count_nonzero(np.abs(g) > 2.0**-25 / scale) for scale in kept} == kept
    assert {scale: round(math.erfc(2.0**-25 / scale / 1e-7 / math.sqrt(2.0)), 5) for scale in kept} == {1: 0.76569, 1024: 0.99977}


def test_accumulation_in_bfloat16_stands_still() -> None:
    """deepspeedai/DeepSpeed#6485: 1 and 256 additions of 2^-9: 1.5, in bfloat16 1."""
    total = np.asarray(1.0)
    for _ in range(256):
        total = FloatFormat("bfloat16").round(total + 2.0**-9)
    assert total == 1.0
    assert 1.0 + 256 * 2.0**-9 == 1.5


def test_a_scaled_gradient_steps_as_the_plain_one() -> None:
    g, p, m, v = np.random.default_rng(0).random((4, 9))
    options = {name: x for name, x in USUAL.items() if name not in ("loss_scale", "max_norm", "fmt")}
    weights, *new = master_weight_step(g * 1024.0, p, m, v, **{**USUAL, "loss_scale": 1024.0})
    assert all(a.tobytes() == b.tobytes() for a, b in zip(new, adamw_step(p, g, m, v, **options)))
    assert (weights == FloatFormat("bfloat16").round(new[0])).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_no_number_changes_nothing(bad: float) -> None:
    g, p, m, v = np.random.default_rng(1).random((4, 5))
    g[2] = bad
    weights, *new = master_weight_step(g, p, m, v, **USUAL)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(new, (p, m, v)))
    assert (weights == FloatFormat("bfloat16").round(p)).all()


def test_the_clip_sees_unscaled_gradients() -> None:
    zero, clipped = [0.0, 0.0], {**USUAL, "loss_scale": 64.0, "max_norm": 1.0}
    _, _, m, _ = master_weight_step([3.0 * 64, 4.0 * 64], zero, zero, zero, **clipped)
    assert np.abs(m - 0.1 * np.array([0.6, 0.8])).max() <= 2.0**-53


def test_the_scale_backs_off_and_grows_after_a_run() -> None:
    scaler = LossScaler(init_scale=16.0, growth_interval=3)
    seen = []
    for found in (False, False, True, False, False, False, False, False, False):
        scaler.update(found)
        seen.append(scaler.value)
    assert seen == [16.0, 16.0, 8.0, 8.0, 8.0, 16.0, 16.0, 16.0, 32.0]


def test_the_scale_is_never_infinite_and_never_0() -> None:
    up, down = LossScaler(init_scale=2.0**120, growth_interval=1), LossScaler(init_scale=2.0**-120)
    for _ in range(500):
        up.update(False)
        down.update(True)
    assert (up.value, down.value) == (2.0**127, 2.0**-126)


def test_a_step_with_an_overflow_is_left_out() -> None:
    scaler, taken = LossScaler(init_scale=4.0), []
    grads, found = scaler.unscale([[8.0], [np.inf]])
    assert (found, grads[0].tolist()) == (True, [2.0])
    assert scaler.step(lambda: taken.append(1), grads) is False
    assert scaler.step(lambda: taken.append(2), [[1.0], np.zeros((0,))]) is True
    assert taken == [2]
    assert scaler.value == 4.0                                                  # until update is called
    assert scaler.scale(0.5) == 2.0


@pytest.mark.parametrize(("given", "told"), [
    ({"init_scale": 0.0}, "init_scale: got 0.0; want a finite number > 0"),
    ({"init_scale": 1e300}, "init_scale: got 1e\\+300; want a normal"),
    ({"growth_factor": 0.5}, "growth_factor: got 0.5; want a number >= 1"),
    ({"backoff_factor": 2.0}, "backoff_factor: got 2.0; want a number"),
    ({"growth_interval": 0}, "growth_interval: got 0; want a whole number >= 1"),
])  # fmt: skip
def test_bad_arguments_are_refused_by_name(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        LossScaler(**given)
    with pytest.raises(ValueError, match="loss_scale: got 0"):
        master_weight_step([1.0], [1.0], [0.0], [0.0], **{**USUAL, "loss_scale": 0.0})
    with pytest.raises(ValueError, match="name: got 'half'"):
        master_weight_step([1.0], [1.0], [0.0], [0.0], **{**USUAL, "fmt": "half"})
    with pytest.raises(TypeError, match="found_inf: got 1; want True or False"):
        LossScaler().update(1)  # type: ignore[arg-type]
