"""Every law of costs turns red on an implementation that breaks what it states, and none on the textbook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties.declaration import subject
from oracles.properties.operations import operation_named
from oracles.properties.zoo import metrics, textbook_costs

from .rejection import rejects

Function = Callable[..., Any]
K, T, F, A = OPERATIONS = ("kv_bytes", "training_bytes", "model_flops", "token_accuracy")


def kv(lengths: Any, *, config: Any, element_bits: int = 16) -> Any:
    return textbook_costs.kv_bytes(lengths, config=config, element_bits=element_bits)


def training(parameters: Any, *, stage: int, world: int, weight_bytes: int = 2, gradient_bytes: int = 2, optimizer_bytes: int = 12) -> Any:
    return textbook_costs.training_bytes(parameters, stage=stage, world=world, weight_bytes=weight_bytes, gradient_bytes=gradient_bytes,
                                         optimizer_bytes=optimizer_bytes)  # fmt: skip


def flops(lengths: Any, *, config: Any, pairs: str, backward: bool = False) -> Any:
    return textbook_costs.model_flops(lengths, config=config, pairs=pairs, backward=backward)


def accuracy(logits: Any, tokens: Any, *, ignore_index: int = -100) -> Any:
    return textbook_costs.token_accuracy(logits, tokens, ignore_index=ignore_index)


RIGHT: dict[str, Function] = dict(zip(OPERATIONS, (kv, training, flops, accuracy)))


def kv_of_wide_models(lengths: Any, *, config: Any, element_bits: int = 16) -> Any:
    return kv(lengths, config=config, element_bits=element_bits) * config["hidden_size"]


def kv_past_the_window(lengths: Any, *, config: Any, element_bits: int = 16) -> Any:
    return kv(lengths, config={**config, "sliding_window": 2 * config.get("sliding_window", 1)}, element_bits=element_bits)


def kv_short(lengths: Any, *, config: Any, element_bits: int = 16) -> Any:
    return kv(lengths, config=config, element_bits=element_bits)[:0]


def training_alone(parameters: Any, *, stage: int, world: int, weight_bytes: int = 2, gradient_bytes: int = 2,
                   optimizer_bytes: int = 12) -> Any:
    lost = world == 1 and stage == 3
    return training(parameters, stage=stage, world=world, weight_bytes=weight_bytes, gradient_bytes=gradient_bytes,
                    optimizer_bytes=optimizer_bytes) // (2 if lost else 1)  # fmt: skip


def training_without_weights(parameters: Any, *, stage: int, world: int, weight_bytes: int = 2, gradient_bytes: int = 2,
                             optimizer_bytes: int = 12) -> Any:
    return training(parameters, stage=3 if gradient_bytes == 0 else stage, world=world, weight_bytes=weight_bytes,
                    gradient_bytes=gradient_bytes, optimizer_bytes=optimizer_bytes)  # fmt: skip


def flops_of_the_diagonal(lengths: Any, *, config: Any, pairs: str, backward: bool = False) -> Any:
    return flops(np.where(lengths == 1, 2, lengths), config=config, pairs=pairs, backward=backward)


def accuracy_of_others(logits: Any, tokens: Any, *, ignore_index: int = -100) -> Any:
    right, counted = accuracy(logits, tokens, ignore_index=ignore_index)
    return np.minimum(right, counted - (counted > 1)), counted


def accuracy_of_all(logits: Any, tokens: Any, *, ignore_index: int = -100) -> Any:
    right, counted = accuracy(logits, tokens, ignore_index=ignore_index)
    return right, np.maximum(counted, 1)


def accuracy_of_memory(logits: Any, tokens: Any, *, ignore_index: int = -100) -> Any:
    flat = np.lib.stride_tricks.as_strided(logits, logits.shape, (np.array([*np.cumprod(logits.shape[:0:-1])[::-1], 1]) * logits.itemsize))
    return accuracy(np.nan_to_num(flat), tokens, ignore_index=ignore_index)


def writes_into(function: Function) -> Function:
    """The right answer, after a change of the first input."""
    def changed(first: Any, options: dict[str, Any]) -> Any:
        answer = function(first, **options)
        first[...] += 1
        return answer

    return changed


def kv_in_place(lengths: Any, *, config: Any, element_bits: int = 16) -> Any:
    return writes_into(kv)(lengths, {"config": config, "element_bits": element_bits})


def kv_half_written(lengths: Any, *, config: Any, element_bits: int = 16, bytes: Any) -> None:
    bytes[1:] = kv(lengths, config=config, element_bits=element_bits)[1:]


def kv_counting_calls(lengths: Any, *, config: Any, element_bits: int = 16) -> Any:
    CALLS.append(0)
    return kv(lengths, config=config, element_bits=element_bits) + len(CALLS)


CALLS: list[int] = []
BREAKERS: dict[str, dict[str, tuple[dict[str, Any], Function]]] = {
    K: {
        "answers": ({}, kv_short), "bytes_agrees_with_the_oracle": ({}, metrics.all_heads_cached),
        "query_heads_keep_nothing": ({}, metrics.all_heads_cached), "a_named_head_size_is_taken": ({}, kv_of_wide_models),
        "a_full_window_grows_no_more": ({}, kv_past_the_window), "inputs_stay_untouched": ({}, kv_in_place),
        "buffers_are_fully_written": ({"buffers": ("bytes",)}, kv_half_written),
        "repeats_give_the_same_bits": ({"promises": ("deterministic",)}, kv_counting_calls),
    },
    T: {
        "answers": ({}, lambda parameters, *, stage, world: np.zeros(3, np.int64)),
        "bytes_agrees_with_the_oracle": ({}, metrics.stage_two_miscounted), "one_device_holds_everything": ({}, training_alone),
        "weights_are_whole_below_stage_three": ({}, training_without_weights),
    },
    F: {
        "answers": ({}, lambda lengths, *, config, pairs: lengths * 1.5), "flops_agrees_with_the_oracle": ({}, metrics.table_multiplied),
        "one_token_is_seen_by_itself": ({}, flops_of_the_diagonal), "an_untied_table_is_only_looked_up": ({}, metrics.table_multiplied),
    },
    A: {
        "answers": ({}, lambda logits, tokens: np.zeros(1, np.int64)), "right_agrees_with_the_oracle": ({}, metrics.labels_unshifted),
        "counted_agrees_with_the_oracle": ({}, accuracy_of_all), "perfect_predictions_are_all_right": ({}, accuracy_of_others),
        "nothing_ignored_counts": ({}, accuracy_of_all), "strides_are_respected": ({}, accuracy_of_memory),
    },
}  # fmt: skip
ALL = [(operation, law) for operation, laws in BREAKERS.items() for law in laws]
SHARED = {"inputs_stay_untouched", "buffers_are_fully_written", "repeats_give_the_same_bits"}    # one object each, shown on kv_bytes


def failure(operation: str, law: str, function: Function, declared: dict[str, Any]) -> str:
    """The reason why a law rejects a function on the designed cases, or ""."""
    wrapped = subject(operation, name=law, **declared)(function)
    return rejects(operation, law, wrapped)


@pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
def test_the_law_rejects_what_breaks_it(operation: str, law: str) -> None:
    declared, function = BREAKERS[operation][law]
    assert failure(operation, law, function, declared), f"{law} accepts an implementation that breaks it"


@pytest.mark.parametrize(("operation", "law"), [(o, law) for o, law in ALL if law != "buffers_are_fully_written"])
def test_the_law_accepts_the_textbook(operation: str, law: str) -> None:
    declared, _ = BREAKERS[operation][law]
    assert failure(operation, law, RIGHT[operation], declared) == ""


@pytest.mark.parametrize("held", [np.int32, np.uint32, np.float32])
@pytest.mark.parametrize(("operation", "result"), [(K, "bytes"), (F, "flops")])
def test_counts_that_are_kept_in_32_bits_are_found(operation: str, result: str, held: type) -> None:
    def narrow(lengths: Any, *, config: Any, **options: Any) -> Any:
        with np.errstate(invalid="ignore"):
            return RIGHT[operation](lengths, config=config, **options).astype(held).astype(np.int64)

    takes = (lambda lengths, *, config, element_bits=16: narrow(lengths, config=config, element_bits=element_bits)) if operation == K else (
        lambda lengths, *, config, pairs, backward=False: narrow(lengths, config=config, pairs=pairs, backward=backward))  # fmt: skip
    assert failure(operation, f"{result}_agrees_with_the_oracle", takes, {})


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_law_is_left_out(operation: str) -> None:
    assert {law.name for law in operation_named(operation).laws} == set(BREAKERS[operation]) | SHARED
