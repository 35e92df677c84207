"""Each regime is what its name says, in every format, and finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import regimes
from oracles.reference import FloatFormat, attention_scores, softmax

DTYPES = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
WIDE = ("float32", "float64", "float16", "bfloat16")
B, H, LQ, LK, D, DV = 2, 3, 5, 24, 16, 8
SCALE = D**-0.5


def drawn(regime: str, dtype: str = "float32", scale: float = SCALE, seed: int = 0) -> tuple[Any, Any, Any]:
    return regimes.draw_attention(regime, (B, H, LQ, D), (B, H, LK, D), (B, H, LK, DV), dtype, np.random.default_rng(seed), scale=scale)


def wide(x: Any) -> Any:
    return x.astype(np.float64)


def scores(regime: str, dtype: str = "float32", scale: float = SCALE) -> Any:
    q, k, _ = drawn(regime, dtype, scale)
    return attention_scores(q, k, causal=None, scale=scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_every_regime_is_finite_and_of_the_format_asked_for(regime: str, dtype: str) -> None:
    for x in (*drawn(regime, dtype), regimes.draw(regime, (3, 4, 7), dtype, np.random.default_rng(0))):
        assert x.dtype.name == dtype
        assert np.isfinite(wide(x)).all()


@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_the_same_generator_gives_the_same_bytes(regime: str) -> None:
    assert [x.tobytes() for x in drawn(regime)] == [x.tobytes() for x in drawn(regime)]


@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_every_regime_takes_empty_shapes(regime: str) -> None:
    for empty in (0, 1, 2):
        lead, Lq, Lk = (0 if empty == i else n for i, n in enumerate((2, 3, 4)))
        _, k, _ = regimes.draw_attention(regime, (lead, 1, Lq, D), (lead, 1, Lk, D), (lead, 1, Lk, DV), "float32",
                                         np.random.default_rng(0), scale=SCALE)
        assert k.shape == (lead, 1, Lk, D)
    assert regimes.draw(regime, (2, 0), "float32", np.random.default_rng(0)).shape == (2, 0)


@pytest.mark.parametrize("regime", regimes.REGIMES)
def test_what_a_small_scale_drives_past_the_largest_number_becomes_the_largest(regime: str) -> None:
    for x in drawn(regime, "float16", scale=2.0**-12):
        assert np.isfinite(x).all()


def test_an_unknown_regime_is_named() -> None:
    with pytest.raises(ValueError, match="regime: got 'odd'; want one of normal, "):
        regimes.draw("odd", (2,), "float32", np.random.default_rng(0))


@pytest.mark.parametrize("dtype", WIDE)
def test_the_integer_grid_holds_small_integers_whose_products_are_exact_in_16_bits(dtype: str) -> None:
    for x in drawn("integer_grid", dtype):
        assert np.array_equal(wide(x), np.rint(wide(x)))
        assert np.abs(wide(x)).max() == 4


def test_uneven_arrays_have_a_scale_of_their_own_in_each_head() -> None:
    for x in drawn("uneven"):
        norms = np.sqrt((wide(x) ** 2).mean(axis=(-2, -1)))
        assert norms.max() > 4 * norms.min()


def test_peaked_scores_make_the_softmax_nearly_one_hot() -> None:
    assert np.median(softmax(scores("peaked")).max(axis=-1)) > 0.99


@pytest.mark.parametrize("scale", [SCALE, -0.3, 8.0])
@pytest.mark.parametrize("dtype", WIDE)
def test_flat_scores_are_below_2_to_the_minus_10(dtype: str, scale: float) -> None:
    assert 0 < np.abs(scores("flat", dtype, scale)).max() < 2.0**-10


@pytest.mark.parametrize("scale", [SCALE, -0.7, 16.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_scores_stay_finite_in_float32_whatever_the_order_of_their_sums(dtype: str, scale: float) -> None:
    q, k, _ = (np.abs(wide(x)) for x in drawn("huge", dtype, scale))
    fmt = FloatFormat(dtype)
    largest = D * max(1.0, abs(scale)) * q.max() * k.max()
    assert largest <= FloatFormat("float64" if dtype == "float64" else "float32").max * 2.0**-15
    assert q.max() > fmt.max / 8 or largest > fmt.max * 2.0**-66


@pytest.mark.parametrize("dtype", WIDE)
def test_tiny_numbers_are_subnormal(dtype: str) -> None:
    for x in drawn("tiny", dtype):
        assert 0 < np.abs(wide(x)).max() < FloatFormat(dtype).tiny


def test_constant_arrays_hold_one_number_in_each_head() -> None:
    for x in drawn("constant"):
        assert np.array_equal(x, np.broadcast_to(x[..., :1, :1], x.shape))
        assert np.unique(x).size == B * H


def test_one_hot_rows_have_one_entry_and_values_tell_their_head() -> None:
    for x in drawn("one_hot"):
        assert ((x != 0).sum(axis=-1) == 1).all()
    _, _, v = drawn("one_hot")
    assert np.array_equal(v.sum(axis=-1)[0], np.repeat([[1.0], [2.0], [3.0]], LK, axis=1))


def test_duplicated_keys_come_about_three_at_a_time() -> None:
    _, k, v = drawn("duplicated_keys")
    assert len(np.unique(k[0, 0], axis=0)) <= LK // 3
    assert len(np.unique(v[0, 0], axis=0)) == LK


def test_an_outlier_channel_dominates_the_keys() -> None:
    _, k, _ = drawn("outlier_channel")
    largest = np.sort(np.abs(k).max(axis=(0, 1, 2)))
    assert largest[-1] > 5 * largest[-2]


@pytest.mark.parametrize("dtype", WIDE)
def test_alternating_values_cancel_almost_completely(dtype: str) -> None:
    _, _, v = (wide(x) for x in drawn("alternating", dtype))
    assert (np.sign(v) == np.where(np.arange(LK) % 2, -1.0, 1.0)[:, None]).all()
    assert np.abs(v.sum(axis=-2)).max() < np.abs(v).sum(axis=-2).min() / 16


@pytest.mark.parametrize("scale", [SCALE, -0.3])
@pytest.mark.parametrize("dtype", WIDE)
def test_ascending_scores_rise_and_descending_scores_fall_with_each_key(dtype: str, scale: float) -> None:
    assert (np.diff(scores("ascending", dtype, scale)) > 0).all()
    assert (np.diff(scores("descending", dtype, scale)) < 0).all()


def test_ascending_rows_rise_and_descending_rows_fall() -> None:
    rows = {regime: regimes.draw(regime, (3, 40), "float32", np.random.default_rng(1)) for regime in ("ascending", "descending")}
    assert (np.diff(rows["ascending"]) > 0).all()
    assert (np.diff(rows["descending"]) < 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_rows_reach_the_top_of_the_format(dtype: str) -> None:
    x = np.abs(wide(regimes.draw("huge", (3, 40), dtype, np.random.default_rng(1))))
    assert FloatFormat(dtype).max / 8 <= x.max() <= FloatFormat(dtype).max / 4
