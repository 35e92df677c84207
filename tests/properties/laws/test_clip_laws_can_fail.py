"""Every law of the clip turns red on an implementation that breaks what it states, and none on the oracle itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties.operations import operation_named
from oracles.reference import clip_grad_norm

from .test_decoding_laws_can_fail import failure

Given = dict[str, Any]
Function = Callable[[Given], Any]
C = "clip_grad_norm"


def right(given: Given) -> Any:
    return clip_grad_norm(given["grads"], max_norm=given["max_norm"])


def changing(grads: Callable[[Any, Given], Any] = lambda g, given: g, norm: Callable[[Any], Any] = lambda n: n) -> Function:
    """The oracle, its arrays or its norm changed."""
    def broken(given: Given) -> Any:
        clipped, n = right(given)
        return [grads(g, given) for g in clipped], norm(n)

    return broken


def each_by_itself(given: Given) -> Any:
    """Every array is clipped by its own norm, and the largest of them is returned."""
    parts = [clip_grad_norm([g], max_norm=given["max_norm"]) for g in given["grads"]]
    return [one[0] for one, _ in parts], np.max([n for _, n in parts])


def last_lost(given: Given) -> Any:
    grads, norm = right(given)
    return (grads[:-1] if len(grads) > 1 else grads), norm


BREAKERS: dict[str, Function] = {
    "answers": lambda given: (right(given)[0], right(given)[1][None]),
    "grads_agree_with_the_oracle": last_lost,
    "norm_agrees_with_the_oracle": changing(norm=lambda n: n * (1 + 1e-9)),
    "the_clipped_norm_is_within_the_limit": changing(grads=lambda g, given: g * 1.001),
    "below_the_limit_every_bit_is_kept": changing(grads=lambda g, given: g * (1 + 2.0**-50)),
    "the_norm_is_that_of_the_whole_list": each_by_itself,
    "a_nan_is_seen_in_the_norm": lambda given: right({**given, "grads": [np.nan_to_num(g) for g in given["grads"]]}),
}
# One object for all operations: shown to fail on the filters of decoding.
SHARED = {"inputs_stay_untouched", "repeats_give_the_same_bits"}


@pytest.mark.parametrize("law", BREAKERS)
def test_the_law_rejects_what_breaks_it(law: str) -> None:
    assert failure(C, law, BREAKERS[law], {}), f"{law} accepts an implementation that breaks it"


@pytest.mark.parametrize("law", BREAKERS)
def test_the_law_accepts_the_oracle(law: str) -> None:
    assert failure(C, law, right, {}) == ""


def test_no_law_is_left_out() -> None:
    assert {law.name for law in operation_named(C).laws} <= set(BREAKERS) | SHARED


@pytest.mark.parametrize("most", [48, 110])
def test_arrays_beyond_one_launch_are_seen(most: int) -> None:
    def first_launch(given: Given) -> Any:
        grads, norm = right(given)
        return [*grads[:most], *(g.astype(np.float64) for g in given["grads"][most:])], norm

    assert failure(C, "grads_agree_with_the_oracle", first_launch, {})


@pytest.mark.parametrize("chunk", [1024, 2**16])
def test_elements_beyond_a_chunk_are_seen(chunk: int) -> None:
    def first_chunk(given: Given) -> Any:
        return right(given)[0], right({**given, "grads": [g.reshape(-1)[:chunk] for g in given["grads"]]})[1]

    assert failure(C, "norm_agrees_with_the_oracle", first_chunk, {})


def test_a_denominator_of_a_little_more_is_judged_as_declared() -> None:
    def with_epsilon(given: Given) -> Any:
        _, norm = right(given)
        factor = min(1.0, given["max_norm"] / (norm + 1e-6))
        return [g.astype(np.float64) * factor for g in given["grads"]], norm

    law = "grads_agree_with_the_oracle"
    assert failure(C, law, with_epsilon, {"conventions": {"clip_denominator": "norm_plus_1e-6"}}) == ""
    assert failure(C, law, with_epsilon, {})
