"""The CUDA ports: within their bounds on every convention, bad input refused.

Run by the emulator; ORACLES_BACKEND=cuda runs all but the one about a missing device on a device.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles import reference
from oracles.gpu.flash_attention import flash_attention, flash_attention_packed
from oracles.gpu.flash_attention_backward import flash_attention_backward, flash_attention_packed_backward
from oracles.gpu.matmul_bf16 import matmul_bf16
from oracles.gpu.merge_attention import merge_attention
from oracles.gpu.softmax import log_sum_exp, softmax
from oracles.properties import Arithmetic, bounds

pytestmark = pytest.mark.gpu

BACKEND = os.environ.get("ORACLES_BACKEND", "emulated")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
DEFAULT, SPLIT = Arithmetic(tile_min=32), Arithmetic(tile_min=32, merges_lse=True)
B, Hq, Hkv, Lq, Lk, D, Dv = 2, 4, 2, 20, 70, 24, 40


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def tensors(dtype: str = "float32") -> dict[str, Any]:
    """q, k, v of ragged sizes, with grouped heads and Dv != D."""
    shapes = {"q": (B, Hq, Lq, D), "k": (B, Hkv, Lk, D), "v": (B, Hkv, Lk, Dv)}
    return {name: draw(*shape, dtype=dtype, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}


def randoms(*shape: int, seed: int = 3) -> Any:
    return np.random.default_rng(seed).random(shape)


# Options of attention, by what they stand for.
CONVENTIONS: dict[str, dict[str, Any]] = {
    "everything is seen": {"causal": None},
    "causal, aligned at the bottom right": {"causal": "bottom_right"},
    "causal, aligned at the top left": {"causal": "top_left"},
    "a window on both sides": {"causal": None, "window": (30, 2)},
    "a causal window": {"causal": "bottom_right", "window": (9, None)},
    "a window wider than any integer": {"causal": None, "window": (2**70, 0)},
    "a negative scale": {"causal": "bottom_right", "scale": -0.3},
    "capped scores": {"causal": None, "softcap": 2.0},
    "sinks and ragged lengths": {"causal": "bottom_right", "sinks": draw(Hq, seed=4), "kv_lengths": np.array([33, 70])},
    "a sequence without keys": {"causal": None, "kv_lengths": np.array([0, 5])},
    "slopes": {"causal": "bottom_right", "alibi_slopes": np.array([0.5, 0.25, 0.125, 0.0], np.float32)},
    "a mask over the batch": {"causal": None, "mask": randoms(B, 1, 1, Lk) < 0.5},
    "a mask that hides rows": {"causal": None, "mask": np.broadcast_to(randoms(Lq, 1) < 0.5, (Lq, Lk))},
    "dropout": {"causal": None, "dropout_mask": randoms(B, Hq, Lq, Lk) < 0.5, "dropout_p": 0.5},
}
BIASES = {"a bias for each head": draw(Hq, 1, Lk, seed=5),
          "a bias with minus infinity": np.where(randoms(Lq, Lk) < 0.5, -np.inf, 1.0).astype(np.float32)}


def assert_within(bound: dict[str, Any], exact: Any, got: Any) -> None:
    """Every result within its bound, and of the same kind where it is not finite."""
    assert set(exact) == set(got)
    for name, want in exact.items():
        x = np.asarray(got[name], np.float64)
        assert x.shape == want.shape
        finite = np.isfinite(want)
        np.testing.assert_array_equal(np.where(finite, 0.0, x), np.where(finite, 0.0, want), err_msg=name)
        assert (np.abs(x[finite] - want[finite]) <= bound[name][finite]).all(), name


def check_forward(dtype: str, splits: int, options: dict[str, Any]) -> None:
    given = tensors(dtype)
    exact = dict(zip(("out", "lse"), reference.attention(**given, **options)))
    got = dict(zip(("out", "lse"), flash_attention(**given, **options, splits=splits, backend=BACKEND)))
    assert got["out"].dtype == DTYPES[dtype]
    assert_within(bounds.attention_bound((DEFAULT if splits == 1 else SPLIT).resolve(dtype), **given, **options), exact, got)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_attention_is_within_its_bound(convention: str) -> None:
    check_forward("float32", 1, CONVENTIONS[convention])


@pytest.mark.parametrize("bias", BIASES)
def test_attention_with_a_bias_is_within_its_bound(bias: str) -> None:
    check_forward("float32", 1, {"causal": None, "bias": BIASES[bias]})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_in_16_bits_is_within_its_bound(dtype: str) -> None:
    check_forward(dtype, 1, CONVENTIONS["sinks and ragged lengths"])


@pytest.mark.parametrize("convention", ["everything is seen", "a causal window", "sinks and ragged lengths", "a sequence without keys"])
@pytest.mark.parametrize("splits", [2, 7])
def test_attention_in_splits_is_within_its_bound(splits: int, convention: str) -> None:
    check_forward("float32", splits, CONVENTIONS[convention])


@pytest.mark.parametrize("size", [65, 128, 256])
def test_head_sizes_up_to_256(size: int) -> None:
    given = {"q": draw(1, 1, 3, size), "k": draw(1, 1, 33, size, seed=1), "v": draw(1, 1, 33, size - 1, seed=2)}
    exact = dict(zip(("out", "lse"), reference.attention(**given, causal="bottom_right")))
    got = dict(zip(("out", "lse"), flash_attention(**given, causal="bottom_right", backend=BACKEND)))
    assert_within(bounds.attention_bound(DEFAULT.resolve("float32"), **given, causal="bottom_right"), exact, got)


@pytest.mark.parametrize("empty", ["q", "kv", "batch"])
def test_empty_sizes(empty: str) -> None:
    lengths = {"q": (B, 0, Lk), "kv": (B, Lq, 0), "batch": (0, Lq, Lk)}[empty]
    batch, queries, keys = lengths
    q, k, v = draw(batch, Hq, queries, D), draw(batch, Hkv, keys, D), draw(batch, Hkv, keys, Dv)
    out, lse = flash_attention(q, k, v, causal=None, backend=BACKEND)
    np.testing.assert_array_equal(out, np.zeros((batch, Hq, queries, Dv)))
    np.testing.assert_array_equal(lse, np.full((batch, Hq, queries), -np.inf))


def test_nan_where_no_query_looks_changes_no_bit() -> None:
    given, options = tensors(), {"causal": "bottom_right", "window": (9, 0), "kv_lengths": np.array([33, 50])}
    clean = flash_attention(**given, **options, backend=BACKEND)
    for name in ("k", "v"):
        given[name][0, :, 33:] = np.nan
        given[name][1, :, 50:] = np.inf
    given["v"][1, :, 0] = np.nan                                                # before the window of every query
    for one, other in zip(clean, flash_attention(**given, **options, backend=BACKEND)):
        np.testing.assert_array_equal(one, other)


PACKED: dict[str, Any] = {"cu_q": np.array([0, 3, 3, Lq]), "cu_k": np.array([0, 40, 45, Lk])}


PACKED_OPTIONS = ({"causal": None}, {"causal": "bottom_right", "window": (5, None)}, {"causal": "top_left", "softcap": 1.5})


def packed_tensors() -> dict[str, Any]:
    return {"q": draw(Lq, Hq, D), "k": draw(Lk, Hkv, D, seed=1), "v": draw(Lk, Hkv, Dv, seed=2)}


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("options", PACKED_OPTIONS)
def test_packed_attention_is_within_its_bound(options: dict[str, Any], splits: int) -> None:
    given = packed_tensors() | PACKED
    exact = dict(zip(("out", "lse"), reference.attention_packed(**given, **options)))
    got = dict(zip(("out", "lse"), flash_attention_packed(**given, **options, splits=splits, backend=BACKEND)))
    assert_within(bounds.attention_packed_bound(SPLIT.resolve("float32"), **given, **options), exact, got)


def saved(dtype: str, out: Any, lse: Any) -> dict[str, Any]:
    """What a forward pass leaves for the backward one: the exact results rounded once."""
    return {"out": out.astype(DTYPES[dtype]), "lse": lse.astype(np.float32)}


def check_backward(dtype: str, options: dict[str, Any]) -> None:
    given = tensors(dtype)
    given |= saved(dtype, *reference.attention(**given, **options)) | {"dout": draw(B, Hq, Lq, Dv, dtype=dtype, seed=6)}
    got = flash_attention_backward(**given, **options, backend=BACKEND)
    bound = bounds.attention_backward_bound(DEFAULT.resolve(dtype), **given, **options)
    assert_within(bound, reference.attention_backward(**given, **options), got)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_gradients_are_within_their_bound(convention: str) -> None:
    check_backward("float32", CONVENTIONS[convention])


# The gradient of a bias is summed over every axis that repeats: each alone, several, all.
SHAPES = [(B, Hq, Lq, Lk), (1, Hq, Lq, Lk), (B, 1, Lq, Lk), (Hq, 1, Lk), (B, Hq, Lq, 1), (B, 1, 1, Lk), (Lq, Lk), (Lq, 1), (1, 1), ()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_of_a_bias_has_its_shape_and_is_within_its_bound(shape: tuple[int, ...]) -> None:
    check_backward("float32", {"causal": "bottom_right", "window": (60, None), "softcap": 2.0, "bias": draw(*shape, seed=5)})


@pytest.mark.parametrize("bias", BIASES)
def test_gradients_with_a_bias_are_within_their_bound(bias: str) -> None:
    check_backward("float32", {"causal": None, "bias": BIASES[bias]})


def test_the_gradient_of_a_bias_without_queries_or_keys_is_zero() -> None:
    for queries, keys in ((0, Lk), (Lq, 0)):
        given = {"q": draw(B, Hq, queries, D), "k": draw(B, Hkv, keys, D), "v": draw(B, Hkv, keys, Dv)}
        given |= {"out": draw(B, Hq, queries, Dv), "lse": draw(B, Hq, queries), "dout": draw(B, Hq, queries, Dv)}
        got = flash_attention_backward(**given, causal=None, bias=np.ones((Hq, 1, 1), np.float32), backend=BACKEND)
        np.testing.assert_array_equal(got["dbias"], np.zeros((Hq, 1, 1)))


def test_the_gradient_of_a_bias_has_its_format() -> None:
    given = tensors()
    given |= saved("float32", *reference.attention(**given, causal=None)) | {"dout": draw(B, Hq, Lq, Dv)}
    got = flash_attention_backward(**given, causal=None, bias=draw(Lk, dtype="float16"), backend=BACKEND)
    assert got["dbias"].dtype == np.float16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_in_16_bits_are_within_their_bound(dtype: str) -> None:
    check_backward(dtype, CONVENTIONS["sinks and ragged lengths"])


def test_packed_gradients_are_within_their_bound() -> None:
    options: dict[str, Any] = {"causal": "bottom_right", "window": (5, None)}
    given = packed_tensors()
    given |= saved("float32", *reference.attention_packed(**given, **PACKED, **options)) | {"dout": draw(Lq, Hq, Dv, seed=6)} | PACKED
    got = flash_attention_packed_backward(**given, **options, backend=BACKEND)
    bound = bounds.attention_packed_backward_bound(DEFAULT.resolve("float32"), **given, **options)
    assert_within(bound, reference.attention_packed_backward(**given, **options), got)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_and_log_sum_exp_are_within_their_bound(dtype: str, axis: int) -> None:
    x = draw(3, 1100, 2, dtype=dtype)                                           # one axis long enough for 8 warps
    x[0, :5] = -np.inf
    arithmetic = Arithmetic().resolve(dtype)
    assert_within(bounds.softmax_bound(arithmetic, x, axis=axis), {"p": reference.softmax(x, axis=axis)},
                  {"p": softmax(x, axis=axis, backend=BACKEND)})
    assert_within(bounds.log_sum_exp_bound(arithmetic, x, axis=axis), {"lse": reference.log_sum_exp(x, axis=axis)},
                  {"lse": log_sum_exp(x, axis=axis, backend=BACKEND)})


NOTHING, NEITHER = ([-np.inf, -np.inf], [0, 0], -np.inf), [np.nan, np.nan]


@pytest.mark.parametrize(("row", "p", "lse"), [NOTHING, ([], [], -np.inf), ([np.inf, 0], NEITHER, np.nan), ([np.nan, 0], NEITHER, np.nan)])
def test_rows_of_nothing_and_of_nan(row: list[float], p: list[float], lse: float) -> None:
    x = np.array(row, np.float32)
    np.testing.assert_array_equal(softmax(x, backend=BACKEND), p)
    np.testing.assert_array_equal(log_sum_exp(x, backend=BACKEND), lse)


@pytest.mark.parametrize("dtype", DTYPES)
def test_merges_are_within_their_bound(dtype: str) -> None:
    out_a, out_b, lse = draw(6, 5, Dv, dtype=dtype), draw(6, 5, Dv, dtype=dtype, seed=1), draw(2, 6, 5, seed=2)
    lse[:, 0] = -np.inf                                                         # both parts empty, then one
    lse[0, 1] = -np.inf
    out_a[:2], out_b[0] = 0, 0
    given = {"out_a": out_a, "lse_a": lse[0], "out_b": out_b, "lse_b": lse[1]}
    got = dict(zip(("out", "lse"), merge_attention(**given, backend=BACKEND)))
    exact = dict(zip(("out", "lse"), reference.merge_attention(**given)))
    assert_within(bounds.merge_attention_bound(Arithmetic().resolve(dtype), **given), exact, got)


def test_small_integers_multiply_exactly_on_tensor_cores() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-8, 9, (rows, 104)).astype(ml_dtypes.bfloat16) for rows in (70, 90))
    np.testing.assert_array_equal(matmul_bf16(a, b, backend=BACKEND), a.astype(np.int64) @ b.astype(np.int64).T)


GIVEN = tensors()
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "heads that do not divide": ({"k": draw(B, 3, Lk, D), "v": draw(B, 3, Lk, Dv)}, ValueError, "k: got 3 key/value heads for 4"),
    "another head size": ({"k": draw(B, Hkv, Lk, D + 1)}, ValueError, "k: got head size 25; want that of q, 24"),
    "values of another length": ({"v": draw(B, Hkv, Lk + 1, Dv)}, ValueError, "v: got shape"),
    "a boolean causal": ({"causal": True}, ValueError, "causal: got True"),
    "a negative window": ({"window": (-1, 0)}, ValueError, "window: got -1"),
    "a softcap of zero": ({"softcap": 0.0}, ValueError, "softcap: got 0.0; want a finite number > 0"),
    "a length past the keys": ({"kv_lengths": np.array([1, Lk + 1])}, ValueError, f"kv_lengths: got numbers from 1 to {Lk + 1}"),
    "a mask of numbers": ({"mask": np.ones((Lq, Lk))}, TypeError, "mask: got dtype float64; want bool"),
    "a bias that does not fit": ({"bias": draw(3, Lk)}, ValueError, "bias: got shape"),
    "dropout without a mask": ({"dropout_p": 0.5}, ValueError, "dropout_mask: got none with dropout_p = 0.5"),
    "integers": ({"q": np.ones((B, Hq, Lq, D), np.int64)}, TypeError, "q: got dtype int64"),
    "float64": ({"q": np.ones((B, Hq, Lq, D))}, NotImplementedError, "q: got dtype float64"),
    "wide heads": ({"v": draw(B, Hkv, Lk, 257)}, NotImplementedError, "got head sizes 24 and 257"),
    "an unknown backend": ({"backend": "metal"}, ValueError, "backend: got 'metal'; want 'cuda' or 'emulated'"),
    "no splits": ({"splits": 0}, ValueError, "splits: got 0; want a whole number >= 1"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_bad_input_is_refused_by_name(fault: str) -> None:
    changed, error, message = REFUSED[fault]
    with pytest.raises(error, match=re.escape(message)):
        flash_attention(**({**GIVEN, "causal": None, "backend": BACKEND} | changed))


def test_rows_of_a_product_are_multiples_of_eight() -> None:
    with pytest.raises(ValueError, match="want two axes, the second a multiple of 8"):
        matmul_bf16(draw(3, 12, dtype="bfloat16"), draw(3, 12, dtype="bfloat16"), backend=BACKEND)


class Unreachable:
    """CuPy where there is no device."""

    ndarray = type("ndarray", (), {})

    class cuda:
        @staticmethod
        def is_available() -> bool:
            return False


@pytest.mark.parametrize(("cupy", "missing"), [(Unreachable, "there is none here"), (None, "needs CuPy, which cannot be imported")])
def test_without_a_device_a_port_says_how_to_emulate(monkeypatch: pytest.MonkeyPatch, cupy: Any, missing: str) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(RuntimeError, match=f"{missing}.*backend='emulated'"):
        flash_attention(**GIVEN, causal=None)


def test_a_grid_past_the_limits_of_a_device_is_refused() -> None:
    x = draw(1, 1, 0, 1)
    with pytest.raises(NotImplementedError, match="got 65536 blocks along axis 1 of the grid; a device has at most 65535"):
        flash_attention(np.zeros((1, 65536, 1, 1), np.float32), x, x, causal=None, backend=BACKEND)
