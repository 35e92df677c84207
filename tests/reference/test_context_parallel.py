"""Context parallelism: ring and all-to-all, forward and backward, are attention of the whole sequence on one rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from oracles.reference import (
    all_to_all_attention,
    all_to_all_attention_backward,
    attention,
    attention_backward,
    ring_attention,
    ring_attention_backward,
    shard_positions,
)
from oracles.reference.sequence_shards import gathered_sequence, scattered_sequence

# ranks, tokens on each, order, causal, packed
LAYOUTS = [(R, n, order, causal, packed) for R, n, order, causal, packed in itertools.product(
    (1, 2, 3, 4), (0, 1, 2, 4), ("contiguous", "zigzag"), (None, "top_left"), (False, True))
    if order == "contiguous" or n % 2 == 0]  # fmt: skip
FORMS = [(ring_attention, ring_attention_backward), (all_to_all_attention, all_to_all_attention_backward)]
U = 2.0**-53


def sequence(R: int, n: int, packed: bool, *, B: int = 2, Hq: int = 24, Hkv: int = 12, seed: int = 0) -> tuple[list[Any], Any, Any]:
    """q, k, v, dout of the whole sequence, their segments, and the mask of these: heads that 1 to 4 ranks share out."""
    g, L = np.random.default_rng(seed), R * n
    arrays = [g.standard_normal((B, H, L, width)) for H, width in ((Hq, 3), (Hkv, 3), (Hkv, 2), (Hq, 2))]
    segments = np.sort(g.integers(-1, 3, (B, L)), axis=1) if packed else np.zeros((B, L), dtype=np.int64)
    return arrays, segments, ((segments[:, :, None] == segments[:, None, :]) & (segments >= 0)[:, :, None])[:, None]


@pytest.mark.parametrize(("forward", "backward"), FORMS, ids=["ring", "all-to-all"])
def test_the_shards_are_those_of_one_rank(forward: Any, backward: Any) -> None:
    for R, n, order, causal, packed in LAYOUTS:
        (q, k, v, dout), segments, mask = sequence(R, n, packed)
        positions = shard_positions(R, n, order=order)
        shards = [scattered_sequence(x, positions) for x in (q, k, v, dout)]
        options = {"causal": causal, "order": order, "segments": segments if packed else None}
        outs, lses = (gathered_sequence(x, positions) for x in forward(*shards[:3], **options))
        out, lse = attention(q, k, v, causal=causal, mask=mask)
        seen = np.isfinite(lse)
        assert np.abs(outs - out).max(initial=0.0) <= 64 * U
        assert np.abs(lses[seen] - lse[seen]).max(initial=0.0) <= 64 * U
        assert np.isneginf(lses[~seen]).all()
        wanted = attention_backward(q, k, v, out, lse, dout, causal=causal, mask=mask)
        for name, got in zip(("dq", "dk", "dv"), backward(*shards, **options)):
            assert np.abs(gathered_sequence(got, positions) - wanted[name]).max(initial=0.0) <= 256 * U, (R, n, order, causal, packed, name)


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_gradients_are_those_of_a_difference_quotient(order: Any) -> None:
    """Central differences at 2^-18: their own error is h^2 and 2^-53 / h, both below 2^-34 here."""
    (q, k, v, dout), _, _ = sequence(2, 2, False, B=1, Hq=2, Hkv=1)
    positions, h = shard_positions(2, 2, order=order), 2.0**-18

    def loss(*whole: Any) -> float:
        outs, _ = ring_attention(*(scattered_sequence(x, positions) for x in whole), causal="top_left", order=order)
        return float((gathered_sequence(outs, positions) * dout).sum())

    gradients = ring_attention_backward(*(scattered_sequence(x, positions) for x in (q, k, v, dout)), causal="top_left", order=order)
    for which, got in enumerate(gradients):
        whole = gathered_sequence(got, positions)
        for place in np.ndindex(*whole.shape):
            moved = [[x.copy() for x in (q, k, v)] for _ in range(2)]
            moved[0][which][place] += h
            moved[1][which][place] -= h
            assert abs((loss(*moved[0]) - loss(*moved[1])) / (2 * h) - whole[place]) <= 2.0**-30


def test_shards_of_padding_see_nothing_and_get_nothing() -> None:
    (q, k, v, dout), _, _ = sequence(2, 3, False)
    segments = np.repeat([[0, 0, 0, -1, -1, -1]], 2, axis=0)
    shards = [scattered_sequence(x, shard_positions(2, 3)) for x in (q, k, v, dout)]
    outs, lses = ring_attention(*shards[:3], causal=None, segments=segments)
    gradients = ring_attention_backward(*shards, causal=None, segments=segments)
    assert not outs[1].any()
    assert np.isneginf(lses[1]).all()
    assert not any(shards[1].any() for shards in gradients)


def test_zigzag_gives_all_ranks_the_same_work_under_a_causal_mask() -> None:
    for order, equal in (("zigzag", True), ("contiguous", False)):
        pairs = {int((part[:, None] >= np.arange(24)).sum()) for part in shard_positions(4, 6, order=order)}  # type: ignore[arg-type]
        assert (len(pairs) == 1) is equal


def test_positions_are_a_disjoint_cover() -> None:
    for R, n, order in itertools.product(range(1, 6), range(0, 7, 2), ("contiguous", "zigzag")):
        assert sorted(np.concatenate(shard_positions(R, n, order=order)).tolist()) == list(range(R * n))  # type: ignore[arg-type]


X = np.zeros((1, 3, 2, 2))


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ring_attention([X], [X, X], [X], causal=None), "k_shards: got 2 shards beside 1 of q_shards; want one for every rank"),
    (lambda: ring_attention([], [], [], causal=None), "q_shards: got 0 shards beside 0 of q_shards; want one for every rank, at least one"),
    (lambda: ring_attention([X, X[:, :, :1]], [X, X], [X, X], causal=None), r"q_shards\[1\]: got shape \(1, 3, 1, 2\); want \(1"),
    (lambda: ring_attention([X], [X[:, :, :1]], [X[:, :, :1]], causal=None), "k_shards: got 1 tokens on each rank beside 2 of q_shards"),
    (lambda: ring_attention([X[:, :, :1]], [X[:, :, :1]], [X[:, :, :1]], causal=None, order="zigzag"), "order: got 'zigzag' for 1 tokens"),
    (lambda: ring_attention([X], [X], [X], causal=None, order="striped"), "order: got 'striped'; want contiguous or zigzag"),  # type: ignore[arg-type]
    (lambda: ring_attention([X], [X], [X], causal=None, segments=[[0, -2]]), r"segments: got numbers from -2 to 0; want -1\.\."),
    (lambda: ring_attention_backward([X], [X], [X], [X, X], causal=None), "dout_shards: got 2 shards; want 1, one for every rank"),
    (lambda: all_to_all_attention([X, X], [X, X], [X, X], causal=None), "q_shards: got 3 heads for 2 ranks; want a multiple of 2"),
    (lambda: all_to_all_attention([np.repeat(X, 2, axis=1)] * 2, [X] * 2, [X] * 2, causal=None), "k_shards: got 3 heads for 2 ranks"),
])  # fmt: skip
def test_bad_input_is_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
