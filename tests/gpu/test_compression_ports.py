"""The ports of quantization and pruning: what the cases of a check do not reach, bad input refused, and each planted fault found by a law.

ORACLES_BACKEND=cuda runs the first two parts on a device. Orders of threads, races and barriers: test_dropped_barriers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles import reference
from oracles.gpu.pruning import pack_2_4, prune_2_4
from oracles.gpu.quantization import quantize, quantized_matmul
from oracles.properties import Arithmetic, bounds

from .planted_faults import status_with_fault

pytestmark = pytest.mark.gpu

BACKEND = os.environ.get("ORACLES_BACKEND", "emulated")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
WIDE_OUT = Arithmetic(out="float32")


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def int8(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


# Past the cases of a check -----------------------------------------------------------------------------------------------------

FORMS: dict[str, dict[str, Any]] = {
    "one for all, in many shares": {"bits": 8},
    "the middle axis": {"bits": 8, "axis": 1, "symmetric": False},
    "runs with a short last": {"bits": 4, "group": 48, "symmetric": False},
    "sixteen bits": {"bits": 16, "axis": -1, "symmetric": False},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_are_the_oracles_where_no_rounding_decides(dtype: str, form: str) -> None:
    x, options = draw(6, 7, 500, dtype=dtype), FORMS[form]
    got, want = quantize(x, **options, backend=BACKEND), reference.quantize(x, **options)
    bound = bounds.quantize_bound(WIDE_OUT.resolve(dtype), x, **options)
    assert np.isfinite(bound["q"]).mean() > 0.5
    for name, mine, exact in zip(("q", "scale", "zero"), got, want):
        assert mine.shape == exact.shape, name
        assert (np.abs(mine.astype(np.float64) - exact) <= bound[name]).all(), name


def test_a_span_that_float32_does_not_hold_has_its_scale() -> None:
    q, scale, zero = quantize(np.array([-3e38, 0.0, 3e38], np.float32), bits=8, symmetric=False, backend=BACKEND)
    assert q.tolist() == [0, 128, 255]
    assert (scale.tolist(), zero.tolist()) == ([float(np.float32(float(np.float32(3e38)) * 2 / 255))], [128])


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_past_the_tiles_are_within_their_bound(dtype: str) -> None:
    given = {"x": int8(70, 700), "q": int8(700, 65, seed=1), "scale": np.abs(draw(65, dtype=dtype)), "bias": draw(65, dtype=dtype, seed=2)}
    given["x_scale"] = np.abs(draw(70, dtype=dtype, seed=3)) / DTYPES[dtype](1024)
    got, exact = quantized_matmul(**given, backend=BACKEND), reference.quantized_matmul(**given)
    bound = bounds.quantized_matmul_bound(Arithmetic().resolve(dtype), **given)["out"]
    assert got.dtype == DTYPES[dtype]
    assert np.isfinite(bound).all()
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


def test_the_most_products_that_int32_always_holds_are_added_up_exactly() -> None:
    C = (2**31 - 1) // 128**2
    x = np.full((1, C), -128, np.int8)
    out = quantized_matmul(x, x.T, np.float32(1), x_scale=np.float32(1), backend=BACKEND)
    assert out.tolist() == [[float(np.float32(C * 128**2))]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_weights_are_the_oracles_bit_for_bit(dtype: str) -> None:
    w = draw(5, 9, 300, dtype=dtype)
    mask = prune_2_4(w, axis=-1, backend=BACKEND)
    np.testing.assert_array_equal(mask, reference.prune_2_4(w, axis=-1))
    mask &= np.random.default_rng(1).random(w.shape) < 0.8                      # fours of one and of none too
    values, places = pack_2_4(w, mask, backend=BACKEND)
    wanted, at = reference.pack_2_4(w, mask)
    assert values.dtype == DTYPES[dtype]
    np.testing.assert_array_equal(values.astype(np.float64), wanted)
    np.testing.assert_array_equal(places, at)
    np.testing.assert_array_equal(reference.unpack_2_4(values, places), np.where(mask, w, 0).astype(np.float64))


def test_what_is_not_kept_may_be_nan() -> None:
    values, places = pack_2_4(np.array([np.nan, 1, 2, np.nan], np.float32), [False, True, True, False], backend=BACKEND)
    assert (values.tolist(), places.tolist()) == ([1.0, 2.0], [0b1001])


# Refusals ----------------------------------------------------------------------------------------------------------------------

X, A = draw(3, 8), int8(2, 4)
PRODUCT = {"x": A, "q": A.T.copy(), "scale": np.float32(1), "x_scale": np.float32(1)}
MANY = np.zeros((1, 131072), np.int8)
REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], type[Exception], str]] = {
    "a NaN": (quantize, {"x": np.array([1, np.nan], np.float32), "bits": 8}, ValueError, "x: got NaN or an infinity"),
    "an infinity": (quantize, {"x": np.array([1, -np.inf], np.float16), "bits": 8}, ValueError, "x: got NaN or an infinity"),
    "axis and group": (quantize, {"x": X, "bits": 8, "axis": 0, "group": 2}, ValueError, "axis, group: got 0 and 2"),
    "an axis too far": (quantize, {"x": X, "bits": 8, "axis": 2}, ValueError, "axis: got 2 for 2 axes"),
    "a bit too many": (quantize, {"x": X, "bits": 17}, ValueError, "bits: got 17; want 2..16"),
    "a scale of another shape": (quantize, {"x": X, "bits": 8, "axis": 0, "scale": np.ones(2, np.float32)}, ValueError,
        "scale: got shape (2,); want (3,)"),
    "a scale of 0": (quantize, {"x": X, "bits": 8, "scale": np.zeros(1, np.float32)}, ValueError, "scale: got 0.0; want finite numbers"),
    "a zero point alone": (quantize, {"x": X, "bits": 8, "zero": np.array([3])}, ValueError, "zero: got one without a scale"),
    "a symmetric zero point": (quantize, {"x": X, "bits": 8, "scale": np.ones(1, np.float32), "zero": np.array([3])}, ValueError,
        "zero: got one with symmetric=True"),
    "an affine scale alone": (quantize, {"x": X, "bits": 8, "symmetric": False, "scale": np.ones(1, np.float32)}, ValueError,
        "zero: got None beside a scale"),
    "codes of 64 bits": (quantized_matmul, {**PRODUCT, "x": A.astype(np.int64)}, TypeError, "x: got dtype int64; want int8"),
    "matrices that do not meet": (quantized_matmul, {**PRODUCT, "q": A}, ValueError, "q: got shape (2, 4) beside x (2, 4)"),
    "a scale of another length": (quantized_matmul, {**PRODUCT, "x_scale": np.ones(3, np.float32)}, ValueError, "x_scale: got shape (3,)"),
    "a sum that int32 may not hold": (quantized_matmul, {**PRODUCT, "x": MANY, "q": MANY.T}, NotImplementedError, "x: got 131,072 columns"),
    "a weight of infinity": (prune_2_4, {"w": np.array([1, np.inf], np.float32), "axis": 0}, ValueError, "w: got NaN or an infinity"),
    "an axis that is not": (prune_2_4, {"w": X, "axis": -3}, ValueError, "axis: got -3 for 2 axes"),
    "three of a four": (pack_2_4, {"w": X, "mask": np.arange(24).reshape(3, 8) % 4 > 0}, ValueError, "mask: got more than two of a four"),
    "a length of seven": (pack_2_4, {"w": X[:, :7], "mask": X[:, :7] > 9}, ValueError, "w: got shape (3, 7)"),
    "a mask of another shape": (pack_2_4, {"w": X, "mask": X[:2] > 9}, ValueError, "mask: got shape (2, 8)"),
    "a mask of numbers": (pack_2_4, {"w": X, "mask": X}, TypeError, "mask: got dtype float32; want bool"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_bad_input_is_refused_by_name(fault: str) -> None:
    port, given, error, message = REFUSED[fault]
    with pytest.raises(error, match=re.escape(message)):
        port(**given, backend=BACKEND)


# Planted faults ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """A text of a kernel and what it becomes: the fault, and a law that has to find it."""

    fault: str
    file: str
    was: str
    becomes: str
    law: str


FAULTS = (
    Planted("codes are cut off", "quantize.cu", "rintf(widen(x[at]) / s)", "truncf(widen(x[at]) / s)", "codes_follow_the_returned_scale"),
    Planted("codes are never clipped", "quantize.cu", "fminf(fmaxf(rintf(widen(x[at]) / s) + z, low), high)",
            "(rintf(widen(x[at]) / s) + z)", "q_agrees_with_the_oracle"),
    Planted("the step of an axis is that of its neighbour", "quantize.cu", "{b * behind, behind, n * behind,",
            "{b * behind, behind, behind,", "q_agrees_with_the_oracle"),
    Planted("a short last run reads on into the next row", "quantize.cu", "count = min(group, n - start)", "count = group", "answers"),
    Planted("negative numbers are forgotten", "quantize.cu", "fmaxf(most, least)", "most", "codes_come_back_within_half_a_step"),
    Planted("a block of zeros is divided by 0", "quantize.cu", "s == 0.f ? 1.f : s;", "s;", "a_block_of_zeros_has_scale_one"),
    Planted("the zero point is cut off", "quantize.cu", "fminf(rintf(least / s), high)", "fminf(truncf(least / s), high)",
            "zero_points_follow_the_returned_scale"),
    Planted("codes lose their sign", "matmul_int8.cu", "__dp4a(x_tile[row", "(int)__dp4a_unsigned(x_tile[row",
            "out_agrees_with_the_oracle"),
    Planted("the last codes of a row are left out", "matmul_int8.cu", "c + i < C ?", "c + 4 <= C ?", "out_agrees_with_the_oracle"),
    Planted("the bias is scaled too", "matmul_int8.cu", "product + widen(bias[m])",
            "product + widen(scale[m * scale_step]) * widen(bias[m])", "a_bias_is_added_once_unscaled"),
    Planted("three of four stay", "prune_2_4.cu", "before < 2", "before < 3", "two_of_every_four_stay"),
    Planted("of equals the highest index stays", "prune_2_4.cu", "j < i && size", "j > i && size", "of_equal_four_the_first_two_stay"),
    Planted("signs matter", "prune_2_4.cu", "fabsf(widen(w[first + i * behind]))", "widen(w[first + i * behind])", "signs_do_not_matter"),
    Planted("what is not there comes first", "prune_2_4.cu", ": -1.f;", ": 1e30f;", "mask_agrees_with_the_oracle"),
)  # fmt: skip
PORTS = {"quantize.cu": ("quantize", quantize), "matmul_int8.cu": ("quantized_matmul", quantized_matmul),
         "prune_2_4.cu": ("prune_2_4", prune_2_4)}  # fmt: skip
UNSIGNED = """#include "common.cuh"
__device__ __forceinline__ unsigned __dp4a_unsigned(unsigned a, unsigned b, unsigned sum) {
  for (int i = 0; i < 32; i += 8) sum += (a >> i & 255u) * (b >> i & 255u);
  return sum;
}
"""


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.fault)
def test_a_planted_fault_is_found_by_its_law(planted: Planted, tmp_path: Path) -> None:
    operation, port = PORTS[planted.file]
    status = status_with_fault(tmp_path, planted.file, planted.was, planted.becomes, port=port, operation=operation, law=planted.law,
                               after=lambda text: text.replace('#include "common.cuh"\n', UNSIGNED), arithmetic=WIDE_OUT)  # fmt: skip
    assert status == "failed"
