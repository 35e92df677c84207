"""What a result must be: a number in a format, an integer of any width, a mask; and options of an operation that are none of the arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from oracles.properties.arithmetic import Arithmetic
from oracles.properties.laws.every_operation import _untouched
from oracles.properties.operation import BOOLEAN, INTEGER, is_of_format, result_format
from oracles.properties.signatures import SIGNATURES, Signature

MIXED = Signature(("x",), (), ("out", "lse", "ids", "mask", "m"), integers=("ids",), booleans=("mask",), moments=("m",))


@pytest.mark.parametrize(("name", "wanted"), [
    ("out", "bfloat16"), ("lse", "float32"), ("ids", INTEGER), ("mask", BOOLEAN), ("m", "float32"),
])  # fmt: skip
def test_the_format_of_a_result_follows_from_its_kind(name: str, wanted: str) -> None:
    assert result_format(MIXED, name, Arithmetic(moments="float32").resolve("bfloat16")) == wanted


@pytest.mark.parametrize(("dtype", "wanted", "right"), [
    ("int64", INTEGER, True), ("int32", INTEGER, True), ("uint8", INTEGER, True), ("bool", INTEGER, False), ("float64", INTEGER, False),
    ("bool", BOOLEAN, True), ("int8", BOOLEAN, False), ("float32", "float32", True), ("float64", "float32", False),
    ("bfloat16", "bfloat16", True),
])  # fmt: skip
def test_a_dtype_is_of_a_format_or_not(dtype: str, wanted: str, right: bool) -> None:
    assert is_of_format(np.dtype(getattr(ml_dtypes, dtype, dtype)), wanted) is right


def test_what_nobody_wrote_is_nan_or_the_least_integer() -> None:
    assert _untouched(np.array([np.nan, 0.0, -np.inf], np.float32)).tolist() == [True, False, False]
    assert _untouched(np.array([-(2**31), 0, 5], np.int32)).tolist() == [True, False, False]


def test_choices_and_kinds_are_options() -> None:
    for name, signature in SIGNATURES.items():
        assert set(signature.choices) | set(signature.kinds) <= set(signature.arguments), name
        assert set(signature.integers) | set(signature.booleans) <= set(signature.results), name
        assert set(signature.as_array) | set(signature.as_array.values()) <= set(signature.lists), name
        assert all(len(set(kinds)) == len(kinds) > 1 for kinds in signature.kinds.values()), name


def test_the_pairing_of_rope_is_a_choice_and_its_scaling_a_record() -> None:
    assert SIGNATURES["rope"].choices == {"pairing": ("half", "interleaved")}
    assert SIGNATURES["rope"].kinds == {"scaling": ("none", "linear", "ntk", "yarn", "llama3")}
