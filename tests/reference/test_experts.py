"""Routing and experts: chosen by hand, exact on grids of small integers, the same over any number of ranks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from oracles.reference import (
    balance_bias,
    balance_loss,
    balance_loss_backward,
    combine,
    dispatch,
    expert_counts,
    expert_parallel_backward,
    expert_parallel_layer,
    expert_slots,
    moe_layer,
    moe_layer_backward,
    route,
    route_backward,
    softmax,
)

pytestmark = pytest.mark.filterwarnings("error")
HIGH = 2.0**10                                                                  # a logit beside which e^(0 - HIGH) is nothing


def grid(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float64)


def equal_logits(T: int, E: int, k: int, seed: int = 0) -> Any:
    """k experts of each token far above the others and equal: gates of 1 / k, exact for k a power of two."""
    r = np.random.default_rng(seed)
    z = np.zeros((T, E))
    for row in z:
        row[r.choice(E, k, replace=False)] = HIGH
    return z


def test_the_k_largest_in_descending_order_and_of_equals_the_lowest_index() -> None:
    ids, _ = route([[0.0, 2.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0]], k=3, normalize=False)
    assert ids.tolist() == [[1, 3, 2], [0, 1, 2]]


def test_the_bias_chooses_and_is_never_in_the_gates() -> None:
    """https://github.com/MetaX-MACA/vLLM-metax/issues/270"""
    z, bias = np.log([[4.0, 2.0, 1.0, 1.0]]), [0.0, 0.0, 0.0, 1.0]
    for normalize in (False, True):
        ids, gates = route(z, k=2, normalize=normalize, bias=bias)
        assert ids.tolist() == [[3, 0]]
        unbiased = softmax(z)[0, ids[0]] if not normalize else softmax(z[:, ids[0]])[0]
        assert (gates[0] == unbiased).all()


def test_normalised_gates_sum_to_one_and_others_to_less() -> None:
    """https://github.com/flashinfer-ai/flashinfer/pull/2889; each row of its own: https://github.com/databricks/megablocks/pull/87"""
    z = equal_logits(5, 8, 4)
    assert (route(z, k=2, normalize=True)[1] == 0.5).all()
    assert (route(z, k=2, normalize=False)[1] == 0.25).all()
    assert (route(grid(3, 4), k=1, normalize=True)[1] == 1.0).all()


def test_one_normalised_gate_gives_the_router_no_gradient() -> None:
    """https://github.com/jingyaogong/minimind/issues/858"""
    z, ids = grid(4, 3), route(grid(4, 3), k=1, normalize=True)[0]
    assert (route_backward(z, ids, np.ones((4, 1)), normalize=True) == 0.0).all()
    assert (route_backward(z, ids, np.ones((4, 1)), normalize=False) != 0.0).all()


def test_an_expert_of_minus_infinity_is_chosen_last_and_has_no_gate() -> None:
    ids, gates = route([[-np.inf, 0.0, -np.inf]], k=2, normalize=False)
    assert ids.tolist() == [[1, 0]]
    assert gates.tolist() == [[1.0, 0.0]]


def plain_slots(ids: Any, E: int, capacity: int | None) -> Any:
    """One counter an expert, first choices of all tokens first."""
    count, slots = [0] * E, np.full(ids.shape, -1)
    for j in range(ids.shape[1]):
        for t in range(len(ids)):
            e = ids[t, j]
            if capacity is None or count[e] < capacity:
                slots[t, j] = count[e]
            count[e] += 1
    return slots


@pytest.mark.parametrize("capacity", [None, 0, 1, 2, 5])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_places_are_those_of_one_counter_for_each_expert(k: int, capacity: int | None) -> None:
    """https://github.com/lucidrains/st-moe-pytorch/issues/13"""
    ids, _ = route(np.random.default_rng(k).normal(size=(9, 4)), k=k, normalize=False)
    assert (expert_slots(ids, experts=4, capacity=capacity) == plain_slots(ids, 4, capacity)).all()


def test_dispatch_and_back_with_gates_of_one_gives_every_token_k_times() -> None:
    x, (ids, _) = grid(6, 3), route(grid(6, 5), k=2, normalize=False)
    slots = expert_slots(ids, experts=5)
    assert (combine(dispatch(x, ids, slots, experts=5), ids, slots, np.ones((6, 2))) == 2.0 * x).all()


def test_a_place_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="slots: got one place of an expert twice"):
        dispatch(np.ones((2, 1)), [[0], [0]], [[1], [1]], experts=1)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_layer_is_the_sum_over_all_experts_with_gates(k: int) -> None:
    """https://github.com/edwardcapriolo/deliverance/pull/88; exact: small integers, gates 1 / k."""
    x, w, z = grid(7, 3), grid(5, 3, 2, seed=1), equal_logits(7, 5, k)
    out, slots = moe_layer(x, z, w, k=k, normalize=True)
    gates = (z == HIGH) / k
    assert (out == np.einsum("te,td,edf->tf", gates, x, w)).all()
    assert (slots >= 0).all()


def test_identity_experts_give_the_token_back() -> None:
    x = grid(6, 3)
    out, _ = moe_layer(x, equal_logits(6, 4, 2), np.broadcast_to(np.eye(3), (4, 3, 3)), k=2, normalize=True)
    assert (out == x).all()


def test_a_dropped_token_is_nothing_and_the_others_do_not_move() -> None:
    x, w, z = grid(6, 3), grid(2, 3, 2, seed=1), equal_logits(6, 2, 1, seed=3)
    out, slots = moe_layer(x, z, w, k=1, normalize=True, capacity=2)
    free, _ = moe_layer(x, z, w, k=1, normalize=True)
    dropped = slots[:, 0] < 0
    assert dropped.sum() == np.maximum(expert_counts(route(z, k=1, normalize=True)[0], experts=2) - 2, 0).sum() > 0
    assert (out == np.where(dropped[:, None], 0.0, free)).all()


@pytest.mark.parametrize("capacity", [None, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_any_number_of_ranks_gives_the_numbers_of_one_bit_for_bit(ranks: int, capacity: int | None) -> None:
    x, w, z, dout = grid(12, 3), grid(6, 3, 2, seed=1), equal_logits(12, 6, 2), grid(12, 2, seed=2)
    options: dict[str, Any] = {"k": 2, "normalize": True, "capacity": capacity}
    cut = [np.split(a, ranks) for a in (x, z, w, dout)]
    out, slots, traffic = expert_parallel_layer(*cut[:3], **options)
    one, one_slots = moe_layer(x, z, w, **options)
    assert (np.concatenate(out) == one).all()
    assert (np.concatenate(slots) == one_slots).all()
    assert (sum(traffic.sent) > 0) == (ranks > 1)
    want = moe_layer_backward(x, z, w, dout, **options)
    got = expert_parallel_backward(*cut, **options)
    for name in want:
        assert (np.concatenate(got[name]) == want[name]).all(), name


def test_ranks_may_hold_unequal_numbers_of_tokens_and_none() -> None:
    x, w, z = grid(5, 3), grid(4, 3, 2, seed=1), equal_logits(5, 4, 2)
    parts = [0, 4, 5]
    out, slots, _ = expert_parallel_layer(np.split(x, parts), np.split(z, parts), np.split(w, 4), k=2, normalize=True)
    one, one_slots = moe_layer(x, z, w, k=2, normalize=True)
    assert (np.concatenate(out) == one).all()
    assert (np.concatenate(slots) == one_slots).all()


def test_the_gradients_of_tokens_and_experts_are_exact_differences() -> None:
    """The layer is linear in each of them: a difference of 1 is the derivative, on integers exactly."""
    x, w, z, dout = grid(5, 2), grid(3, 2, 2, seed=1), equal_logits(5, 3, 2), grid(5, 2, seed=2)
    options: dict[str, Any] = {"k": 2, "normalize": True, "capacity": 3}
    total = lambda x, w: float((dout * moe_layer(x, z, w, **options)[0]).sum())  # noqa: E731
    got, base = moe_layer_backward(x, z, w, dout, **options), total(x, w)
    for array, d in ((x, got["dx"]), (w, got["dweights"])):
        for i in np.ndindex(array.shape):
            moved = array.copy()
            moved[i] += 1.0
            assert total(*((moved, w) if array is x else (x, moved))) - base == d[i]


def test_the_routers_gradient_is_the_softmaxs_of_the_chosen() -> None:
    """Gates of 1/2 and 1/2: dlogits = (dg_0 - dg_1) / 4 and its negative, dg_j = dout . (x w_j); nothing at the others."""
    x, w, z, dout = grid(4, 3), grid(5, 3, 2, seed=1), equal_logits(4, 5, 2), grid(4, 2, seed=2)
    got = moe_layer_backward(x, z, w, dout, k=2, normalize=True)["dlogits"]
    ids, _ = route(z, k=2, normalize=True)
    for t in range(4):
        a, b = (Fraction(float(dout[t] @ (x[t] @ w[e]))) for e in ids[t])
        want = dict.fromkeys(range(5), Fraction(0)) | {int(ids[t, 0]): (a - b) / 4, int(ids[t, 1]): (b - a) / 4}
        assert [Fraction(float(v)) for v in got[t]] == list(want.values())


def test_balance_is_one_when_balanced_and_the_number_of_experts_at_worst() -> None:
    """https://github.com/huggingface/transformers/pull/43775: 1 for k = 2 too."""
    even = np.full((4, 4), 0.25)
    assert balance_loss(even, [[0, 1], [2, 3], [0, 1], [2, 3]]) == 1.0
    assert balance_loss(np.eye(4)[[2, 2]], [[2], [2]]) == 4.0


def test_padding_counts_in_neither_factor() -> None:
    """https://github.com/NVIDIA/Megatron-LM/issues/1617"""
    p, ids = np.eye(4)[[0, 0, 1, 2]], [[0], [0], [1], [2]]
    assert balance_loss(p, ids, mask=[True, True, False, False]) == 4.0
    assert balance_loss(p, ids, mask=[False] * 4) == 0.0


def test_the_balance_has_a_gradient_and_it_is_an_exact_difference() -> None:
    """https://github.com/NVIDIA-NeMo/Automodel/issues/1408; the loss is linear in probs, and sixteenths are exact."""
    p, ids, mask = np.full((4, 4), 0.25), [[0, 1], [0, 2], [0, 3], [1, 2]], np.array([True, True, False, True])
    mask[3] = False
    d = balance_loss_backward(p, ids, 2.0, mask=mask)
    for i in np.ndindex(p.shape):
        moved = p.copy()
        moved[i] += 0.0625
        assert 2.0 * (balance_loss(moved, ids, mask=mask) - balance_loss(p, ids, mask=mask)) == d[i] * 0.0625
    assert (d[mask] > 0.0).any()


def test_the_bias_moves_towards_the_mean_and_stays_there() -> None:
    assert balance_bias([0.0, 0.0, 0.0], [3, 3, 0], rate=0.25).tolist() == [-0.25, -0.25, 0.25]
    assert balance_bias([1.0, -1.0], [5, 5], rate=0.25).tolist() == [1.0, -1.0]


def test_moving_the_bias_brings_the_counts_together() -> None:
    z, bias = np.random.default_rng(0).normal(size=(256, 8)) + np.linspace(0.0, 2.0, 8), np.zeros(8)
    before = expert_counts(route(z, k=2, normalize=True, bias=bias)[0], experts=8)
    for _ in range(300):
        bias = balance_bias(bias, expert_counts(route(z, k=2, normalize=True, bias=bias)[0], experts=8), rate=0.005)
    after = expert_counts(route(z, k=2, normalize=True, bias=bias)[0], experts=8)
    assert np.ptp(after) < np.ptp(before) / 8


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: route(np.zeros((2, 3)), k=4, normalize=True), ValueError, "k: got 4 for 3 experts; want at most 3"),
    (lambda: route(np.zeros((2, 3)), k=0, normalize=True), ValueError, "k: got 0; want a whole number >= 1"),
    (lambda: route([[np.nan]], k=1, normalize=True), ValueError, "logits: got NaN or inf; want finite numbers or -inf"),
    (lambda: route(np.zeros((2, 0)), k=1, normalize=True), ValueError, r"logits: got shape \(2, 0\); want at least one expert"),
    (lambda: route(np.zeros((2, 3)), k=1, normalize=1), TypeError, "normalize: got 1; want True or False"),
    (lambda: route(np.zeros((2, 3)), k=1, normalize=True, bias=[0.0]), ValueError, r"bias: got shape \(1,\); want \(3,\)"),
    (lambda: route(np.zeros((2, 3)), k=1, normalize=True, bias=[0.0, np.inf, 0.0]), ValueError, "bias: got NaN or inf"),
    (lambda: route_backward(np.zeros((1, 3)), [[1, 1]], [[0.0, 0.0]], normalize=True), ValueError, r"ids: got \[1, 1\] for token 0"),
    (lambda: balance_loss(np.zeros((2, 3)), [[0]]), ValueError, r"ids: got shape \(1, 1\); want \(2, k\)"),
    (lambda: balance_loss(np.zeros((2, 3)), [[0], [1]], mask=[True]), ValueError, r"mask: got shape \(1,\); want \(2,\)"),
    (lambda: balance_bias([0.0], [1], rate=-1.0), ValueError, "rate: got -1.0; want a finite number >= 0"),
    (lambda: moe_layer(np.zeros((2, 3)), np.zeros((2, 2)), np.zeros((2, 4, 1)), k=1, normalize=True), ValueError, "weights: got shape"),
    (lambda: moe_layer(np.zeros((2, 3)), np.zeros((2, 5)), np.zeros((2, 3, 1)), k=1, normalize=True), ValueError, "logits: got shape"),
    (lambda: expert_parallel_layer([], [], [], k=1, normalize=True), ValueError, "weights: got no ranks"),
    (lambda: expert_parallel_layer([np.zeros((1, 1))], [], [np.zeros((1, 1, 1))], k=1, normalize=True), ValueError, "logits: got 0 arrays"),
])  # fmt: skip
def test_what_is_wrong_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
