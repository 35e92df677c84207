"""Cross-entropy of next-token prediction, whole or over a sharded vocabulary. Its gradient is left to losses_backward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Float64, Int64
from .scored_rows import log_sums, scored_rows


def cross_entropy(
    logits: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    z_loss: float = 0.0, reduction: str,
) -> Float64:  # fmt: skip
    """The cross-entropy of rows of logits (..., V) and targets (...): float64, () or (...) for reduction "none".

        loss_i = sum_c a_c (lse - z_c) + z_loss w_y lse^2,   a_c = w_c ((1 - e) [c = y] + e / V),   e = label_smoothing
        "sum": sum_i loss_i     "mean": sum_i loss_i / sum_i w_y     "none": loss_i

    weights (V,): w, 1 each where None. Rows whose target is ignore_index count nowhere, whatever their logits hold; with
    "none" they are 0, and the mean of no rows (or of weight 0) is 0. A logit of -inf is a class of probability 0: its loss is
    inf where a_c > 0, and nothing where not. NaN or +inf in a row that counts, or nothing but -inf, gives NaN.

    >>> float(cross_entropy([[0.0, 1.0, 2.0, 3.0]], [3], reduction="mean").round(7))
    0.4401897
    >>> float(cross_entropy([[40.0, 0.0]], [0], reduction="sum")) == float(np.log1p(np.exp(-40.0)))
    True

    Raises TypeError and ValueError for shapes that do not meet, classes outside 0..V-1, unknown reductions.
    Error bound: with d = m - z >= 0, all terms of sum_c a_c (log1p(sum of the others) + d_c) are >= 0: (V + 8) u of it, as the rounding
    of z - m is made up for; 4 ulp on the golden values (docs/golden.md).
    Source: Szegedy et al. 2016 (arXiv 1512.00567), section 7; z_loss: Chowdhery et al. 2022 (arXiv 2204.02311), section 5;
    ignored targets in the denominator: pytorch/pytorch#69339.
    """
    rows = scored_rows(logits, targets, weights=weights, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    loss = _row_losses(rows.z, rows.a, rows.w, arguments.real_number("z_loss", z_loss))
    if reduction == "none":
        return rows.spread(loss)
    total = rows.w.sum() if reduction == "mean" else 1.0
    return np.asarray(loss.sum() / total if total > 0.0 else 0.0)


def _row_losses(z: Float64, a: Float64, w: Float64, z_loss: float) -> Float64:
    """The loss of each row: (n,)."""
    with np.errstate(invalid="ignore"):
        m, rest = log_sums(z)                                                   # (n, 1), rest = lse - m
        above = np.where(a > 0.0, a * (m - z), 0.0)                             # (n, V): a class without weight may be -inf
        loss = a.sum(axis=-1) * rest[:, 0] + above.sum(axis=-1)
        return np.asarray(loss + z_loss * w * (m + rest)[:, 0] ** 2 if z_loss else loss)    # lse^2 may overflow, and 0 * inf is NaN


def vocab_parallel_cross_entropy(
    shards: Sequence[ArrayLike] | Array, targets: ArrayLike, *, ignore_index: int = -100, label_smoothing: float = 0.0,
    z_loss: float = 0.0, reduction: str,
) -> Float64:  # fmt: skip
    """`cross_entropy` of logits whose vocabulary is cut into R equal parts: shards, R arrays (..., V/R) or one (R, ..., V/R).

        m = max_r max z_r          l = sum_r sum e^(z_r - m)          z_y from the one shard that holds class y
        loss_i = (1 - e) (lse - z_y) + e (lse - sum_r sum z_r / V) + z_loss lse^2,   lse = m + ln l

    Three reductions over ranks: a maximum, and two sums. What a rank has left over is never its own mean: the smoothing term
    is over all V classes (NVIDIA/Megatron-LM#737), and each shard holds other classes (NVIDIA/Megatron-LM#7452).

    >>> float(vocab_parallel_cross_entropy([[[0.0, 1.0]], [[2.0, 3.0]]], [3], reduction="mean").round(7))
    0.4401897

    Raises as `cross_entropy`; ValueError for no shard, and for shards of different shapes.
    Error bound: (V + R + 8) u (|lse| + |z_y|) a row: not `cross_entropy`'s log1p, since no rank sees all the others.
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; Szegedy et al. 2016 (arXiv 1512.00567), section 7.
    """
    parts = [arguments.widen(f"shards[{r}]", shard) for r, shard in enumerate(shards)]
    if not parts or parts[0].ndim == 0:
        raise ValueError(f"shards: got {len(parts)} parts; want at least one of shape (..., V/R)")
    for r, part in enumerate(parts):
        if part.shape != parts[0].shape:
            raise ValueError(f"shards[{r}]: got shape {part.shape}; want that of the first, {parts[0].shape}")
    n = parts[0].shape[-1]
    rows = scored_rows(np.concatenate(parts, axis=-1), targets, weights=None, ignore_index=ignore_index, label_smoothing=label_smoothing,
                       reduction=reduction)  # fmt: skip
    local = [part.reshape(rows.counts.size, n)[rows.counts] for part in parts]  # R of (rows, V/R)
    m = np.max([z.max(axis=-1) for z in local], axis=0)                         # all-reduce, max
    with np.errstate(invalid="ignore", divide="ignore"):
        l = np.sum([np.exp(z - m[:, None]).sum(axis=-1) for z in local], axis=0)                    # all-reduce, sum
        lse = m + np.log(l)
        e, held = float(label_smoothing), np.arange(rows.y.size)
        z_y = np.sum([np.where(rows.y // n == r, z[held, rows.y % n], 0.0) for r, z in enumerate(local)], axis=0)
        mean = np.sum([z.sum(axis=-1) for z in local], axis=0) / (n * len(local)) if e > 0.0 else lse
        loss = (1.0 - e) * (lse - z_y) + e * (lse - mean) + float(z_loss) * lse**2
    if reduction == "none":
        return rows.spread(loss)
    return np.asarray(loss.sum() / max(loss.size, 1) if reduction == "mean" else loss.sum())


def perplexity(logits: ArrayLike, targets: ArrayLike, *, ignore_index: int = -100) -> Float64:
    """e to the mean cross-entropy over the targets that are not ignored: float64 (); 1 where all are.

    The mean over all tokens at once, not the mean of the perplexities of parts of them.

    >>> float(perplexity(np.zeros((3, 8)), [1, 2, -100]).round(12))
    8.0

    Raises as `cross_entropy`. Error bound: e^loss times the bound of the loss.
    Source: Jelinek et al. 1977 (doi 10.1121/1.2016299).
    """
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(cross_entropy(logits, targets, ignore_index=ignore_index, reduction="mean")))


def next_token_targets(
    tokens: ArrayLike, *, prompt_lengths: ArrayLike | None = None, segments: ArrayLike | None = None, ignore_index: int = -100,
) -> Int64:  # fmt: skip
    """What each position of tokens (B, T) is to predict, the token after it, or ignore_index: int64 (B, T).

        target[b, t] = tokens[b, t + 1]   where t + 1 < T,   t + 1 >= prompt_lengths[b],   segments[b, t + 1] = segments[b, t]

    The first token of an answer is predicted from the last of the prompt, so prompts of P tokens leave P - 1 positions out
    (NVIDIA-NeMo/Speech#6409). segments (B, T): packed documents; the last token of one predicts nothing of the next
    (meta-pytorch/torchtune#2613). Targets are shifted here and nowhere else (Project-MONAI/GenerativeModels#314).

    >>> next_token_targets([[5, 6, 7, 8, 9]], prompt_lengths=[3])
    array([[-100, -100,    8,    9, -100]])
    >>> next_token_targets([[1, 2, 3, 4]], segments=[[0, 0, 1, 1]])
    array([[   2, -100,    4, -100]])

    Raises TypeError for tokens that are no integers, ValueError for shapes that do not meet and prompts of negative length.
    Exact. Source: Radford et al. 2018, Improving Language Understanding by Generative Pre-Training, equation 1.
    """
    x = arguments.integers("tokens", tokens, least=-2**63, most=2**63 - 1)
    if x.ndim != 2:
        raise ValueError(f"tokens: got shape {x.shape}; want (B, T)")
    B, T = x.shape
    most = 2**63 - 1
    P = np.zeros(B, np.int64) if prompt_lengths is None else arguments.integers("prompt_lengths", prompt_lengths, (B,), least=0, most=most)
    documents = np.zeros((B, T), np.int64) if segments is None else arguments.integers(
        "segments", segments, (B, T), least=-2**63, most=most)
    ignored = arguments.whole_number("ignore_index", ignore_index, least=-2**63)
    target = np.full((B, T), ignored, dtype=np.int64)
    trained = (np.arange(1, T) >= P[:, None]) & (documents[:, 1:] == documents[:, :-1])             # (B, T - 1)
    target[:, :-1] = np.where(trained, x[:, 1:], ignored)
    return target
