"""The tiled port against the textbook oracle: within the rounding bound of both, and equal in every convention."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import FloatFormat, attention, flash_attention

pytestmark = pytest.mark.filterwarnings("error")


def same_or_within(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> Any:
    """Equal where not finite, else within the bound."""
    finite = np.isfinite(want)
    with np.errstate(invalid="ignore"):
        return np.where(finite, np.abs(got - want) <= bound, (got == want) | (np.isnan(got) & np.isnan(want)))


@pytest.mark.parametrize("seed", range(200))
def test_naive_and_tiled_agree_within_twice_the_bound(seed: int, drawn: Any, rounding: Any) -> None:
    arrays, options = drawn(seed)
    q, k, v = (arrays[name] for name in ("q", "k", "v"))
    blocks = np.random.default_rng(seed).integers(1, 9, size=2)
    bound = rounding(q, k, v, options)
    (out, lse), (want, want_lse) = flash_attention(q, k, v, block_q=blocks[0], block_k=blocks[1], **options), attention(q, k, v, **options)
    assert same_or_within(out, want, 2 * bound.out()).all()
    assert same_or_within(lse, want_lse, 2 * bound.of_lse()).all()


@pytest.mark.parametrize("seed", range(200))
def test_what_is_not_finite_reaches_the_same_elements(seed: int, drawn: Any) -> None:
    arrays, options = drawn(seed, finite=False)
    q, k, v = (arrays[name] for name in ("q", "k", "v"))
    blocks = np.random.default_rng(seed).integers(1, 9, size=2)
    tiled, naive = flash_attention(q, k, v, block_q=blocks[0], block_k=blocks[1], **options), attention(q, k, v, **options)
    for x, y in zip(tiled, naive):
        np.testing.assert_array_equal(np.where(np.isfinite(x), 0.0, x), np.where(np.isfinite(y), 0.0, y))


@pytest.mark.parametrize("L", [128, 255, 256, 257, 513])
@pytest.mark.parametrize("causal", [None, "bottom_right"])
def test_lengths_around_the_default_tiles_agree(L: int, causal: Any, rounding: Any) -> None:
    r = np.random.default_rng(L)
    q, k, v = (r.normal(size=(1, 1, L, 8)) for _ in range(3))
    bound = rounding(q, k, v, {"causal": causal})
    (out, lse), (want, want_lse) = flash_attention(q, k, v, causal=causal), attention(q, k, v, causal=causal)
    assert (np.abs(out - want) <= 2 * bound.out()).all()
    assert (np.abs(lse - want_lse) <= 2 * bound.of_lse()).all()


def test_scores_that_rise_from_tile_to_tile_are_rescaled(rounding: Any) -> None:
    q, k = np.ones((1, 1, 1, 1)), 40.0 * np.arange(12).reshape(1, 1, 12, 1)
    v = np.random.default_rng(0).normal(size=(1, 1, 12, 2))
    bound = rounding(q, k, v, {"causal": None})
    out, lse = flash_attention(q, k, v, causal=None, block_k=3)
    assert (np.abs(out - attention(q, k, v, causal=None)[0]) <= 2 * bound.out()).all()
    assert (np.abs(lse - attention(q, k, v, causal=None)[1]) <= 2 * bound.of_lse()).all()


@pytest.mark.parametrize(("dtype", "inside"), [(np.float64, np.float64), (np.float32, np.float32), (np.float16, np.float32),
                                               (ml_dtypes.bfloat16, np.float32), (ml_dtypes.float8_e5m2, np.float32)])
def test_the_dtype_is_kept_and_lse_is_of_the_dtype_inside(dtype: Any, inside: Any) -> None:
    q = np.ones((1, 1, 2, 4), dtype)
    out, lse = flash_attention(q, q, q, causal=None)
    assert (out.dtype, lse.dtype) == (np.dtype(dtype), np.dtype(inside))


@pytest.mark.parametrize("sink", [np.inf, np.nan])
@pytest.mark.parametrize("Lk", [0, 3])
def test_a_sink_that_is_no_number_makes_lse_nan(sink: float, Lk: int) -> None:
    q, k = np.ones((1, 1, 2, 1)), np.ones((1, 1, Lk, 1))
    assert np.isnan(flash_attention(q, k, k, causal=None, sinks=np.array([sink]))[1]).all()
    assert np.isnan(attention(q, k, k, causal=None, sinks=np.array([sink]))[1]).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("seed", range(20))
def test_narrow_inputs_are_within_the_bound_of_float32_and_one_rounding(dtype: str, seed: int, drawn: Any, rounding: Any) -> None:
    arrays, options = drawn(seed)
    q, k, v = (FloatFormat(dtype).cast(arrays[name]) for name in ("q", "k", "v"))
    bound, last = rounding(q, k, v, options, u=2.0**-24), FloatFormat(dtype)
    want, want_lse = attention(q, k, v, **options)
    out, lse = flash_attention(q, k, v, block_q=4, block_k=4, **options)
    rounded = last.unit_roundoff * (np.abs(want) + 2 * bound.out()) + last.smallest
    assert (np.abs(out.astype(np.float64) - want) <= 2 * bound.out() + rounded).all()
    assert same_or_within(lse.astype(np.float64), want_lse, 2 * bound.of_lse()).all()


@pytest.mark.parametrize("blocks", [(1, 1), (3, 5), (64, 64)])
def test_probes_of_equal_scores_are_exact_for_any_tiles(blocks: tuple[int, int]) -> None:
    q, k, v = np.zeros((1, 1, 5, 2)), np.zeros((1, 1, 8, 2)), np.arange(16.0).reshape(1, 1, 8, 2)
    out, _ = flash_attention(q, k, v, causal=None, block_q=blocks[0], block_k=blocks[1])
    assert (out == [7.0, 8.0]).all()


def test_tiling_changes_bits_so_exact_means_in_real_arithmetic_only() -> None:
    r = np.random.default_rng(0)
    q, k, v = (r.normal(size=(1, 1, 64, 16)) for _ in range(3))
    assert (flash_attention(q, k, v, causal=None, block_k=8)[0] != attention(q, k, v, causal=None)[0]).any()


def test_tiles_that_nothing_sees_are_never_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    r = np.random.default_rng(0)
    q, k, v = (r.normal(size=(1, 1, 32, 4)) for _ in range(3))
    products: list[tuple[int, ...]] = []
    matmul = np.matmul
    monkeypatch.setattr(np, "matmul", lambda a, b, out: products.append(out.shape) or matmul(a, b, out=out))
    flash_attention(q, k, v, causal="bottom_right", block_q=8, block_k=8, window=(8, None))
    assert len(products) == 1 + 2 + 2 + 2


def test_65536_keys_take_little_extra_memory() -> None:
    q, k = np.zeros((1, 1, 128, 64), np.float32), np.zeros((1, 1, 65_536, 64), np.float32)
    tracemalloc.start()
    try:
        out, _ = flash_attention(q, k, k, causal=None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (out == 0).all()
    assert peak < 2**30 // 64                                                   # 16 MiB; the scores alone are 32


def test_a_broadcast_bias_and_mask_are_not_copied() -> None:
    q = np.zeros((1, 8, 1024, 1), np.float32)
    tracemalloc.start()
    try:
        flash_attention(q, q, q, causal=None, bias=np.zeros((1024, 1)), mask=np.ones(1024, bool))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**21                                                         # 2 MiB; one copy of the scores is 32


def test_the_scale_multiplies_the_product_and_not_q() -> None:
    q, k = np.full((1, 1, 1, 1), 2.0**-149, np.float32), np.full((1, 1, 1, 1), 2.0**120, np.float32)
    assert flash_attention(q, k, k, causal=None, scale=0.25)[1] == 2.0**-31     # a quarter of this q is no float32


def test_inputs_are_not_changed() -> None:
    q = np.random.default_rng(0).normal(size=(1, 1, 4, 4))
    kept = q.copy()
    flash_attention(q, q, q, causal=None, softcap=1.0, bias=np.zeros((4, 4)), sinks=np.zeros(1))
    assert (q == kept).all()


def test_strides_do_not_matter(rounding: Any) -> None:
    r = np.random.default_rng(0)
    q, k, v = (r.normal(size=(1, 9, 2, 4)).swapaxes(1, 2)[..., ::-1] for _ in range(3))
    bound = rounding(q, k, v, {"causal": None})
    assert (np.abs(flash_attention(q, k, v, causal=None)[0] - attention(q, k, v, causal=None)[0]) <= 2 * bound.out()).all()


@pytest.mark.parametrize(("changed", "error", "words"), [
    ({"block_q": 0}, ValueError, "block_q: got 0; want a whole number >= 1"),
    ({"block_k": 1.5}, TypeError, "block_k: got 1.5; want a whole number >= 1"),
    ({"causal": False}, ValueError, "causal: got False"),
    ({"softcap": 0}, ValueError, "softcap: got 0"),
    ({"sinks": np.zeros(3)}, ValueError, r"sinks: got shape \(3,\); want \(1,\)"),
    ({"window": (0, -2)}, ValueError, "window: got -2"),
    ({"dropout_p": 0.1}, ValueError, "dropout_mask: got None"),
    ({"kv_lengths": [5]}, ValueError, "kv_lengths: got numbers from 5 to 5; want 0..4"),
])
def test_bad_input_is_refused_by_name(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    q = np.zeros((1, 1, 4, 4))
    with pytest.raises(error, match=words):
        flash_attention(q, q, q, **{"causal": None, **changed})
