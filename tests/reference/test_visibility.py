"""Visibility against its definition, one query and key at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from oracles.reference import query_positions, visible_keys

CAUSAL = (None, "bottom_right", "top_left")
WINDOWS = (None, (None, None), (0, 0), (2, 0), (0, 1), (None, 1), (3, None), (10**30, 0))
LENGTHS = ((0, 3), (1, 1), (3, 5), (5, 3), (7, 1), (2, 0))


def by_definition(Lq: int, Lk: int, n: int, causal: str | None, window: Any) -> np.ndarray:
    seen = np.zeros((Lq, Lk), bool)
    left, right = window or (None, None)
    for i, j in np.ndindex(Lq, Lk):
        p = i if causal == "top_left" else i + n - Lq
        seen[i, j] = (j < n and (causal is None or j <= p) and (left is None or j >= p - left) and (right is None or j <= p + right))
    return seen


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("window", WINDOWS)
def test_visible_keys_follow_the_definition(causal: Any, window: Any) -> None:
    for (Lq, Lk), short in itertools.product(LENGTHS, (0, 1)):
        n = max(Lk - short, 0)
        got = visible_keys(1, 2, Lq, Lk, causal=causal, window=window, kv_lengths=[n])
        assert (got == by_definition(Lq, Lk, n, causal, window)).all()


def test_each_sequence_has_its_own_length() -> None:
    got = visible_keys(3, 1, 2, 4, causal="bottom_right", kv_lengths=[0, 2, 4])[:, 0]
    assert got.astype(int).tolist() == [[[0, 0, 0, 0]] * 2, [[1, 0, 0, 0], [1, 1, 0, 0]], [[1, 1, 1, 0], [1, 1, 1, 1]]]


def test_queries_stand_at_the_end_of_the_keys_unless_top_left() -> None:
    assert query_positions(2, 2, 5, causal=None, kv_lengths=[1, 5]).tolist() == [[-1, 0], [3, 4]]


def test_top_left_queries_stand_at_their_own_index_whatever_the_length() -> None:
    assert query_positions(1, 2, 5, causal="top_left", kv_lengths=[1]).tolist() == [[0, 1]]


def test_a_window_of_zero_sees_only_itself() -> None:
    assert (visible_keys(1, 1, 4, 4, causal=None, window=(0, 0))[0, 0] == np.eye(4, dtype=bool)).all()


def test_a_bias_of_minus_infinity_hides_and_no_other_bias_does() -> None:
    bias = np.array([-np.inf, np.inf, np.nan, -1e308])
    assert visible_keys(1, 1, 1, 4, causal=None, bias=bias)[0, 0, 0].tolist() == [False, True, True, True]


def test_a_mask_shows_where_it_is_true_and_broadcasts() -> None:
    assert visible_keys(1, 2, 2, 2, causal="top_left", mask=np.array([[True], [False]]))[0, 1].tolist() == [[True, False], [False, False]]


def test_the_result_is_an_array_of_its_own() -> None:
    assert visible_keys(2, 2, 2, 2, causal=None).flags.writeable


@pytest.mark.parametrize(("arguments", "error", "words"), [
    ({"window": (-1, 0)}, ValueError, r"window: got -1; want a whole number >= 0"),
    ({"window": (0,)}, ValueError, r"window: got \(0,\); want None or a pair"),
    ({"window": 3}, ValueError, r"window: got 3; want None or a pair"),
    ({"window": "ab"}, ValueError, r"window: got 'ab'; want None or a pair"),
    ({"window": (True, 0)}, TypeError, r"window: got True"),
    ({"window": (1.5, 0)}, TypeError, r"window: got 1.5"),
    ({"causal": True}, ValueError, r"causal: got True; want None, 'bottom_right' or 'top_left'"),
    ({"kv_lengths": [4]}, ValueError, r"kv_lengths: got numbers from 4 to 4; want 0..3"),
    ({"kv_lengths": [-1]}, ValueError, r"kv_lengths: got numbers from -1"),
    ({"kv_lengths": [1.0]}, TypeError, r"kv_lengths: got dtype float64; want integers"),
    ({"kv_lengths": [1, 2]}, ValueError, r"kv_lengths: got shape \(2,\); want \(1,\)"),
    ({"mask": np.ones(3)}, TypeError, r"mask: got dtype float64; want bool"),
    ({"mask": np.ones(4, bool)}, ValueError, r"mask: got shape \(4,\); want one that broadcasts to \(1, 1, 2, 3\)"),
    ({"bias": np.ones(3, int)}, TypeError, r"bias: got dtype int64; want a float"),
])
def test_bad_input_is_refused_by_name(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        visible_keys(1, 1, 2, 3, **{"causal": None, **arguments})


def test_causal_has_no_default() -> None:
    with pytest.raises(TypeError, match="causal"):
        visible_keys(1, 1, 2, 3)  # type: ignore[call-arg]
