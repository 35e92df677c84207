"""Arrays in and out. PyTorch, JAX and CuPy are tried where they are installed, with the peers."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.properties.array_bridge import NotAnArray, to_framework, to_numpy

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_numpy_arrays_pass_as_they_are() -> None:
    assert to_framework(X, "numpy") is X
    assert to_numpy(X) is X


def test_numpy_scalars_become_arrays() -> None:
    array = to_numpy(np.float32(1.5))
    assert (array.shape, array.dtype.name) == ((), "float32")


def test_small_floats_keep_their_format() -> None:
    assert to_numpy(X.astype(ml_dtypes.bfloat16)).dtype.name == "bfloat16"


class Foreign:
    """An array of a library that nobody here knows, which speaks DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_anything_that_speaks_dlpack_is_an_array() -> None:
    assert np.array_equal(to_numpy(Foreign(X)), X)


class OnlyUnasked:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nobody may evaluate this")

    def __repr__(self) -> str:
        return "x" * 100


# value: how it is named
NO_ARRAYS = {
    "None": (None, "got None; want an array"),
    "a list": ([1, 2], "got list [1, 2]; want an array"),
    "a number": (1.5, "got float 1.5; want an array or a NumPy number, which has a dtype"),
    "a huge integer": (2**63, "got int 9223372036854775808; want an array"),
    "a truth value": (True, "got bool True; want an array"),
    "a lazy object": (OnlyUnasked(), f"got OnlyUnasked {'x' * 57}...; want an array"),
    "a function": (len, "got builtin_function_or_method <built-in function len>; want an array"),
}


@pytest.mark.parametrize("what", NO_ARRAYS)
def test_what_is_no_array_is_named(what: str) -> None:
    value, message = NO_ARRAYS[what]
    with pytest.raises(NotAnArray) as raised:
        to_numpy(value)
    assert str(raised.value) == message


def test_a_count_may_be_a_python_int() -> None:
    assert (to_numpy(12).dtype, to_numpy(12).shape, int(to_numpy(-(2**63)))) == (np.dtype(np.int64), (), -(2**63))


def test_a_framework_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)               # an import of it now fails
    with pytest.raises(ImportError, match=r"framework 'torch' is not installed; want it: pip install 'oracles\[torch\]'"):
        to_framework(X, "torch")
