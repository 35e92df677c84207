"""Every law of routing, balance and layers of experts turns red on an implementation that breaks what it states, and none on the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties.operations import operation_named

from .test_decoding_laws_can_fail import failure

Given = dict[str, Any]
Function = Callable[[Given], Any]
NAMES = {"route": ("ids", "gates"), "balance_loss": ("loss",), "balance_loss_backward": ("dprobs",), "moe_layer": ("out", "slots"),
         "expert_parallel_backward": ("dx", "dlogits", "dweights")}


def right(operation: str) -> Function:
    def answer(given: Given) -> Any:
        found = getattr(reference, operation)(**given)
        if isinstance(found, dict):
            return tuple(np.stack(parts) for parts in found.values())
        return found

    return answer


def changing(operation: str, **changes: Callable[[Any, Given], Any]) -> Function:
    """The oracle, some of its results changed."""
    def broken(given: Given) -> Any:
        found = right(operation)(given)
        results = dict(zip(NAMES[operation], found if isinstance(found, tuple) else (found,)))
        results |= {name: change(results[name], given) for name, change in changes.items()}
        return tuple(results.values()) if len(results) > 1 else next(iter(results.values()))

    return broken


def given_other(operation: str, **changes: Callable[[Given], Any]) -> Function:
    """The oracle on changed arguments."""
    return lambda given: right(operation)({**given, **{name: change(given) for name, change in changes.items()}})


def off(x: Any, given: Given) -> Any:
    return np.asarray(x) * (1 + 1e-6) + 1e-300


def first_twice(ids: Any, given: Given) -> Any:
    return np.repeat(ids[:, :1], ids.shape[1], axis=1)


def backwards(name: str) -> Callable[[Given], Any]:
    """Read as if the rows ran the other way where they are no plain block."""
    return lambda given: given[name] if given[name].flags.c_contiguous else np.ascontiguousarray(given[name])[..., ::-1]


def biased_gates(gates: Any, given: Given) -> Any:
    if "bias" not in given:
        return gates
    ids, _ = reference.route(**given)
    mine = np.take_along_axis(reference.softmax(given["logits"]) + np.asarray(given["bias"], np.float64), ids, axis=-1)
    return mine / mine.sum(axis=-1, keepdims=True) if given["normalize"] else mine


def by_position(x: Any, given: Given) -> Any:
    """A little more for later tokens."""
    t = np.arange(len(x)).reshape(-1, *[1] * (np.ndim(x) - 1)) if np.ndim(x) else np.arange(len(given["probs"])) @ np.asarray(
        given["probs"], np.float64)[:, 0]
    return x * (1 + 0.1 * t)


def with_index(given: Given) -> Any:
    """Logits that know the index of their expert."""
    return np.asarray(given["logits"], np.float64) + 0.01 * np.arange(given["logits"].shape[-1])


def last_places_first(given: Given) -> Any:
    """Places in the reverse order of tokens."""
    out, slots = reference.moe_layer(**{**given, "x": given["x"][::-1], "logits": given["logits"][::-1]})
    return out[::-1], slots[::-1]


def doubled_places(slots: Any, given: Given) -> Any:
    return np.where(slots > 0, slots - 1, slots)


def always_limited(given: Given) -> Any:
    places = given.get("capacity")
    return reference.moe_layer(**{**given, "capacity": 1 if places is None else places})


def squared(x: Any) -> Any:
    x = np.asarray(x, np.float64)
    return x * (1 + 1e-3 * np.abs(x))


ROUTE: dict[str, Function] = {
    "answers": lambda given: right("route")(given)[0].reshape(-1),
    "ids_agrees_with_the_oracle": changing("route", ids=lambda ids, given: ids[:, ::-1]),
    "gates_agrees_with_the_oracle": changing("route", gates=off),
    "every_token_has_k_experts_none_twice": changing("route", ids=first_twice),
    "nobody_left_out_is_surely_larger": given_other("route", logits=lambda given: -np.asarray(given["logits"], np.float64)),
    "gates_are_those_of_the_returned_experts": changing("route", ids=lambda ids, given: ids[:, ::-1]),
    "a_bias_chooses_and_is_not_in_the_gates": changing("route", gates=biased_gates),
    "equal_experts_are_taken_by_index_and_share_alike": given_other("route", logits=with_index),
    "adding_one_number_to_all_logits_changes_nothing": changing(
        "route", gates=lambda gates, given: gates * (1 + 1e-3 * np.asarray(given["logits"], np.float64).max(axis=-1, keepdims=True))),
    "tokens_do_not_know_each_other": changing("route", gates=by_position),
    "renaming_the_experts_renames_the_choice": given_other("route", logits=with_index),
    "strides_are_respected": given_other("route", logits=backwards("logits")),
}  # fmt: skip
BALANCE: dict[str, Function] = {
    "answers": lambda given: right("balance_loss")(given).reshape(1),
    "loss_agrees_with_the_oracle": changing("balance_loss", loss=off),
    "a_balanced_router_costs_one": changing("balance_loss", loss=lambda loss, given: loss * given["ids"].shape[1]),
    "one_expert_for_all_costs_their_number": changing("balance_loss", loss=lambda loss, given: loss / given["probs"].shape[1]),
    "padding_counts_in_neither_factor": given_other("balance_loss", mask=lambda given: np.ones(len(given["probs"]), np.bool_)),
    "tokens_in_another_order_cost_the_same": changing("balance_loss", loss=by_position),
    "renaming_the_experts_costs_the_same": given_other(
        "balance_loss", probs=lambda given: np.asarray(given["probs"], np.float64) * (1 + np.arange(given["probs"].shape[1]))),
    "a_batch_twice_costs_the_same": changing("balance_loss", loss=lambda loss, given: loss * len(given["probs"])),
    "strides_are_respected": given_other("balance_loss", probs=backwards("probs")),
}  # fmt: skip
B = "balance_loss_backward"
BALANCE_BACKWARD: dict[str, Function] = {
    "answers": lambda given: right(B)(given).reshape(-1),
    "dprobs_agrees_with_the_oracle": changing(B, dprobs=off),
    "twice_the_coefficient_has_twice_the_gradient": given_other(B, dloss=lambda given: np.float64(1.0)),
    "the_gradient_along_the_probabilities_is_the_loss": changing(B, dprobs=lambda d, given: d * 2.0),
    "padding_counts_in_neither_factor": given_other(B, mask=lambda given: np.ones(len(given["probs"]), np.bool_)),
    "tokens_in_another_order_cost_the_same": changing(B, dprobs=by_position),
    "renaming_the_experts_costs_the_same": changing(B, dprobs=lambda d, given: d * (1 + np.arange(d.shape[1]))),
    "a_batch_twice_costs_the_same": changing(B, dprobs=lambda d, given: d * len(d)),
    "strides_are_respected": lambda given: right(B)(given) + 0.1 * np.ascontiguousarray(given["probs"]).astype(np.float64)[..., ::-1]
    if not given["probs"].flags.c_contiguous else right(B)(given),
}  # fmt: skip
M = "moe_layer"
MOE: dict[str, Function] = {
    "answers": lambda given: right(M)(given)[0].reshape(-1),
    "out_agrees_with_the_oracle": changing(M, out=off),
    "slots_agrees_with_the_oracle": changing(M, slots=lambda slots, given: slots + 1),
    "identity_experts_give_the_token_back": changing(M, out=lambda out, given: out * given["k"] + out),
    "places_go_to_the_first_tokens": last_places_first,
    "no_place_is_given_twice": changing(M, slots=doubled_places),
    "without_a_limit_nobody_is_dropped": always_limited,
    "tokens_do_not_know_each_other": changing(M, out=by_position),
    "renaming_the_experts_changes_nothing": given_other(M, logits=with_index),
    "twice_the_token_comes_out_twice": given_other(M, x=lambda given: squared(given["x"])),
    "strides_are_respected": given_other(M, x=backwards("x")),
}  # fmt: skip
X = "expert_parallel_backward"
EXPERTS: dict[str, Function] = {
    "answers": lambda given: right(X)(given)[0].reshape(-1),
    "dx_agrees_with_the_oracle": changing(X, dx=off),
    "dlogits_agrees_with_the_oracle": changing(X, dlogits=off),
    "dweights_agrees_with_the_oracle": changing(X, dweights=off),
    "any_number_of_ranks_has_the_gradients_of_one": changing(X, dweights=lambda d, given: d * len(d)),
    "twice_dout_has_twice_the_gradients": given_other(X, dout=lambda given: squared(given["dout"])),
    "a_tokens_router_gradient_adds_up_to_nothing": changing(X, dlogits=lambda d, given: np.maximum(d, 0.0)),
    "tokens_and_experts_have_the_same_product": changing(X, dweights=lambda d, given: d * 2.0),
    "one_choice_reaches_the_router_only_unnormalised": given_other(X, normalize=lambda given: not given["normalize"]),
    "an_expert_without_tokens_has_no_gradient": changing(X, dweights=lambda d, given: d + 1e-9),
    "strides_are_respected": given_other(X, x=backwards("x")),
}  # fmt: skip
BREAKERS = {"route": ROUTE, "balance_loss": BALANCE, B: BALANCE_BACKWARD, M: MOE, X: EXPERTS}
ALL = [(operation, law) for operation, breakers in BREAKERS.items() for law in breakers]
each = pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
# One object for all operations: shown to fail on the filters of decoding.
SHARED = {"inputs_stay_untouched", "buffers_are_fully_written", "repeats_give_the_same_bits"}


@each
def test_the_law_rejects_what_breaks_it(operation: str, law: str) -> None:
    assert failure(operation, law, BREAKERS[operation][law], {}), f"{law} accepts an implementation that breaks it"


@each
def test_the_law_accepts_the_oracle(operation: str, law: str) -> None:
    assert failure(operation, law, right(operation), {}) == ""


@pytest.mark.parametrize("operation", BREAKERS)
def test_no_law_is_left_out(operation: str) -> None:
    assert {law.name for law in operation_named(operation).laws} <= set(BREAKERS[operation]) | SHARED


def test_tokens_of_an_expert_beyond_a_tile_of_128_are_seen() -> None:
    def first_tile(out: Any, given: Given) -> Any:
        return np.where(right(M)(given)[1].max(axis=-1, keepdims=True) < 128, out, 0.0)

    assert failure(M, "out_agrees_with_the_oracle", changing(M, out=first_tile), {})
