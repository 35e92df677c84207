"""Float formats against ml_dtypes on values that float32 holds, against Fractions on those it does not, and published figures."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import FloatFormat

pytestmark = pytest.mark.filterwarnings("error")

EVERY = ["float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e5m2", "float8_e5m2fnuz", "float8_e4m3", "float8_e4m3fn",
         "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e3m4", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]
IN_ARRAYS = [name for name in EVERY if name not in ("float64", "tfloat32")]
NARROW = [name for name in IN_ARRAYS if name not in ("float32", "float16", "bfloat16")]
MODES = ["nearest_even", "toward_zero", "up", "down"]


def all_numbers(name: str) -> np.ndarray:
    """Every finite number of a format of at most 16 bits, ascending, as its own codes decode."""
    dtype = FloatFormat(name).dtype
    bits = np.arange(2 ** (8 * dtype.itemsize), dtype=np.uint16 if dtype.itemsize == 2 else np.uint8)
    width = {"float6_e2m3fn": 6, "float6_e3m2fn": 6, "float4_e2m1fn": 4}.get(name, 8 * dtype.itemsize)
    with np.errstate(invalid="ignore"):                                         # signalling NaNs among the codes
        values = bits[: 2**width].view(dtype).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


def probes(name: str) -> np.ndarray:
    """Numbers of the format, the midpoints between them, both neighbours of each in float32, random ones, and zero."""
    r = np.random.default_rng(7)
    values = FloatFormat(name).round(np.ldexp(r.normal(size=2000), r.integers(-20, 15, size=2000)), overflow="saturate")
    if name in NARROW:
        values = all_numbers(name)
    middles = ((values[:-1] + values[1:]) / 2 if name in NARROW else values * (1 + FloatFormat(name).unit_roundoff)).astype(np.float32)
    near = [values.astype(np.float32), middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))]
    random = r.normal(size=2000).astype(np.float32) * np.float32(FloatFormat(name).max if name in NARROW else 1.0)
    return np.concatenate([*near, random, np.zeros(1, np.float32)])


@pytest.mark.parametrize("name", IN_ARRAYS)
def test_rounding_from_float32_is_that_of_ml_dtypes(name: str) -> None:
    x = probes(name)
    x = x[np.abs(x) <= FloatFormat(name).max]
    np.testing.assert_array_equal(FloatFormat(name).round(x), x.astype(FloatFormat(name).dtype).astype(np.float64))


@pytest.mark.parametrize("name", IN_ARRAYS)
def test_what_lies_past_the_largest_is_that_of_ml_dtypes(name: str) -> None:
    largest = np.float32(FloatFormat(name).max)
    half = np.float32(largest * FloatFormat(name).unit_roundoff)
    with np.errstate(over="ignore"):
        x = np.array([largest + half / 4, largest * np.float32(1.5), largest * np.float32(64), np.inf], np.float32)
        x = x if FloatFormat(name).has_infinity or FloatFormat(name).has_nan else x[:-1]    # ml_dtypes: inf has no code there
        want = x.astype(FloatFormat(name).dtype).astype(np.float64)
    np.testing.assert_array_equal(FloatFormat(name).round(x), want)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_float64_is_rounded_once(name: str) -> None:
    values = all_numbers(name)
    values = values[(values > 2.0**-60) & (values < 2.0**100)]
    above = (values[:-1] + values[1:]) / 2 * (1 + 2.0**-40)                     # float32 sees the midpoint itself
    np.testing.assert_array_equal(FloatFormat(name).round(above), values[1:])
    twice = above.astype(np.float32).astype(FloatFormat(name).dtype).astype(np.float64)
    assert (twice != values[1:]).any()                                          # what rounding twice would have given


def by_fractions(name: str, x: float, mode: str) -> float:
    """The definition in rational numbers: floor, then up, or not."""
    fmt = FloatFormat(name)
    exponent = max(math.frexp(x)[1] - 1, fmt.min_exponent)
    quantum = Fraction(2) ** (exponent - fmt.fraction_bits)
    low = math.floor(Fraction(x) / quantum)
    rest = Fraction(x) / quantum - low
    if mode == "nearest_even":
        up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1)
    else:
        up = rest > 0 and (mode == "up" or (mode == "toward_zero" and x < 0))
    return float((low + up) * quantum)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EVERY)
def test_every_mode_is_its_definition_in_rational_numbers(name: str, mode: Any) -> None:
    r = np.random.default_rng(11)
    fmt = FloatFormat(name)
    halves = [fmt.smallest / 2, -fmt.smallest / 2]
    x = np.concatenate([r.uniform(-1, 1, 200) * min(fmt.max, 1e30) / 2, r.normal(size=100) * fmt.tiny, halves])
    np.testing.assert_array_equal(fmt.round(x, mode=mode), [by_fractions(name, float(value), mode) for value in x])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NARROW)
def test_numbers_of_the_format_stay(name: str, mode: Any) -> None:
    np.testing.assert_array_equal(FloatFormat(name).round(all_numbers(name), mode=mode), all_numbers(name))


@pytest.mark.parametrize("name", IN_ARRAYS)
def test_max_tiny_and_eps_are_those_of_ml_dtypes(name: str) -> None:
    info, fmt = ml_dtypes.finfo(FloatFormat(name).dtype), FloatFormat(name)
    assert (fmt.max, fmt.tiny, fmt.eps, fmt.smallest) == tuple(float(x) for x in (info.max, info.tiny, info.eps, info.smallest_subnormal))


@pytest.mark.parametrize(("name", "largest", "tiny", "eps"), [
    ("float32", "3.403e+38", "1.175e-38", "1.192e-07"), ("float16", "6.550e+04", "6.104e-05", "9.766e-04"),
    ("bfloat16", "3.390e+38", "1.175e-38", "7.812e-03")])
def test_published_limits(name: str, largest: str, tiny: str, eps: str) -> None:
    fmt = FloatFormat(name)
    assert (f"{fmt.max:.3e}", f"{fmt.tiny:.3e}", f"{fmt.eps:.3e}") == (largest, tiny, eps)


@pytest.mark.parametrize(("name", "x", "rounded"), [
    ("float16", 70_000.0, np.inf), ("bfloat16", 70_000.0, 70_144.0), ("float16", 1 + 2.0**-10, 1.0009765625),
    ("bfloat16", 1 + 2.0**-10, 1.0), ("float16", 2049.0, 2048.0), ("float32", 2049.0, 2049.0), ("float16", 1e-8, 0.0),
    ("float16", 2.0**-24, 2.0**-24), ("float16", 0.5 + 1e-6, 0.5)])
def test_published_roundings(name: str, x: float, rounded: float) -> None:
    assert FloatFormat(name).round(x) == rounded


def test_a_gradient_too_small_for_float16_survives_a_scale_of_1024() -> None:
    assert f"{float(FloatFormat('float16').round(1e-8 * 1024)):.3e}" == "1.025e-05"


def test_the_smallest_float16_is_published_as_5_96e_8() -> None:
    assert f"{FloatFormat('float16').smallest:.2e}" == "5.96e-08"


def normal_tail(x: float) -> float:
    """P(|Z| > x) of a standard normal."""
    return math.erfc(x / math.sqrt(2))


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_the_share_of_tiny_gradients_that_survives_float16_is_that_of_the_normal_law(scale: float) -> None:
    n, sigma = 10_000, 1e-7
    gradients = np.random.default_rng(0).normal(scale=sigma, size=n)
    alive = int((FloatFormat("float16").round(gradients * scale) != 0).sum())
    survives = normal_tail(2.0**-25 / scale / sigma)                            # at the midpoint, ties to even give 0
    assert abs(alive - n * survives) <= 6 * math.sqrt(n * survives * (1 - survives))    # Chebyshev: 1 seed in 36 at most


def test_exactly_the_gradients_above_half_the_smallest_number_survive() -> None:
    gradients = np.random.default_rng(0).normal(scale=1e-7, size=10_000)
    np.testing.assert_array_equal(FloatFormat("float16").round(gradients) != 0, np.abs(gradients) > 2.0**-25)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_stochastic_rounding_is_exact_on_average_over_every_word(sign: float) -> None:
    u = np.arange(2**12) / 2**12
    for x in (1.0 + 2.0**-9, 1.0 + 3 * 2.0**-12, 1.75, 0.1171875, 2.0**-130 + 2.0**-137, 100.25):
        rounded = FloatFormat("bfloat16").round(np.full(u.shape, sign * x), mode="stochastic", u=u)
        assert sum(map(Fraction, rounded.tolist())) == Fraction(sign * x) * 2**12


def test_stochastic_rounding_gives_the_two_neighbours_alone() -> None:
    rounded = FloatFormat("bfloat16").round(np.full(64, 1.003), mode="stochastic", u=np.arange(64) / 64)
    assert set(rounded) == {1.0, 1.0078125}


def test_stochastic_rounding_leaves_numbers_of_the_format() -> None:
    u = np.array([0.0, 0.5, np.nextafter(1.0, 0.0)])
    assert (FloatFormat("float8_e4m3fn").round(np.full(3, 1.125), mode="stochastic", u=u) == 1.125).all()


@pytest.mark.parametrize(("name", "mode", "x", "overflow", "rounded"), [
    ("float16", "toward_zero", 7e4, None, 65504.0), ("float16", "up", 7e4, None, np.inf), ("float16", "up", -7e4, None, -65504.0),
    ("float16", "down", 7e4, None, 65504.0), ("float16", "down", -7e4, None, -np.inf), ("float16", "toward_zero", np.inf, None, np.inf),
    ("float8_e4m3fn", "nearest_even", 464.0, None, 448.0), ("float8_e4m3fn", "nearest_even", 465.0, None, np.nan),
    ("float8_e4m3fn", "nearest_even", -np.inf, "saturate", -448.0), ("float8_e5m2", "nearest_even", 1e6, "saturate", 57344.0),
    ("float16", "nearest_even", 65519.0, None, 65504.0), ("float16", "nearest_even", 65520.0, None, np.inf),
    ("float4_e2m1fn", "nearest_even", np.inf, None, 6.0)])
def test_what_lies_past_the_largest(name: str, mode: Any, x: float, overflow: Any, rounded: float) -> None:
    np.testing.assert_array_equal(FloatFormat(name).round(x, mode=mode, overflow=overflow), rounded)


@pytest.mark.parametrize("name", EVERY)
def test_negative_zero_is_kept_where_the_format_has_one(name: str) -> None:
    assert np.signbit(FloatFormat(name).round(-0.0)) == ("uz" not in name)


@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn"])
def test_nan_stays_nan(name: str) -> None:
    assert np.isnan(FloatFormat(name).round(np.nan))


def test_an_infinity_keeps_its_sign() -> None:
    assert FloatFormat("float16").round([-np.inf, np.inf]).tolist() == [-np.inf, np.inf]


@pytest.mark.parametrize("name", [name for name in EVERY if name != "float64"])
def test_the_unit_roundoff_is_the_error_of_rounding_the_first_midpoint_above_one(name: str) -> None:
    fmt = FloatFormat(name)
    assert fmt.round(1.0, mode="up") == 1.0
    middle = (1.0 + float(fmt.round(np.nextafter(1.0, 2.0), mode="up"))) / 2
    assert abs(float(fmt.round(middle)) - middle) == fmt.unit_roundoff


def test_cast_gives_an_array_of_the_format() -> None:
    cast = FloatFormat("bfloat16").cast([1.0, 70_000.0])
    assert cast.dtype == np.dtype(ml_dtypes.bfloat16)
    assert cast.astype(float).tolist() == [1.0, 70_144.0]


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: FloatFormat("float12"), ValueError, "name: got 'float12'; want one of float64"),
    (lambda: FloatFormat("tfloat32").dtype, TypeError, "tfloat32: no array type holds it"),
    (lambda: FloatFormat("float16").round(1.0, mode="odd"), ValueError, "mode: got 'odd'"),
    (lambda: FloatFormat("float16").round(1.0, overflow="wrap"), ValueError, "overflow: got 'wrap'"),
    (lambda: FloatFormat("float8_e4m3fn").round(1e9, overflow="infinity"), ValueError, "overflow: got 'infinity'; want 'nan'"),
    (lambda: FloatFormat("float16").round(1.0, mode="stochastic"), ValueError, "u: got no uniforms in mode 'stochastic'"),
    (lambda: FloatFormat("float16").round(1.0, u=0.5), ValueError, "u: got uniforms in mode 'nearest_even'"),
    (lambda: FloatFormat("float16").round(1.0, mode="stochastic", u=1.0), ValueError, r"u: got values outside \[0, 1\)"),
    (lambda: FloatFormat("float4_e2m1fn").round(np.nan), ValueError, "x: got NaN; want numbers, since float4_e2m1fn has no NaN"),
])
def test_bad_input_is_refused_by_name(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
