"""The tiled gradient against the textbook one: within the rounding bound of both, and equal in every convention."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import FloatFormat, attention, attention_backward, flash_attention_backward

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("seed", range(200))
def test_naive_and_tiled_gradients_agree_within_twice_the_bound(seed: int, drawn: Any, rounding: Any) -> None:
    arrays, options = drawn(seed)
    q, k, v, dout = (arrays[name] for name in ("q", "k", "v", "dout"))
    blocks = np.random.default_rng(seed).integers(1, 9, size=2)
    forward = attention(q, k, v, **options)
    got = flash_attention_backward(q, k, v, *forward, dout, block_q=blocks[0], block_k=blocks[1], **options)
    want = attention_backward(q, k, v, *forward, dout, **options)
    bound = rounding(q, k, v, options).gradients(dout)
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].shape == want[name].shape
        assert (np.abs(got[name] - want[name]) <= 2 * bound[name]).all(), name


@pytest.mark.parametrize("seed", range(200))
def test_what_is_not_finite_reaches_the_same_gradients(seed: int, drawn: Any) -> None:
    arrays, options = drawn(seed, finite=False)
    q, k, v, dout = (arrays[name] for name in ("q", "k", "v", "dout"))
    blocks = np.random.default_rng(seed).integers(1, 9, size=2)
    forward = attention(q, k, v, **options)
    got = flash_attention_backward(q, k, v, *forward, dout, block_q=blocks[0], block_k=blocks[1], **options)
    for name, want in attention_backward(q, k, v, *forward, dout, **options).items():
        np.testing.assert_array_equal(np.isfinite(got[name]), np.isfinite(want), err_msg=name)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_each_gradient_has_the_dtype_of_its_argument(dtype: Any) -> None:
    q, lse = np.ones((1, 1, 2, 4), dtype), np.ones((1, 1, 2), np.float32)
    got = flash_attention_backward(q, q, q, q, lse, q, causal=None, bias=np.zeros(2, np.float32), sinks=np.zeros(1, dtype))
    assert {name: x.dtype for name, x in got.items()} == {
        **dict.fromkeys(("dq", "dk", "dv", "dsinks"), np.dtype(dtype)), "dbias": np.dtype(np.float32)}


@pytest.mark.parametrize("seed", range(20))
def test_float32_gradients_are_within_the_bound_of_float32(seed: int, drawn: Any, rounding: Any) -> None:
    arrays, options = drawn(seed)
    q, k, v, dout = (FloatFormat("float32").cast(arrays[name]) for name in ("q", "k", "v", "dout"))
    forward = [x.astype(np.float32) for x in attention(q, k, v, **options)]
    got = flash_attention_backward(q, k, v, *forward, dout, block_q=4, block_k=4, **options)
    bound = rounding(q, k, v, options, u=2.0**-24).gradients(dout)
    for name, want in attention_backward(q, k, v, *forward, dout, **options).items():
        assert (np.abs(got[name] - want) <= 2 * bound[name]).all(), name


def test_the_lse_handed_in_is_used() -> None:
    r = np.random.default_rng(0)
    q, k, v, dout = (r.normal(size=(1, 1, 5, 4)) for _ in range(4))
    out, lse = attention(q, k, v, causal=None)
    right, shifted = (flash_attention_backward(q, k, v, out, lse + shift, dout, causal=None)["dv"] for shift in (0.0, np.log(2.0)))
    assert (np.abs(shifted - right / 2) < np.abs(right) / 4).all()


@pytest.mark.parametrize("value", [1.0, np.nan])
def test_nothing_visible_has_gradients_of_zero(value: float) -> None:
    q = np.ones((1, 2, 3, 4))
    forward = attention(q, q, q, causal=None, kv_lengths=[0], sinks=np.zeros(2))
    got = flash_attention_backward(q, q, q, *forward, np.full_like(q, value), causal=None, kv_lengths=[0], sinks=np.zeros(2),
                                   bias=np.zeros(3))
    assert all((x == 0).all() for x in got.values())


def test_16384_keys_take_little_extra_memory() -> None:
    q, k = np.zeros((1, 1, 64, 64), np.float32), np.zeros((1, 1, 16_384, 64), np.float32)
    forward = np.zeros((1, 1, 64, 64), np.float32), np.full((1, 1, 64), np.log(16_384), np.float32)
    tracemalloc.start()
    try:
        flash_attention_backward(q, k, k, *forward, q, causal=None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * k.nbytes                                                  # dk and dv, twice while they are handed over


@pytest.mark.parametrize(("place", "name"), [(3, "out"), (4, "lse"), (5, "dout")])
def test_a_shape_that_does_not_fit_is_refused_by_name(place: int, name: str) -> None:
    given = [np.zeros((1, 1, 2, 2)) for _ in range(6)]
    given[4] = np.zeros((1, 1, 2))
    given[place] = given[place][:, :, :1]
    with pytest.raises(ValueError, match=rf"{name}: got shape \(1, 1, 1.*; want \(1, 1, 2"):
        flash_attention_backward(*given, causal=None)
