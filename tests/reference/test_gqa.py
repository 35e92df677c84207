"""Grouped heads: pooled, repeated, and read by attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import attention, group_heads, repeat_heads

pytestmark = pytest.mark.filterwarnings("error")
U = 2.0**-53


def heads(n: int, seed: int = 0) -> Any:
    r = np.random.default_rng(seed)
    return r.normal(size=(2, n, 3, 4)), r.normal(size=(2, n, 3, 5))


def test_attention_over_repeated_heads_is_that_over_grouped_ones() -> None:
    (k, v), q = heads(2), np.random.default_rng(1).normal(size=(2, 6, 5, 4))
    for x, y in zip(attention(q, k, v, causal=None), attention(q, *repeat_heads(k, v, heads=6), causal=None)):
        np.testing.assert_array_equal(x, y)


def test_copies_stand_next_to_each_other_on_the_axis_of_heads() -> None:
    k, v = heads(2)
    for x, y in zip((k, v), repeat_heads(k, v, heads=4)):
        assert y.shape == (2, 4, 3, x.shape[-1])
        for h in range(4):
            np.testing.assert_array_equal(y[:, h], x[:, h // 2])


def test_a_group_is_the_mean_of_neighbouring_heads() -> None:
    for x, y in zip(heads(6), group_heads(*heads(6), groups=2)):
        for g in range(2):
            three = x[:, 3 * g : 3 * g + 3]
            assert (np.abs(y[:, g] - (three[:, 0] + three[:, 1] + three[:, 2]) / 3) <= 2 * 3 * U * np.abs(three).mean(axis=1)).all()


def test_as_many_groups_as_heads_change_nothing() -> None:
    for x, y, z in zip(heads(4), group_heads(*heads(4), groups=4), repeat_heads(*heads(4), heads=4)):
        np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(x, z)


def test_one_group_is_the_mean_of_all_heads() -> None:
    assert [x.shape for x in group_heads(*heads(4), groups=1)] == [(2, 1, 3, 4), (2, 1, 3, 5)]


@pytest.mark.parametrize("n", [2, 3, 8])
def test_pooling_undoes_repeating_but_for_the_sums_rounding(n: int) -> None:
    for x, y in zip(heads(3), group_heads(*repeat_heads(*heads(3), heads=3 * n), groups=3)):
        assert (np.abs(x - y) <= n * U * np.abs(x)).all()


@pytest.mark.parametrize(("function", "options", "words"), [
    (group_heads, {"groups": 3}, "groups: got 3 for 4 heads; want a divisor of 4"),
    (group_heads, {"groups": 0}, "groups: got 0; want a whole number >= 1"),
    (repeat_heads, {"heads": 6}, "heads: got 6 for 4 key/value heads; want a multiple of 4"),
])
def test_numbers_of_heads_that_do_not_divide_are_refused(function: Any, options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        function(*heads(4), **options)


def test_shapes_that_do_not_fit_are_refused() -> None:
    k, v = heads(4)
    with pytest.raises(ValueError, match=r"v: got shape \(2, 3, 3, 5\) beside k \(2, 4, 3, 4\)"):
        group_heads(k, v[:, :3], groups=2)
    with pytest.raises(ValueError, match=r"k: got shape \(2, 0, 3, 4\); want at least one head"):
        repeat_heads(k[:, :0], v[:, :0], heads=4)
