"""Textbook forms of the decoding operations, in float32 (float64 for float64): what mutants are made of, and no oracle is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Probabilities, which tokens are left, their descending order, top_p -> which of them top-p keeps.
Nucleus = Callable[[Array, Array, Array, Any], Array]


def working(x: Any) -> Array:
    """The array in the format that is computed in."""
    return np.asarray(x, dtype=np.float64 if np.asarray(x).dtype == np.float64 else np.float32)


def per_row(x: Any, n: int) -> list[Any]:
    """A parameter for each of n rows."""
    return [None] * n if x is None else list(np.broadcast_to(np.asarray(x), (n,)))


def softmax(z: Array, temperature: Any) -> Array:
    """The probabilities of one row; temperature 0 is one-hot at the first of the largest."""
    if temperature == 0:
        return np.asarray(np.arange(len(z)) == z.argmax(), dtype=z.dtype)
    e = np.exp((z - z.max()) / z.dtype.type(temperature))
    return np.asarray(e / e.sum())


def shortest_prefix(p: Array, kept: Array, order: Array, top_p: Any) -> Array:
    """Tokens with less than the share top_p of what is left before them."""
    w = np.where(kept, p, 0)[order]
    inside = np.zeros(len(p), dtype=bool)
    inside[order] = np.cumsum(w) - w < top_p * w.sum()
    return inside


def filter_row(z: Array, temperature: Any, top_k: Any, top_p: Any, min_p: Any, *, nucleus: Nucleus = shortest_prefix) -> Array:
    """One row: temperature, top-k, top-p, min-p, what is kept over its sum."""
    p = softmax(z, temperature)
    if temperature == 0:
        return p
    order, kept = np.argsort(-z, kind="stable"), np.ones(len(z), dtype=bool)
    if top_k is not None:
        kept[order[int(top_k) :]] = False
    if top_p is not None:
        kept &= nucleus(p, kept, order, p.dtype.type(top_p))
    if min_p is not None:
        kept &= p >= p.dtype.type(min_p) * p.max()
    w = np.where(kept, p, 0)
    return np.asarray(w / w.sum())


def filtered(logits: Any, row: Callable[..., Array] = filter_row, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None,
             min_p: Any = None) -> Array:
    """Every row by itself, in the format of the logits."""
    z = working(logits)
    columns = [per_row(x, len(z)) for x in (temperature, top_k, top_p, min_p)]
    rows = [row(z[i], *(column[i] for column in columns)) for i in range(len(z))]
    return np.array(rows, dtype=z.dtype).reshape(z.shape).astype(logits.dtype)


def penalised_row(z: Array, history: Array, output: Array, repetition: Any, frequency: Any, presence: Any) -> Array:
    """One row: repetition for the history, frequency and presence for the output."""
    seen = np.bincount(history[history >= 0], minlength=len(z)) > 0
    n = np.bincount(output[output >= 0], minlength=len(z)).astype(z.dtype)
    r, f, once = (z.dtype.type(x) for x in (repetition, frequency, presence))
    z = np.where(seen, np.where(z > 0, z / r, z * r), z)
    return np.asarray(z - f * n - once * (n > 0))


def drawn(p: Array, u: Any) -> int:
    """The first token whose sum of weights exceeds u S."""
    c = np.cumsum(p)
    return min(int(np.searchsorted(c, u * c[-1], side="right")), int(np.flatnonzero(p)[-1]))


def residual(p: Array, q: Array) -> Array:
    """[p - q]+, p where that is 0 everywhere."""
    left = np.maximum(p - q, 0)
    return left if left.any() else p


def lengths_of(x: Array, draft_lengths: Any) -> list[int]:
    """How long each draft is: to the first -1, and no longer than said."""
    K = x.shape[1]
    ends = [int(np.flatnonzero(row < 0)[0]) if (row < 0).any() else K for row in x]
    return [min(n, int(m)) for n, m in zip(ends, [K] * len(ends) if draft_lengths is None else draft_lengths)]


def accepts(u: Any, q: Any, p: Any) -> bool:
    """The test of one draft token."""
    return bool(u * q < p)


def verified(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None,
    accept: Callable[..., bool] = accepts, rejected: Callable[[Array, Array], Array] = residual,
    bonus: Callable[[Array, Array, int], Array] = lambda p, q, n: p[n], draw: Callable[[Array, Any], int] = drawn,
) -> tuple[Array, Array]:  # fmt: skip
    """Verification row by row, its steps exchangeable."""
    B, K = draft_tokens.shape
    tokens, n_accepted = np.full((B, K + 1), -1, dtype=np.int64), np.zeros(B, dtype=np.int64)
    for b, n in enumerate(lengths_of(draft_tokens, draft_lengths)):
        x, q, p = draft_tokens[b, :n], working(draft_probs[b]), working(target_probs[b])
        j = 0
        while j < n and accept(accept_u[b, j], q[j, x[j]], p[j, x[j]]):
            j += 1
        weights = bonus(p, q, n) if j == n else rejected(p[j], q[j])
        tokens[b, : j + 1] = [*x[:j], draw(weights, sample_u[b])]
        n_accepted[b] = j
    return tokens, n_accepted


def ratio(w: Any, q: Any, p: Any) -> Any:
    """min(1, w p / q); 0 for a draft that the target never gives, 1 for one that only the target does."""
    return w * 0 if p == 0 or w == 0 else min(w * 0 + 1, w * (p / q)) if q > 0 else w * 0 + 1


def face(w: Any, s: Any) -> Any:
    """What the uniform must be below for a block of weight w, s of the target left after it, to be accepted."""
    return s / (s + (1 - w)) if s > 0 else s


def left_of(w: Any, p: Array, q: Array) -> Array:
    """What is drawn from after a block of weight w."""
    return residual(w * p, q)


def verified_by_block(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None,
    ratio: Callable[[Any, Any, Any], Any] = ratio, face: Callable[[Any, Any], Any] = face,
    left_of: Callable[[Any, Array, Array], Array] = left_of,
) -> tuple[Array, Array]:  # fmt: skip
    """Verification by block, row by row, its steps exchangeable."""
    B, K = draft_tokens.shape
    tokens, n_accepted = np.full((B, K + 1), -1, dtype=np.int64), np.zeros(B, dtype=np.int64)
    for b, n in enumerate(lengths_of(draft_tokens, draft_lengths)):
        x, q, p = draft_tokens[b, :n], working(draft_probs[b]), working(target_probs[b])
        w, t = [p.dtype.type(1)], 0
        for j in range(1, n + 1):
            w.append(ratio(w[-1], q[j - 1, x[j - 1]], p[j - 1, x[j - 1]]))
            if accept_u[b, j - 1] < (w[j] if j == n else face(w[j], np.maximum(w[j] * p[j] - q[j], 0).sum())):
                t = j
        weights = p[n] if t == n else left_of(w[t], p[t], q[t])
        tokens[b, : t + 1] = [*x[:t], drawn(weights, sample_u[b])]
        n_accepted[b] = t
    return tokens, n_accepted


def cross_entropy(z: Array, target: int) -> Any:
    """lse(z) - z[target]."""
    m = z.max()
    return m + np.log(np.exp(z - m).sum()) - z[target]


def mtp_loss(logits: Any, tokens: Any, *, weights: Any = None, segments: Any = None, ignore_index: int = -100, shift: int = 0,
             reduce: Callable[[list[Any]], Any] = lambda losses: sum(losses) / len(losses)) -> Array:
    """Head by head, place by place, in the format of the logits. shift: how much further each head looks."""
    z = working(logits)
    K, T, _ = z.shape
    documents = np.zeros(T) if segments is None else segments
    total = z.dtype.type(0)
    for j in range(1, K + 1):
        places = [t for t in range(T - j - shift) if documents[t + j + shift] == documents[t] and tokens[t + j + shift] != ignore_index]
        if places:
            losses = [cross_entropy(z[j - 1, t], tokens[t + j + shift]) for t in places]
            total = total + (1 if weights is None else weights[j - 1]) * reduce(losses)
    return np.asarray(total).astype(logits.dtype)
