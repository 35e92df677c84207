"""Near names: the one that was meant stands first, and a few are enough."""

from __future__ import annotations

import doctest

import pytest

from oracles.properties import near_names
from oracles.properties.operations import OPERATIONS

NAMES = [operation.name for operation in OPERATIONS]
MEANT = {"adamw": "adamw_step", "Route": "route", "ring_atention": "ring_attention", "crossentropy": "cross_entropy", "moe": "moe_layer"}


@pytest.mark.parametrize("word", MEANT)
def test_the_one_that_was_meant_is_first(word: str) -> None:
    assert near_names.near_names(word, NAMES).split(", ")[0] == MEANT[word]


def test_a_few_names_are_shown_and_never_none() -> None:
    assert [len(near_names.near_names(word, NAMES).split(", ")) for word in ("attention", "zzz", "")] == [near_names.SHOWN, 1, 1]


def test_the_examples_print_what_they_say() -> None:
    assert doctest.testmod(near_names) == doctest.TestResults(failed=0, attempted=2)
