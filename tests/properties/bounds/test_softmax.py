"""Softmax and log-sum-exp kernels, at once and online, against their bounds."""

from __future__ import annotations

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds import log_sum_exp_bound, softmax_bound
from oracles.properties.simulated_kernels import Array, Kernel, Plan, store
from oracles.reference import log_sum_exp, softmax

from .monte_carlo import ratios

# contract -> (declared, input format)
CONTRACTS = {
    "float32": (Arithmetic(), "float32"),
    "float32, flush to zero": (Arithmetic(flush_to_zero=True), "float32"),
    "float16": (Arithmetic(), "float16"),
    "bfloat16": (Arithmetic(), "bfloat16"),
}
FAMILIES = ("normal", "wide", "offset", "equal", "ascending", "descending", "one-hot", "hidden", "very wide")


def _rows(rng: np.random.Generator, family: str, n: int) -> Array:
    x = rng.standard_normal((4, n))
    return {"normal": x, "wide": x * 30, "offset": x + rng.choice([-1000.0, 300.0]), "equal": np.full_like(x, 0.3),
            "ascending": np.sort(x * 20), "descending": -np.sort(x * 20), "one-hot": np.where(np.arange(n) == n // 2, 50.0, x),
            "hidden": np.where(rng.random(x.shape) < 0.5, -np.inf, x), "very wide": x * 2000}[family]


def _kernel(c: Kernel, x: Array, tile: int) -> tuple[Array, Array]:
    """Online softmax and log-sum-exp over tiles; one tile is the two-pass form."""
    m, l = np.full((*x.shape[:-1], 1), -np.inf, np.float32), np.zeros((*x.shape[:-1], 1), np.float32)
    log2e = np.float32(1.4426950408889634)

    def power(a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(np.where(np.isneginf(a), 0, a), np.where(np.isneginf(b), 0, b))
        return c.function("exp2", c.e(c.e(a * log2e) - c.e(b * log2e))) if c.plan.base2 else c.function("exp", c.e(a - b))

    for start in range(0, x.shape[-1], tile):
        block = x[..., start:start + tile]
        top = np.maximum(m, block.max(axis=-1, keepdims=True))
        e = np.where(np.isneginf(block), 0, power(block, top)).astype(np.float32)
        l = c.e(c.e(l * np.where(np.isneginf(m), 0, power(m, top)).astype(np.float32)) + c.sum(e))
        m = top
    safe = np.where(l > 0, l, 1).astype(np.float32)
    p = c.e(np.where(np.isneginf(x), 0, power(x, m)).astype(np.float32) / safe)
    log = c.e(c.function("log2", safe) * np.float32(0.6931471805599453)) if c.plan.base2 else c.function("log", safe)
    return p, np.where(l > 0, c.e(np.where(l > 0, m, 0) + log), -np.inf)


def _tally(contract: str, seeds: range) -> dict[str, float]:
    declared, inputs = CONTRACTS[contract]
    a = declared.resolve(inputs)
    worst = {"p": 0.0, "lse": 0.0}
    for seed in seeds:
        rng = np.random.default_rng([seed, list(CONTRACTS).index(contract)])
        x = store(_rows(rng, str(rng.choice(FAMILIES)), int(rng.choice([1, 2, 16, 17, 64, 300]))).astype(np.float32), inputs)
        plan = Plan(product=str(rng.choice(["blas", "forward", "backward"])), base2=bool(rng.random() < 0.5),
                    sloppiness=[0.0, 1.0, -1.0, None][rng.integers(4)], rng=rng)
        p, lse = _kernel(Kernel(a, plan), x, int(rng.choice([16, 17, 64, 512])))
        got = {"p": store(p, a.out, a.flush_to_zero), "lse": store(lse, a.lse)[..., 0]}
        bound = {**softmax_bound(a, x), **log_sum_exp_bound(a, x)}
        found = ratios(got, {"p": softmax(x), "lse": log_sum_exp(x)}, bound)
        assert max(found.values()) <= 1.0, f"{contract}, seed {seed}: {found}"
        worst = {name: max(worst[name], found[name]) for name in worst}
    return worst


@pytest.mark.parametrize("contract", CONTRACTS)
def test_legal_kernels_stay_within_the_bound(contract: str) -> None:
    worst = _tally(contract, range(250))
    assert worst["p"] > 0.05                                                    # and not by an idle margin
    assert worst["lse"] > 0.05


@pytest.mark.long
@pytest.mark.parametrize("contract", CONTRACTS)
def test_legal_kernels_stay_within_the_bound_in_a_long_run(contract: str) -> None:
    print(contract, _tally(contract, range(250, 20000)))


def test_what_is_hidden_has_no_weight_and_no_tolerance() -> None:
    a = Arithmetic().resolve("float32")
    p = softmax_bound(a, [[-np.inf, 0.0], [-np.inf, -np.inf]])["p"]
    assert p[0, 0] == 0.0 < p[0, 1]
    assert (p[1] == 0.0).all()
    assert log_sum_exp_bound(a, np.zeros((2, 0)))["lse"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_row_that_is_nan_is_compared_by_kind(odd: float) -> None:
    a = Arithmetic().resolve("float32")
    assert softmax_bound(a, [odd, 1.0])["p"].tolist() == [0.0, 0.0]
    assert log_sum_exp_bound(a, [odd, 1.0])["lse"] == 0.0


def test_the_axis_is_the_one_asked_for() -> None:
    a, x = Arithmetic().resolve("float32"), np.random.default_rng(2).standard_normal((3, 5))
    assert np.array_equal(softmax_bound(a, x, axis=0)["p"], softmax_bound(a, x.T)["p"].T)
    assert log_sum_exp_bound(a, x, axis=0)["lse"].shape == (5,)


# fault -> what it does to an exact softmax; each must be seen.
FAULTS = {"one key dropped": lambda x: np.pad(softmax(x[..., :-1]), ((0, 0), (0, 1))),
          "temperature off by 0.1 %": lambda x: softmax(x * 1.001),
          "not normalised by 0.01 %": lambda x: softmax(x) * 1.0001}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_outside_the_bound(fault: str) -> None:
    x = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    a = Arithmetic().resolve("float32")
    assert ratios({"p": FAULTS[fault](x.astype(np.float64))}, {"p": softmax(x)}, softmax_bound(a, x))["p"] > 5.0
