"""Bounds of quantization and pruning against legal kernels of every order, and against what is just past them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties.arithmetic import Arithmetic
from oracles.properties.bounds import dequantize_bound, prune_magnitude_bound, quantize_bound, quantized_matmul_bound
from oracles.properties.bounds.pruning import counts_of
from oracles.properties.simulated_kernels import store

from .monte_carlo import ratios

FLOAT32 = Arithmetic().resolve("float32")
f32 = np.float32


def codes(x: Any, *, bits: int, symmetric: bool, by_reciprocal: bool, inside: bool) -> tuple[Any, Any]:
    """Codes and scale of a float32 kernel, one of the legal ways."""
    high = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
    span = np.abs(x).max() if symmetric else max(x.max(), f32(0)) - min(x.min(), f32(0))
    s = span * (f32(1) / f32(high)) if by_reciprocal else span / f32(high)
    z = f32(0) if symmetric else np.rint(-min(x.min(), f32(0)) / s)
    t = x * (f32(1) / s) if by_reciprocal else x / s
    q = np.rint(t + z) if inside else np.rint(t) + z
    return np.clip(q, -high if symmetric else 0, high), s


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_legal_kernels_stay_within_and_hardly_a_code_is_left_open(bits: int, symmetric: bool) -> None:
    open_codes = total = 0
    for seed in range(40):
        x = np.random.default_rng(seed).standard_normal(2000).astype(f32)
        q, scale, _ = reference.quantize(x, bits=bits, symmetric=symmetric)
        allowed = quantize_bound(FLOAT32, x, bits=bits, symmetric=symmetric)
        decided = allowed["q"] == 0
        open_codes, total = open_codes + int((~decided).sum()), total + x.size
        for by_reciprocal in (False, True):
            for inside in (False, True):
                got, s = codes(x, bits=bits, symmetric=symmetric, by_reciprocal=by_reciprocal, inside=inside)
                assert (got[decided] == q[decided]).all()
                assert abs(float(s) - scale[0]) <= allowed["scale"][0]
    # The margin is 2 e on either side of each border, e <= (4 or 5 for the scale and the quotient, and 1 for the sum) u 2^bits.
    assert open_codes <= total * 2 * 10 * 2.0**-24 * 2**bits * 4


def test_an_error_past_the_margin_is_seen() -> None:
    x = np.array([127.0, 1.5 + 2.0**-12, 1.5], f32)                             # a scale of 1: 2^-12 past a half is far beyond 4 u
    assert quantize_bound(FLOAT32, x, bits=8)["q"].tolist() == [0.0, 0.0, np.inf]
    assert quantize_bound(FLOAT32, x, bits=8, scale=np.ones(1, f32))["q"].tolist() == [0.0, 0.0, 0.0]


def test_a_scale_off_by_four_roundings_is_past_the_bound_and_one_by_two_is_not() -> None:
    x = np.array([1.0, -0.3], f32)
    (bound,), s = quantize_bound(FLOAT32, x, bits=8)["scale"], 1.0 / 127.0
    assert 2.0 * 2.0**-24 * s < bound < 4.0 * 2.0**-24 * s


def test_products_of_legal_order_stay_within_and_a_half_more_does_not() -> None:
    g = np.random.default_rng(0)
    x, q = g.integers(-127, 128, (20, 300)).astype(np.int8), g.integers(-127, 128, (300, 20)).astype(np.int8)
    scale, x_scale, bias = (g.uniform(0.01, 0.02, n).astype(f32) for n in (20, 20, 20))
    exact = reference.quantized_matmul(x, q, scale, x_scale=x_scale, bias=bias)
    bound = quantized_matmul_bound(FLOAT32, x, q, scale, x_scale=x_scale, bias=bias)["out"]
    total = (x.astype(np.int32) @ q.astype(np.int32)).astype(f32)
    rows = x_scale[:, None]
    for out in (total * (rows * scale) + bias, total * scale * rows + bias, rows * total * scale + bias):
        assert (np.abs(out - exact) <= bound).all()
    assert (bound <= 6.0 * 2.0**-24 * (np.abs(exact - bias) + 2.0 * np.abs(bias) + np.abs(exact))).all()


def test_dequantized_numbers_round_once_and_zero_is_exact() -> None:
    q, scale = np.arange(-127, 128)[None], np.array([0.3], f32)
    exact = reference.dequantize(q, scale)
    bound = dequantize_bound(FLOAT32, q, scale)["out"]
    assert (np.abs(q.astype(f32) * scale - exact) <= bound).all()
    assert bound[0, 127] == 0.0
    assert (bound <= 2.0 * 2.0**-24 * np.abs(exact) * (1 + 2.0**-20)).all()


def test_counts_are_open_only_where_the_product_rounds_over_a_whole_number() -> None:
    assert counts_of(0.5, 1001, "floor") == (500, 500)
    assert counts_of(0.7, 10, "floor") == (6, 7)
    assert int(0.29 * 100) in range(counts_of(0.29, 100, "floor")[0], counts_of(0.29, 100, "floor")[1] + 1)
    assert counts_of(0.29, 101, "floor") == (29, 29)


def test_only_the_weight_at_an_open_count_is_left_open() -> None:
    w = np.arange(1.0, 101.0)[None]
    allowed = prune_magnitude_bound(FLOAT32, w, sparsity=0.29, scope="layer")["masks"]
    assert np.flatnonzero(np.isinf(allowed)).tolist() == [28]


@pytest.mark.parametrize("flush", [False, True])
def test_the_two_products_of_a_scaled_sum_come_in_any_order(flush: bool) -> None:
    """Scales from 1e-42 to 1e36: what overflows on the way is not compared, and what may be flushed on the way is allowed."""
    a, worst, compared = Arithmetic(flush_to_zero=flush).resolve("float32"), 0.0, 0.0

    def once(x: Any) -> Any:
        return store(x, "float32", flush)

    for seed in range(200):
        rng = np.random.default_rng([seed, flush])
        x, q = rng.integers(-128, 128, (3, 8)), rng.integers(-128, 128, (8, 4))
        of_q, of_x = ((rng.random(n) * 10.0 ** rng.choice(ends)).astype(f32) for n, ends in
                      ((4, [-42, -40, -3, 30]), (3, [-20, -3, 30, 36])))
        exact = reference.quantized_matmul(x.astype(np.int8), q.astype(np.int8), of_q, x_scale=of_x)
        bound = quantized_matmul_bound(a, x, q, of_q, x_scale=of_x)["out"]
        t = (x @ q).astype(f32)
        with np.errstate(over="ignore", invalid="ignore"):
            for got in (t * once(of_x[:, None] * of_q), once(t * of_x[:, None]) * of_q, once(t * of_q) * of_x[:, None]):
                worst = max(worst, ratios({"out": once(got)}, {"out": exact}, {"out": bound})["out"])
        compared += float(np.isfinite(bound).mean()) / 200
    assert 0.1 < worst <= 1.0
    assert compared > 0.5
