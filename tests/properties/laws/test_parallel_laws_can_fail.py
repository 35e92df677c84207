"""Every law of collectives, data and tensor parallelism turns red on an implementation that breaks what it states, none on the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties.operations import operation_named
from oracles.reference import collectives, data_parallel, tensor_parallel, vocab_parallel, zero_state

from .test_decoding_laws_can_fail import failure

Given = dict[str, Any]
Function = Callable[[Given], Any]
U = 2.0**-52


def wide(arrays: Any) -> list[Any]:
    return [np.asarray(a, np.float64) for a in arrays]


# The oracles, answering in float64 and without the traffic.
RIGHT: dict[str, Function] = {
    "all_reduce": lambda g: collectives.all_reduce(**g)[0],
    "reduce_scatter": lambda g: collectives.reduce_scatter(**g)[0],
    "all_gather": lambda g: wide(collectives.all_gather(**g)[0]),
    "bucketed_all_reduce": lambda g: data_parallel.bucketed_all_reduce(**g)[0],
    "accumulate_gradients": lambda g: data_parallel.accumulate_gradients(**g),
    "tied_gradients": lambda g: data_parallel.tied_gradients(**g),
    "flat_layout": lambda g: zero_state.flat_layout(**g),
    "column_parallel": lambda g: tensor_parallel.column_parallel(**g),
    "row_parallel": lambda g: tensor_parallel.row_parallel(**g),
    "shard_qkv": lambda g: tuple(wide(own) for own in tensor_parallel.shard_qkv(**g)),
    "vocab_parallel_embedding": lambda g: vocab_parallel.vocab_parallel_embedding(**g),
    "vocab_parallel_cross_entropy_backward": lambda g: vocab_parallel.vocab_parallel_cross_entropy_backward(**g),
    "norm_backward_sharded": lambda g: tensor_parallel.norm_backward_sharded(**g),
    "clip_grad_norm_sharded": lambda g: tensor_parallel.clip_grad_norm_sharded(**g),
}


def changing(operation: str, change: Callable[[Any], Any]) -> Function:
    """The oracle, what it returns changed."""
    return lambda given: change(RIGHT[operation](given))


def given_other(operation: str, **changes: Callable[[Given], Any]) -> Function:
    """The oracle on other arguments."""
    return lambda given: RIGHT[operation]({**given, **{name: change(given) for name, change in changes.items()}})


def more(x: Any) -> Any:
    """A little more of everything: beyond every bound, and beyond no shape."""
    return [more(a) for a in x] if isinstance(x, list) else x * (1 + 1e-3)


def last_more(arrays: list[Any]) -> list[Any]:
    """The last rank alone has another last bit."""
    return [*arrays[:-1], arrays[-1] * (1 + 2 * U)] if len(arrays) > 1 else arrays


def last_row_more(arrays: Any) -> Any:
    """The last row of each array has another last bit."""
    if isinstance(arrays, list):
        return [last_row_more(a) for a in arrays]
    flat = np.array(arrays)
    flat[-1:] *= 1 + 2 * U
    return flat


def one_short(arrays: list[Any]) -> list[Any]:
    return arrays[:-1] if len(arrays) > 1 else arrays


def rolled(arrays: list[Any]) -> list[Any]:
    return [np.roll(a, 1, axis=0) for a in arrays]


def next_ranks(arrays: list[Any]) -> list[Any]:
    return [*arrays[1:], *arrays[:1]]


def first_counts_twice(given: Given) -> list[Any]:
    return [given["arrays"][0] * given["arrays"][0].dtype.type(2), *given["arrays"][1:]]


def mean_of_means(given: Given) -> Any:
    n = given["tokens"]
    each = np.where(n[..., None] > 0, given["grads"].astype(np.float64) / np.maximum(n, 1)[..., None], 0.0)
    mean = each.mean(axis=(0, 1))
    return np.broadcast_to(mean, (len(n), *mean.shape)).copy()


def first_copy_twice(given: Given) -> Any:
    return np.concatenate([given["grads"][:1] * given["grads"].dtype.type(2), given["grads"][1:]])


def overlapping(given: Given) -> Any:
    offsets, total = RIGHT["flat_layout"](given)
    return np.maximum(offsets - np.arange(len(offsets)) * given.get("alignment", 1), 0), total


def bias_everywhere(given: Given) -> Any:
    return [y + (len(given["x_shards"]) - 1) * given["bias"].astype(np.float64) for y in RIGHT["row_parallel"](given)]


def slices_of_the_fused_weight(given: Given) -> Any:
    names, R = ("w_q", "w_k", "w_v"), given["world"]
    q, k, v = RIGHT["shard_qkv"](given)
    fused = np.concatenate([given[name] for name in names], axis=1).astype(np.float64)
    if fused.shape[1] % R or given["kv_heads"] % R:
        return q, k, v
    parts = [np.split(part, [q[0].shape[1], q[0].shape[1] + k[0].shape[1]], axis=1) for part in np.split(fused, R, axis=1)]
    return tuple(list(own) for own in zip(*parts))


def tail_lost(given: Given) -> Any:
    """V // R rows each: the last tokens are nobody's."""
    rows = len(given["table"]) // given["world"] * given["world"]
    return [np.where((given["tokens"] < rows)[..., None], y, 0.0) for y in RIGHT["vocab_parallel_embedding"](given)]


def only_where_the_target_is(given: Given) -> Any:
    dz, n = RIGHT["vocab_parallel_cross_entropy_backward"](given), given["shards"].shape[-1]
    here = given["targets"] // n == np.arange(len(dz))[:, None]
    return np.where(here[..., None], dz, 0.0)


def maximum_of_rank_0(given: Given) -> Any:
    """e^(z - m) with the maximum of the first rank, in the format of the logits."""
    z = given["shards"]
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.exp(z - z[0].max(axis=-1, keepdims=True, initial=-np.inf))
        return RIGHT["vocab_parallel_cross_entropy_backward"](given) + 0.0 * e


def averaged_weight(given: Given) -> Any:
    dx, dw = RIGHT["norm_backward_sharded"](given)
    return dx, [w / len(dw) for w in dw]


def copies_counted(given: Given) -> Any:
    """Copies count once a rank."""
    grads = wide(given["grads"])
    norm = float(np.sqrt(sum((g * g).sum() for g in grads)))
    factor = min(1.0, given["max_norm"] / norm) if norm else 1.0
    return [g * factor for g in grads], np.asarray(norm)


def only(place: int, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One of several results changed."""
    return lambda results: tuple(change(r) if i == place else r for i, r in enumerate(results))


REDUCED = "all_reduce"
BREAKERS: dict[str, dict[str, Function]] = {
    "all_reduce": {
        "answers": changing(REDUCED, lambda out: [a[None] for a in out]),
        "out_agree_with_the_oracle": changing(REDUCED, one_short),
        "every_rank_has_the_same_out": changing(REDUCED, last_more),
        "the_order_of_ranks_does_not_matter": given_other(REDUCED, arrays=first_counts_twice),
        "integers_are_added_exactly": changing(REDUCED, lambda out: [a * (1 + 2 * U) for a in out]),
        "every_element_stays_in_its_place": changing(REDUCED, rolled),
    },
    "reduce_scatter": {
        "answers": changing("reduce_scatter", lambda out: [a[None] for a in out]),
        "out_agree_with_the_oracle": changing("reduce_scatter", one_short),
        "integers_are_added_exactly": changing("reduce_scatter", lambda out: [a * (1 + 2 * U) for a in out]),
        "every_rank_gets_its_own_part": changing("reduce_scatter", next_ranks),
    },
    "all_gather": {
        "answers": changing("all_gather", lambda out: [a[None] for a in out]),
        "out_agree_with_the_oracle": changing("all_gather", one_short),
        "every_rank_has_the_same_out": changing("all_gather", last_more),
        "what_is_gathered_is_what_was_held": changing("all_gather", rolled),
    },
    "bucketed_all_reduce": {
        "answers": changing("bucketed_all_reduce", lambda out: [a[None] for a in out]),
        "grads_agree_with_the_oracle": changing("bucketed_all_reduce", one_short),
        "every_rank_has_the_same_grads": changing("bucketed_all_reduce", last_row_more),
        "integers_are_averaged_exactly": changing("bucketed_all_reduce", lambda out: [a * (1 + 2 * U) for a in out]),
    },
    "accumulate_gradients": {
        "answers": changing("accumulate_gradients", lambda out: out[None]),
        "grads_agrees_with_the_oracle": changing("accumulate_gradients", more),
        "every_rank_has_the_same_grads": changing("accumulate_gradients", last_row_more),
        "any_cut_of_the_batch_gives_the_same_gradient": lambda given: mean_of_means(given) if len(given["tokens"]) > 1 else
        RIGHT["accumulate_gradients"](given),
        "integers_are_averaged_exactly": changing("accumulate_gradients", lambda out: out * (1 + 2 * U)),
    },
    "tied_gradients": {
        "answers": changing("tied_gradients", lambda out: out[None]),
        "grads_agrees_with_the_oracle": changing("tied_gradients", more),
        "every_rank_has_the_same_grads": changing("tied_gradients", last_row_more),
        "the_order_of_copies_does_not_matter": given_other("tied_gradients", grads=first_copy_twice),
        "integers_are_averaged_exactly": changing("tied_gradients", lambda out: out * (1 + 2 * U)),
    },
    "flat_layout": {
        "answers": changing("flat_layout", lambda out: (out[0][None], out[1])),
        "offsets_agrees_with_the_oracle": changing("flat_layout", only(0, lambda offsets: offsets + 1)),
        "total_agrees_with_the_oracle": changing("flat_layout", only(1, lambda total: total + 1)),
        "arrays_never_overlap": overlapping,
        "every_rank_gets_as_much": given_other("flat_layout", world=lambda given: 1),
    },
    "column_parallel": {
        "answers": changing("column_parallel", lambda out: [a[None] for a in out]),
        "out_agree_with_the_oracle": changing("column_parallel", one_short),
        "columns_side_by_side_are_the_product_of_one_rank": changing("column_parallel", lambda out: [a * len(out) for a in out]),
        "integers_are_multiplied_exactly": changing("column_parallel", lambda out: [a * (1 + 2 * U) for a in out]),
    },
    "row_parallel": {
        "answers": changing("row_parallel", lambda out: [a[None] for a in out]),
        "out_agree_with_the_oracle": changing("row_parallel", one_short),
        "every_rank_has_the_same_out": changing("row_parallel", last_more),
        "rows_added_up_are_the_product_of_one_rank": bias_everywhere,
        "the_bias_counts_once": bias_everywhere,
        "integers_are_multiplied_exactly": changing("row_parallel", lambda out: [a * (1 + 2 * U) for a in out]),
    },
    "shard_qkv": {
        "answers": changing("shard_qkv", only(0, lambda q: [a[None] for a in q])),
        "q_agree_with_the_oracle": slices_of_the_fused_weight,
        "k_agree_with_the_oracle": changing("shard_qkv", only(1, next_ranks)),
        "v_agree_with_the_oracle": changing("shard_qkv", only(2, next_ranks)),
        "heads_stay_whole_and_with_their_keys": changing("shard_qkv", only(2, next_ranks)),
    },
    "vocab_parallel_embedding": {
        "answers": changing("vocab_parallel_embedding", lambda out: [a[None] for a in out]),
        "out_agree_with_the_oracle": changing("vocab_parallel_embedding", one_short),
        "every_rank_has_the_same_out": changing("vocab_parallel_embedding", last_more),
        "the_last_token_is_somebodys": tail_lost,
    },
    "vocab_parallel_cross_entropy_backward": {
        "answers": changing("vocab_parallel_cross_entropy_backward", lambda out: out[None]),
        "dshards_agrees_with_the_oracle": changing("vocab_parallel_cross_entropy_backward", more),
        "gradients_of_a_row_sum_to_zero_over_all_ranks": only_where_the_target_is,
        "a_rank_without_the_target_has_its_share": only_where_the_target_is,
        "one_rank_may_lie_far_above_the_others": maximum_of_rank_0,
    },
    "norm_backward_sharded": {
        "answers": changing("norm_backward_sharded", only(0, lambda dx: [a[None] for a in dx])),
        "dx_agree_with_the_oracle": changing("norm_backward_sharded", only(0, more)),
        "dweight_agree_with_the_oracle": changing("norm_backward_sharded", only(1, one_short)),
        "every_rank_has_the_same_dweight": changing("norm_backward_sharded", only(1, last_more)),
        "the_weight_gradient_is_that_of_one_rank": averaged_weight,
    },
    "clip_grad_norm_sharded": {
        "answers": changing("clip_grad_norm_sharded", only(1, lambda norm: norm[None])),
        "grads_agree_with_the_oracle": changing("clip_grad_norm_sharded", only(0, one_short)),
        "norm_agrees_with_the_oracle": changing("clip_grad_norm_sharded", only(1, more)),
        "copies_count_once_and_shards_all": copies_counted,
        "copies_stay_equal": changing("clip_grad_norm_sharded", only(0, last_row_more)),
    },
}  # fmt: skip
# One object for all operations: shown to fail on the filters of decoding.
SHARED = {"inputs_stay_untouched", "repeats_give_the_same_bits", "strides_are_respected"}
ALL = [(operation, law) for operation, laws in BREAKERS.items() for law in laws]
each = pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])


@each
def test_the_law_rejects_what_breaks_it(operation: str, law: str) -> None:
    assert failure(operation, law, BREAKERS[operation][law], {}), f"{law} accepts an implementation that breaks it"


@each
def test_the_law_accepts_the_oracle(operation: str, law: str) -> None:
    assert failure(operation, law, RIGHT[operation], {}) == ""


@pytest.mark.parametrize("operation", BREAKERS)
def test_no_law_is_left_out(operation: str) -> None:
    assert {law.name for law in operation_named(operation).laws} - SHARED == set(BREAKERS[operation])


def test_a_denominator_of_a_little_more_is_judged_as_declared() -> None:
    def with_epsilon(given: Given) -> Any:
        _, norm = RIGHT["clip_grad_norm_sharded"](given)
        factor = min(1.0, given["max_norm"] / (norm + 1e-6))
        return [g * factor for g in wide(given["grads"])], norm

    declared = {"conventions": {"clip_denominator": "norm_plus_1e-6"}}
    for law in ("grads_agree_with_the_oracle", "copies_count_once_and_shards_all"):
        assert failure("clip_grad_norm_sharded", law, with_epsilon, declared) == ""
        assert failure("clip_grad_norm_sharded", law, with_epsilon, {})
