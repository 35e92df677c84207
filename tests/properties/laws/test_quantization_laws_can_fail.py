"""Every law of quantization and pruning turns red on an implementation that breaks what it states, and none on the oracle itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic
from oracles.properties.declaration import subject
from oracles.properties.operations import operation_named
from oracles.reference.quantization import code_range

from .rejection import rejects

Function = Callable[[dict[str, Any]], Any]
FLOAT64 = Arithmetic(out="float64", accumulate="float64", elementwise="float64")
OPERATIONS = ("quantize", "dequantize", "quantized_matmul", "dequantize_blockwise", "prune_magnitude", "prune_2_4", "gradual_masks")
Q, D, M, B, P, T, G = OPERATIONS
EXACT = {P, T, G}


def right(operation: str, given: dict[str, Any]) -> Any:
    contract = operation_named(operation).signature
    result = getattr(reference, operation)(*(given[name] for name in contract.required),
                                           **{name: given[name] for name in contract.optional if name in given})
    if operation == P and isinstance(given["weights"], list):
        return result
    return tuple(np.array(part) for part in result) if isinstance(result, tuple) else np.array(result)


def changing(operation: str, change: Callable[[Any, dict[str, Any]], Any]) -> Function:
    """The right function, its result passed through `change(result, arguments)`."""
    return lambda given: change(right(operation, given), given)


def given_other(operation: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Function:
    """The right function on changed arguments."""
    return lambda given: right(operation, {**given, **change(given)})


def codes(change: Callable[[Any, dict[str, Any]], Any]) -> Function:
    """The right scale and zero point with changed codes."""
    def changed(result: Any, given: dict[str, Any]) -> Any:
        q, s, z = result
        return np.asarray(change(q.astype(np.int64), given)), s, z

    return changing(Q, changed)


def zeros_off_by_one(q: Any, given: dict[str, Any]) -> Any:
    return np.where(np.asarray(given["x"], np.float64) == 0.0, q + 1, q)


def truncating(result: Any, given: dict[str, Any]) -> Any:
    q, s, z = result
    x, form = np.asarray(given["x"], np.float64), {name: given.get(name) for name in ("axis", "group")}
    over = reference.dequantize(np.ones_like(q), s, **form)
    zero = z if z.size == 1 else reference.dequantize(np.ones_like(q), z.astype(np.float64), **form)
    limits = code_range(given["bits"], given.get("symmetric", True))
    return np.clip(np.trunc(x / over) + zero, *limits).astype(np.int64), s, z


def wrapping(q: Any, given: dict[str, Any]) -> Any:
    """What has saturated comes out on the other side."""
    high = q.max(initial=0)
    return np.where((q == high) & ("scale" in given), q.min(initial=0), q)


def by_size(result: Any, given: dict[str, Any]) -> Any:
    q, s, z = result
    return q, np.where(s > 1.0, s * (1 + 1e-3), s), z


def among_others(result: Any, given: dict[str, Any]) -> Any:
    q, s, z = result
    return q, s * (1 + 1e-6 * (s.size > 1)), z


def first_group_counts_more(result: Any, given: dict[str, Any]) -> Any:
    q, s, z = result
    return q, s * np.where(np.arange(s.shape[-1]) == 0, 1 + 1e-3, 1.0), z


def zero_scale(result: Any, given: dict[str, Any], of_zeros: float = 0.0) -> Any:
    q, s, z = result
    return q, np.where(np.asarray(given["x"], np.float64).any() or "scale" in given, s, of_zeros), z


def float32_sums(given: dict[str, Any]) -> Any:
    total = np.zeros((len(given["x"]), given["q"].shape[1]), np.float32)
    for c in range(given["x"].shape[1]):
        total += np.outer(given["x"][:, c], given["q"][c].astype(np.float32)).astype(np.float32)
    out = total.astype(np.float64) * np.asarray(given["x_scale"], np.float64).reshape(-1, 1) * np.asarray(given["scale"], np.float64)
    return out if "bias" not in given else out + given["bias"].astype(np.float64)


def one_more(masks: Any, given: dict[str, Any]) -> Any:
    """The first that stays goes too."""
    flat = masks.reshape(-1)
    if flat.any():
        flat[np.flatnonzero(flat)[0]] = False
    return masks


def smallest_kept(masks: Any, given: dict[str, Any]) -> Any:
    return ~masks


def grows_back(masks: Any, given: dict[str, Any]) -> Any:
    return masks[::-1].copy()


def negative_go(name: str, operation: str) -> Function:
    def change(given: dict[str, Any]) -> dict[str, Any]:
        w = np.asarray(given[name], np.float64)
        return {name: w - np.abs(w) / 2}

    return given_other(operation, change)


def last_goes_first(given: dict[str, Any]) -> Any:
    w = given["weights"]
    axes = tuple(range(given["scope"] != "global", w.ndim))
    return np.flip(right(P, {**given, "weights": np.flip(w, axes).copy()}), axes)


def loose_threshold(masks: Any, given: dict[str, Any]) -> Any:
    """Of the weights that equal the largest that went, the first comes back."""
    w = np.abs(np.asarray(given["weights"], np.float64))
    if given.get("rule") == "quantile" and (~masks).any():
        at = tuple(np.argwhere(~masks & (w == w[~masks].max()))[0])
        masks[at] = True
    return masks


def scribble(name: str) -> Callable[[Any, dict[str, Any]], Any]:
    def change(result: Any, given: dict[str, Any]) -> Any:
        given[name][...] = 0
        return result

    return change


def strided(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {} if given[name].flags.c_contiguous else {name: np.asarray(given[name] * given[name].dtype.type(2))}


def reversed_last(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {name: np.ascontiguousarray(given[name][..., ::-1])}


BREAKERS: dict[str, dict[str, Function]] = {
    Q: {
        "answers": changing(Q, lambda result, given: (result[0][..., :0], *result[1:])),
        "q_agrees_with_the_oracle": codes(lambda q, given: np.maximum(q - 1, 0)),
        "scale_agrees_with_the_oracle": changing(Q, lambda result, given: (result[0], result[1] * (1 + 1e-12), result[2])),
        "zero_agrees_with_the_oracle": changing(Q, lambda result, given: (*result[:2], result[2] + 1)),
        "codes_follow_the_returned_scale": changing(Q, lambda result, given: (result[0], result[1] * 1.1, result[2])),
        "zero_points_follow_the_returned_scale": changing(Q, lambda result, given: (*result[:2], result[2] + 1)),
        "codes_come_back_within_half_a_step": changing(Q, truncating),
        "zero_is_exactly_a_code": codes(zeros_off_by_one),
        "a_block_of_zeros_has_scale_one": changing(Q, zero_scale),
        "halves_round_as_declared": changing(Q, truncating),
        "numbers_out_of_range_saturate": codes(wrapping),
        "minus_x_has_minus_the_codes": codes(lambda q, given: np.abs(q)),
        "twice_x_has_twice_the_scale": changing(Q, by_size),
        "each_block_is_a_tensor_of_its_own": changing(Q, among_others),
        "groups_may_change_places": changing(Q, first_group_counts_more),
        "strides_are_respected": given_other(Q, strided("x")),
        "inputs_stay_untouched": changing(Q, scribble("x")),
    },
    D: {
        "answers": changing(D, lambda out, given: out[..., :0]),
        "out_agrees_with_the_oracle": changing(D, lambda out, given: out * (1 + 1e-12)),
        "scales_of_two_are_exact": changing(D, lambda out, given: out * (1 + 2.0**-51)),
        "the_code_of_zero_comes_back_as_zero": changing(D, lambda out, given: out + 2.0**-60),
        "a_zero_point_of_zero_is_no_other": given_other(D, lambda given: {"zero": np.where(given["zero"] == 0, 16, given["zero"])}),
        "codes_and_zero_points_move_together": given_other(D, lambda given: {"zero": np.where(given["zero"] == 1, 2, given["zero"])}),
    },
    M: {
        "answers": changing(M, lambda out, given: out[:0]),
        "out_agrees_with_the_oracle": changing(M, lambda out, given: out * (1 + 1e-12)),
        "integer_sums_are_exact_past_two_to_24": float32_sums,
        "a_bias_is_added_once_unscaled": given_other(M, lambda given: {"bias": given["bias"] * 2} if "bias" in given else {}),
        "a_one_hot_row_reads_its_weights": given_other(M, lambda given: {"q": np.ascontiguousarray(given["q"][::-1])}),
        "scales_may_trade_a_factor_of_two": given_other(M, lambda given: {"scale": np.ones_like(given["scale"])}),
    },
    B: {
        "answers": changing(B, lambda out, given: out[..., :0]),
        "out_agrees_with_the_oracle": changing(B, lambda out, given: out * (1 + 1e-12)),
        "a_maximum_of_one_reads_the_table": given_other(B, reversed_last("codebook")),
        "blocks_may_change_places": given_other(B, lambda given: {"absmax": given["absmax"] * (1 + np.arange(given["absmax"].shape[-1]))}),
        "quantized_maxima_are_numbers_again_first": given_other(B, lambda given: {"absmax_offset": 0.0}),
    },
    P: {
        "answers": changing(P, lambda masks, given: masks.astype(np.float64)),
        "masks_agrees_with_the_oracle": changing(P, one_more),
        "as_many_go_as_the_share_says": changing(P, one_more),
        "what_stays_is_no_smaller_than_what_goes": changing(P, smallest_kept),
        "more_sparsity_only_takes_away": given_other(P, lambda given: {"sparsity": 1.0 - given["sparsity"]}),
        "signs_do_not_matter": negative_go("weights", P),
        "of_equals_the_lowest_index_goes_first": last_goes_first,
        "a_layer_alone_is_as_among_others": given_other(P, lambda given: {"scope": "global"}),
        "the_strictly_larger_stay": changing(P, loose_threshold),
    },
    T: {
        "answers": changing(T, lambda mask, given: mask.astype(np.int64)),
        "mask_agrees_with_the_oracle": changing(T, smallest_kept),
        "two_of_every_four_stay": changing(T, one_more),
        "signs_do_not_matter": negative_go("w", T),
        "fours_may_change_places": given_other(T, lambda given: {
            "w": np.where(np.arange(given["w"].shape[given["axis"]]) < 4, 1, 0).reshape(-1, *[1] * (given["axis"] == 0)) * given["w"]}),
        "of_equal_four_the_first_two_stay": lambda given: right(T, {**given, "w": np.flip(given["w"], given["axis"]) * np.arange(
            1, given["w"].shape[given["axis"]] + 1).reshape(-1, *[1] * (given["axis"] == 0))}),
    },
    G: {
        "answers": changing(G, lambda masks, given: masks[:0]),
        "masks_agrees_with_the_oracle": changing(G, one_more),
        "what_went_stays_gone": changing(G, grows_back),
        "each_step_has_its_sparsity": changing(G, lambda masks, given: np.concatenate([masks[:-1], masks[-2:-1]])[-len(masks):]),
        "signs_do_not_matter": negative_go("history", G),
        "one_step_is_pruning_at_once": changing(G, one_more),
    },
}  # fmt: skip
ALL = [(operation, law) for operation, laws in BREAKERS.items() for law in laws]
# One object for all operations: shown to fail on quantize here, or in test_every_law_can_fail.
SHARED = {"strides_are_respected", "inputs_stay_untouched", "buffers_are_fully_written", "repeats_give_the_same_bits"}


def failure(operation: str, law: str, function: Function, **declared: Any) -> str:
    """The reason why a law rejects a function, declared so, on the designed cases, or ""."""
    contract = operation_named(operation).signature
    keywords = ("*", *(f"{name}=None" for name in contract.optional))
    named = ", ".join((*contract.required, *keywords))
    given = ", ".join(f"{name!r}: {name}" for name in contract.arguments)
    body = f"lambda {named}: function({{k: v for k, v in {{{given}}}.items() if v is not None}})"
    arithmetic = Arithmetic() if operation in EXACT else FLOAT64
    wrapped = subject(operation, name=law, arithmetic=arithmetic, **declared)(eval(body, {"function": function}))
    return rejects(operation, law, wrapped)


@pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
def test_the_law_rejects_what_breaks_it(operation: str, law: str) -> None:
    declared = {"refuses": ["lists"]} if operation == P else {}                 # those of lists stand below
    assert failure(operation, law, BREAKERS[operation][law], **declared), f"{law} accepts an implementation that breaks it"


@pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
def test_the_law_accepts_the_oracle(operation: str, law: str) -> None:
    assert failure(operation, law, lambda given: right(operation, given)) == ""


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_law_is_left_out(operation: str) -> None:
    assert {law.name for law in operation_named(operation).laws} <= set(BREAKERS[operation]) | SHARED


@pytest.mark.parametrize(("of_zeros", "declared", "accepted"), [
    (1.0, "one", True), (0.1, "one", False), (0.1, "any", True), (0.0, "any", False), (-1.0, "any", False), (np.inf, "any", False),
    (np.nan, "any", False),
])  # fmt: skip
@pytest.mark.parametrize("law", ["a_block_of_zeros_has_scale_one", "scale_agrees_with_the_oracle"])
def test_a_scale_of_zeros_left_open_is_still_a_number_above_0(law: str, of_zeros: float, declared: str, accepted: bool) -> None:
    """The law sees to it; the comparison leaves such scales out, and no others."""
    function = changing(Q, lambda result, given: zero_scale(result, given, of_zeros))
    found = failure(Q, law, function, conventions={"zero_scale": declared})
    assert (found == "") == (accepted or (law == "scale_agrees_with_the_oracle" and declared == "any"))


@pytest.mark.parametrize("operation", [Q, D, M, B, P, T])
def test_a_matrix_in_column_major_order_is_read_as_what_it_shows(operation: str) -> None:
    """w.T is the commonest view of a matrix: a kernel that takes the memory as it lies mixes up its elements."""
    first = operation_named(operation).signature.required[0]
    as_it_lies = given_other(operation, lambda given: {first: given[first].ravel(order="K").reshape(given[first].shape)})
    assert failure(operation, "strides_are_respected", as_it_lies)


def listed(change: Callable[[list[Any], dict[str, Any]], Any], **other: Any) -> Function:
    """Right for one array of layers; for a list on `other` arguments and with the masks changed."""
    def function(given: dict[str, Any]) -> Any:
        if not isinstance(given["weights"], list):
            return right(P, given)
        return change([np.array(m) for m in right(P, {**given, **other})], given)

    return function


def flipped(given: dict[str, Any]) -> Any:
    """The last layer is ranked backwards."""
    if not isinstance(given["weights"], list):
        return right(P, given)
    *first, last = given["weights"]
    masks = right(P, {**given, "weights": [*first, np.flip(last).copy()]})
    return [*masks[:-1], np.flip(masks[-1])]


def halved_below_zero(given: dict[str, Any]) -> Any:
    if not isinstance(given["weights"], list):
        return right(P, given)
    wide = [np.asarray(w, np.float64) for w in given["weights"]]
    return right(P, {**given, "weights": [w - np.abs(w) / 2 for w in wide]})


def by_rows(given: dict[str, Any]) -> Any:
    """A layer of several axes is pruned row by row."""
    w = given["weights"]
    if given["scope"] == "global" or isinstance(w, list) or w.ndim < 3 or not w.size:
        return right(P, given)
    return right(P, {**given, "weights": np.ascontiguousarray(w.reshape(-1, w.shape[-1]))}).reshape(w.shape)


def steps_by_rows(given: dict[str, Any]) -> Any:
    """Masks step by step, a layer of several axes row by row."""
    w = given["history"]
    if given["scope"] == "global" or w.ndim < 4 or not w.size:
        return right(G, given)
    return right(G, {**given, "history": np.ascontiguousarray(w.reshape(len(w), -1, w.shape[-1]))}).reshape(w.shape)


def of_the_first_thousand(given: dict[str, Any]) -> Any:
    """The quantile is that of the first 1,000 weights."""
    w = given["weights"]
    if given.get("rule") != "quantile" or isinstance(w, list) or w.shape[1:] != (4352,):
        return right(P, given)
    return np.abs(w) > np.quantile(np.abs(w[:, :1000]), given["sparsity"])


LISTED: dict[str, tuple[str, Function]] = {
    "one array for a list": ("answers", listed(lambda masks, given: masks[0])),
    "the last mask is missing": ("masks_agrees_with_the_oracle", listed(lambda masks, given: masks[:-1] or [masks[0], masks[0]])),
    "one more goes": ("masks_agrees_with_the_oracle", listed(lambda masks, given: [*masks[:-1], one_more(masks[-1], given)])),
    "another count": ("as_many_go_as_the_share_says", listed(lambda masks, given: [one_more(mask, given) for mask in masks])),
    "the smallest stay": ("what_stays_is_no_smaller_than_what_goes", listed(lambda masks, given: [~mask for mask in masks])),
    "less goes": ("more_sparsity_only_takes_away", listed(
        lambda masks, given: right(P, {**given, "sparsity": 1.0 - given["sparsity"]}))),
    "signs count": ("signs_do_not_matter", halved_below_zero),
    "the last of equals goes": ("of_equals_the_lowest_index_goes_first", flipped),
    "all layers together": ("a_layer_alone_is_as_among_others", listed(lambda masks, given: masks, scope="global")),
    "rows for layers": ("masks_agrees_with_the_oracle", by_rows),
    "a quantile of some": ("masks_agrees_with_the_oracle", of_the_first_thousand),
}


@pytest.mark.parametrize("mistake", LISTED)
def test_mistakes_with_lists_axes_and_many_weights_are_found(mistake: str) -> None:
    law, function = LISTED[mistake]
    assert failure(P, law, function)


def test_a_product_that_takes_minus_128_for_minus_127_is_found() -> None:
    """As those do that multiply magnitudes of 8 bits and put the sign on afterwards."""
    assert failure(M, "out_agrees_with_the_oracle", given_other(M, lambda given: {"x": np.maximum(given["x"], -127)}))
    assert failure(M, "out_agrees_with_the_oracle", given_other(M, lambda given: {"q": np.maximum(given["q"], -127)}))


def test_steps_that_take_rows_for_layers_are_found() -> None:
    assert failure(G, "masks_agrees_with_the_oracle", steps_by_rows)


def test_who_takes_one_array_alone_is_told_how_to_say_so() -> None:
    def one_array(given: dict[str, Any]) -> Any:
        return right(P, {**given, "weights": np.array(given["weights"])})

    assert "declare refuses=['lists']" in failure(P, "answers", one_array)
    assert failure(P, "answers", one_array, refuses=["lists"]) == ""


@pytest.mark.parametrize("name", ["scale", "zero"])
def test_given_scales_and_zero_points_may_be_handed_back_themselves(name: str) -> None:
    at = {"scale": 1, "zero": 2}[name]

    def itself(result: Any, given: dict[str, Any]) -> Any:
        return tuple(given.get(name, part) if index == at else part for index, part in enumerate(result))

    assert failure(Q, "inputs_stay_untouched", changing(Q, itself)) == ""
    shared = changing(Q, lambda result, given: (*result[:2], given["zero"]) if "zero" in given else (result[0], given["x"], result[2]))
    assert failure(Q, "inputs_stay_untouched", shared) == "scale with x shares memory"


def test_scales_of_other_blocks_are_compared_where_those_of_zeros_are_left_open() -> None:
    function = changing(Q, lambda result, given: (result[0], result[1] * 1.01, result[2]))
    assert failure(Q, "scale_agrees_with_the_oracle", function, conventions={"zero_scale": "any"})
