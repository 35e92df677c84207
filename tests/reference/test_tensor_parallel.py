"""Tensor and vocabulary parallelism: parts side by side, or added up, are the whole, forward and backward, for any number of ranks."""

from __future__ import annotations

import re

import numpy as np
import pytest

from oracles.reference import attention, clip_grad_norm, cross_entropy_backward, rms_norm
from oracles.reference.parallel_layers import clip_placed
from oracles.reference.placement import Mesh, Partial, Placed, PlacementError, Shard, place
from oracles.reference.tensor_parallel import (
    clip_grad_norm_sharded,
    column_parallel,
    norm_backward_sharded,
    row_parallel,
    shard_fused_qkv,
    shard_qkv,
)
from oracles.reference.vocab_parallel import (
    vocab_parallel_cross_entropy_backward,
    vocab_parallel_embedding,
    vocab_parallel_embedding_backward,
    vocab_parallel_head,
    vocab_parallel_head_backward,
    vocab_shards,
)

WORLDS = (1, 2, 3, 4)
U = 2.0**-53


def grid(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


@pytest.mark.parametrize("R", WORLDS)
def test_columns_side_by_side_are_the_product(R: int) -> None:
    x, w, b = grid(5, 3), grid(3, 12, seed=1), grid(12, seed=2)
    out = column_parallel(x, np.split(w, R, axis=1), np.split(b, R))
    assert np.array_equal(np.concatenate(out, axis=1), x @ w + b)
    assert np.array_equal(np.concatenate(column_parallel(x, np.split(w, R, axis=1), None), axis=1), x @ w)


@pytest.mark.parametrize("R", WORLDS)
def test_rows_added_up_are_the_product_with_the_bias_once(R: int) -> None:
    x, w, b = grid(5, 12), grid(12, 3, seed=1), grid(3, seed=2)
    out = row_parallel(np.split(x, R, axis=1), np.split(w, R), b)
    assert len(out) == R
    assert all(np.array_equal(y, x @ w + b) for y in out)
    assert all(np.array_equal(y, x @ w) for y in row_parallel(np.split(x, R, axis=1), np.split(w, R), None))


def sharded_attention(x: np.ndarray, parts: tuple, heads: int, kv_heads: int, R: int) -> np.ndarray:
    """Attention of each rank's heads, the outputs side by side: (T, H D)."""
    outs = []
    for w_q, w_k, w_v in zip(*parts):
        H, Hkv = heads // R, max(kv_heads // R, 1)
        q, k, v = ((x @ w).reshape(1, len(x), n, -1).swapaxes(1, 2) for w, n in ((w_q, H), (w_k, Hkv), (w_v, Hkv)))
        outs.append(attention(q, k, v, causal="bottom_right")[0][0].swapaxes(0, 1).reshape(len(x), -1))
    return np.concatenate(outs, axis=1)


@pytest.mark.parametrize(("heads", "kv_heads", "R"), [(4, 4, 2), (4, 2, 2), (4, 2, 4), (6, 1, 3), (6, 3, 3), (8, 2, 8), (2, 2, 1)])
@pytest.mark.parametrize("layout", ["apart", "q_k_v", "by_group"])
def test_attention_of_whole_heads_is_attention(heads: int, kv_heads: int, R: int, layout: str) -> None:
    x, D = np.random.default_rng(0).standard_normal((5, 6)), 2
    w_q, w_k, w_v = grid(6, heads * D), grid(6, kv_heads * D, seed=1), grid(6, kv_heads * D, seed=2)
    want = sharded_attention(x, ([w_q], [w_k], [w_v]), heads, kv_heads, 1)
    groups = [w.reshape(6, kv_heads, -1) for w in (w_q, w_k, w_v)]
    fused = {"q_k_v": np.concatenate([w_q, w_k, w_v], axis=1), "by_group": np.concatenate(groups, axis=2).reshape(6, -1)}
    if layout == "apart":
        parts = shard_qkv(w_q, w_k, w_v, heads=heads, kv_heads=kv_heads, world=R)
    else:
        parts = shard_fused_qkv(fused[layout], layout=layout, heads=heads, kv_heads=kv_heads, world=R)
    assert np.array_equal(sharded_attention(x, parts, heads, kv_heads, R), want)


def test_equal_slices_of_a_fused_weight_are_no_heads() -> None:
    """deepspeedai/DeepSpeed#3844."""
    x, w = np.random.default_rng(0).standard_normal((5, 6)), grid(6, 12)
    want = sharded_attention(x, shard_fused_qkv(w, layout="q_k_v", heads=2, kv_heads=2, world=1), 2, 2, 1)
    wrong = [np.split(part, 3, axis=1) for part in np.split(w, 2, axis=1)]
    assert not np.array_equal(sharded_attention(x, tuple(zip(*wrong)), 2, 2, 2), want)


@pytest.mark.parametrize(("heads", "kv_heads", "R", "message"), [
    (4, 2, 3, "world: got 3 ranks for 4 query heads; want a divisor of 4"),
    (12, 4, 6, "world: got 6 ranks for 4 key/value heads; want a divisor or a multiple of 4: heads stay whole"),
    (4, 3, 1, "kv_heads: got 3 for 4 query heads; want a divisor of 4"),
])  # fmt: skip
def test_heads_that_would_be_cut_are_refused(heads: int, kv_heads: int, R: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        shard_qkv(grid(2, heads), grid(2, kv_heads), grid(2, kv_heads), heads=heads, kv_heads=kv_heads, world=R)


@pytest.mark.parametrize("R", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("V", [1, 2, 10, 13])
def test_every_token_is_found_on_exactly_one_rank(V: int, R: int) -> None:
    table = grid(V, 3) + 10
    out = vocab_parallel_embedding(np.arange(V), table, world=R)
    assert len(out) == R
    assert all(np.array_equal(rows, table) for rows in out)
    shards = vocab_shards(table, world=R)
    assert np.array_equal(np.concatenate(shards)[:V], table)
    assert not np.concatenate(shards)[V:].any()


@pytest.mark.parametrize("R", WORLDS)
def test_the_head_and_the_embedding_have_the_gradients_of_the_whole(R: int) -> None:
    x, table, tokens, dout = grid(5, 3), grid(10, 3, seed=1), np.array([9, 0, 9, 4, 2]), grid(5, 3, seed=2)
    logits = vocab_parallel_head(x, table, world=R)
    assert np.array_equal(np.concatenate(logits, axis=1)[:, :10], x @ table.T)
    dlogits = [np.where(np.isneginf(z), 0.0, z) for z in logits]
    dx, dtable = vocab_parallel_head_backward(x, table, dlogits)
    whole = np.concatenate(dlogits, axis=1)[:, :10]
    assert all(np.array_equal(d, whole @ table) for d in dx)
    assert np.array_equal(np.concatenate(dtable)[:10], whole.T @ x)
    want = np.zeros((10, 3))
    np.add.at(want, tokens, dout)
    assert np.array_equal(np.concatenate(vocab_parallel_embedding_backward(tokens, dout, vocabulary=10, world=R))[:10], want)


@pytest.mark.parametrize("R", [1, 2, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("label_smoothing", "z_loss"), [(0.0, 0.0), (0.25, 0.0), (0.0, 0.5), (0.25, 0.5)])
def test_the_gradient_of_the_loss_is_that_of_the_whole(R: int, reduction: str, label_smoothing: float, z_loss: float) -> None:
    g = np.random.default_rng(4)
    z, targets = g.standard_normal((6, 8)), np.array([3, -100, 0, 7, 4, 4])
    options = {"label_smoothing": label_smoothing, "z_loss": z_loss, "reduction": reduction}
    dloss = g.standard_normal(6) if reduction == "none" else 0.75
    got = np.concatenate(vocab_parallel_cross_entropy_backward(np.split(z, R, axis=1), targets, dloss, **options), axis=1)
    want = cross_entropy_backward(z, targets, dloss, **options)
    p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    lse = np.abs(np.log(np.exp(z).sum(axis=-1, keepdims=True)))
    scale = np.abs(np.broadcast_to(dloss, 6))[:, None] / (5 if reduction == "mean" else 1)
    allowed = 2 * (8 + 12 + 3 * 6) * U * scale * (p * (1 + 2 * z_loss * lse) + 1)   # both round: the docstring's bound, twice
    assert (np.abs(got - want) <= allowed).all()
    assert not got[1].any()


@pytest.mark.parametrize("sharded", ["tokens", "heads"])
@pytest.mark.parametrize("R", [1, 2, 4])
def test_the_gradients_of_a_norm_are_those_of_one_rank(R: int, sharded: str) -> None:
    """dx is computed vector by vector, to the last bit the same; the weight's gradient adds up in another order: g(16, u) of the sum."""
    g = np.random.default_rng(5)
    x, dy, w = g.standard_normal((4, 4, 3)), g.standard_normal((4, 4, 3)), g.standard_normal(3)
    axis = 0 if sharded == "tokens" else 1
    dx, dw = norm_backward_sharded(np.split(x, R, axis), w, np.split(dy, R, axis), sharded=sharded)
    whole, (want,) = norm_backward_sharded([x], w, [dy], sharded=sharded)
    assert len({d.tobytes() for d in dw}) == 1
    assert np.array_equal(np.concatenate(dx, axis), whole[0])
    size = np.abs(dy * rms_norm(x, np.ones(3))).sum(axis=(0, 1))
    assert (np.abs(dw[0] - want) <= 2 * np.expm1(16 * np.log1p(U)) * size).all()


def test_the_published_norm_counts_what_is_replicated_once() -> None:
    """Sharded squares 9, replicated squares 16, four ranks: 5, not sqrt(73)."""
    grads = [np.full((4, 1), 1.5), np.full((4, 1), 4.0)]
    out, norm = clip_grad_norm_sharded(grads, [1, 0], max_norm=2.5)
    assert float(norm) == 5.0
    assert [g.tolist() for g in out] == [[[0.75]] * 4, [[2.0]] * 4]


@pytest.mark.parametrize("R", WORLDS)
def test_the_sharded_clip_is_the_clip_of_the_whole(R: int) -> None:
    cut, copied = grid(R, 5), np.broadcast_to(grid(4, seed=1), (R, 4))
    out, norm = clip_grad_norm_sharded([cut, copied], [1, 0], max_norm=1.0)
    want, wanted_norm = clip_grad_norm([cut, copied[0]], max_norm=1.0)
    placed = [Placed("cut", list(cut), Mesh({"tp": R}), {"tp": Shard(0)}), place("copied", copied[0], Mesh({"tp": R}))]
    _, other_norm = clip_placed(placed, max_norm=1.0)
    allowed = 4 * (5 * R + 4 + R + 8) * U * float(wanted_norm)
    assert abs(float(norm) - float(wanted_norm)) <= allowed
    assert abs(other_norm - float(wanted_norm)) <= allowed
    assert (np.abs(out[0] - want[0]) <= allowed).all()
    assert (np.abs(out[1] - want[1]) <= allowed).all()


def test_copies_that_differ_lack_an_all_reduce() -> None:
    with pytest.raises(PlacementError, match=r"grads\[1\]: said to be replicated over tp, but rank 1 holds another than rank 0"):
        clip_grad_norm_sharded([np.ones((2, 1)), [[1.0], [2.0]]], [1, 0], max_norm=1.0)


def test_the_norm_of_a_partial_sum_is_refused_by_name() -> None:
    partial = Placed("norm.weight", [np.ones(1)] * 2, Mesh({"tp": 2}), {"tp": Partial()})
    with pytest.raises(PlacementError, match=r"clip_grad_norm: norm\.weight: partial sum over tp, wanted the sum itself; an all_reduce"):
        clip_placed([partial], max_norm=1.0)


WRONG = {
    "rows of another x": (lambda: column_parallel(grid(2, 3), [grid(4, 1)], None), r"w_shards\[0\]: got shape (4, 1); want (3, N/R)"),
    "no rank": (lambda: column_parallel(grid(2, 3), [], None), "w_shards: got none"),
    "a bias of one rank": (lambda: column_parallel(grid(2, 3), [grid(3, 1)] * 2, [grid(1)]), "bias_shards: got 1; want 2"),
    "other rows": (lambda: row_parallel([grid(2, 3)], [grid(4, 1)], None), "w_shards[0]: got shape (4, 1) beside x (2, 3); want (3, N)"),
    "another layout": (lambda: shard_fused_qkv(grid(2, 3), layout="v_k_q", heads=1, kv_heads=1, world=1), "layout: got 'v_k_q'"),
    "another word": (lambda: norm_backward_sharded([np.ones((1, 1, 1))], [1.0], [np.ones((1, 1, 1))], sharded="pages"),
                     "sharded: got 'pages'; want tokens or heads"),
    "a token outside": (lambda: vocab_parallel_embedding([10], grid(10, 1), world=4), "tokens: got numbers from 10 to 10; want 0..9"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message.replace("\\", ""))):
        call()
