"""Bounds of AdamW, of the clip and of steps on master weights against simulated arithmetic of every legal order, and just past it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties.arithmetic import Arithmetic
from oracles.properties.bounds import adamw_step_bound, clip_grad_norm_bound, master_weight_step_bound
from oracles.properties.case import Case
from oracles.properties.conventions import declared
from oracles.properties.operations import operation_named
from oracles.reference import FloatFormat

from .monte_carlo import ratios

FORMATS = ("float32", "bfloat16", "float16")
RUNS = 60


class Simulated:
    """Arithmetic of a narrow format, every result rounded once, in an order that a generator chooses; cut off instead where asked."""

    def __init__(self, fmt: str, rng: np.random.Generator) -> None:
        self.fmt, self.rng = FloatFormat(fmt), rng

    def __call__(self, x: Any) -> Any:
        return self.fmt.round(np.asarray(x, np.float64))

    def either(self) -> bool:
        return bool(self.rng.random() < 0.5)

    def moment(self, b: float, old: Any, new: Any) -> Any:
        """b old + (1 - b) new, b as a number of the format or better, as two products, fused, or as an interpolation."""
        rest = self(1.0 - self(b)) if self.either() else self(1.0 - b)
        way = int(self.rng.integers(3))
        if way == 0:
            return self(self(self(b) * old) + self(rest * new))
        return self(self(b) * old + self(rest * new)) if way == 1 else self(old + self(rest * self(new - old)))

    def correction(self, b: float, step: int) -> Any:
        """1 - b^step, of numbers of the format or of wider ones."""
        return self(1.0 - self(self(b) ** step)) if self.either() else self(1.0 - b**step)

    def adamw(self, p: Any, g: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, decay: float) -> Any:
        m, v = self.moment(beta1, m, g), self.moment(beta2, v, self(g * g))
        c1, c2, rate, small = self.correction(beta1, step), self.correction(beta2, step), self(lr), self(eps)
        way = int(self.rng.integers(3))
        with np.errstate(divide="ignore", invalid="ignore"):                    # of a correction that the format rounds to 0
            root = self(np.sqrt(self(v / c2))) if self.either() else self(self(np.sqrt(v)) / self(np.sqrt(c2)))
            d = self(root + small)
            move = (self(rate * self(self(m / c1) / d)) if way == 0 else self(self(rate / c1) * self(m / d)) if way == 1
                    else self(self(rate * m) / self(c1 * d)))  # fmt: skip
            move = np.where(m == 0.0, 0.0, move)
        left = self(1.0 - self(rate * self(decay))) if self.either() else self(1.0 - lr * decay)
        kept = self(p * left) if self.either() else self(p - self(self(rate * self(decay)) * p))
        return {"param": self(kept - move), "m": m, "v": v}


def problem(rng: np.random.Generator, fmt: str) -> tuple[list[Any], dict[str, Any]]:
    """Parameters, gradients, moments of a format, and the numbers of a step."""
    n, f = 50, FloatFormat(fmt)
    g = rng.standard_normal(n) * (1.0 if rng.random() < 0.5 else 10.0 ** rng.integers(-3, 2, n))
    fresh = rng.random() < 0.3
    m = 0.0 * g if fresh else g * rng.standard_normal(n)
    v = 0.0 * g if fresh else m * m + g * g * rng.uniform(0.1, 2.0, n)
    numbers = {"lr": [1e-3, 0.1], "beta1": [0.9, 0.5], "beta2": [0.999, 0.95], "eps": [1e-8, 1e-3]}
    options: dict[str, Any] = {"step": 1 if fresh else int(rng.choice([2, 10, 1000]))}
    options |= {name: float(rng.choice(levels)) for name, levels in numbers.items()}
    return [f.round(x) for x in (rng.standard_normal(n), g, m, v)], options


@pytest.mark.parametrize("fmt", FORMATS)
def test_steps_of_any_legal_order_stay_within(fmt: str) -> None:
    worst: dict[str, float] = {}
    compared = 0
    for seed in range(RUNS):
        rng = np.random.default_rng([seed, FORMATS.index(fmt)])
        arrays, options = problem(rng, fmt)
        decay = float(rng.choice([0.0, 0.01, 0.5]))
        got = Simulated(fmt, rng).adamw(*arrays, **options, decay=decay)
        exact = dict(zip(("param", "m", "v"), reference.adamw_step(*arrays, **options, weight_decay=decay)))
        a = Arithmetic(elementwise=fmt, accumulate=fmt).resolve(fmt)
        bound = adamw_step_bound(a, *arrays, **options, weight_decay=decay)
        compared += int(np.isfinite(bound["param"]).sum())
        for name, ratio in ratios(got, exact, bound).items():
            worst[name] = max(worst.get(name, 0.0), ratio)
    assert max(worst.values()) <= 1.0, worst
    assert min(worst.values()) > (0.1 if fmt == "float32" else 0.02), worst       # it is met by far less than a factor of 50
    assert compared > (RUNS * 40 if fmt == "float32" else 300)


def far_problem(rng: np.random.Generator) -> tuple[list[Any], dict[str, Any]]:
    """Numbers of float16 near both of its ends, where lr m and c d underflow before one is divided by the other, and v / c overflows."""
    g = rng.standard_normal(20) * 10.0 ** rng.integers(-9, 3, 20)
    m, v = [0.0 * g, g * rng.standard_normal(20), g, -g * 0.1 / 0.9][rng.integers(4)], [0.0 * g, g * g, g * g * 1e-6][rng.integers(3)]
    numbers = {"step": [1, 2, 10, 10**6], "lr": [1.0, 1e-3, 1e-7], "beta1": [0.9, 0.99, 0.0], "beta2": [0.95, 0.999, 0.0],
               "eps": [1e-3, 1e-8]}  # fmt: skip
    options = {name: rng.choice(levels).item() for name, levels in numbers.items()}
    p = rng.standard_normal(20) * 10.0 ** rng.integers(-6, 4, 20)
    return [FloatFormat("float16").round(x) for x in (p, g, m, v)], options


def test_steps_near_the_ends_of_float16_stay_within() -> None:
    a, worst, compared = Arithmetic(elementwise="input", accumulate="input").resolve("float16"), 0.0, 0
    for seed in range(400):
        rng = np.random.default_rng([seed, 77])
        arrays, options = far_problem(rng)
        with np.errstate(over="ignore", invalid="ignore"):                      # g^2 of 300 is infinite, 0 times it NaN: not compared
            got = Simulated("float16", rng).adamw(*arrays, **options, decay=0.01)
            exact = dict(zip(("param", "m", "v"), reference.adamw_step(*arrays, **options, weight_decay=0.01)))
        bound = adamw_step_bound(a, *arrays, **options, weight_decay=0.01)
        compared += int(np.isfinite(bound["param"]).sum())
        worst = max(worst, *ratios(got, exact, bound).values())
    assert 0.5 < worst <= 1.0, worst
    assert compared > 1000


def test_the_bound_of_a_step_is_a_few_roundings() -> None:
    """An error of 2^-19 of the move and of the parameter is past it at nearly all, where 1 - beta2 is not itself the large term."""
    rng = np.random.default_rng(0)
    (p, g, m, v), options = problem(rng, "float32")
    options |= {"beta1": 0.5, "beta2": 0.5, "step": 3}
    allowed = adamw_step_bound(Arithmetic().resolve("float32"), p, g, m, v, **options, weight_decay=0.1)
    new = reference.adamw_step(p, g, m, v, **options, weight_decay=0.1)[0]
    size = np.abs(p) + np.abs(new - p * (1.0 - options["lr"] * 0.1))
    assert (allowed["param"] < 2.0**-19 * size).mean() > 0.9
    assert (allowed["param"] < 2.0**-17 * size).all()


def test_moments_of_their_own_format_are_held_to_it() -> None:
    rng = np.random.default_rng(1)
    arrays, options = problem(rng, "bfloat16")
    options["beta1"] = 0.9
    narrow, wide = (adamw_step_bound(Arithmetic(moments=fmt).resolve("bfloat16"), *arrays, **options, weight_decay=0.0)
                    for fmt in (None, "float32"))  # fmt: skip
    new = reference.adamw_step(*arrays, **options, weight_decay=0.0)[1]
    cut = np.abs(FloatFormat("bfloat16").round(new) - new)
    assert (cut <= narrow["m"]).all()
    assert (cut > wide["m"]).sum() > 35                                         # of 50, some of which are not cut at all
    assert (wide["param"] <= narrow["param"]).all()


@pytest.mark.parametrize("fmt", FORMATS)
def test_clips_of_any_order_of_sums_stay_within(fmt: str) -> None:
    worst, a = 0.0, Arithmetic(elementwise=fmt, accumulate=fmt).resolve(fmt)
    for seed in range(RUNS):
        rng, s = np.random.default_rng([seed, 7]), Simulated(fmt, np.random.default_rng([seed, 8]))
        grads = [FloatFormat(fmt).round(rng.standard_normal(int(n))) for n in rng.integers(1, 7, 3)]
        squares = [s(x * x) for x in rng.permutation(np.concatenate(grads))]
        if s.either():                                                          # by pairs, or one after another
            while len(squares) > 1:
                squares = [s(sum(squares[i : i + 2])) for i in range(0, len(squares), 2)]
        total = s(0.0)
        for x in squares:
            total = s(total + x)
        norm = s(np.sqrt(total))
        limit = float(np.sqrt(sum((g * g).sum() for g in grads)) * rng.choice([0.1, 0.999, 1.0, 1.001, 2.0]))
        factor = s(min(1.0, s(limit / norm)))
        got = {f"grads.{i}": s(g * factor) for i, g in enumerate(grads)} | {"norm": norm}
        clipped, exact_norm = reference.clip_grad_norm(grads, max_norm=limit)
        exact = {f"grads.{i}": g for i, g in enumerate(clipped)} | {"norm": exact_norm}
        worst = max(worst, *ratios(got, exact, clip_grad_norm_bound(a, grads, max_norm=limit)).values())
    assert 0.1 < worst <= 1.0


def test_sums_that_round_the_same_way_at_every_step_stay_within() -> None:
    """Equal squares added one after another in bfloat16: the roundings do not cancel as those of random numbers do."""
    s, worst, a = Simulated("bfloat16", np.random.default_rng(0)), 0.0, Arithmetic(elementwise="bfloat16", accumulate="bfloat16")
    for k in range(128):
        grads = [np.full(60, 1.0 + k / 128.0)]
        total = s(0.0)
        for x in grads[0]:
            total = s(total + s(x * x))
        exact = reference.clip_grad_norm(grads, max_norm=1e9)[1]
        bound = clip_grad_norm_bound(a.resolve("bfloat16"), grads, max_norm=1e9)
        worst = max(worst, ratios({"norm": s(np.sqrt(total))}, {"norm": exact}, {"norm": bound["norm"]})["norm"])
    assert 0.2 < worst <= 1.0, worst


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_steps_on_masters_stay_within(narrow: str) -> None:
    worst: dict[str, float] = {}
    for seed in range(RUNS):
        rng = np.random.default_rng([seed, 9])
        (p, g, m, v), options = problem(rng, "float32")
        s, scale = Simulated("float32", rng), float(rng.choice([1.0, 1024.0, 3.0]))
        grad, norm = s(g * scale), float(np.linalg.norm(g))
        limit = None if s.either() else norm * float(rng.choice([0.25, 1.0, 4.0]))
        unscaled = s(grad * s(1.0 / scale)) if s.either() else s(grad / scale)
        factor = 1.0 if limit is None else s(min(1.0, s(limit / s(np.sqrt((unscaled * unscaled).sum())))))
        got = s.adamw(p, s(unscaled * factor), m, v, **options, decay=0.1)
        results = {"weights": FloatFormat(narrow).round(got["param"]), "master": got["param"], "m": got["m"], "v": got["v"]}
        given = {"loss_scale": scale, "max_norm": limit, **options, "weight_decay": 0.1, "fmt": narrow}
        exact = dict(zip(results, reference.master_weight_step(grad, p, m, v, **given)))
        bound = master_weight_step_bound(Arithmetic().resolve("float32"), grad, p, m, v, **given)
        for name, ratio in ratios(results, exact, bound).items():
            worst[name] = max(worst.get(name, 0.0), ratio)
    assert max(worst.values()) <= 1.0, worst
    assert min(worst[name] for name in ("master", "m", "v")) > 0.1, worst


def test_a_weight_may_fall_to_either_side_of_a_tie_and_no_further() -> None:
    """A master of 1 + 2^-8, half way between two numbers of bfloat16: either of them, and nothing two places off."""
    a, zero = Arithmetic().resolve("float32"), np.zeros(1)
    given = {"loss_scale": 1.0, "max_norm": None, "step": 1, "lr": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1,
             "fmt": "bfloat16"}  # fmt: skip
    master = np.array([1.0 + 2.0**-8])
    weights = reference.master_weight_step(zero, master, zero, zero, **given)[0]
    bound = master_weight_step_bound(a, zero, master, zero, zero, **given)["weights"]
    assert (np.abs(weights - np.array([1.0, 1.0 + 2.0**-7])) <= bound).all()
    assert (np.abs(weights - np.array([1.0 - 2.0**-6, 1.0 + 2.0**-6])) > bound).all()


CONVENTIONS = [("adam_eps", "inside"), ("adam_eps", "uncorrected"), ("decay", "new"), ("decay", "without_lr"), ("bias_correction", "off")]


@pytest.mark.parametrize(("name", "value"), CONVENTIONS)
def test_a_convention_is_another_answer_and_its_bound_is_as_small(name: str, value: str) -> None:
    """Further from the usual answer than the bound, so that a kernel must say it; and as close about its own."""
    operation, a = operation_named("adamw_step"), Arithmetic().resolve("float32")
    rng = np.random.default_rng(3)
    p, g = (np.asarray(x * rng.standard_normal(40), np.float32) for x in (1.0, 1e-2))
    m = v = np.zeros(40, np.float32)
    case = Case("adamw_step", {"param": p, "grad": g, "m": m, "v": v},
                {"step": 1, "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-3, "weight_decay": 0.5})  # fmt: skip
    usual, other = declared({}, "adamw_step"), declared({name: value}, "adamw_step")
    allowed = operation.allowed(a, case, other)["param"]
    plain = operation.allowed(a, case, usual)["param"]
    apart = np.abs(operation.answer(case, usual)["param"] - operation.answer(case, other)["param"])
    assert (apart > 4.0 * np.maximum(allowed, plain)).mean() > 0.8
    assert (allowed <= 4.0 * plain + 4.0 * 2.0**-24 * np.abs(p)).all()
    assert all(np.array_equal(operation.answer(case, usual)[x], operation.answer(case, other)[x]) for x in ("m", "v"))


def test_what_each_convention_says_in_numbers() -> None:
    arrays = {"param": np.ones(1), "grad": np.full(1, 4.0), "m": np.zeros(1), "v": np.zeros(1)}
    case = Case("adamw_step", arrays, {"step": 1, "lr": 0.5, "beta1": 0.5, "beta2": 0.75, "eps": 9.0, "weight_decay": 0.25})
    param = {(name, value): operation_named("adamw_step").answer(case, declared({name: value}, "adamw_step"))["param"][0]
             for name, value in CONVENTIONS}  # fmt: skip
    decayed = 1.0 - 0.5 * 0.25                                                  # m^ = 4, v^ = 16
    assert param["adam_eps", "inside"] == decayed - 0.5 * 4.0 / np.sqrt(16.0 + 9.0)
    assert param["adam_eps", "uncorrected"] == pytest.approx(decayed - 0.5 * 4.0 / (4.0 + 9.0 / 0.5), rel=4.0 * 2.0**-53, abs=0.0)
    assert param["decay", "new"] == pytest.approx((1.0 - 0.5 * 4.0 / 13.0) * decayed, rel=4.0 * 2.0**-53, abs=0.0)
    assert param["decay", "without_lr"] == pytest.approx(0.75 - 0.5 * 4.0 / 13.0, rel=4.0 * 2.0**-53, abs=0.0)
    assert param["bias_correction", "off"] == pytest.approx(decayed - 0.5 * 2.0 / (2.0 + 9.0), rel=4.0 * 2.0**-53, abs=0.0)


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_nothing_is_promised_of_a_norm_whose_square_is_no_float64(size: float) -> None:
    bound = clip_grad_norm_bound(Arithmetic().resolve("float64"), [np.array([size, size])], max_norm=size)
    assert np.isposinf(bound["norm"])
    assert np.isposinf(bound["grads.0"]).all()
