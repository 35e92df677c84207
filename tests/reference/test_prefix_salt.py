"""Salts: two are equal exactly where names and values are."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from oracles.reference import prefix_salt

PARTS: list[dict[str, Any]] = [
    {}, {"adapter": "x"}, {"tenant": "x"}, {"adapter": "x", "tenant": "x"}, {"adapter": 1}, {"adapter": "1"}, {"adapter": b"1"},
    {"adapter": 2}, {"adapter": "a", "tenant": "bc"}, {"adapter": "ab", "tenant": "c"}, {"a": "dapter"}, {"adapter": ""},
    {"image": bytes([1, 2, 0, 0])}, {"image": bytes([3, 4, 0, 0])}, {"adapter": "xtenant"}, {"adapter": "é"}, {"adapter": 2**70}]


def test_different_parts_have_different_salts() -> None:
    for a, b in itertools.combinations(PARTS, 2):
        assert prefix_salt(**a) != prefix_salt(**b), (a, b)


def test_no_salt_is_the_beginning_of_anothers() -> None:
    """Behind the salt come tokens: one could stand for the rest of the other."""
    for a, b in itertools.permutations([parts for parts in PARTS if len(parts) == 1], 2):
        assert not prefix_salt(**a).startswith(prefix_salt(**b)), (a, b)


def test_the_order_of_parts_does_not_matter_and_none_is_absent() -> None:
    assert prefix_salt(a=1, b="x") == prefix_salt(b="x", a=1)
    assert prefix_salt(a=1, b=None) == prefix_salt(a=1)


@pytest.mark.parametrize("value", [1.0, True, ("x",)])
def test_other_kinds_are_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"adapter: got .*; want a str, an int or bytes"):
        prefix_salt(adapter=value)
