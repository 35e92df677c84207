"""Tensor parallelism: products, norms and heads of which each of R simulated ranks holds a part. Layers on a mesh: `parallel_layers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Float64
from .collectives import all_gather, all_reduce
from .optimizers import global_norm, not_negative
from .placement import PlacementError

Sharded = Literal["tokens", "heads"]
FusedLayout = Literal["q_k_v", "by_group"]


def column_parallel(x: ArrayLike, w_shards: Sequence[ArrayLike], bias_shards: Sequence[ArrayLike] | None) -> list[Float64]:
    """x W + b with the columns of W cut into R parts: R outputs (T, N/R), side by side the whole.

        y_r = x w_r + b_r

    x (T, C), w_r (C, N_r), b_r (N_r,), or no bias. Nothing is sent: every rank holds x.

    >>> column_parallel([[1.0, 2.0]], [[[1.0], [0.0]], [[0.0], [1.0]]], [[0.5], [0.0]])
    [array([[1.5]]), array([[2.]])]

    Raises ValueError for no rank and shapes that do not fit. Error bound: g(C + 2, u) (|x| |w_r| + |b_r|).
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """
    x = arguments.widen("x", x, ndim=2)
    w = _some("w_shards", w_shards)
    biases = [None] * len(w) if bias_shards is None else _as_many("bias_shards", bias_shards, len(w))
    out = []
    for r, (part, bias) in enumerate(zip(w, biases)):
        part = arguments.widen(f"w_shards[{r}]", part, ndim=2)
        if part.shape[0] != x.shape[1]:
            raise ValueError(f"w_shards[{r}]: got shape {part.shape}; want ({x.shape[1]}, N/R)")
        y = x @ part                                                            # (T, N/R)
        out.append(y if bias is None else y + arguments.widen(f"bias_shards[{r}]", bias, part.shape[1:]))
    return out


def row_parallel(x_shards: Sequence[ArrayLike], w_shards: Sequence[ArrayLike], bias: ArrayLike | None) -> list[Float64]:
    """x W + b with the rows of W, and the columns of x, cut into R parts: R equal outputs (T, N).

        y = sum_r x_r w_r + b

    x_r (T, C_r), w_r (C_r, N), b (N,), or no bias. One all_reduce, and then the bias, once: added on every rank before it, it
    would count R times.

    >>> row_parallel([[[1.0]], [[2.0]]], [[[1.0]], [[10.0]]], [0.5])
    [array([[21.5]]), array([[21.5]])]

    Raises ValueError for no rank and shapes that do not fit. Error bound: g(C + R + 2, u) (|x| |w| + |b|).
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """
    x = _some("x_shards", x_shards)
    w = _as_many("w_shards", w_shards, len(x))
    partial: list[Float64] = []
    for r, (a, b) in enumerate(zip(x, w)):
        a, b = arguments.widen(f"x_shards[{r}]", a, ndim=2), arguments.widen(f"w_shards[{r}]", b, ndim=2)
        if a.shape[1] != b.shape[0] or (partial and partial[0].shape != (a.shape[0], b.shape[1])):
            raise ValueError(f"w_shards[{r}]: got shape {b.shape} beside x {a.shape}; want ({a.shape[1]}, N), T and N as on rank 0")
        partial.append(a @ b)                                                   # (T, N), to be added up
    reduced, _ = all_reduce(partial)
    return list(reduced) if bias is None else [y + arguments.widen("bias", bias, y.shape[1:]) for y in reduced]


def shard_qkv(w_q: ArrayLike, w_k: ArrayLike, w_v: ArrayLike, *, heads: int, kv_heads: int, world: int) -> tuple[list[Array], ...]:
    """Whole heads for each rank: three lists of R arrays, the columns of its query heads and of the key/value heads they read.

        rank r: query heads r H / R … (r + 1) H / R - 1, and the kv heads h // (H / Hkv) of these

    w_q (C, H D), w_k, w_v (C, Hkv D) and (C, Hkv Dv). Fewer kv heads than ranks: each is held by R / Hkv ranks, whose gradients
    of it have then to be added up. Attention on a rank is attention of a model of H / R heads.

    >>> q, k, v = shard_qkv([[1, 2, 3, 4]], [[5]], [[6]], heads=4, kv_heads=1, world=2)
    >>> [a.tolist() for a in q], [a.tolist() for a in k]
    ([[[1, 2]], [[3, 4]]], [[[5]], [[5]]])

    Bits move, and the dtype stays. Raises ValueError where R does not divide the heads, or neither of R and the kv heads the
    other. Error bound: 0. Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; fewer kv heads: Pope et al. 2022 (arXiv 2211.05102).
    """
    H, Hkv, R = (arguments.whole_number(name, n, least=1) for name, n in (("heads", heads), ("kv_heads", kv_heads), ("world", world)))
    if H % Hkv:
        raise ValueError(f"kv_heads: got {Hkv} for {H} query heads; want a divisor of {H}")
    if H % R:
        raise ValueError(f"world: got {R} ranks for {H} query heads; want a divisor of {H}")
    if Hkv % R and R % Hkv:
        raise ValueError(f"world: got {R} ranks for {Hkv} key/value heads; want a divisor or a multiple of {Hkv}: heads stay whole")
    kept = max(Hkv // R, 1)                                                     # kv heads of one rank
    first = [r * Hkv // R for r in range(R)]
    return (
        _heads("w_q", w_q, H, [range(r * H // R, (r + 1) * H // R) for r in range(R)]),
        _heads("w_k", w_k, Hkv, [range(f, f + kept) for f in first]),
        _heads("w_v", w_v, Hkv, [range(f, f + kept) for f in first]),
    )


def shard_fused_qkv(w: ArrayLike, *, layout: FusedLayout, heads: int, kv_heads: int, world: int) -> tuple[list[Array], ...]:
    """`shard_qkv` of one fused weight (C, (H + 2 Hkv) D), whatever its layout: a cut into R equal slices of columns is right for none.

        q_k_v      all queries, all keys, all values
        by_group   for each kv head: its H / Hkv query heads, its key, its value

    >>> q, k, v = shard_fused_qkv([[1, 2, 5, 6, 3, 4, 7, 8]], layout="by_group", heads=4, kv_heads=2, world=2)
    >>> q[1].tolist(), k[1].tolist(), v[1].tolist()
    ([[3, 4]], [[7]], [[8]])

    Raises as `shard_qkv`; ValueError for another layout or width. Error bound: 0. Source: deepspeedai/DeepSpeed#3844.
    """
    w = np.asarray(w)
    H, Hkv = arguments.whole_number("heads", heads, least=1), arguments.whole_number("kv_heads", kv_heads, least=1)
    if w.ndim != 2 or w.shape[1] % (H + 2 * Hkv) or H % Hkv:
        raise ValueError(f"w: got shape {w.shape}; want (C, ({H} + 2 * {Hkv}) D), and kv_heads a divisor of heads")
    C, D = w.shape[0], w.shape[1] // (H + 2 * Hkv)
    if layout == "q_k_v":
        q, k, v = np.split(w, [H * D, (H + Hkv) * D], axis=1)
    elif layout == "by_group":
        grouped = w.reshape(C, Hkv, H // Hkv + 2, D)                            # (C, Hkv, G + 2, D)
        q, k, v = grouped[:, :, :-2].reshape(C, H * D), grouped[:, :, -2].reshape(C, Hkv * D), grouped[:, :, -1].reshape(C, Hkv * D)
    else:
        raise ValueError(f"layout: got {layout!r}; want q_k_v or by_group")
    return shard_qkv(q, k, v, heads=H, kv_heads=Hkv, world=world)


def norm_backward_sharded(
    x_shards: Sequence[ArrayLike], weight: ArrayLike, dout_shards: Sequence[ArrayLike], *, eps: float = 1e-6, sharded: Sharded
) -> tuple[list[Float64], list[Float64]]:
    """The backward pass of `rms_norm` of which each rank has some of the vectors: dx, R arrays, and dweight, R equal arrays (D,).

        n = x / r,  r = sqrt(mean(x^2) + eps)          dx = (w dy - n mean(w dy n)) / r          dw = sum over all vectors of dy n

    x_r, dy_r (T, H, D): parts of the tokens (sequence parallelism) or of the heads; the weight is everywhere the same. Either
    way the gradient of the weight on a rank is a part of the sum, and one all_reduce is due (NVIDIA/Megatron-LM#1446 had none for
    tokens, NVIDIA/Megatron-LM#7452 none for heads): a sum, no mean.

    >>> dx, dw = norm_backward_sharded([[[[1.0]]], [[[2.0]]]], [1.0], [[[[1.0]]], [[[3.0]]]], eps=0.0, sharded="tokens")
    >>> dw
    [array([4.]), array([4.])]

    Raises ValueError for shapes that do not fit and for another word. Error bound: `properties.bounds.norm_backward_sharded_bound`.
    Source: Zhang and Sennrich 2019 (arXiv 1910.07467); Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.
    """
    x = [arguments.widen(f"x_shards[{r}]", a, ndim=3) for r, a in enumerate(_some("x_shards", x_shards))]
    dy = [arguments.widen(f"dout_shards[{r}]", a, b.shape) for (r, a), b in zip(enumerate(_as_many("dout_shards", dout_shards, len(x))), x)]
    if sharded not in ("tokens", "heads"):
        raise ValueError(f"sharded: got {sharded!r}; want tokens or heads")
    other = 1 if sharded == "tokens" else 0                                     # the axis of which every rank has all
    for r, a in enumerate(x):
        if a.shape[2] != x[0].shape[2] or a.shape[other] != x[0].shape[other] or a.shape[2] == 0:
            raise ValueError(f"x_shards[{r}]: got shape {a.shape} beside {x[0].shape}; want parts of the {sharded} only")
    w = arguments.widen("weight", weight, x[0].shape[2:])
    eps = not_negative("eps", eps)
    dx, partial = [], []
    for a, d in zip(x, dy):
        r = np.sqrt((a * a).mean(axis=-1, keepdims=True) + eps)                 # (T, H, 1)
        n = a / r
        dx.append((w * d - n * (w * d * n).mean(axis=-1, keepdims=True)) / r)
        partial.append((d * n).sum(axis=(0, 1)))                                # (D,), to be added up
    return dx, list(all_reduce(partial)[0])


def clip_grad_norm_sharded(grads: Sequence[ArrayLike], placement: ArrayLike, *, max_norm: float) -> tuple[list[Float64], Float64]:
    """`clip_grad_norm` of gradients some of which are cut over R ranks and some of which every rank holds: K arrays (R, ...), the norm.

        norm^2 = sum over sharded ones of the squares of all ranks + sum over replicated ones of the squares of one rank

    grads: K arrays (R, ...), row r what rank r holds. placement (K,): 0 replicated, 1 sharded. A replicated gradient counts once,
    not once a rank (ROCm/TransformerEngine#715).

    >>> grads, norm = clip_grad_norm_sharded([[[4.0], [4.0]], [[0.0], [3.0]]], [0, 1], max_norm=2.5)
    >>> float(norm), [g.tolist() for g in grads]
    (5.0, [[[2.0], [2.0]], [[0.0], [1.5]]])

    Raises PlacementError naming gradient and ranks where a replicated gradient differs from rank to rank, for its all_reduce is
    missing; ValueError for shapes that do not fit and max_norm < 0. Error bound: (n / 2 + R + 4) u of each element.
    Source: Pascanu, Mikolov and Bengio 2013 (arXiv 1211.5063), algorithm 1; NVIDIA-NeMo/RL#3788.
    """
    g = [arguments.widen(f"grads[{k}]", a) for k, a in enumerate(grads)]
    kinds = arguments.integers("placement", placement, (len(g),), least=0, most=1).tolist()
    limit = not_negative("max_norm", max_norm)
    for k, (a, kind) in enumerate(zip(g, kinds)):
        if a.ndim == 0 or a.shape[0] != g[0].shape[0] or a.shape[0] == 0:
            raise ValueError(f"grads[{k}]: got shape {a.shape}; want ({g[0].shape[0] if g[0].ndim else 'R'}, ...), a row for each rank")
        differ = [] if kind else [r for r in range(1, len(a)) if not np.array_equal(a[r], a[0], equal_nan=True)]
        if differ:
            raise PlacementError(f"clip_grad_norm_sharded: grads[{k}]: said to be replicated over tp, but rank {differ[0]} holds another "
                                 f"than rank 0; an all_reduce over tp is missing before it")  # fmt: skip
    if not g:
        return [], np.asarray(0.0)
    replicated = global_norm([a[0] for a, kind in zip(g, kinds) if not kind])
    local = [np.array([global_norm([a[r] for a, kind in zip(g, kinds) if kind])]) for r in range(len(g[0]))]
    norm = global_norm([all_gather(local)[0][0], np.array([replicated])])
    if norm <= limit:
        return g, np.asarray(norm)
    factor = limit / norm if np.isfinite(norm) else np.nan
    return [a * factor for a in g], np.asarray(norm)


def _heads(name: str, w: ArrayLike, heads: int, ranks: Sequence[range]) -> list[Array]:
    """The columns of each rank's heads, w being (C, heads D)."""
    w = np.asarray(w)
    if w.ndim != 2 or w.shape[1] % heads:
        raise ValueError(f"{name}: got shape {w.shape}; want (C, {heads} D)")
    D = w.shape[1] // heads
    return [w[:, own.start * D : own.stop * D].copy() for own in ranks]


def _some(name: str, shards: Sequence[ArrayLike]) -> Sequence[ArrayLike]:
    if len(shards) == 0:
        raise ValueError(f"{name}: got none; want one for each rank, at least one")
    return shards


def _as_many(name: str, shards: Sequence[ArrayLike], R: int) -> Sequence[ArrayLike]:
    if len(shards) != R:
        raise ValueError(f"{name}: got {len(shards)}; want {R}, one for each rank")
    return shards
