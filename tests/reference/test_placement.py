"""Placements: arrays on a mesh, what their layers refuse by name, and the moves from one placement to another."""

from __future__ import annotations

import re

import numpy as np
import pytest

from oracles.reference.placed_arithmetic import added, applied, matmul, transposed
from oracles.reference.placed_collectives import Ledger, exchanged, gathered, reduce_scattered, reduced, sliced
from oracles.reference.placement import Mesh, Partial, Placed, PlacementError, Replicated, Shard, partition, place, want, whole

MESH = Mesh({"dp": 2, "tp": 3})
X = np.arange(35.0).reshape(5, 7)
SOME_PLACEMENTS = [
    {}, {"tp": Shard(0)}, {"dp": Shard(1)}, {"dp": Shard(0), "tp": Shard(1)}, {"dp": Shard(0), "tp": Shard(0)},
]  # fmt: skip


def partial(x: np.ndarray, axis: str = "tp", mesh: Mesh = MESH) -> Placed:
    """Parts whose sum along the axis is x: integers, exact."""
    R = mesh.size(axis)
    arrays = [x / R * 0 + (x if mesh.coordinate(rank, axis) == 0 else 0 * x) + mesh.coordinate(rank, axis) for rank in range(mesh.ranks)]
    return Placed("x", [a - (R - 1) / 2 for a in arrays], mesh, {axis: Partial()})


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 7, 12, 13])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 7])
def test_a_partition_is_a_disjoint_cover(n: int, world: int) -> None:
    parts = partition(n, world)
    assert [i for start, stop in parts for i in range(start, stop)] == list(range(n))
    assert len(parts) == world
    assert max(stop - start for start, stop in parts) - min(stop - start for start, stop in parts) <= 1


@pytest.mark.parametrize("placements", SOME_PLACEMENTS, ids=str)
@pytest.mark.parametrize("shape", [(5, 7), (0, 7), (1, 2), (6, 6)])
def test_what_is_placed_comes_back_whole(placements: dict, shape: tuple[int, int]) -> None:
    x = np.arange(float(np.prod(shape))).reshape(shape)
    assert np.array_equal(whole(place("x", x, MESH, **placements)), x)


def test_ranks_are_numbered_with_the_last_axis_fastest() -> None:
    assert [(MESH.coordinate(r, "dp"), MESH.coordinate(r, "tp")) for r in range(6)] == [(d, t) for d in range(2) for t in range(3)]
    assert MESH.groups("dp") == [[0, 3], [1, 4], [2, 5]]


def test_partial_sums_are_added_up() -> None:
    assert np.array_equal(whole(partial(X)), X)


# What stands, what is wanted: the message.
MISPLACED = {
    "a missing all_reduce": (Partial(), Replicated(), "mlp.down: x: partial sum over tp, wanted replicated; an all_reduce over tp is "
                             "missing before it"),
    "a missing reduce_scatter": (Partial(), Shard(0), "mlp.down: x: partial sum over tp, wanted sharded on axis 0; a reduce_scatter over "
                                 "tp is missing before it"),
    "a missing all_gather": (Shard(1), Replicated(), "mlp.down: x: sharded on axis 1 over tp, wanted replicated; an all_gather over tp is "
                             "missing before it"),
    "a missing all_to_all": (Shard(1), Shard(0), "mlp.down: x: sharded on axis 1 over tp, wanted sharded on axis 0; an all_to_all over tp "
                             "is missing before it"),
    "a doubled all_reduce": (Replicated(), Partial(), "mlp.down: x: replicated over tp, wanted a partial sum; it was reduced over tp "
                             "already: one all_reduce too many"),
    "a doubled reduce_scatter": (Shard(0), Partial(), "mlp.down: x: sharded on axis 0 over tp, wanted a partial sum; it was scattered "
                                 "over tp already"),
    "a forgotten cut": (Replicated(), Shard(1), "mlp.down: x: replicated over tp, wanted sharded on axis 1; every rank of tp holds all of "
                        "it"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISPLACED)
def test_what_is_misplaced_is_named(name: str) -> None:
    found, wanted, message = MISPLACED[name]
    x = Placed("x", [X] * 6, MESH, {"tp": found})
    with pytest.raises(PlacementError, match=f"^{re.escape(message)}$"):
        want("mlp.down", x, tp=wanted)
    assert want("mlp.down", x, tp=found, dp=Replicated()) is x


def test_copies_that_differ_are_named() -> None:
    arrays = [np.zeros(3) for _ in range(6)]
    arrays[4][2] = 1.0
    with pytest.raises(PlacementError, match=r"norm: g: said to be replicated over tp, but 0.0 on rank 3 and 1.0 on rank 4 at \[2\]"):
        whole(Placed("g", arrays, MESH), layer="norm")


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_reducing_makes_the_sum_of_every_group(algorithm: str) -> None:
    ledger = Ledger()
    y = reduced(partial(X), "tp", layer="row", algorithm=algorithm, ledger=ledger)
    assert y.along("tp") == Replicated()
    assert np.array_equal(whole(y), X)
    assert sum(ledger.total(MESH).sent) == 2 * 2 * 2 * X.size * 8              # two groups of three ranks


@pytest.mark.parametrize("dim", [0, 1])
def test_scattering_the_sum_leaves_parts_of_any_size(dim: int) -> None:
    y = reduce_scattered(partial(X), "tp", dim, layer="row")
    assert np.array_equal(whole(y), X)
    assert y.arrays[0].shape[dim] == partition(X.shape[dim], 3)[0][1]


@pytest.mark.parametrize("placements", SOME_PLACEMENTS[1:], ids=str)
def test_gathering_the_shards_makes_copies(placements: dict) -> None:
    x = place("x", X, MESH, **placements)
    for axis in reversed(list(placements)):
        x = gathered(x, axis, layer="gather")
    assert all(np.array_equal(a, X) for a in x.arrays)


def test_exchanging_moves_the_cut_to_another_axis() -> None:
    y = exchanged(place("x", X, MESH, dp=Shard(0)), "dp", 1, layer="attention")
    assert np.array_equal(whole(y), X)
    assert y.arrays[0].shape == (5, 4)


def test_slicing_sends_nothing_and_cuts() -> None:
    assert np.array_equal(whole(sliced(place("x", X, MESH), "tp", 1, layer="enter")), X)


MOVES = {
    "a second all_reduce": (lambda: reduced(place("x", X, MESH), "tp", layer="down"),
                            "down: x: replicated over tp, wanted a partial sum; one all_reduce over tp too many"),
    "a reduce_scatter of no sum": (lambda: reduce_scattered(place("x", X, MESH), "tp", 0, layer="down"),
                                   "one reduce_scatter over tp too many"),
    "an all_gather of copies": (lambda: gathered(place("x", X, MESH), "tp", layer="up"), "up: x: replicated over tp, wanted a shard"),
    "a second all_to_all": (lambda: exchanged(place("x", X, MESH, tp=Shard(0)), "tp", 0, layer="a"), "one all_to_all over tp too many"),
    "a gather inside out": (lambda: gathered(place("x", X, MESH, dp=Shard(0), tp=Shard(0)), "dp", layer="a"),
                            "sharded on axis 0 over tp inside dp; want tp gathered first"),
    "a slice of a shard": (lambda: sliced(place("x", X, MESH, tp=Shard(0)), "tp", 0, layer="a"), "wanted replicated"),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_a_move_that_does_not_start_there_is_named(name: str) -> None:
    call, message = MOVES[name]
    with pytest.raises(PlacementError, match=re.escape(message)):
        call()


# x and w along tp: the product.
PRODUCTS = [
    (Replicated(), Replicated(), Replicated()), (Shard(0), Replicated(), Shard(0)), (Replicated(), Shard(1), Shard(1)),
    (Shard(1), Shard(0), Partial()),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "out"), PRODUCTS, ids=str)
def test_products_of_parts_are_parts_of_the_product(a: object, b: object, out: object) -> None:
    w = np.arange(28.0).reshape(7, 4)
    y = matmul(place("x", X, MESH, tp=a), place("w", w, MESH, tp=b), layer="linear")
    assert y.along("tp") == out
    assert np.array_equal(whole(y), X @ w)


def test_a_product_with_a_partial_sum_is_one() -> None:
    w = np.arange(28.0).reshape(7, 4)
    assert np.array_equal(whole(matmul(partial(X), place("w", w, MESH), layer="linear")), X @ w)
    assert np.array_equal(whole(matmul(place("x", np.eye(5), MESH), partial(X), layer="linear")), X)


@pytest.mark.parametrize(("a", "b", "why"), [
    (Shard(1), Replicated(), "want the rows of the right one sharded"), (Replicated(), Shard(0), "want the columns of the left one"),
    (Shard(0), Shard(1), "want only one of them sharded over tp"),
    (Partial(), Shard(1), "an all_reduce over tp of the left one is missing"),
    (Partial(), Partial(), "an all_reduce over tp of the left one is missing"),
    (Shard(0), Partial(), "an all_reduce over tp of the right one is missing"),
], ids=str)  # fmt: skip
def test_a_product_without_a_rule_is_named(a: object, b: object, why: str) -> None:
    x, w = Placed("x", [X] * 6, MESH, {"tp": a}), Placed("w", [X.T] * 6, MESH, {"tp": b})
    with pytest.raises(PlacementError, match=f"linear: x .* @ w .*: {why}"):
        matmul(x, w, layer="linear")


def test_the_shards_turn_with_the_array() -> None:
    y = transposed(place("x", X, MESH, dp=Shard(0), tp=Shard(1)))
    assert (y.along("dp"), y.along("tp")) == (Shard(1), Shard(0))
    assert np.array_equal(whole(y), X.T)


def test_a_bias_is_added_to_columns_and_rows_that_are_cut() -> None:
    b = np.arange(7.0)
    y = added(place("x", X, MESH, dp=Shard(0), tp=Shard(1)), place("b", b, MESH, tp=Shard(0)), layer="up")
    assert np.array_equal(whole(y), X + b)


def test_functions_are_applied_to_parts_but_not_to_partial_sums() -> None:
    assert np.array_equal(whole(applied(np.tanh, place("x", X, MESH, tp=Shard(0)), layer="act")), np.tanh(X))
    with pytest.raises(PlacementError, match="act: x: partial sum over tp, wanted the sum itself; an all_reduce over tp is missing"):
        applied(np.tanh, partial(X), layer="act")
    with pytest.raises(PlacementError, match="act: x sharded on axis 0 over tp beside x replicated over tp: they must be the same"):
        applied(np.multiply, place("x", X, MESH, tp=Shard(0)), place("x", X, MESH), layer="act")
