"""Data parallelism: one gradient on every rank, however the batch, the buckets and the arrivals are cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from oracles.reference.data_parallel import (
    DataParallel,
    accumulate_gradients,
    bucket_schedule,
    bucketed_all_reduce,
    tied_gradients,
)


def test_the_published_trigger_of_token_means() -> None:
    """Losses [1] and [4, 4, 4]: 3.25, not 2.5."""
    assert accumulate_gradients([[[1.0], [12.0]]], [[1, 3]]).tolist() == [[3.25]]
    assert accumulate_gradients([[[1.0]], [[12.0]]], [[1], [3]]).tolist() == [[3.25], [3.25]]


@pytest.mark.parametrize(("R", "A"), [(1, 1), (1, 4), (2, 2), (4, 1), (3, 5)])
def test_any_cut_of_the_batch_gives_the_big_batch(R: int, A: int) -> None:
    g = np.random.default_rng(R + A)
    tokens = g.integers(0, 5, (R, A))
    grads = g.integers(-9, 9, (R, A, 6)) * (tokens > 0)[..., None]
    whole = accumulate_gradients(grads.reshape(1, 1, R * A, 6).sum(axis=2).astype(float), [[int(tokens.sum())]])
    out = accumulate_gradients(grads.astype(float), tokens)
    assert np.array_equal(out, np.broadcast_to(whole[0], out.shape))            # integers: every sum is exact, one division


def test_no_token_is_no_gradient() -> None:
    assert accumulate_gradients(np.ones((2, 1, 3)), np.zeros((2, 1), int)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("bucket_elements", [1, 2, 5, 6, 100])
def test_buckets_hold_every_gradient_once_and_no_more_than_fits(bucket_elements: int) -> None:
    sizes, order = [4, 1, 0, 2, 9, 3], [5, 4, 0, 1, 2, 3]
    buckets = bucket_schedule(sizes, order, bucket_elements=bucket_elements)
    assert list(itertools.chain(*buckets)) == order
    assert all(sum(sizes[k] for k in bucket) <= bucket_elements or len([k for k in bucket if sizes[k]]) == 1 for bucket in buckets)


def test_neither_buckets_nor_arrival_change_a_bit_on_a_grid() -> None:
    g = np.random.default_rng(3)
    grads = [g.integers(-9, 9, (3, n)).astype(float) for n in (4, 1, 0, 7)]
    want = [np.broadcast_to(a.sum(axis=0) / 3, a.shape) for a in grads]
    for bucket_elements in (1, 3, 5, 99):
        arrival = [g.permutation(4) for _ in range(3)]
        out, traffic = bucketed_all_reduce(grads, arrival, bucket_elements=bucket_elements)
        assert all(np.array_equal(a, b) for a, b in zip(out, want))
        assert sum(traffic.sent) == 2 * 2 * 12 * 8


def test_the_traffic_is_the_formula_where_ranks_divide_the_buckets() -> None:
    _, traffic = bucketed_all_reduce([np.ones((4, 8)), np.ones((4, 4))], [[0, 1]] * 4, bucket_elements=8)
    assert traffic.sent == (2 * 12 * 3 // 4 * 8,) * 4


def test_tied_copies_are_added_before_anything_is_scattered() -> None:
    """The published trigger: 7.5, where the fault gives 7 and 9.5."""
    assert tied_gradients([[1.0, 2.0], [4.0, 8.0]]).tolist() == [[7.5, 7.5], [7.5, 7.5]]


def test_nothing_is_sent_before_the_last_micro_batch() -> None:
    dp = DataParallel(2, bucket_elements=3)
    for step in range(3):
        dp.accumulate([[[1.0 + step, 2.0]], [[3.0, 4.0]]], tokens=[1, 2])
        assert dp.traffic.steps == 0
    out = dp.synchronise()
    assert out[0][0].tolist() == out[1][0].tolist() == [15.0 / 9, 2.0]
    assert dp.traffic.sent == (16, 16)                                          # 2 P (R - 1) / R elements, however many micro-batches


def test_nothing_accumulated_is_refused() -> None:
    with pytest.raises(ValueError, match="grads: nothing was accumulated"):
        DataParallel(2, bucket_elements=3).synchronise()


def test_other_shapes_than_before_are_refused() -> None:
    dp = DataParallel(1, bucket_elements=3)
    dp.accumulate([[[1.0]]], tokens=[1])
    with pytest.raises(ValueError, match="other shapes than those of the micro-batches before"):
        dp.accumulate([[[1.0, 2.0]]], tokens=[1])


def test_an_arrival_that_is_no_permutation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"arrival: got \[0, 0\]; want each of 0\.\.1 once"):
        bucketed_all_reduce([np.ones((1, 1)), np.ones((1, 1))], [[0, 0]], bucket_elements=1)
