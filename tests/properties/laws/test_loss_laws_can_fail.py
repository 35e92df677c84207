"""Every law of the losses turns red on an implementation that breaks what it states, and none on the oracle itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import subject
from oracles.properties.declaration import declaration_of
from oracles.properties.operations import operation_named

from .test_decoding_laws_can_fail import failure

Given = dict[str, Any]
Function = Callable[[Given], Any]
N, C, B, S, D = "next_token_targets", "cross_entropy", "cross_entropy_backward", "vocab_parallel_cross_entropy", "distillation_loss"
G = "distillation_loss_backward"


def right(operation: str) -> Function:
    return lambda given: getattr(reference, operation)(**given)


def changing(operation: str, change: Callable[[Any, Given], Any]) -> Function:
    """The oracle, its result passed through `change(result, arguments)`."""
    return lambda given: change(right(operation)(given), given)


def given_other(operation: str, change: Callable[[Given], Given]) -> Function:
    """The oracle on changed arguments."""
    return lambda given: right(operation)({**given, **change(given)})


def rows_of(given: Given) -> Any:
    return np.asarray(given.get("logits", given.get("student", given.get("shards"))), np.float64)


def size_matters(x: Any, given: Given) -> Any:
    """The level of the logits leaks into the answer."""
    return x + 1e-3 * np.nan_to_num(rows_of(given)).max(initial=0.0)


def nan_behind(x: Any, given: Given) -> Any:
    """What stands in ignored rows leaks into the answer."""
    return x + float(np.isnan(rows_of(given)).any())


def scored(given: Given) -> bool:
    return bool((given["targets"] != given.get("ignore_index", -100)).any())


def alone(x: Any, given: Given) -> Any:
    return x if scored(given) else np.full_like(x, np.nan)


def by_class(x: Any, given: Given) -> Any:
    return x + 1e-3 * given["targets"].clip(0).max(initial=0)


def by_place(x: Any, given: Given) -> Any:
    return x * (1 + 1e-3 * np.arange(x.shape[-1]))


def equal_are_free(x: Any, given: Given) -> Any:
    z = np.nan_to_num(rows_of(given))
    return x * 0 if z.size and (z == z.flat[0]).all() else x


def of_count(x: Any, given: Given) -> Any:
    """The mean divides by all rows, the ignored ones too."""
    if given["reduction"] != "mean" or not scored(given):
        return x
    return x * (given["targets"] != given.get("ignore_index", -100)).mean()


def shifted_up(dz: Any, given: Given) -> Any:
    return dz + 1e-3


def squared(dz: Any, given: Given) -> Any:
    return dz * np.abs(np.asarray(given["dloss"], np.float64))[(...,) + (None,) * (dz.ndim - np.ndim(given["dloss"]))]


def other_strides(name: str) -> Callable[[Given], Given]:
    return lambda given: {} if given[name].flags.c_contiguous else {name: np.ascontiguousarray(given[name])[..., ::-1]}


def maximum_of_rank_0(x: Any, given: Given) -> Any:
    """e^(z - m) with the maximum of the first rank, in the format of the logits."""
    z = given["shards"]
    with np.errstate(over="ignore", invalid="ignore"):
        return x + 0 * np.exp(z - z[0].max(axis=-1, keepdims=True, initial=-np.inf)).max(initial=0.0)


def zero_stands_for_nothing(x: Any, given: Given) -> Any:
    """The maximum starts from 0: where every logit is far below, the sum of exponentials is 0."""
    z = rows_of(given)
    return x + (0.0 if not z.size or np.nanmax(z, initial=-np.inf) > -10000.0 else np.inf)


def infinity_times_0(x: Any, given: Given) -> Any:
    """A logit of -inf is multiplied with the 0 of a one-hot."""
    return x + (np.nan if np.isneginf(rows_of(given)).any() else 0.0)


def a_number_for_nan(operation: str) -> Function:
    return lambda given: right(operation)({**given, **{name: np.nan_to_num(given[name]) for name in ("logits", "student", "shards")
                                                       if name in given}})  # fmt: skip


COMMON = {
    "logits_may_all_lie_far_below_zero": zero_stands_for_nothing,
    "adding_one_number_to_all_logits_changes_nothing": size_matters,
    "ignored_rows_never_matter": nan_behind,
    "nothing_to_score_is_no_loss": alone,
}
BREAKERS: dict[str, dict[str, Function]] = {
    N: {
        "answers": changing(N, lambda x, given: x[0]),
        "targets_agrees_with_the_oracle": changing(N, lambda x, given: x + (given["tokens"] == 7)),
        "a_text_that_counts_is_one_further": changing(N, lambda x, given: np.where(x >= 0, given["tokens"], x)),
        "every_token_of_an_answer_is_trained": given_other(
            N, lambda given: {"prompt_lengths": given["prompt_lengths"] + 1} if "prompt_lengths" in given else {}),
        "no_document_predicts_the_next": lambda given: right(N)({**given, "segments": np.zeros_like(given["tokens"])}),
        "strides_are_respected": given_other(N, lambda given: other_strides("tokens")(given) if given["tokens"].ndim == 2 else {}),
    },
    C: {
        "answers": changing(C, lambda x, given: np.asarray(x)[None]),
        "loss_agrees_with_the_oracle": changing(C, lambda x, given: x * (1 + 1e-9)),
        **{law: changing(C, change) for law, change in COMMON.items()},
        "an_impossible_class_costs_nothing": changing(C, infinity_times_0),
        "a_nan_that_counts_is_seen": a_number_for_nan(C),
        "renaming_the_classes_changes_nothing": changing(C, by_class),
        "equal_logits_cost_the_logarithm_of_their_number": changing(C, equal_are_free),
        "a_mean_is_the_sum_over_the_weight": changing(C, of_count),
        "strides_are_respected": given_other(C, other_strides("logits")),
    },
    S: {
        "answers": changing(S, lambda x, given: np.asarray(x)[None]),
        "loss_agrees_with_the_oracle": changing(S, lambda x, given: x * (1 + 1e-9)),
        **{law: changing(S, change) for law, change in COMMON.items()},
        "an_impossible_class_costs_nothing": changing(S, infinity_times_0),
        "a_nan_that_counts_is_seen": a_number_for_nan(S),
        "equal_logits_cost_the_logarithm_of_their_number": changing(S, equal_are_free),
        "a_mean_is_the_sum_over_the_weight": changing(S, of_count),
        "one_rank_may_lie_far_above_the_others": changing(S, maximum_of_rank_0),
        "strides_are_respected": given_other(S, other_strides("shards")),
    },
    B: {
        "answers": changing(B, lambda x, given: x[..., 0]),
        "dlogits_agrees_with_the_oracle": changing(B, lambda x, given: x * (1 + 1e-9)),
        **{law: changing(B, change) for law, change in COMMON.items()},
        "an_impossible_class_costs_nothing": changing(B, infinity_times_0),
        "a_nan_that_counts_is_seen": a_number_for_nan(B),
        "renaming_the_classes_changes_nothing": changing(B, by_place),
        "a_row_of_the_gradient_adds_up_to_nothing": changing(B, shifted_up),
        "twice_the_loss_has_twice_the_gradient": changing(B, squared),
        "a_step_against_the_gradient_moves_the_target_up": changing(B, lambda x, given: -x),
        "strides_are_respected": given_other(B, other_strides("logits")),
    },
    D: {
        "answers": changing(D, lambda x, given: np.asarray(x)[None]),
        "loss_agrees_with_the_oracle": changing(D, lambda x, given: x * (1 + 1e-9)),
        **{law: changing(D, change) for law, change in COMMON.items()},
        "a_class_impossible_for_both_adds_nothing": changing(D, infinity_times_0),
        "a_nan_that_counts_is_seen": a_number_for_nan(D),
        "a_student_like_its_teacher_has_nothing_to_learn": changing(D, lambda x, given: x + 1e-3),
        "alpha_0_is_the_cross_entropy_of_the_targets": changing(D, lambda x, given: x * 2),
        "alpha_mixes_the_two_terms": given_other(D, lambda given: {"alpha": given["alpha"] ** 2}),
        "the_square_of_the_temperature_keeps_the_scale": changing(D, lambda x, given: x / given["temperature"]),
        "exchanged_roles_exchange_the_divergences": given_other(D, lambda given: {"divergence": "forward_kl"}),
        "renaming_the_classes_changes_nothing": changing(D, by_class),
        "strides_are_respected": given_other(D, other_strides("student")),
    },
    G: {
        "answers": changing(G, lambda x, given: x[..., 0]),
        "dstudent_agrees_with_the_oracle": changing(G, lambda x, given: x * (1 + 1e-9)),
        **{law: changing(G, change) for law, change in COMMON.items()},
        "a_class_impossible_for_both_adds_nothing": changing(G, infinity_times_0),
        "a_nan_that_counts_is_seen": a_number_for_nan(G),
        "a_student_like_its_teacher_stands_still": changing(G, shifted_up),
        "alpha_0_is_the_gradient_of_the_targets": changing(G, lambda x, given: x * 2),
        "alpha_mixes_the_two_terms": given_other(G, lambda given: {"alpha": given["alpha"] ** 2}),
        "the_square_of_the_temperature_keeps_the_scale": changing(G, lambda x, given: x / given["temperature"]),
        "a_step_against_the_gradient_lowers_the_loss": changing(G, lambda x, given: -x),
        "a_row_of_the_gradient_adds_up_to_nothing": changing(G, shifted_up),
        "twice_the_loss_has_twice_the_gradient": changing(G, squared),
        "renaming_the_classes_changes_nothing": changing(G, by_place),
        "strides_are_respected": given_other(G, other_strides("student")),
    },
}
ALL = [(operation, law) for operation, laws in BREAKERS.items() for law in laws]
# One object for all operations: shown to fail on the filters of decoding.
SHARED = {"inputs_stay_untouched", "buffers_are_fully_written", "repeats_give_the_same_bits"}


@pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
def test_the_law_rejects_what_breaks_it(operation: str, law: str) -> None:
    assert failure(operation, law, BREAKERS[operation][law], {}), f"{law} accepts an implementation that breaks it"


@pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
def test_the_law_accepts_the_oracle(operation: str, law: str) -> None:
    assert failure(operation, law, right(operation), {}) == ""


@pytest.mark.parametrize("operation", BREAKERS)
def test_no_law_is_left_out(operation: str) -> None:
    assert {law.name for law in operation_named(operation).laws} <= set(BREAKERS[operation]) | SHARED


def test_an_impossible_class_that_is_declared_to_be_nan_is_not_covered() -> None:
    (judged,) = (law for law in operation_named(C).laws if law.name == "an_impossible_class_costs_nothing")
    for value, covered in (("nothing", True), ("nan", False)):
        declared = subject(C, conventions={"impossible_class": value})(reference.cross_entropy)
        assert (judged.not_covered(declaration_of(declared, C)) == "") is covered


def spoilt_behind(size: int) -> Callable[[Any, Given], Any]:
    """Where a row has more classes than a tile, the loss is that of one class fewer."""
    return lambda x, given: x * 1.001 if rows_of(given).shape[-1] > size else x


@pytest.mark.parametrize("size", [1024, 2048])
@pytest.mark.parametrize(("operation", "result"), [(C, "loss"), (B, "dlogits"), (S, "loss"), (D, "loss"), (G, "dstudent")])
def test_a_fault_behind_a_tile_is_seen(operation: str, result: str, size: int) -> None:
    assert failure(operation, f"{result}_agrees_with_the_oracle", changing(operation, spoilt_behind(size)), {})


def test_rows_beyond_a_block_of_256_are_seen() -> None:
    def forgets(x: Any, given: Given) -> Any:
        return np.where(np.arange(x.size).reshape(x.shape) < 256, x, 0.0)

    assert failure(C, "loss_agrees_with_the_oracle", changing(C, forgets), {})


@pytest.mark.parametrize("tile", [1024, 2048])
def test_targets_in_the_last_tile_are_seen(tile: int) -> None:
    """What wraps a target at the size of a tile, or of its integers, finds the wrong class."""
    wraps = given_other(C, lambda given: {"targets": np.where(given["targets"] < 0, given["targets"], given["targets"] % tile)})
    assert failure(C, "loss_agrees_with_the_oracle", wraps, {})


def test_tokens_that_16_bits_do_not_hold_are_seen() -> None:
    wraps = given_other(N, lambda given: {"tokens": given["tokens"] % 2**16})
    assert failure(N, "targets_agrees_with_the_oracle", wraps, {})


def test_a_mean_of_nothing_is_what_is_declared() -> None:
    """all_ignored = nan: a 0 is then wrong, and a NaN is right."""
    law = "nothing_to_score_is_no_loss"
    declared = {"conventions": {"all_ignored": "nan"}}
    assert failure(C, law, right(C), declared)

    def divides_by_nothing(given: Given) -> Any:
        return right(C)(given) if scored(given) or given["reduction"] != "mean" else np.asarray(np.nan)

    assert failure(C, law, divides_by_nothing, declared) == ""
