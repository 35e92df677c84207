"""A cache over ranks: each token on one rank, and attention over chosen tokens as on one; the norm before an all-to-all, backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import attention, cache_place, exchanged_norm_backward, rms_norm_backward, sharded_cache_attention

U = 2.0**-53


@pytest.mark.parametrize(("R", "interleave"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 8)])
def test_places_are_a_disjoint_cover(R: int, interleave: int) -> None:
    rank, place = cache_place(np.arange(R * interleave * 3), ranks=R, interleave=interleave)
    assert sorted(zip(rank.tolist(), place.tolist())) == [(r, i) for r in range(R) for i in range(interleave * 3)]


@pytest.mark.parametrize(("R", "interleave", "n"), [(1, 1, 4), (2, 1, 8), (2, 2, 3), (4, 2, 0), (3, 1, 1)])
def test_attention_over_the_ranks_is_that_of_one(R: int, interleave: int, n: int) -> None:
    g, B, S = np.random.default_rng(R), 2, 4
    q = g.standard_normal((B, 4, 3))
    k, v = g.standard_normal((B, 2, R * S, 3)), g.standard_normal((B, 2, R * S, 2))
    indices = np.array([g.permutation(R * S)[:n] for _ in range(B)]).reshape(B, n)
    indices[1:, : n // 2] = -1
    rank, place = cache_place(np.arange(R * S), ranks=R, interleave=interleave)
    shards = [[x[:, :, np.flatnonzero(rank == r)[np.argsort(place[rank == r])]] for r in range(R)] for x in (k, v)]
    out, lse = sharded_cache_attention(q, *shards, indices, interleave=interleave)
    mask = np.array([np.isin(np.arange(R * S), row) for row in indices])[:, None, None]
    wanted, wanted_lse = attention(q[:, :, None], k, v, causal=None, mask=mask)
    seen = np.isfinite(wanted_lse[:, :, 0])
    assert np.abs(out - wanted[:, :, 0]).max() <= 32 * U
    assert np.abs(lse[seen] - wanted_lse[:, :, 0][seen]).max(initial=0.0) <= 32 * U
    assert np.isneginf(lse[~seen]).all()


X = np.ones((1, 1, 2, 2))


@pytest.mark.parametrize(("shards", "indices", "message"), [
    (([X], [X, X]), [[0]], "v_shards: got 2 shards beside 1 of k_shards"),
    (([X], [X]), [[2]], r"indices: got numbers from 2 to 2; want -1\.\.1"),
    (([X], [X]), [[1, 1]], r"indices\[0\]: got \[1, 1\]; want no index twice"),
    (([X], [X]), [0], r"indices: got shape \(1,\); want \(1, N\)"),
    (([X, X[:, :, :1]], [X, X]), [[0]], r"v: got shape|k_shards\[1\]: got shapes"),
])  # fmt: skip
def test_bad_input_is_refused_by_name(shards: Any, indices: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sharded_cache_attention(np.ones((1, 1, 2)), *shards, indices, interleave=1)


def test_an_index_past_the_end_of_its_rank_is_refused() -> None:
    with pytest.raises(ValueError, match=r"indices\[0\]: got 2, place 2 of its rank; want places below 2"):
        sharded_cache_attention(np.ones((1, 1, 2)), [X, X, X], [X, X, X], [[2]], interleave=3)


# The norm ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("R", [1, 2, 4])
def test_the_norm_is_differentiated_on_the_tokens_own_rank(R: int) -> None:
    g = np.random.default_rng(R)
    x, dy, weight = g.standard_normal((2, 4, 8, 3)), g.standard_normal((2, 4, 8, 3)), g.standard_normal(3)
    dx, dweight = exchanged_norm_backward(np.split(dy, R, axis=1), np.split(x, R, axis=2), weight)
    wanted, wanted_weight = rms_norm_backward(x, weight, dy)
    assert np.array_equal(np.concatenate(dx, axis=2), wanted)
    assert np.abs(dweight - wanted_weight).max() <= 256 * U


@pytest.mark.parametrize(("dy", "x", "message"), [
    ([X], [], "dy_shards: got 1 shards beside 0 of x_shards"),
    ([X, X], [X, X], "x_shards: got 1 heads for 2 ranks; want a multiple of 2"),
    ([X[:, :, :1]], [X], r"dy_shards\[0\]: got shape \(1, 1, 1, 2\); want \(1, 1, 2, 2\)"),
])  # fmt: skip
def test_bad_shards_are_refused_by_name(dy: Any, x: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exchanged_norm_backward(dy, x, np.ones(2))
