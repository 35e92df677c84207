"""Kernels of losses that round as they declare, against their bounds; and what the bounds must not let through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds import (
    cross_entropy_backward_bound,
    cross_entropy_bound,
    distillation_loss_backward_bound,
    distillation_loss_bound,
    mtp_loss_bound,
)
from oracles.properties.simulated_kernels import Array, Kernel, Plan, store
from oracles.reference import cross_entropy, cross_entropy_backward, distillation_loss, distillation_loss_backward

from .monte_carlo import ratios

# contract -> (declared, input format)
CONTRACTS = {
    "float32": (Arithmetic(), "float32"),
    "float32, flush to zero": (Arithmetic(flush_to_zero=True), "float32"),
    "float16": (Arithmetic(), "float16"),
    "bfloat16": (Arithmetic(), "bfloat16"),
}
FAMILIES = ("normal", "wide", "offset", "equal", "one-hot", "leading")


def _rows(rng: np.random.Generator, family: str, n: int) -> Array:
    x = rng.standard_normal((4, n))
    return {"normal": x, "wide": x * 30, "offset": x + rng.choice([-200.0, 100.0]), "equal": np.full_like(x, 0.3),
            "one-hot": np.where(np.arange(n) == n // 2, 50.0, x), "leading": np.where(np.arange(n) == 0, 40.0, x)}[family]


class Rows:
    """The steps of a loss kernel on rows: log-sum-exp, losses, gradients, each operation rounded by a `Kernel`."""

    def __init__(self, c: Kernel, x: Array) -> None:
        self.c, self.x = c, x.astype(np.float32)
        self.m = self.x.max(axis=-1, keepdims=True)
        self.e = c.function("exp", c.e(self.x - self.m))
        self.l = c.sum(self.e)
        self.lse = c.e(self.m + c.function("log", self.l))

    def loss(self, y: Array, smoothing: float, z_loss: float) -> Array:
        """Either lse - z_y, or log-probabilities that are gathered: (n,)."""
        c, f = self.c, np.float32
        z_y = np.take_along_axis(self.x, y[:, None], axis=-1)
        loss = c.e(self.lse - z_y)
        if smoothing:
            mean = c.e(c.sum(c.e(self.lse - self.x)) / f(self.x.shape[-1]))
            loss = c.e(c.e(c.e(f(1) - f(smoothing)) * loss) + c.e(f(smoothing) * mean))
        if z_loss:
            loss = c.e(loss + c.e(f(z_loss) * c.e(self.lse * self.lse)))
        return loss[:, 0]

    def gradient(self, y: Array, g: Array, smoothing: float, z_loss: float, from_lse: bool) -> Array:
        c, f, V = self.c, np.float32, self.x.shape[-1]
        p = c.function("exp", c.e(self.x - self.lse)) if from_lse else c.e(self.e / self.l)
        pull = c.e(f(1) + c.e(f(2 * z_loss) * self.lse)) if z_loss else f(1)
        label = np.where(np.arange(V) == y[:, None], c.e(f(1) - f(smoothing)), f(0)).astype(f)
        a = c.e(label + c.e(f(smoothing) / f(V)))
        return c.e(c.e(c.e(p * pull) - a) * g[:, None].astype(f))

    def log_probabilities(self) -> Array:
        return self.c.e(self.x - self.lse)


def _slopes(c: Kernel, log_t: Array, log_s: Array, divergence: str, beta: float, in_two_steps: bool) -> Array:
    """The derivative of the divergence with respect to z / T: at once, or by way of ln s, each operation rounded."""
    f, s, t = np.float32, c.function("exp", log_s), c.function("exp", log_t)
    if divergence == "forward_kl":
        return c.e(c.e(s * c.sum(t)) - t) if in_two_steps else c.e(s - t)
    share, log_q = f(1), log_t
    if divergence == "jsd":
        share, a, b = c.e(f(1) - f(beta)), c.e(log_t + f(np.log(beta))), c.e(log_s + f(np.log1p(-beta)))
        high, low = np.maximum(a, b), np.minimum(a, b)
        log_q = c.e(high + c.function("log", c.e(f(1) + c.function("exp", c.e(low - high)))))
    d = c.e(log_s - log_q)
    if not in_two_steps:
        return c.e(share * c.e(s * c.e(d - c.sum(c.e(s * d)))))
    one = c.e(c.e(share * s) * c.e(d + f(1)))
    if divergence == "jsd":
        one = c.e(one - c.e(c.e(c.e(f(beta) * t) + c.e(share * s)) * c.function("exp", c.e(b - log_q))))
    return c.e(one - c.e(s * c.sum(one)))


def _draw(contract: str, seed: int) -> tuple[Any, np.random.Generator, Kernel, Any]:
    declared, inputs = CONTRACTS[contract]
    a = declared.resolve(inputs)
    rng = np.random.default_rng([seed, list(CONTRACTS).index(contract)])
    plan = Plan(product=str(rng.choice(["blas", "forward", "backward"])), sloppiness=[0.0, 1.0, -1.0, None][rng.integers(4)], rng=rng)
    n = int(rng.choice([1, 2, 17, 64, 300]))
    return a, rng, Kernel(a, plan), lambda: store(_rows(rng, str(rng.choice(FAMILIES)), n).astype(np.float32), inputs)


def _tally(contract: str, seeds: range) -> dict[str, float]:
    worst = {"loss": 0.0, "dlogits": 0.0, "distilled": 0.0, "dstudent": 0.0}
    for seed in seeds:
        a, rng, kernel, rows = _draw(contract, seed)
        x, f = rows(), np.float32
        y, g = rng.integers(0, x.shape[-1], 4), store(rng.standard_normal(4).astype(f), a.inputs)
        options = {"label_smoothing": float(rng.choice([0.0, 0.1])), "z_loss": float(rng.choice([0.0, 1e-3])), "reduction": "none"}
        r = Rows(kernel, x)
        loss = r.loss(y, options["label_smoothing"], options["z_loss"])
        dz = r.gradient(y, g, options["label_smoothing"], options["z_loss"], bool(rng.random() < 0.5))
        got = {"loss": store(loss, a.out, a.flush_to_zero), "dlogits": store(dz, a.out, a.flush_to_zero)}
        exact = {"loss": cross_entropy(x, y, **options), "dlogits": cross_entropy_backward(x, y, g, **options)}
        bound = {**cross_entropy_bound(a, x, y, **options), **cross_entropy_backward_bound(a, x, y, g, **options)}
        found = ratios(got, exact, bound)

        t, T = rows(), float(rng.choice([0.5, 1.0, 3.0]))
        over = {"temperature": T, "alpha": 1.0, "divergence": str(rng.choice(["forward_kl", "reverse_kl"]))}
        log_s, log_t = (Rows(kernel, kernel.e(z.astype(f) / f(T))).log_probabilities() for z in (x, t))
        p, q = (log_t, log_s) if over["divergence"] == "forward_kl" else (log_s, log_t)
        terms = kernel.e(kernel.function("exp", p) * kernel.e(p - q))
        soft = kernel.e(kernel.sum(kernel.sum(terms)[:, 0][None])[0, 0] / f(4))
        distilled = store(np.asarray(kernel.e(np.asarray(f(T * T) * soft))), a.out, a.flush_to_zero)
        found |= ratios({"distilled": distilled}, {"distilled": distillation_loss(x, t, y, **over)},
                        {"distilled": distillation_loss_bound(a, x, t, y, **over)["loss"]})
        over = {"temperature": T, "alpha": 1.0, "divergence": str(rng.choice(["forward_kl", "reverse_kl", "jsd"])), "beta": 0.25}
        slopes = _slopes(kernel, log_t, log_s, over["divergence"], 0.25, bool(rng.random() < 0.5))
        dz = kernel.e(kernel.e(kernel.e(f(T * T) / f(T)) * kernel.e(g[0].astype(f) / f(4))) * slopes)
        found |= ratios({"dstudent": store(dz, a.out, a.flush_to_zero)},
                        {"dstudent": distillation_loss_backward(x, t, y, g[0], **over)},
                        distillation_loss_backward_bound(a, x, t, y, g[0], **over))
        assert max(found.values()) <= 1.0, f"{contract}, seed {seed}: {found} {options} {over}"
        worst = {name: max(worst[name], found[name]) for name in worst}
    return worst


@pytest.mark.parametrize("contract", CONTRACTS)
def test_legal_kernels_stay_within_the_bound(contract: str) -> None:
    worst = _tally(contract, range(150))
    assert worst["loss"] > 0.02                                                 # and not by an idle margin
    assert worst["dlogits"] > 0.05
    assert worst["dstudent"] > 0.02


@pytest.mark.long
@pytest.mark.parametrize("contract", CONTRACTS)
def test_legal_kernels_stay_within_the_bound_in_a_long_run(contract: str) -> None:
    _tally(contract, range(150, 3000))


def test_a_loss_that_is_known_exactly_is_bounded_by_nothing_where_nothing_is_scored() -> None:
    a = Arithmetic().resolve("float32")
    z, y = np.full((2, 3), np.nan, np.float32), np.array([-100, -100])
    assert cross_entropy_bound(a, z, y, reduction="mean")["loss"] == 0.0
    assert (cross_entropy_bound(a, z, y, reduction="none")["loss"] == 0.0).all()
    assert (cross_entropy_backward_bound(a, z, y, np.float32(1), reduction="mean")["dlogits"] == 0.0).all()


def test_the_forward_divergence_by_automatic_differentiation_is_legal() -> None:
    """s sum t - t: the teacher's probabilities, far from 0 in logits, sum to 1 within u |lse| and no better."""
    a, rng, worst = Arithmetic().resolve("float32"), np.random.default_rng(0), 0.0
    options = {"temperature": 0.5, "alpha": 1.0, "divergence": "forward_kl"}
    for _ in range(60):
        kernel, f = Kernel(a, Plan()), np.float32
        x, t = np.full((4, 17), f(0.3)), (rng.standard_normal((4, 17)) - 200.0).astype(f)
        log_s, log_t = (Rows(kernel, kernel.e(z / f(0.5))).log_probabilities() for z in (x, t))
        got = {"dstudent": kernel.e(f(0.125) * _slopes(kernel, log_t, log_s, "forward_kl", 0.5, True))}
        exact = {"dstudent": distillation_loss_backward(x, t, [0, 1, 2, 3], 1.0, **options)}
        bound = distillation_loss_backward_bound(a, x, t, [0, 1, 2, 3], 1.0, **options)
        at_once = {"dstudent": kernel.e(f(0.125) * _slopes(kernel, log_t, log_s, "forward_kl", 0.5, False))}
        worst = max(worst, ratios(got, exact, bound)["dstudent"], ratios(at_once, exact, bound)["dstudent"])
    assert 0.02 < worst <= 1.0


def test_what_overflows_on_the_way_to_a_loss_is_not_compared() -> None:
    """In float16: lse^2 of an lse of 300, the sum over classes 5,000 apart, and over 200 rows of a loss of 400."""
    a = Arithmetic(elementwise="input", accumulate="input").resolve("float16")
    z, y = np.full((1, 4), 300.0, np.float16), [0]
    far = np.array([[0.0] + [-5000.0] * 19], np.float16)
    assert np.isfinite(cross_entropy_bound(a, z, y, reduction="mean")["loss"])
    assert np.isposinf(cross_entropy_bound(a, z, y, z_loss=1e-3, reduction="mean")["loss"])
    assert np.isfinite(cross_entropy_bound(a, far, y, reduction="mean")["loss"])
    assert np.isposinf(cross_entropy_bound(a, far, y, label_smoothing=0.1, reduction="mean")["loss"])
    rows = np.tile(np.array([0.0, 400.0], np.float16), (200, 1))
    for n, reduction, lost in ((100, "mean", False), (200, "mean", True), (200, "none", False)):
        bound = cross_entropy_bound(a, rows[:n], np.zeros(n, int), reduction=reduction)["loss"]
        assert bool(np.isposinf(bound).all()) == lost
    for n, lost in ((100, False), (200, True)):
        bound = mtp_loss_bound(a, np.concatenate([rows[:n], rows[:1]])[None], np.zeros(n + 1, int))["loss"]
        assert bool(np.isposinf(bound)) == lost
    for n, lost in ((10, False), (200, True)):                                  # the bound of a row is 2,900 here
        soft = {"temperature": 1.0, "alpha": 1.0, "divergence": "forward_kl"}
        bound = distillation_loss_bound(a, rows[:n], rows[:n, ::-1], np.zeros(n, int), **soft)["loss"]
        assert bool(np.isposinf(bound)) == lost


def test_the_bound_sees_a_small_change_of_an_option() -> None:
    """A smoothing of 0.101 in place of 0.1, and a temperature of 2.02 in place of 2, show in float32."""
    r, a = np.random.default_rng(0), Arithmetic().resolve("float32")
    z, t, y = r.normal(size=(4, 50)).astype(np.float32), r.normal(size=(4, 50)).astype(np.float32), r.integers(0, 50, 4)
    one, other = (cross_entropy(z, y, label_smoothing=e, reduction="mean") for e in (0.1, 0.101))
    assert abs(one - other) > cross_entropy_bound(a, z, y, label_smoothing=0.1, reduction="mean")["loss"]
    options = {"alpha": 1.0, "divergence": "forward_kl"}
    one, other = (distillation_loss(z, t, y, temperature=T, **options) for T in (2.0, 2.02))
    assert abs(one - other) > distillation_loss_bound(a, z, t, y, temperature=2.0, **options)["loss"]
    one, other = (distillation_loss_backward(z, t, y, 1.0, temperature=T, **options) for T in (2.0, 2.02))
    assert (abs(one - other) > distillation_loss_backward_bound(a, z, t, y, 1.0, temperature=2.0, **options)["dstudent"]).mean() > 0.9


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jsd"])
def test_a_class_that_neither_has_opens_no_bound_of_distillation(divergence: str) -> None:
    z, t = np.random.default_rng(1).standard_normal((2, 3, 6))
    whole, padded = (z, t), (np.insert(z, 2, -np.inf, axis=1), np.insert(t, 2, -np.inf, axis=1))
    a, y = Arithmetic().resolve("float32"), np.array([3, 4, 5])
    options = {"temperature": 2.0, "alpha": 0.5, "divergence": divergence}
    losses = [distillation_loss_bound(a, *both, y + k, **options)["loss"] for k, both in enumerate((whole, padded))]
    assert losses[0] <= losses[1] < 2 * losses[0]
    slopes = [distillation_loss_backward_bound(a, *both, y + k, 1.0, **options)["dstudent"] for k, both in enumerate((whole, padded))]
    assert (slopes[0] <= np.delete(slopes[1], 2, axis=1)).all()
    assert (np.delete(slopes[1], 2, axis=1) < 2 * slopes[0]).all()
    assert (slopes[1][:, 2] < slopes[0].min()).all()
