"""Vocabulary parallelism: embedding, head and the loss's gradient with the vocabulary cut over R ranks. The loss itself is in `losses`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Float64
from .collectives import all_reduce
from .optimizers import not_negative
from .scored_rows import scored_rows


def vocab_shards(table: ArrayLike, *, world: int) -> list[Float64]:
    """A table (V, C) in R equal parts (ceil(V / R), C), filled up with rows of 0: V need not be a multiple of R.

    >>> [shard.shape for shard in vocab_shards(np.ones((10, 2)), world=4)]
    [(3, 2), (3, 2), (3, 2), (3, 2)]

    With V // R rows each the last V % R tokens would be nobody's (huggingface/text-generation-inference#1463). Error bound: 0.
    """
    t, R = arguments.widen("table", table, ndim=2), arguments.whole_number("world", world, least=1)
    rows = -(-t.shape[0] // R)
    return list(np.concatenate([t, np.zeros((rows * R - t.shape[0], t.shape[1]))]).reshape(R, rows, t.shape[1]))


def vocab_parallel_embedding(tokens: ArrayLike, table: ArrayLike, *, world: int) -> list[Float64]:
    """The rows of the tokens, of a table cut over R ranks: R equal arrays (..., C).

        out = sum_r [row r holds token] table_r[token - first_r]

    Each rank looks up what it holds and has 0 for the rest; one all_reduce, which adds one row to zeros and so rounds nothing.

    >>> vocab_parallel_embedding([9, 0], np.arange(10.0)[:, None], world=4)[0]
    array([[9.],
           [0.]])

    Raises ValueError for tokens that are not in the table. Error bound: 0.
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """
    shards = vocab_shards(table, world=world)
    ids = arguments.integers("tokens", tokens, least=0, most=np.asarray(table).shape[0] - 1)
    n, partial = shards[0].shape[0], []
    for r, shard in enumerate(shards):
        here = (ids // max(n, 1) == r)[..., None]
        partial.append(np.where(here, shard[ids % max(n, 1)], 0.0) if n else np.zeros((*ids.shape, shard.shape[1])))
    return list(all_reduce(partial)[0])


def vocab_parallel_embedding_backward(tokens: ArrayLike, dout: ArrayLike, *, vocabulary: int, world: int) -> list[Float64]:
    """The gradient of the table: R parts (ceil(V / R), C), each token's on the rank that holds its row. Nothing is sent.

    >>> [d.tolist() for d in vocab_parallel_embedding_backward([2, 2], [[1.0], [4.0]], vocabulary=3, world=2)]
    [[[0.0], [0.0]], [[5.0], [0.0]]]

    dout is replicated: every rank holds all of it. Error bound: g(T, u) sum |dout|.
    """
    ids = arguments.integers("tokens", tokens, least=0, most=arguments.whole_number("vocabulary", vocabulary, least=1) - 1)
    d = arguments.widen("dout", dout)
    if d.shape[:-1] != ids.shape or d.ndim == 0:
        raise ValueError(f"dout: got shape {d.shape}; want {(*ids.shape, 'C')}")
    table = np.zeros((vocabulary, d.shape[-1]))
    np.add.at(table, ids.reshape(-1), d.reshape(-1, d.shape[-1]))
    return vocab_shards(table, world=world)


def vocab_parallel_head(x: ArrayLike, table: ArrayLike, *, world: int) -> list[Float64]:
    """Logits x table^T of a table cut over R ranks: R arrays (..., ceil(V / R)), side by side the whole; -inf where there is no class.

    >>> vocab_parallel_head([[1.0]], [[2.0], [3.0], [4.0]], world=2)
    [array([[2., 3.]]), array([[  4., -inf]])]

    Error bound: g(C, u) |x| |table|. Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """
    shards = vocab_shards(table, world=world)
    x, V, n = arguments.widen("x", x), np.asarray(table).shape[0], shards[0].shape[0]
    return [np.where(r * n + np.arange(n) < V, x @ shard.T, -np.inf) for r, shard in enumerate(shards)]


def vocab_parallel_head_backward(x: ArrayLike, table: ArrayLike, dlogits: Sequence[ArrayLike]) -> tuple[list[Float64], list[Float64]]:
    """The gradients of x, R equal arrays (..., C), and of the table, R parts: dx is a sum over the vocabulary, so one all_reduce is due.

        dx = sum_r dz_r table_r          dtable_r = dz_r^T x

    >>> dx, dtable = vocab_parallel_head_backward([[1.0]], [[2.0], [3.0], [4.0]], [[[1.0, 1.0]], [[1.0, 0.0]]])
    >>> dx[1], dtable[1].tolist()
    (array([[9.]]), [[1.0], [0.0]])

    Error bound: g(V + R, u) |dz| |table| and g(T, u) |dz|^T |x|.
    """
    x, shards = arguments.widen("x", x), vocab_shards(table, world=len(dlogits))
    dz = [arguments.widen(f"dlogits[{r}]", d, (*x.shape[:-1], shards[0].shape[0])) for r, d in enumerate(dlogits)]
    rows = x.reshape(-1, x.shape[-1])
    partial = [d @ shard for d, shard in zip(dz, shards)]
    return list(all_reduce(partial)[0]), [d.reshape(-1, d.shape[-1]).T @ rows for d in dz]


def vocab_parallel_cross_entropy_backward(
    shards: Sequence[ArrayLike] | Array, targets: ArrayLike, dloss: ArrayLike, *, ignore_index: int = -100, label_smoothing: float = 0.0,
    z_loss: float = 0.0, reduction: str,
) -> Float64:  # fmt: skip
    """dloss times the derivative of `vocab_parallel_cross_entropy`: (R, ..., V/R), part r rank r's, side by side that of the whole.

        dz_r = g (p_r (1 + 2 z_loss lse) - (1 - e) [target in r] - e / V)          p_r = e^(z_r - m) / l
        m = max_r max z_r          l = sum_r sum e^(z_r - m)

    Every rank has a gradient, whoever holds the target: without one of its own, p_r (modelscope/ms-swift#9947 gave it 0). The
    derivative needs the two sums over ranks that the loss needs, and no other. g is dloss_i, or dloss over the number of
    targets that are not ignored.

    >>> vocab_parallel_cross_entropy_backward([[[0.0, 0.0]], [[0.0, 0.0]]], [3], 1.0, reduction="mean").tolist()
    [[[0.25, 0.25]], [[0.25, -0.75]]]

    Raises as `vocab_parallel_cross_entropy`. Error bound: that of `cross_entropy_backward`, with p - 1 by subtraction.
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """
    parts = [arguments.widen(f"shards[{r}]", shard) for r, shard in enumerate(shards)]
    if not parts or any(part.ndim == 0 or part.shape != parts[0].shape for part in parts):
        raise ValueError(f"shards: got shapes {[part.shape for part in parts]}; want at least one, all (..., V/R)")
    n, R = parts[0].shape[-1], len(parts)
    rows = scored_rows(np.concatenate(parts, axis=-1), targets, weights=None, ignore_index=ignore_index, label_smoothing=label_smoothing,
                       reduction=reduction)  # fmt: skip
    e, z_loss = float(label_smoothing), not_negative("z_loss", z_loss)
    g = arguments.widen("dloss", dloss, rows.shape if reduction == "none" else ())
    g = np.broadcast_to(g.reshape(-1), rows.counts.shape)[rows.counts] / (max(rows.y.size, 1) if reduction == "mean" else 1)
    local = [part.reshape(rows.counts.size, n)[rows.counts] for part in parts]  # R of (rows, V/R)
    m = all_reduce([z.max(axis=-1) for z in local], op="max")[0][0]
    out = []
    with np.errstate(invalid="ignore", divide="ignore"):
        l = all_reduce([np.exp(z - m[:, None]).sum(axis=-1) for z in local])[0][0]
        pull = 1.0 + 2.0 * z_loss * (m + np.log(l)) if z_loss else np.ones_like(l)
        for r, z in enumerate(local):
            p = np.exp(z - m[:, None]) / l[:, None]
            mine = rows.y[:, None] == r * n + np.arange(n)                      # (rows, V/R)
            dz = g[:, None] * (p * pull[:, None] - (1.0 - e) * mine - e / (n * R))
            full = np.zeros((rows.counts.size, n))
            full[rows.counts] = dz
            out.append(full.reshape(parts[0].shape))
    return np.stack(out)
