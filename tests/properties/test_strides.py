"""Copies that keep a memory order, with NaN in the gaps."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from oracles.properties.strides import in_elements, strided_copy

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("strides", [(3, 1), (1, 2), (7, 2), (-3, 1), (3, -1), (-10, -2)])
def test_a_copy_has_the_values_and_the_strides(strides: tuple[int, int]) -> None:
    copy = strided_copy(X, strides)
    assert copy.tobytes() == X.tobytes()
    assert copy.strides == tuple(4 * s for s in strides)
    assert not np.shares_memory(copy, X)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int32", "bool"])
def test_a_copy_of_any_format_keeps_every_bit(dtype: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    assert (strided_copy(x, (5, 1)).dtype, strided_copy(x, (5, 1)).tobytes()) == (x.dtype, x.tobytes())


def test_without_strides_the_copy_is_in_c_order() -> None:
    assert strided_copy(np.asfortranarray(X), None).flags.c_contiguous


def test_the_gaps_hold_nan() -> None:
    copy = strided_copy(X, (5, 1))
    memory = np.lib.stride_tricks.as_strided(copy, (2, 5), (20, 4))             # the last gap is not part of the buffer
    assert np.isnan(memory.ravel()[3:5]).all()


def test_gaps_between_integers_hold_zero() -> None:
    copy = strided_copy(np.ones((2, 3), np.int64), (5, 1))
    assert np.lib.stride_tricks.as_strided(copy, (8,), (8,)).tolist() == [1, 1, 1, 0, 0, 1, 1, 1]


def test_strides_that_lay_two_values_on_one_place_are_refused() -> None:
    with pytest.raises(ValueError, match=r"strides: got \(1, 1\) for shape \(2, 3\); want"):
        strided_copy(X, (1, 1))


def test_a_broadcast_array_stays_one() -> None:
    broadcast = np.broadcast_to(X[0], (4, 3))
    copy = strided_copy(broadcast, in_elements(broadcast))
    assert copy.strides == (0, 4)
    assert copy.tobytes() == broadcast.tobytes()


def test_empty_arrays_and_scalars_have_no_strides_to_keep() -> None:
    assert strided_copy(np.zeros((0, 3)), (5, 7)).shape == (0, 3)
    assert strided_copy(np.array(2.5), ()).tolist() == 2.5


def test_strides_in_elements_are_none_for_c_order() -> None:
    assert in_elements(X) is None
    assert in_elements(X.T) == (1, 3)
    assert in_elements(X[:, ::-1]) == (3, -1)
