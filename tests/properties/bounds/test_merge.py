"""Merging kernels against the bound of a merge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds import merge_attention_bound
from oracles.properties.simulated_kernels import Kernel, Plan, merged, store
from oracles.reference import merge_attention

from .monte_carlo import ratios

CONTRACTS = {"float32": (Arithmetic(), "float32"), "bfloat16": (Arithmetic(), "bfloat16"),
             "float32, flush to zero": (Arithmetic(flush_to_zero=True), "float32")}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_legal_merges_stay_within_the_bound(contract: str) -> None:
    a = CONTRACTS[contract][0].resolve(CONTRACTS[contract][1])
    worst = {"out": 0.0, "lse": 0.0}
    for seed in range(400):
        rng = np.random.default_rng(seed)
        lse = [(rng.standard_normal((6, 1)) * rng.choice([0.1, 5, 100]) + rng.choice([0, 500])).astype(np.float32) for _ in "ab"]
        lse = [np.where(rng.random(x.shape) < 0.1, -np.inf, x).astype(np.float32) for x in lse]
        size, offset = 10.0 ** rng.integers(-3, 4, 2), rng.choice([0, 50], 2)
        out = [store((rng.standard_normal((6, 5)) * size[i] + offset[i]).astype(np.float32), a.out) for i in range(2)]
        plan = Plan(base2=bool(rng.random() < 0.5), normalise=str(rng.choice(["divide", "reciprocal"])),
                    sloppiness=[0.0, 1.0, -1.0, None][rng.integers(4)], rng=rng)
        parts = (out[0], lse[0][:, 0], out[1], lse[1][:, 0])
        with np.errstate(invalid="ignore"):
            got = merged(Kernel(a, plan), list(zip(out, lse, strict=True)))
        exact = dict(zip(("out", "lse"), merge_attention(*parts), strict=True))
        stored = {"out": store(got[0], a.out, a.flush_to_zero), "lse": store(got[1], a.lse)[:, 0]}
        found = ratios(stored, exact, merge_attention_bound(a, *parts))
        assert max(found.values()) <= 1.0, f"seed {seed}: {found}"
        worst = {name: max(worst[name], found[name]) for name in worst}
    assert min(worst.values()) > 0.1


def by_formula(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """Weights e^(lse_x - lse) from the rounded lse, undivided, as FlashAttention's split-K combines; one type throughout."""
    m = np.maximum(lse_a, lse_b)
    lse = m + np.log(np.exp(lse_a - m) + np.exp(lse_b - m))
    return np.exp(lse_a - lse)[:, None] * out_a + np.exp(lse_b - lse)[:, None] * out_b, lse


def by_sigmoid(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """out_a - sigmoid(lse_b - lse_a) (out_a - out_b), as zhuzilin/ring-flash-attention does."""
    one = lse_a.dtype.type(1)
    with np.errstate(over="ignore"):
        sigmoid = (one / (one + np.exp(lse_a - lse_b)))[:, None]
        return out_a - sigmoid * (out_a - out_b), lse_a + np.logaddexp(0, lse_b - lse_a)


@pytest.mark.parametrize(("merge", "a"), [(by_formula, Arithmetic()), (by_sigmoid, Arithmetic(merges_lse=True))])
def test_merges_through_the_log_sum_exp_stay_within_the_bound(merge: Any, a: Arithmetic) -> None:
    """Both pass the bound of a merge that divides by its own sum."""
    worst = {"out": 0.0, "lse": 0.0}
    for seed in range(300):
        rng = np.random.default_rng(seed)
        far = rng.choice([0.1, 5, 30])
        lse_a, lse_b = ((rng.standard_normal(8) * far + rng.choice([0, 500, -3e4])).astype(np.float32) for _ in "ab")
        lse_b = (lse_a + rng.standard_normal(8) * far).astype(np.float32)
        out_a, out_b = ((rng.standard_normal((8, 5)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32) for _ in "ab")
        parts = (out_a, lse_a, out_b, lse_b)
        got = dict(zip(("out", "lse"), merge(*parts), strict=True))
        exact = dict(zip(("out", "lse"), merge_attention(*parts), strict=True))
        found = ratios(got, exact, merge_attention_bound(a.resolve("float32"), *parts))
        assert max(found.values()) <= 1.0, f"seed {seed}: {found}"
        worst = {name: max(worst[name], found[name]) for name in worst}
    assert min(worst.values()) > 0.05


def test_a_sigmoid_that_rounds_what_weighs_nothing_has_to_be_declared() -> None:
    """out_a - 1 (out_a - out_b) has lost out_b beside a large out_a."""
    parts = ([np.float32(1e8)], np.float32(-100.0), [np.float32(1.0)], np.float32(0.0))
    allowed = [float(merge_attention_bound(Arithmetic(merges_lse=lse).resolve("float32"), *parts)["out"][0]) for lse in (False, True)]
    got = by_sigmoid(np.float32([[1e8]]), np.float32([-100.0]), np.float32([[1.0]]), np.float32([0.0]))[0]
    assert allowed[0] < abs(float(got[0, 0]) - 1.0) <= allowed[1]


def test_two_empty_parts_leave_nothing_to_be_wrong() -> None:
    bound = merge_attention_bound(Arithmetic().resolve("float32"), [1.0], -np.inf, [2.0], -np.inf)
    assert (bound["out"].tolist(), float(bound["lse"])) == ([0.0], 0.0)


def test_what_an_empty_part_holds_does_not_matter() -> None:
    a = Arithmetic().resolve("float32")
    one, other = (merge_attention_bound(a, [x], -np.inf, [2.0], 1.0) for x in (np.nan, 1e30))
    assert one["out"] == other["out"] < 1e-5


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_part_that_is_nan_is_compared_by_kind(odd: float) -> None:
    bound = merge_attention_bound(Arithmetic().resolve("float32"), [1.0, 1.0], odd, [2.0, 2.0], 0.0)
    assert (bound["out"].tolist(), float(bound["lse"])) == ([0.0, 0.0], 0.0)


def test_weights_left_out_are_outside_the_bound() -> None:
    rng = np.random.default_rng(5)
    out, lse = rng.standard_normal((2, 8, 4)), rng.standard_normal((2, 8))
    exact = merge_attention(out[0], lse[0], out[1], lse[1])[0]
    bound = merge_attention_bound(Arithmetic().resolve("bfloat16"), out[0], lse[0], out[1], lse[1])
    assert ratios({"out": out.mean(axis=0)}, {"out": exact}, {"out": bound["out"]})["out"] > 10.0
