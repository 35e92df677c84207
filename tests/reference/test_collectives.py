"""Collectives: what every rank ends up with, and what was sent for it, for any number of ranks and any length."""

from __future__ import annotations

import numpy as np
import pytest

from oracles.reference import collectives
from oracles.reference.collectives import (
    Traffic,
    Wire,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    exchange,
    reduce_scatter,
    shift,
)

RANKS = (1, 2, 3, 4, 5, 7, 8)
LENGTHS = (0, 1, 2, 7, 24, 840)
RANKS_AND_LENGTHS = [(R, n) for R in RANKS for n in LENGTHS]
REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def on_a_grid(R: int, n: int, seed: int = 0) -> list[np.ndarray]:
    """Integers: every sum of them is exact, in any order."""
    return list(np.random.default_rng(seed).integers(-50, 50, (R, n)).astype(np.float64))


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize(("R", "n"), RANKS_AND_LENGTHS)
def test_every_rank_has_the_reduction_to_the_last_bit(R: int, n: int, op: str, algorithm: str) -> None:
    arrays = on_a_grid(R, n)
    out, _ = all_reduce(arrays, op=op, algorithm=algorithm)
    want = REDUCTIONS[op](arrays, axis=0) if op != "mean" else np.sum(arrays, axis=0) / R
    assert len(out) == R
    assert all(np.array_equal(got, want) for got in out)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("R", RANKS)
def test_all_ranks_hold_the_same_bits_where_sums_round(R: int, algorithm: str) -> None:
    out, _ = all_reduce(list(np.random.default_rng(1).standard_normal((R, 13))), algorithm=algorithm)
    assert len({got.tobytes() for got in out}) == 1


@pytest.mark.parametrize("R", RANKS)
def test_a_ring_sends_two_times_all_but_one_part(R: int) -> None:
    n = 840                                                                     # a multiple of every R
    _, traffic = all_reduce(on_a_grid(R, n))
    assert traffic == Traffic(2 * (R - 1), (2 * n * 8 * (R - 1) // R,) * R, (2 * n * 8 * (R - 1) // R,) * R)


@pytest.mark.parametrize(("R", "n"), RANKS_AND_LENGTHS)
def test_a_ring_of_any_length_sends_that_much_in_all(R: int, n: int) -> None:
    _, traffic = all_reduce(on_a_grid(R, n))
    assert sum(traffic.sent) == sum(traffic.received) == 2 * (R - 1) * n * 8


@pytest.mark.parametrize(("R", "n"), RANKS_AND_LENGTHS)
def test_a_tree_takes_two_logarithms_of_steps(R: int, n: int) -> None:
    _, traffic = all_reduce(on_a_grid(R, n), algorithm="tree")
    assert traffic.steps == 2 * (R - 1).bit_length()
    assert sum(traffic.sent) == 2 * (R - 1) * n * 8


def test_bytes_are_those_of_the_format_given() -> None:
    assert all_reduce([np.ones(4, np.float16)] * 2)[1].sent == (8, 8)


@pytest.mark.parametrize("R", RANKS)
def test_each_rank_keeps_its_part_of_the_sum(R: int) -> None:
    arrays = on_a_grid(R, 3 * R)
    out, traffic = reduce_scatter(arrays)
    assert np.array_equal(np.concatenate(out), np.sum(arrays, axis=0))
    assert [part.shape for part in out] == [(3,)] * R
    assert traffic == Traffic(R - 1, (3 * 8 * (R - 1),) * R, (3 * 8 * (R - 1),) * R)


@pytest.mark.parametrize("R", RANKS)
def test_ragged_parts_stand_one_behind_the_other_everywhere(R: int) -> None:
    arrays = [np.arange(2.0 * r).reshape(r, 2) for r in range(R)]
    out, traffic = all_gather(arrays)
    assert all(np.array_equal(got, np.concatenate(arrays)) for got in out)
    assert traffic.steps == R - 1
    assert traffic.sent == tuple(8 * (sum(a.size for a in arrays) - arrays[(r + 1) % R].size) for r in range(R))


@pytest.mark.parametrize("R", RANKS)
def test_all_to_all_transposes_and_is_its_own_inverse(R: int) -> None:
    arrays = [np.arange(R) + 100 * r for r in range(R)]
    out, traffic = all_to_all(arrays)
    assert np.array_equal(np.array(out), np.array(arrays).T)
    assert all(np.array_equal(a, b) for a, b in zip(all_to_all(out)[0], arrays))
    assert traffic.sent == (8 * (R - 1),) * R


@pytest.mark.parametrize("R", RANKS)
def test_every_root_reaches_every_rank(R: int) -> None:
    for root in range(R):
        out, traffic = broadcast(np.array([root, 7]), ranks=R, root=root)
        assert all(np.array_equal(got, [root, 7]) for got in out)
        assert traffic.steps == (R - 1).bit_length()
        assert sum(traffic.sent) == 16 * (R - 1)


def test_reduce_scatter_and_all_gather_are_an_all_reduce() -> None:
    arrays = [np.asarray(a) for a in np.random.default_rng(2).standard_normal((4, 12))]
    parts, first = reduce_scatter(arrays)
    out, second = all_gather(parts)
    whole, traffic = all_reduce(arrays)
    assert out[0].tobytes() == whole[0].tobytes()
    assert first + second == traffic


def test_what_each_rank_holds_is_its_own() -> None:
    for out in (all_reduce(on_a_grid(2, 4))[0], all_gather(on_a_grid(2, 4))[0], broadcast(np.ones(3), ranks=2)[0]):
        out[0][:] = -1
        assert not np.array_equal(out[0], out[1])


def test_the_arrays_handed_in_are_not_written() -> None:
    arrays = on_a_grid(3, 6)
    before = [a.copy() for a in arrays]
    for collective in (all_reduce, reduce_scatter, all_gather, all_to_all, shift):
        for got in collective(arrays)[0]:
            got[...] = 99
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before))


def test_what_the_sender_writes_later_does_not_arrive() -> None:
    wire, message = Wire(2), np.ones(2)
    wire.send(0, 1, message)
    message[:] = 5
    wire.step()
    assert wire.receive(1, 0).tolist() == [1.0, 1.0]


def test_parts_of_any_size_are_exchanged() -> None:
    received, traffic = exchange([[np.ones(i + j) for j in range(3)] for i in range(3)])
    assert [[part.size for part in row] for row in received] == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert traffic.sent == (24, 32, 40)


WRONG = {
    "no rank": (lambda: all_reduce([]), "arrays: got none"),
    "other shapes": (lambda: all_reduce([[1.0], [1.0, 2.0]]), r"arrays\[1\]: got float64 \(2,\); want float64 \(1,\)"),
    "an unknown reduction": (lambda: all_reduce([[1.0]], op="product"), "op: got 'product'; want one of sum, mean, max, min"),
    "an unknown algorithm": (lambda: all_reduce([[1.0]], algorithm="star"), "algorithm: got 'star'; want ring or tree"),
    "no equal parts": (lambda: reduce_scatter([[1.0, 2.0, 3.0]] * 2), r"arrays: got shape \(3,\) for 2 ranks; want a multiple of 2"),
    "a root outside": (lambda: broadcast([1.0], ranks=2, root=2), r"root: got 2; want a rank in 0\.\.1"),
    "too few parts": (lambda: exchange([[[1.0]], [[1.0]]]), r"parts\[0\]: got 1 parts; want 2"),
    "a message to oneself": (lambda: Wire(2).send(1, 1, np.ones(1)), "target: got 1 from 1"),
    "a message never sent": (lambda: Wire(2).receive(0, 1), "rank 0 waits for a message of rank 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_sent_is_refused(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_message_nobody_took_is_not_covered_silently() -> None:
    wire = Wire(2)
    wire.send(0, 1, np.ones(1))
    wire.step()
    wire.send(0, 1, np.ones(1))
    with pytest.raises(ValueError, match="rank 1 has not taken what rank 0 sent it"):
        wire.step()


def test_a_gather_from_the_wrong_offset_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA/FasterTransformer#672: right on one rank only."""
    right = collectives._ring_all_gather
    monkeypatch.setattr(collectives, "_ring_all_gather", lambda mine, wire: [
        [whole[(part + r) % len(whole)] for part in range(len(whole))] for r, whole in enumerate(right(mine, wire))])  # fmt: skip
    out, _ = all_reduce(on_a_grid(4, 8))
    assert np.array_equal(out[0], np.sum(on_a_grid(4, 8), axis=0))
    with pytest.raises(AssertionError):
        test_every_rank_has_the_reduction_to_the_last_bit(4, 8, "sum", "ring")
