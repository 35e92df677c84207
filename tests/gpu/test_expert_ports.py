"""The port of a mixture of experts: its parts against the oracles, bad input refused, and each planted fault found by a law.

ORACLES_BACKEND=cuda runs the first two parts on a device. Orders of threads, races and barriers: test_dropped_barriers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles import reference
from oracles.gpu.experts import MOST_EXPERTS, combine, dispatch, expert_slots, moe_layer, route
from oracles.properties import Arithmetic, bounds

from .planted_faults import status_with_fault

pytestmark = pytest.mark.gpu

BACKEND = os.environ.get("ORACLES_BACKEND", "emulated")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
T, E, D, F, K = 70, 5, 19, 133, 3                                               # two columns of blocks, tokens past a warp


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def chosen(seed: int = 0) -> Any:
    """K different experts of each token."""
    return np.argsort(np.random.default_rng(seed).random((T, E)), axis=-1)[:, :K]


@pytest.mark.parametrize("capacity", [None, 0, 7, 1000])
def test_places_are_the_oracles(capacity: int | None) -> None:
    got = expert_slots(chosen(), experts=E, capacity=capacity, backend=BACKEND)
    np.testing.assert_array_equal(got, reference.expert_slots(chosen(), experts=E, capacity=capacity))


@pytest.mark.parametrize("places", [None, 50])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_arrive_bit_for_bit_at_their_places(dtype: str, places: int | None) -> None:
    x, slots = draw(T, D, dtype=dtype), reference.expert_slots(chosen(), experts=E, capacity=30)
    got = dispatch(x, chosen(), slots, experts=E, places=places, backend=BACKEND)
    assert got.dtype == DTYPES[dtype]
    np.testing.assert_array_equal(got.astype(np.float64), reference.dispatch(x, chosen(), slots, experts=E, places=places))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_comes_back_is_within_k_roundings(dtype: str) -> None:
    slots = reference.expert_slots(chosen(), experts=E, capacity=30)
    buffer, gates = draw(E, 30, F, dtype=dtype), np.abs(draw(T, K, seed=1))
    got = combine(buffer, chosen(), slots, gates, backend=BACKEND)
    exact = reference.combine(buffer, chosen(), slots, gates)
    size = reference.combine(np.abs(buffer), chosen(), slots, gates)
    u = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]      # the result is rounded once more
    assert (np.abs(got.astype(np.float64) - exact) <= ((K + 1) * 2.0**-24 * (1 + u) + u) * size + 2.0**-25 * (u > 0)).all()
    assert (got[(slots < 0).all(axis=1)] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_layer_past_every_tile_is_within_its_bound(dtype: str) -> None:
    x, logits, w = draw(T, D, dtype=dtype), draw(T, E, dtype=dtype, seed=1), draw(E, D, F, dtype=dtype, seed=2)
    options = {"k": 2, "normalize": True, "bias": draw(E, seed=3) / np.float32(8), "capacity": 20}
    allowed = bounds.moe_layer_bound(Arithmetic().resolve(dtype), x, logits, w, **options)
    assert np.isfinite(allowed["out"]).all()
    for name, mine, exact in zip(("out", "slots"), moe_layer(x, logits, w, **options, backend=BACKEND),
                                 reference.moe_layer(x, logits, w, **options)):
        assert (np.abs(mine.astype(np.float64) - exact) <= allowed[name]).all(), name


def test_more_experts_than_lanes_and_more_choices_are_ranked() -> None:
    logits = draw(9, 130)
    ids, gates = route(logits, k=40, normalize=False, backend=BACKEND)
    wanted, exact = reference.route(logits, k=40, normalize=False)
    allowed = bounds.route_bound(Arithmetic().resolve("float32"), logits, k=40, normalize=False)
    sure = allowed["ids"] == 0
    assert sure.mean() > 0.9
    np.testing.assert_array_equal(ids[sure], wanted[sure])
    assert (np.abs(gates - exact) <= allowed["gates"])[sure].all()


INF = float("inf")


def test_experts_of_probability_0() -> None:
    ids, gates = route(np.array([[-INF, 0, -INF], [-INF, -INF, -INF]], np.float32), k=2, normalize=True, backend=BACKEND)
    assert ids.tolist() == [[1, 0], [0, 1]]
    assert gates.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    ids, gates = route(np.array([[0, 0, -200]], np.float32), k=1, normalize=True, bias=[0, 0, 3], backend=BACKEND)
    assert (ids.tolist(), gates.tolist()) == ([[2]], [[1.0]])                   # its probability vanishes, its share does not


def test_nobody_and_no_places() -> None:
    empty = draw(0, D), draw(0, E), draw(E, D, F)
    assert [x.shape for x in moe_layer(*empty, k=2, normalize=True, backend=BACKEND)] == [(0, F), (0, 2)]
    out, slots = moe_layer(draw(T, D), draw(T, E), draw(E, D, F), k=2, normalize=True, capacity=0, backend=BACKEND)
    assert (np.abs(out).max(), slots.max()) == (0.0, -1)


# Refusals ----------------------------------------------------------------------------------------------------------------------

Z = draw(4, 3)
LAYER = {"x": draw(4, 2), "logits": Z, "weights": draw(3, 2, 5), "k": 1, "normalize": True}
MANY = np.zeros((1, MOST_EXPERTS + 1), np.float32)
REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], type[Exception], str]] = {
    "a NaN": (route, {"logits": np.full((1, 2), np.nan, np.float32), "k": 1, "normalize": True}, ValueError, "logits: got NaN or +inf"),
    "an infinity": (route, {"logits": np.full((1, 2), np.inf, np.float16), "k": 1, "normalize": True}, ValueError, "logits: got NaN or"),
    "no expert": (route, {"logits": draw(2, 0), "k": 1, "normalize": True}, ValueError, "logits: got shape (2, 0)"),
    "too many experts": (route, {"logits": MANY, "k": 1, "normalize": True}, NotImplementedError, f"logits: got {MOST_EXPERTS + 1:,}"),
    "too many choices": (route, {"logits": Z, "k": 4, "normalize": True}, ValueError, "k: got 4 for 3 experts; want 1..3"),
    "a number for a flag": (route, {"logits": Z, "k": 1, "normalize": 1}, TypeError, "normalize: got 1; want True or False"),
    "a bias of another shape": (route, {"logits": Z, "k": 1, "normalize": True, "bias": [0.0]}, ValueError, "bias: got shape (1,)"),
    "a bias of infinity": (route, {"logits": Z, "k": 1, "normalize": True, "bias": [0, np.inf, 0]}, ValueError, "bias: got inf"),
    "an expert too many": (expert_slots, {"ids": [[3]], "experts": 3}, ValueError, "ids: got numbers from 3 to 3; want 0..2"),
    "a capacity below 0": (expert_slots, {"ids": [[0]], "experts": 3, "capacity": -1}, ValueError, "capacity: got -1"),
    "no choices": (expert_slots, {"ids": np.zeros((2, 0), np.int64), "experts": 3}, ValueError, "ids: got shape (2, 0); want (T, k)"),
    "one place twice": (dispatch, {"x": draw(2, 3), "ids": [[0], [0]], "slots": [[1], [1]], "experts": 1}, ValueError,
        "slots: got one place of an expert twice"),
    "slots of other tokens": (dispatch, {"x": draw(3, 3), "ids": [[0]], "slots": [[1]], "experts": 1}, ValueError,
        "slots: got shape (1, 1) for 3 tokens"),
    "too few places": (dispatch, {"x": draw(1, 3), "ids": [[0]], "slots": [[1]], "experts": 1, "places": 1}, ValueError, "places: got 1"),
    "a place too far": (combine, {"buffer": draw(1, 2, 3), "ids": [[0]], "slots": [[2]], "gates": [[1.0]]}, ValueError,
        "slots: got numbers from 2 to 2; want -1..1"),
    "gates of another shape": (combine, {"buffer": draw(1, 2, 3), "ids": [[0]], "slots": [[1]], "gates": [1.0]}, ValueError,
        "gates: got shape (1,); want (1, 1)"),
    "logits of other tokens": (moe_layer, {**LAYER, "logits": draw(5, 3)}, ValueError, "logits: got shape (5, 3); want (4, 3)"),
    "matrices of another size": (moe_layer, {**LAYER, "weights": draw(3, 3, 5)}, ValueError, "weights: got shape (3, 3, 5)"),
    "two formats": (moe_layer, {**LAYER, "weights": draw(3, 2, 5, dtype="float16")}, NotImplementedError, "weights: got dtype float16"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_bad_input_is_refused_by_name(fault: str) -> None:
    port, given, error, message = REFUSED[fault]
    with pytest.raises(error, match=re.escape(message)):
        port(**given, backend=BACKEND)


# Planted faults ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """A text of the kernel and what it becomes: the fault, the operation, and a law of it that has to find it."""

    fault: str
    was: str
    becomes: str
    operation: str
    law: str


FAULTS = (
    Planted("of equals the highest index is taken", "other == best && index < own", "other == best && index > own && index < NOBODY",
            "route", "equal_experts_are_taken_by_index_and_share_alike"),
    Planted("an expert is taken twice", "scores[own] = CUDART_NAN_F;", "scores[own] = scores[own];", "route",
            "every_token_has_k_experts_none_twice"),
    Planted("the bias is left out", "(bias == nullptr ? 0.f : bias[e])", "0.f", "route", "a_bias_chooses_and_is_not_in_the_gates"),
    Planted("the smallest are chosen", "scores[e] > best ||", "scores[e] < best || own == NOBODY ||", "route",
            "nobody_left_out_is_surely_larger"),
    Planted("gates are never normalised", "over = normalize ? (sum == 0.f ? 1.f : sum) : whole", "over = whole", "route",
            "gates_are_those_of_the_returned_experts"),
    Planted("gates are never divided", "(sum == 0.f ? 1.f : sum) : whole", "(sum == 0.f ? 1.f : sum) : 1.f", "route",
            "gates_agrees_with_the_oracle"),
    Planted("each choice counts from 0", "count += __popc(all);\n    }",
            "count += __popc(all);\n      if (t0 + 32 >= tokens) count = 0;\n    }", "moe_layer", "no_place_is_given_twice"),
    Planted("one place too many", "place < capacity ? place : -1", "place <= capacity ? place : -1", "moe_layer",
            "slots_agrees_with_the_oracle"),
    Planted("the last tokens come first", "const long long t = t0 + lane;", "const long long t = t0 + 31 - lane;", "moe_layer",
            "places_go_to_the_first_tokens"),
    Planted("a choice is taken for a token", "x + assignment / k * D", "x + assignment % (gridDim.x / k) * D", "moe_layer",
            "identity_experts_give_the_token_back"),
    Planted("every expert has the first one's matrix", "w[((long long)e * D + down) * F + f]", "w[(long long)down * F + f]", "moe_layer",
            "renaming_the_experts_changes_nothing"),
    Planted("the gates are left out", "gates[t * k + j] * y[", "y[", "moe_layer", "identity_experts_give_the_token_back"),
    Planted("a dropped token has the last place", "if (slot >= 0) sum +=", "if (true) sum +=", "moe_layer", "out_agrees_with_the_oracle"),
    Planted("only the first choice comes back", "for (int j = 0; j < k; ++j) {\n    const long long slot",
            "for (int j = 0; j < 1; ++j) {\n    const long long slot", "moe_layer", "without_a_limit_nobody_is_dropped"),
    Planted("the square of the token goes through", "to[d] = from[d];", "narrow(widen(from[d]) * widen(from[d]), &to[d]);", "moe_layer",
            "twice_the_token_comes_out_twice"),
)  # fmt: skip


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.fault)
def test_a_planted_fault_is_found_by_its_law(planted: Planted, tmp_path: Path) -> None:
    port = {"route": route, "moe_layer": moe_layer}[planted.operation]
    assert status_with_fault(tmp_path, "experts.cu", planted.was, planted.becomes, port=port, operation=planted.operation,
                             law=planted.law) == "failed"  # fmt: skip
