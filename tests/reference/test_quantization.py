"""Quantization: the published int8 table digit for digit, and the edges of scales, zeros, groups and rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference.quantization import dequantize, quantize
from oracles.reference.quantized_blocks import NF4, dequantize_blockwise, fp8_quantize, nf4_quantize, pack_int4, unpack_int4
from oracles.reference.quantized_cache import QuantizedKVCache
from oracles.reference.quantized_matmul import matmul_with_outliers, quantization_errors, quantized_matmul
from oracles.reference.torch_stream import TorchStream

# (W[0, 0] = 5, one scale a row): largest weight error, relative error of W x, as printed.
TABLE = {
    (False, False): ("0.00090", "0.01032"),
    (False, True): ("0.00090", "0.00687"),
    (True, False): ("0.01968", "0.21665"),
    (True, True): ("0.01964", "0.01491"),
}


@pytest.mark.parametrize(("outlier", "by_row"), TABLE)
def test_the_int8_table_comes_out_digit_for_digit(outlier: bool, by_row: bool) -> None:
    stream = TorchStream(0)
    w, x = stream.randn(256, 256) * np.float32(0.05), stream.randn(256, 64)
    if outlier:
        w[0, 0] = 5.0
    errors = quantization_errors(w, x, axis=0 if by_row else None)
    assert tuple(f"{error:.5f}" for error in errors) == TABLE[outlier, by_row]


@pytest.mark.parametrize(("ratio", "code"), [(127.6, 127), (-127.6, -127), (2.5, 2), (-2.5, -2), (3.5, 4), (-1e30, -127)])
def test_codes_round_half_to_even_and_saturate(ratio: float, code: int) -> None:
    assert quantize([ratio * 0.5], bits=8, scale=[0.5])[0].tolist() == [code]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("x", [np.zeros(8), np.full(3, 5e-324), np.zeros(0)])
def test_a_block_of_nothing_has_scale_one_and_codes_of_zero(x: Any, symmetric: bool) -> None:
    q, scale, zero = quantize(x, bits=8, symmetric=symmetric)
    assert (q.tolist(), scale.tolist(), zero.tolist()) == ([0] * len(x), [1.0], [0])


def test_affine_codes_of_positive_and_of_negative_numbers_hold_zero() -> None:
    q, scale, zero = quantize([[1.0, 3.0], [-1.0, -3.0]], bits=2, axis=0, symmetric=False)
    assert (q.tolist(), scale.tolist(), zero.tolist()) == ([[1, 3], [2, 0]], [1.0, 1.0], [0, 3])


def test_a_short_last_group_has_a_scale_of_its_own() -> None:
    q, scale, _ = quantize([[127.0, 1.0, 254.0]], bits=8, group=2)
    assert (q.tolist(), scale.tolist()) == ([[127, 1, 127]], [[1.0, 2.0]])


def test_an_axis_is_its_slices_and_a_group_is_its_runs() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 6))
    for axis in (0, 1, 2, -1):
        q, scale, _ = quantize(x, bits=4, axis=axis)
        for i in range(x.shape[axis]):
            alone, own, _ = quantize(np.take(x, i, axis), bits=4)
            assert (np.take(q, i, axis) == alone).all()
            assert scale[i] == own[0]
    q, scale, _ = quantize(x, bits=4, group=3)
    assert (q[1, 2, 3:] == quantize(x[1, 2, 3:], bits=4)[0]).all()
    assert scale.shape == (3, 4, 2)


def test_reconstruction_is_within_half_a_step_for_every_form() -> None:
    x = np.random.default_rng(1).standard_normal((5, 130))
    for symmetric in (True, False):
        for form in ({}, {"axis": 0}, {"axis": 1}, {"group": 64}):
            q, s, z = quantize(x, bits=4, symmetric=symmetric, **form)
            step = dequantize(np.ones_like(q), s, **form)
            assert (np.abs(dequantize(q, s, z, **form) - x) <= step * (0.5 + 2.0**-48)).all()     # quotient and product of float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": [np.nan]}, r"x: got nan at \[0\]; want finite"),
        ({"x": [[1.0, np.inf]]}, r"x: got inf at \[0, 1\]"),
        ({"bits": 1}, "bits: got 1"),
        ({"bits": 17}, "bits: got 17"),
        ({"axis": 0, "group": 2}, "axis, group: got 0 and 2"),
        ({"axis": 1}, "axis: got 1 for 1 axes"),
        ({"group": 0}, "group: got 0"),
        ({"scale": [0.0]}, "scale: got 0.0"),
        ({"scale": [1.0, 2.0]}, r"scale: got shape \(2,\)"),
        ({"scale": [1.0], "zero": [3]}, "zero: got one with symmetric=True"),
        ({"scale": [1.0], "symmetric": False}, "zero: got None"),
        ({"zero": [3]}, "zero: got one without a scale"),
        ({"x": [1e308, -1e308], "symmetric": False}, "x: got a block whose span overflows"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantize(**{"x": [1.0], "bits": 8, **arguments})


# Matrix products --------------------------------------------------------------------------------------------------------------


def test_sums_are_those_of_int32_and_the_bias_is_added_in_floating_point() -> None:
    x, q = np.full((1, 1200), 127), np.full((1200, 1), 127)
    assert quantized_matmul(x, q, 1.0, x_scale=1.0, bias=[0.25])[0, 0] == 1200 * 127**2 + 0.25


def test_a_sum_past_int32_is_refused() -> None:
    n = 2**31 // 128**2
    with pytest.raises(ValueError, match=r"sum of products at \[0, 0\] is 2147483648; want one that int32 holds"):
        quantized_matmul(np.full((1, n), -128), np.full((n, 1), -128), 1.0, x_scale=1.0)
    assert quantized_matmul(np.full((1, n), -128), np.full((n, 1), 127), 1.0, x_scale=1.0)[0, 0] == -n * 128 * 127


def test_outliers_kept_apart_spoil_nobody_elses_scale() -> None:
    g = np.random.default_rng(2)
    x, w = g.standard_normal((8, 64)), g.standard_normal((64, 8))
    x[:, 5] *= 100.0
    out, outlier = matmul_with_outliers(x, w, threshold=6.0)
    q, s, _ = quantize(x, bits=8, axis=0)
    columns, ws, _ = quantize(w, bits=8, axis=1)
    plain = quantized_matmul(q, columns, ws, x_scale=s)
    assert outlier.nonzero()[0].tolist() == [5]
    assert np.abs(out - x @ w).max() < np.abs(plain - x @ w).max() / 10


# Tables, packing, 8-bit floats, caches ----------------------------------------------------------------------------------------


def test_nf4_takes_the_nearest_value_of_the_table() -> None:
    x = np.random.default_rng(3).standard_normal((3, 130))
    codes, absmax = nf4_quantize(x)
    scaled = x / np.repeat(absmax, 64, axis=1)[:, :130]
    assert (np.abs(NF4[codes] - scaled) == np.abs(NF4 - scaled[..., None]).min(axis=-1)).all()
    assert absmax.shape == (3, 3)


def test_nf4_of_its_own_values_and_of_zeros_is_exact() -> None:
    codes, absmax = nf4_quantize(NF4 * 4.0)
    assert (dequantize_blockwise(codes, absmax, block=64, codebook=NF4) == NF4 * 4.0).all()
    assert not dequantize_blockwise(*nf4_quantize(np.zeros(70)), block=64, codebook=NF4).any()


@pytest.mark.parametrize("codes", [list(range(16)), list(range(-8, 8)), [7], [], [[1, 2, 3], [4, 5, -6]]])
def test_packed_codes_come_back(codes: Any) -> None:
    q = np.array(codes, dtype=np.int64)
    assert (unpack_int4(pack_int4(q), q.shape[-1], signed=bool((q < 0).any())) == q).all()


@pytest.mark.parametrize("codes", [[16], [-9], [8, -1]])
def test_what_does_not_fit_in_four_bits_is_refused_rather_than_spilt(codes: list[int]) -> None:
    with pytest.raises(ValueError, match="codes: got numbers from"):
        pack_int4(codes)


def test_block_fp8_never_overflows_and_is_within_half_a_unit() -> None:
    x = np.random.default_rng(4).standard_normal((2, 200)) * 1e6
    q, scale = fp8_quantize(x)
    s = np.repeat(scale, 128, axis=1)[:, :200]
    assert np.abs(q).max() == 448.0
    half = np.maximum(np.abs(x / s) * 2.0**-4, 2.0**-10)                         # e4m3: 3 bits of fraction, least number 2^-9
    assert (np.abs(q - x / s) <= half).all()


def test_a_quantized_cache_never_changes_what_it_stored_and_rolls_back() -> None:
    g = np.random.default_rng(5)
    k, v = g.standard_normal((2, 3, 5, 8)), g.standard_normal((2, 3, 5, 4))
    cache = QuantizedKVCache(bits=8, group=4)
    cache.append(k[:, :, :3], v[:, :, :3])
    before = cache.view()
    cache.append(k[:, :, 3:] * 100, v[:, :, 3:])
    assert len(cache) == 5
    cache.crop(3)
    after = cache.view()
    assert all((a == b).all() for a, b in zip(before, after))
    assert np.abs(after[0] - k[:, :, :3]).max() <= (k.max() - k.min()) / 255
    assert cache.nbytes(scale_bytes=2) == 3 * 6 * (8 + 2 * 3 + 4 + 3)
