"""Every law turns red on an implementation that breaks what it states: a law that cannot fail is worth nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties.declaration import subject
from oracles.properties.operations import OPERATIONS, operation_named

from .rejection import rejects

Function = Callable[..., Any]


def rounded(x: Any, like: Any) -> Any:
    return np.asarray(x).astype(like.dtype)


def answered(out: Any, lse: Any, q: Any) -> Any:
    return rounded(out, q), rounded(lse, q)


def attention(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> Any:
    """The oracle in the dtype of its inputs: right in everything."""
    return answered(*reference.attention(q, k, v, causal=causal, **options), q)


def backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, **options: Any) -> Any:
    return {name: rounded(x, q) for name, x in reference.attention_backward(q, k, v, out, lse, dout, causal=causal, **options).items()}


def packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, **options: Any) -> Any:
    return answered(*reference.attention_packed(q, k, v, cu_q, cu_k, causal=causal, **options), q)


def packed_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any, *, causal: Any, **options: Any) -> Any:
    gradients = reference.attention_packed_backward(q, k, v, out, lse, dout, cu_q, cu_k, causal=causal, **options)
    return {name: rounded(x, q) for name, x in gradients.items()}


def softmax(x: Any, *, axis: int = -1) -> Any:
    return rounded(reference.softmax(x, axis=axis), x)


def log_sum_exp(x: Any, *, axis: int = -1) -> Any:
    return rounded(reference.log_sum_exp(x, axis=axis), x)


def merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Any:
    return answered(*reference.merge_attention(out_a, lse_a, out_b, lse_b), out_a)


RIGHT = {
    "attention": attention, "attention_backward": backward, "attention_packed": packed, "attention_packed_backward": packed_backward,
    "softmax": softmax, "log_sum_exp": log_sum_exp, "merge_attention": merge,
}  # fmt: skip


def changing(operation: str, change: Callable[..., Any]) -> Function:
    """The right function with its results passed through `change(results as a dict, arguments in order, options)`."""
    right, names = RIGHT[operation], operation_named(operation).signature.results
    required = operation_named(operation).signature.required

    def broken(*arrays: Any, **options: Any) -> Any:
        given = {**dict(zip(required, arrays)), **options}
        results = right(**given)
        named = results if isinstance(results, dict) else dict(zip(names, results if isinstance(results, tuple) else (results,)))
        return change(dict(named), given)

    return broken


def with_arguments(operation: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Function:
    """The right function called with changed arguments."""
    right, required = RIGHT[operation], operation_named(operation).signature.required

    def broken(*arrays: Any, **options: Any) -> Any:
        return right(**change({**dict(zip(required, arrays)), **options}))

    return broken


def off(name: str, by: float) -> Callable[..., Any]:
    return lambda results, given: {**results, name: rounded(results[name] * (1 + by), results[name])} if name in results else results


def truncated(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> Any:
    """The output cut to bfloat16 instead of rounded: twice the usual error."""
    out, lse = reference.attention(q, k, v, causal=causal, **options)
    bits = out.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(q.dtype), lse.astype(np.float32)


def one_more(name: str) -> Callable[..., Any]:
    return lambda results, given: {**results, name: results[name] + results[name].dtype.type(1)}


def scribble(results: Any, given: Any) -> Any:
    array = next(a for a in given.values() if isinstance(a, np.ndarray) and a.dtype.kind == "f")
    array[...] = 0
    return results


class Sometimes:
    """Another last bit in every second call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, results: Any, given: Any) -> Any:
        self.calls += 1
        shift = np.spacing if self.calls % 2 else np.zeros_like
        return {name: x + shift(x) if np.isfinite(x).all() else x for name, x in results.items()}


def whole_batch(results: Any, given: Any) -> Any:
    """The last bit depends on the size of the batch."""
    odd = given["q"].shape[0] % 2
    return {n: np.where(np.isfinite(x), np.nextafter(x, x.dtype.type(np.inf)), x).astype(x.dtype) if odd else x for n, x in results.items()}


def looks_ahead(results: Any, given: Any) -> Any:
    """The largest value of any key, hidden or not, moves the last bits."""
    v = np.where(np.isfinite(given["v"]), given["v"], 0.0)
    return {**results, "out": rounded(results["out"] * (1 + 1e-7 * (np.abs(v).max(initial=0.0) % 7)), results["out"])}


def bad_rows(results: Any, given: Any) -> Any:
    return {**results, "out": np.where(np.isneginf(results["lse"])[..., None], results["out"].dtype.type(1), results["out"])}


def unwritten(results: Any, given: Any) -> Any:
    given["out"][..., :-1] = results["out"][..., :-1]


def forgets(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {name: value for name, value in given.items() if name not in names}


def wider(given: dict[str, Any]) -> dict[str, Any]:
    left, right = given.get("window") or (None, None)
    return {**given, **({"window": (None if left is None else left + 1, right)} if given.get("window") else {})}


def seen_further(given: dict[str, Any]) -> dict[str, Any]:
    """Causal, but one key of the future is seen."""
    if given.get("causal") is None or given.get("window"):
        return given
    return {**given, "causal": None, "window": (None, 1)}


def tiled_heads(given: dict[str, Any]) -> dict[str, Any]:
    G = given["q"].shape[1] // max(1, given["k"].shape[1])
    return {**given, "k": np.tile(given["k"], (1, G, 1, 1)), "v": np.tile(given["v"], (1, G, 1, 1))}


def biased_by(term: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {**given, "bias": np.asarray(given.get("bias", 0.0), np.float64) + term(given)}


def masked_by_a_number(given: dict[str, Any]) -> dict[str, Any]:
    """-10000 is added to the scores of hidden keys."""
    shape = (*given["q"].shape[:3], given["k"].shape[2])
    hiding = {name: given.pop(name) for name in ("causal", "window", "mask", "kv_lengths") if name in given}
    seen = reference.visible_keys(*shape, **hiding)
    return {**given, "causal": None, "bias": np.where(seen, given.get("bias", 0.0), -1e4)}


def key_size(given: dict[str, Any]) -> Any:
    k = np.nan_to_num(given["k"].astype(np.float64), posinf=0.0, neginf=0.0)
    return 0.1 * np.repeat(np.tanh(np.abs(k).sum(-1)), given["q"].shape[1] // k.shape[1], axis=1)[:, :, None, :]


def place_of_key(given: dict[str, Any]) -> Any:
    return 0.1 * np.arange(given["k"].shape[2])


def nan_everywhere(results: Any, given: Any) -> Any:
    hidden = np.isnan(given["v"]).any()
    return {name: np.full_like(x, np.nan) for name, x in results.items()} if hidden else results


def averaged(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Any:
    _, lse = merge(out_a, lse_a, out_b, lse_b)
    return rounded((out_a.astype(np.float64) + out_b) / 2, out_a), lse


def first_weighs_more(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Any:
    return merge(out_a, lse_a + lse_a.dtype.type(0.5), out_b, lse_b)


# law: (the declaration it needs, the function that breaks it)
FORWARD: dict[str, tuple[dict[str, Any], Function]] = {
    "answers": ({}, changing("attention", lambda results, given: {"out": results["out"][..., :0]})),
    "out_agrees_with_the_oracle": ({}, changing("attention", off("out", 1e-4))),
    "lse_agrees_with_the_oracle": ({}, changing("attention", off("lse", 1e-4))),
    "rows_that_see_nothing_are_empty": ({}, changing("attention", bad_rows)),
    "a_nan_that_is_seen_shows": ({}, changing("attention", lambda results, given: {**results, "out": np.nan_to_num(results["out"])})),
    "one_hot_values_show_the_weights": ({}, with_arguments("attention", seen_further)),
    "equal_scores_average_exactly": ({}, with_arguments("attention", seen_further)),
    "the_first_forbidden_key_stays_forbidden": ({}, with_arguments("attention", seen_further)),
    "hidden_keys_have_no_weight_beside_low_scores": (
        {"conventions": {"nonfinite_behind_mask": "spread"}}, with_arguments("attention", masked_by_a_number)),
    "heads_read_their_own_keys": ({}, with_arguments("attention", tiled_heads)),
    "what_comes_later_changes_no_earlier_bit": ({}, changing("attention", looks_ahead)),
    "four_times_q_and_a_quarter_of_the_scale_change_no_bit": ({}, with_arguments("attention", forgets("scale"))),
    "adding_one_vector_to_all_keys_changes_nothing": ({}, with_arguments("attention", biased_by(key_size))),
    "the_order_of_keys_does_not_matter": ({}, with_arguments("attention", biased_by(place_of_key))),
    "two_parts_merge_into_the_whole": ({}, changing("attention", off("lse", 0.44))),
    "outputs_lie_among_the_values": ({}, changing("attention", off("out", 0.5))),
    "outputs_are_linear_in_the_values": ({}, changing("attention", lambda results, given: {**results, "out": np.abs(results["out"])})),
    "the_last_queries_alone_are_the_same": (
        {}, with_arguments("attention", lambda given: {**given, "causal": given["causal"] and "top_left"})),
    "each_item_of_a_batch_stands_alone": ({}, changing("attention", lambda results, given: {
        **results, "out": rounded(results["out"] * (1 + 0.1 * (given["q"].shape[0] - 1)), results["out"])})),
    "every_key_twice_weighs_the_same": ({}, changing("attention", lambda results, given: {
        **results, "out": rounded(results["out"] * (1 + 0.1 / (1 + given["k"].shape[2])), results["out"])})),
    "grouped_heads_are_repeated_heads": ({}, with_arguments("attention", tiled_heads)),
    "each_row_sees_its_number_of_keys": ({}, with_arguments("attention", wider)),
    "errors_stay_at_the_noise_floor": ({"dtypes": ["bfloat16"]}, truncated),
    "strides_are_respected": ({}, with_arguments("attention", lambda given: {
        **given, "v": given["v"] if given["v"].flags.c_contiguous else given["v"] + given["v"].dtype.type(1)})),
    "inputs_stay_untouched": ({}, changing("attention", scribble)),
    "buffers_are_fully_written": ({"buffers": ("out",)}, changing("attention", unwritten)),
    "nan_behind_the_mask_is_ignored": ({"conventions": {"nonfinite_behind_mask": "ignored"}}, changing("attention", nan_everywhere)),
    "repeats_give_the_same_bits": ({"promises": ["deterministic"]}, changing("attention", Sometimes())),
    "a_batch_is_its_items": ({"promises": ["batch_invariant"]}, changing("attention", whole_batch)),
    "bad_input_is_refused": ({"promises": ["validates_input"]}, with_arguments("attention", lambda given: {
        **given, "v": given["v"][:, :, : given["k"].shape[2]]})),
}  # fmt: skip

BACKWARD: dict[str, tuple[dict[str, Any], Function]] = {
    "answers": ({}, changing("attention_backward", lambda results, given: {"dq": results["dq"]} if given["q"].size else None)),
    **{f"{name}_agrees_with_the_oracle": ({}, changing("attention_backward", off(name, 1e-2)))
       for name in ("dq", "dk", "dv", "dbias", "dsinks")},
    "hidden_keys_get_no_gradient": ({}, changing("attention_backward", one_more("dv"))),
    "no_gradient_comes_from_none": ({}, changing("attention_backward", one_more("dk"))),
    "doubling_dout_doubles_every_gradient": ({}, changing("attention_backward", one_more("dk"))),
    "batch_items_do_not_mix": ({}, changing("attention_backward", lambda r, given: {**r, "dv": r["dv"] + r["dv"][:1]})),
    "key_gradients_sum_to_zero": ({}, changing("attention_backward", one_more("dk"))),
    "each_item_of_a_batch_has_its_own_gradients": (
        {}, changing("attention_backward", lambda r, given: {**r, "dq": r["dq"] + r["dq"].dtype.type(given["q"].shape[0] - 1)})),
    "grouped_gradients_are_sums_over_the_group": (
        {}, changing("attention_backward", lambda r, given: {
            **r, "dv": rounded(r["dv"] * (given["k"].shape[1] / given["q"].shape[1]), r["dv"])})),
    "strides_are_respected": ({}, with_arguments("attention_backward", lambda given: {
        **given, "v": given["v"] if given["v"].flags.c_contiguous else given["v"] + given["v"].dtype.type(1)})),
    "inputs_stay_untouched": ({}, changing("attention_backward", scribble)),
    "repeats_give_the_same_bits": ({"promises": ["deterministic"]}, changing("attention_backward", Sometimes())),
}  # fmt: skip

PACKED: dict[str, tuple[dict[str, Any], Function]] = {
    "out_agrees_with_the_oracle": ({}, changing("attention_packed", off("out", 1e-4))),
    "lse_agrees_with_the_oracle": ({}, changing("attention_packed", off("lse", 1e-4))),
    "sequences_do_not_see_each_other": ({}, changing("attention_packed", lambda r, given: {
        **r, "out": rounded(r["out"] * (1 + 1e-7 * (np.abs(given["v"]).sum() % 7)), r["out"])})),
    "a_sequence_alone_is_the_same": ({}, changing("attention_packed", lambda r, given: {
        **r, "out": r["out"] + r["out"].dtype.type(len(given["cu_q"]))})),
    "sequences_without_keys_are_empty": ({}, changing("attention_packed", one_more("out"))),
}  # fmt: skip

SOFTMAX: dict[str, tuple[dict[str, Any], Function]] = {
    "p_agrees_with_the_oracle": ({}, changing("softmax", off("p", 1e-4))),
    "equal_entries_share_exactly": ({}, changing("softmax", lambda r, given: {"p": np.nextafter(r["p"], r["p"].dtype.type(1))})),
    "one_finite_entry_takes_all": ({}, changing("softmax", lambda r, given: {"p": np.nextafter(r["p"], r["p"].dtype.type(1))})),
    "nothing_but_minus_infinity_is_empty": ({}, changing("softmax", lambda r, given: {
        "p": np.where(np.isneginf(given["x"]), r["p"].dtype.type(np.nan), r["p"])})),
    "a_nan_makes_its_row_nan": ({}, changing("softmax", lambda r, given: {"p": np.nan_to_num(r["p"])})),
}  # fmt: skip

LOG_SUM_EXP: dict[str, tuple[dict[str, Any], Function]] = {
    "lse_agrees_with_the_oracle": ({}, changing("log_sum_exp", off("lse", 1e-4))),
    "one_finite_entry_takes_all": ({}, changing("log_sum_exp", off("lse", 1e-4))),
    "nothing_but_minus_infinity_is_empty": ({}, changing("log_sum_exp", lambda r, given: {"lse": np.nan_to_num(r["lse"])})),
    "a_nan_makes_its_row_nan": ({}, changing("log_sum_exp", lambda r, given: {"lse": np.fmax(r["lse"], -np.inf).astype(r["lse"].dtype)})),
}  # fmt: skip

MERGE: dict[str, tuple[dict[str, Any], Function]] = {
    "out_agrees_with_the_oracle": ({}, averaged),
    "lse_agrees_with_the_oracle": ({}, changing("merge_attention", off("lse", 1e-4))),
    "the_empty_part_is_neutral": ({}, averaged),
    "a_part_of_nan_makes_its_row_nan": ({}, changing("merge_attention", lambda r, given: {**r, "out": np.nan_to_num(r["out"])})),
    "the_order_of_parts_does_not_matter": ({}, first_weighs_more),
    "three_parts_merge_in_any_order": ({}, first_weighs_more),
}  # fmt: skip

BREAKERS = {"attention": FORWARD, "attention_backward": BACKWARD, "attention_packed": PACKED, "softmax": SOFTMAX,
            "log_sum_exp": LOG_SUM_EXP, "merge_attention": MERGE}  # fmt: skip
ALL = [(operation, law) for operation, laws in BREAKERS.items() for law in laws]


def fails(operation: str, law: str, function: Function, declared: dict[str, Any]) -> str:
    """The reason why a law rejects a function on the designed cases, or ""."""
    contract = operation_named(operation).signature
    names = ", ".join(contract.required)
    buffers = declared.get("buffers", ())
    keywords = (*buffers, *(["causal"] if "causal" in contract.optional else []))
    header = ", ".join((names, *(f"{name}=None" for name in keywords), "**options"))
    given = ", ".join((names, *(f"{name}={name}" for name in keywords), "**options"))
    wrapped = eval(f"lambda {header}: function({given})", {"function": without_buffers(function, buffers)})
    return rejects(operation, law, subject(operation, name=law, **declared)(wrapped))


def without_buffers(function: Function, buffers: tuple[str, ...]) -> Function:
    """`changing` hands buffers to `change`, not to the right function."""
    if not buffers:
        return function

    def call(q: Any, k: Any, v: Any, *, out: Any, causal: Any, **options: Any) -> None:
        results = dict(zip(("out", "lse"), attention(q, k, v, causal=causal, **options)))
        unwritten(results, {"out": out})

    return call


@pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
def test_the_law_rejects_what_breaks_it(operation: str, law: str) -> None:
    declared, function = BREAKERS[operation][law]
    assert fails(operation, law, function, declared), f"{law} accepts an implementation that breaks it"


# Laws that are one object for several operations are shown to fail once, on attention.
SHARED = {law.name for law in operation_named("attention").laws} & {law.name for law in operation_named("softmax").laws}


# Operations whose laws are shown to fail in a file of their own, which sees to it that none is left out.
ELSEWHERE = {**dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather", "bucketed_all_reduce", "accumulate_gradients", "tied_gradients",
                              "flat_layout", "column_parallel", "row_parallel", "shard_qkv", "vocab_parallel_embedding",
                              "vocab_parallel_cross_entropy_backward", "norm_backward_sharded", "clip_grad_norm_sharded"),
                             "test_parallel_laws_can_fail.py"),
             **dict.fromkeys(("kv_bytes", "training_bytes", "model_flops", "token_accuracy"), "test_costs_laws_can_fail.py"),
             **dict.fromkeys(("filter_probabilities", "apply_penalties", "sample", "speculative_verify", "tree_positions",
                              "speculative_loop", "mtp_loop", "mtp_loss"), "test_decoding_laws_can_fail.py"),
             **dict.fromkeys(("quantize", "dequantize", "quantized_matmul", "dequantize_blockwise",
                              "prune_magnitude", "prune_2_4", "gradual_masks"), "test_quantization_laws_can_fail.py"),
             **dict.fromkeys(("next_token_targets", "cross_entropy", "cross_entropy_backward", "vocab_parallel_cross_entropy",
                              "distillation_loss", "distillation_loss_backward"), "test_loss_laws_can_fail.py"),
             **dict.fromkeys(("route", "balance_loss", "balance_loss_backward", "moe_layer", "expert_parallel_backward"),
                             "test_expert_laws_can_fail.py"),
             **dict.fromkeys(("schedule", "pipeline_loss", "pipeline_step"), "test_pipeline_laws_can_fail.py"),
             **dict.fromkeys(("ring_attention", "ring_attention_backward", "sharded_cache_attention", "exchanged_norm_backward"),
                             "test_ring_laws_can_fail.py"),
             "adamw_step": "test_optimizer_laws_can_fail.py", "clip_grad_norm": "test_clip_laws_can_fail.py",
             "master_weight_step": "test_master_laws_can_fail.py",
             "padded_positions": "test_padded_positions_laws_can_fail.py",
             "rope": "test_rope_laws_can_fail.py", "write_kv": "test_rope_laws_can_fail.py",
             "paged_attention": "test_paged_laws_can_fail.py", "mla_attention": "test_mla_laws_can_fail.py"}


def test_the_files_of_the_other_operations_are_there() -> None:
    assert all((Path(__file__).parent / name).is_file() for name in ELSEWHERE.values())


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.name not in ELSEWHERE], ids=lambda o: o.name)
def test_no_law_is_left_out(operation: Any) -> None:
    shown = set(BREAKERS.get(operation.name, {})) | SHARED
    agreement = {law.name for law in operation.laws if law.name.endswith("agrees_with_the_oracle")}
    elsewhere = {"bad_offsets_are_refused"}                                     # test_packed_laws.py
    left = {law.name for law in operation.laws} - shown - elsewhere
    assert left <= (agreement if operation.name == "attention_packed_backward" else set())
