"""Our own other forms of pipeline and context parallelism, which `oracles check` without a subject holds to the oracles."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles import reference
from oracles.properties import Arithmetic, subject

FLOAT64 = Arithmetic(out="float64", accumulate="float64", elementwise="float64", lse="float64")
FORMATS = ("float32", "float64", "float16", "bfloat16")
ALIGNMENTS = (None, "bottom_right", "top_left")


def _gathered(shards: Any, places: Any) -> Any:
    """The whole sequence, in float64."""
    whole = np.concatenate([np.asarray(x, np.float64) for x in shards], axis=2)
    return whole[:, :, np.argsort(np.concatenate(places))]


def _same(segments: Any) -> Any:
    """Which tokens belong together: a mask (B, 1, L, L), or None where they all do."""
    return None if segments is None else ((segments[:, :, None] == segments[:, None, :]) & (segments >= 0)[:, :, None])[:, None]


@subject("ring_attention", arithmetic=FLOAT64, dtypes=FORMATS, causal=ALIGNMENTS, promises=["deterministic"])
def rows_of_the_whole_sequence(
    q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None, scale: Any = None
) -> Any:  # fmt: skip
    """Keys and values gathered first, tiled attention over all of them, and each rank keeps its rows."""
    places = reference.shard_positions(len(q_shards), q_shards[0].shape[2], order=order)  # type: ignore[arg-type]
    whole = (_gathered(shards, places) for shards in (q_shards, k_shards, v_shards))
    out, lse = reference.flash_attention(*whole, causal=causal, mask=_same(segments), scale=scale, block_q=32, block_k=32)
    return [out[:, :, p] for p in places], [lse[:, :, p] for p in places]


@subject("ring_attention_backward", arithmetic=FLOAT64, dtypes=FORMATS, causal=ALIGNMENTS, promises=["deterministic"])
def gradients_of_the_whole_sequence(
    q_shards: Any, k_shards: Any, v_shards: Any, dout_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
    scale: Any = None,
) -> Any:  # fmt: skip
    """Everything gathered first, the tiled gradient, and each rank keeps its rows."""
    places = reference.shard_positions(len(q_shards), q_shards[0].shape[2], order=order)  # type: ignore[arg-type]
    q, k, v, dout = (_gathered(shards, places) for shards in (q_shards, k_shards, v_shards, dout_shards))
    options: Any = {"causal": causal, "mask": _same(segments), "scale": scale}
    gradients = reference.flash_attention_backward(q, k, v, *reference.flash_attention(q, k, v, **options), dout, **options)
    return {name: [gradients[name][:, :, p] for p in places] for name in ("dq", "dk", "dv")}


@subject("sharded_cache_attention", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def gathered_before_the_softmax(q: Any, k_shards: Any, v_shards: Any, indices: Any, *, interleave: int, scale: Any = None) -> Any:
    """The whole cache in its own order, and a mask of what is asked for."""
    R, S = len(k_shards), k_shards[0].shape[2]
    rank, place = np.repeat(np.arange(R), S), np.tile(np.arange(S), R)
    token = (place // interleave * R + rank) * interleave + place % interleave  # of each place of each rank
    k, v = (np.concatenate([np.asarray(x, np.float64) for x in shards], axis=2) for shards in (k_shards, v_shards))
    asked = (indices[:, :, None] == token).any(axis=1)[:, None, None]           # (B, 1, 1, R S)
    out, lse = reference.flash_attention(np.asarray(q, np.float64)[:, :, None], k, v, causal=None, mask=asked, scale=scale)
    return out[:, :, 0], lse[:, :, 0]


@subject("exchanged_norm_backward", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def norm_by_its_jacobian(dy_shards: Any, x_shards: Any, weight: Any, *, eps: float = 1e-6) -> Any:
    """All heads and tokens at once; dx from the Jacobian r (I - r^2 x x^T / D), a matrix for each vector."""
    dy = np.concatenate([np.asarray(one, np.float64) for one in dy_shards], axis=1)
    x, w = np.concatenate([np.asarray(one, np.float64) for one in x_shards], axis=2), np.asarray(weight, np.float64)
    r = 1.0 / np.sqrt((x * x).mean(axis=-1) + eps)[..., None, None]
    jacobian = r * (np.eye(len(w)) - r * r * x[..., :, None] * x[..., None, :] / len(w))
    dx = ((dy * w)[..., None, :] @ jacobian)[..., 0, :]
    return np.split(dx, len(x_shards), axis=2), np.einsum("bhld,bhld->d", dy, x * r[..., 0])


@subject("pipeline_loss", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def loss_as_a_weighted_sum(token_losses: Any, lengths: Any, *, microbatch_size: int) -> Any:
    """Every token weighs 1 / N, and what is behind a length nothing."""
    inside = np.arange(token_losses.shape[1]) < np.asarray(lengths)[:, None]
    return np.asarray(np.where(inside, np.asarray(token_losses, np.float64), 0.0).sum() / max(int(inside.sum()), 1))


@subject("pipeline_step", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def step_of_the_whole_batch(
    x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, chunks: int = 1, accumulation: int = 1,
    dropout_mask: Any = None, dropout_p: float = 0.0,
) -> Any:  # fmt: skip
    """No pipeline at all: the whole batch forward, then backward."""
    inside = (np.arange(x.shape[1]) < np.asarray(lengths)[:, None])[..., None]
    n, w = max(int(inside.sum()), 1), [np.asarray(one, np.float64) for one in weights]
    z = [1.0] * len(w) if dropout_mask is None else [kept / (1.0 - dropout_p) for kept in dropout_mask]
    inputs, h = [np.where(inside, np.asarray(x, np.float64), 0.0)], []
    for i, one in enumerate(w):
        h.append(np.tanh(inputs[-1] @ one))
        inputs.append(z[i] * h[-1])
    error = np.where(inside, inputs[-1] - np.asarray(targets, np.float64), 0.0)
    dy, dweights = error / n, list[Any]()
    for i in reversed(range(len(w))):
        dz = dy * z[i] * (1.0 - h[i] ** 2)
        dweights.insert(0, np.einsum("btc,btd->cd", inputs[i], dz))
        dy = dz @ w[i].T
    return np.asarray((error**2).sum() / (2 * n)), dy, dweights


@subject("schedule", only={"kind": ["gpipe", "1f1b"]}, promises=["deterministic"])
def schedule_by_what_is_held(kind: str, *, stages: int, microbatches: int) -> Any:
    """Every action has a time of its own, and a stage sorts them: F of a micro-batch right after the B that makes room for it."""
    p, m, rows = stages, microbatches, []
    for s in range(p):
        held = m if kind == "gpipe" else min(m, p - s)                          # F of micro-batch i follows B of i - held
        when = {(1, i): (2.0 * i, 1) for i in range(m)} | {(0, i): (2.0 * (i - held) + 1.0, 0) for i in range(m)}
        rows.append([(op, i, 0) for op, i in sorted(when, key=lambda action: when[action])])
    return np.array(rows, dtype=np.int64).reshape(p, 2 * m, 3)
