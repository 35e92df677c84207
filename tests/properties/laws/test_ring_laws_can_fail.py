"""Every law of rings, of a cache over ranks and of the norm before an all-to-all turns red on what breaks it, and on no oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic
from oracles.properties.declaration import declaration_of, subject
from oracles.properties.operations import operation_named
from oracles.properties.run import begin, judge_one, recipes_of
from oracles.properties.subjects import InProcess
from oracles.properties.zoo.context_parallel import parts_rounded

from .test_decoding_laws_can_fail import failure

Given = dict[str, Any]
Function = Callable[[Given], Any]
F, B, C, N = "ring_attention", "ring_attention_backward", "sharded_cache_attention", "exchanged_norm_backward"
LSE = {"arithmetic": Arithmetic(out="float64", accumulate="float64", elementwise="float64", lse="float64")}
DECLARED: dict[str, dict[str, Any]] = {F: LSE, B: {}, C: LSE, N: {}}


def of(operation: str) -> Function:
    """The oracle, called with what `failure` leaves of the arguments: a causal of None is not among them."""
    fixed = {"causal": None} if operation in (F, B) else {}
    return lambda given: getattr(reference, operation)(**{**fixed, **given})


RIGHT = {name: of(name) for name in (F, B, C, N)}


def changing(operation: str, change: Callable[[list[Any], Given], Any]) -> Function:
    """The oracle with its results changed: change(lists or arrays, given)."""
    return lambda given: change(list(RIGHT[operation](given)), given)


def each(place: int, function: Callable[[Any], Any]) -> Callable[[list[Any], Given], Any]:
    """One of the lists of results, every array of it changed."""
    return lambda results, given: tuple([function(x) for x in r] if i == place else r for i, r in enumerate(results))


def lost(place: int) -> Callable[[list[Any], Given], Any]:
    return lambda results, given: tuple(r[:-1] if i == place and len(r) > 1 else r for i, r in enumerate(results))


def times_ranks(results: list[Any], given: Given) -> Any:
    return tuple([x * (1 + 0.1 * (len(r) - 1)) for x in r] for r in results)


def without_the_last(given: Given) -> Any:
    """The ring stops one rank too early: keys of the rank behind are never seen."""
    R, masks = len(given["q_shards"]), []
    segments = given.get("segments")
    order = given.get("order", "contiguous")
    places = reference.shard_positions(R, given["q_shards"][0].shape[2], order=order)
    for r in range(R):
        B, L = given["q_shards"][0].shape[0], R * given["q_shards"][0].shape[2]
        own = np.zeros((B, L), dtype=np.int64) if segments is None else segments.copy()
        if R > 1:
            own[:, places[(r + 1) % R]] = -1
        outs, lses = RIGHT[F]({**given, "segments": own})
        masks.append((outs[r], lses[r]))
    return [out for out, _ in masks], [lse for _, lse in masks]


def looks_ahead(results: list[Any], given: Given) -> Any:
    size = sum(float(np.abs(np.asarray(v, np.float64)).sum()) for v in given["v_shards"])
    return [x * (1.0 + 1e-14 * (size % 7)) for x in results[0]], results[1]


def padded_ones(results: list[Any], given: Given) -> Any:
    return tuple([np.where(x == 0.0, 1.0, x) for x in r] for r in results)


BREAKERS: dict[str, dict[str, tuple[dict[str, Any], Function]]] = {
    F: {
        "answers": ({}, changing(F, lambda results, given: ([x[..., :0] for x in results[0]], results[1]))),
        "out_agrees_with_the_oracle": ({}, changing(F, lost(0))),
        "lse_agrees_with_the_oracle": ({}, changing(F, each(1, lambda x: x + 1e-9))),
        "the_number_of_ranks_does_not_matter": ({}, changing(F, times_ranks)),
        "every_shard_has_its_share": ({}, without_the_last),
        "a_key_that_takes_all_is_passed_on_exactly": ({}, changing(F, each(0, lambda x: np.nextafter(x, 9.0)))),
        "parts_are_not_rounded_before_they_are_merged": ({}, changing(F, each(0, lambda x: x.astype(np.float32).astype(np.float64)))),
        "later_tokens_change_no_earlier_bit": ({}, changing(F, looks_ahead)),
        "padding_sees_nothing": ({}, changing(F, padded_ones)),
    },
    B: {
        "answers": ({}, changing(B, lambda results, given: [results[0][0][..., :0]])),
        "dq_agrees_with_the_oracle": ({}, changing(B, each(0, lambda x: x * (1 + 1e-6)))),
        "dk_agrees_with_the_oracle": ({}, changing(B, lost(1))),
        "dv_agrees_with_the_oracle": ({}, changing(B, each(2, lambda x: x * (1 + 1e-6)))),
        "the_number_of_ranks_does_not_matter": ({}, changing(B, times_ranks)),
        "a_key_that_takes_all_is_passed_on_exactly": ({}, changing(B, each(1, lambda x: x + 2.0**-60))),
        "key_gradients_sum_to_zero": ({}, changing(B, each(1, lambda x: x + 1e-6))),
        "padding_gets_no_gradient": ({}, changing(B, padded_ones)),
    },
    C: {
        "answers": ({}, changing(C, lambda results, given: results[0][..., :0])),
        "out_agrees_with_the_oracle": ({}, changing(C, lambda results, given: (results[0] * (1 + 1e-9), results[1]))),
        "lse_agrees_with_the_oracle": ({}, changing(C, lambda results, given: (results[0], results[1] + 1e-9))),
        "each_index_is_served_by_its_token": ({}, lambda given: RIGHT[C]({
            **given, "k_shards": given["k_shards"][::-1], "v_shards": given["v_shards"][::-1]})),
        "tokens_that_nobody_asked_for_do_not_matter": ({}, changing(C, lambda results, given: looks_ahead([[results[0]], 0], given)[0][0])),
        "buffers_are_fully_written": ({"buffers": ("out",)}, lambda given: None),
    },
    N: {
        "answers": ({}, changing(N, lambda results, given: ([x[..., :0] for x in results[0]], results[1]))),
        "dx_agrees_with_the_oracle": ({}, changing(N, lost(0))),
        "dweight_agrees_with_the_oracle": ({}, changing(N, lambda results, given: (results[0], results[1] * (1 + 1e-6)))),
        "gradients_stay_with_their_tokens": ({}, changing(N, each(0, lambda x: x + 2.0**-60))),
    },
}  # fmt: skip
# One object for all operations: shown to fail on the filters of decoding, and of attention.
SHARED = {"inputs_stay_untouched", "repeats_give_the_same_bits", "strides_are_respected"}
ALL = [(operation, law) for operation, laws in BREAKERS.items() for law in laws]


@pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
def test_the_law_rejects_what_breaks_it(operation: str, law: str) -> None:
    declared, function = BREAKERS[operation][law]
    assert failure(operation, law, function, {**DECLARED[operation], **declared}), f"{law} accepts an implementation that breaks it"


@pytest.mark.parametrize(("operation", "law"), [(o, law) for o, law in ALL if not BREAKERS[o][law][0]])
def test_the_law_accepts_the_oracle(operation: str, law: str) -> None:
    assert failure(operation, law, RIGHT[operation], DECLARED[operation]) == ""


@pytest.mark.parametrize("operation", BREAKERS)
def test_no_law_is_left_out(operation: str) -> None:
    assert {law.name for law in operation_named(operation).laws} <= set(BREAKERS[operation]) | SHARED


def test_parts_rounded_on_their_way_show_where_p_may_be_rounded_too() -> None:
    """Beside a P in bfloat16 the bound of the values lets a rounded part through in most places; the cancelling values do not."""
    declared = subject(F, dtypes=["bfloat16"], arithmetic=Arithmetic(probabilities="input"))(lambda q_shards, k_shards, v_shards, *, causal,
        order="contiguous", segments=None, scale=None: parts_rounded(q_shards, k_shards, v_shards, causal=causal, order=order,
        segments=segments, scale=scale))  # fmt: skip
    law = "parts_are_not_rounded_before_they_are_merged"
    run = begin(operation_named(F), InProcess(declared, declaration_of(declared, F)), (law,))
    for index, recipe in enumerate(recipes_of(run, "quick", 0)[0]):
        judge_one(run, index, recipe)
        if run.tallies[0].failure:
            break
    assert run.tallies[0].failure is not None
    assert run.tallies[0].failure.judgement.worst_ratio > 1.5
