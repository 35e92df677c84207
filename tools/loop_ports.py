"""Our own generation loops for a whole batch in step: every pass of all texts at once, by arrays. See own_ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.properties import Arithmetic, subject

Array = NDArray[Any]
FLOAT64 = Arithmetic(out="float64", accumulate="float64", elementwise="float64", lse="float64")
Draft = Callable[[int, Array, Array], Array]                                    # depth, the last two tokens (B,) -> laws (B, V)


@subject("speculative_loop", arithmetic=FLOAT64, promises=["deterministic"])
def speculative_loop_in_step(target: Any, draft: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None) -> Any:
    """All texts of a batch pass by pass; those that have ended are carried along unchanged."""
    q = _unit(draft)
    return _in_step(lambda j, a, b: q[a, b], _unit(target), prompt, uniforms, eos, forbidden, silent_first=False)


@subject("mtp_loop", arithmetic=FLOAT64, promises=["deterministic"])
def mtp_loop_in_step(target: Any, heads: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None) -> Any:
    """As `speculative_loop_in_step`, with own heads."""
    q = _unit(heads)
    return _in_step(lambda j, a, b: q[j, a, b], _unit(target), prompt, uniforms, eos, forbidden, silent_first=True)


def _in_step(draft: Draft, p: Array, prompt: Array, uniforms: Array, eos: int | None, forbidden: Array | None, *,
             silent_first: bool) -> Any:
    (B, N, width), P = uniforms.shape, prompt.shape[1]
    K, u, rows = (width - 1) // 2, np.asarray(uniforms, np.float64), np.arange(B)
    text = np.zeros((B, 1 + P + N + K + 1), dtype=np.int64)                     # a 0 before the first token, drafts behind the last
    text[:, 1 : 1 + P], length = prompt, np.full(B, 1 + P)
    n_accepted, open_ = np.full((B, N), -1, dtype=np.int64), np.full(B, N > 0)
    for i in range(N):
        k = 0 if silent_first and i == 0 else K
        at, q = np.minimum(length, text.shape[1] - K - 1), np.zeros((B, k + 1, p.shape[-1]))
        written = text.copy()
        for j in range(k):
            a, b = written[rows, at + j - 2], written[rows, at + j - 1]
            q[:, j] = _allowed(draft(j, a, b), b, forbidden)
            written[rows, at + j] = _drawn(q[:, j], u[:, i, j])
        place = at[:, None] + np.arange(k + 1)                                  # (B, k + 1)
        before, x = written[rows[:, None], place - 2], written[rows[:, None], place - 1]
        laws = _allowed(p[before, x], x, forbidden)                             # (B, k + 1, V)
        own, of_target = (np.take_along_axis(law, written[rows[:, None], place][..., None], axis=-1)[:, :k, 0] for law in (q, laws))
        n = np.cumprod(u[:, i, K : K + k] * own < of_target, axis=1).sum(axis=1)
        left = np.maximum(laws[rows, n] - q[rows, n], 0.0)                      # q is 0 behind the drafts: the bonus
        written[rows, at + n] = _drawn(np.where(left.any(axis=-1, keepdims=True), left, laws[rows, n]), u[:, i, 2 * K])
        text[open_], n_accepted[open_, i] = written[open_], n[open_]
        length = np.where(open_, length + n + 1, length)
        new = (np.arange(text.shape[1]) >= 1 + P) & (np.arange(text.shape[1]) < length[:, None])
        open_ = open_ & (length < 1 + P + N) & ~((text == eos) & new).any(axis=1)
    tokens, place = text[:, 1 + P : 1 + P + N], np.arange(N)
    ended = np.cumsum(tokens == eos, axis=1) - (tokens == eos) > 0
    return np.where(ended | (place >= (length - 1 - P)[:, None]), -1, tokens), n_accepted


def _unit(table: Any) -> Array:
    wide = np.asarray(table, np.float64)
    return np.asarray(wide / wide.sum(axis=-1, keepdims=True))


def _allowed(law: Array, last: Array, forbidden: Array | None) -> Array:
    """Laws (..., V) without what may not follow the last tokens (...)."""
    if forbidden is None:
        return law
    left = np.where(forbidden[last], 0.0, law)
    left = np.where(left.any(axis=-1, keepdims=True), left, law)
    return np.asarray(left / left.sum(axis=-1, keepdims=True))


def _drawn(w: Array, u: Array) -> Array:
    """The first token of each row whose sum exceeds u S."""
    c = np.cumsum(w, axis=-1)
    reached = c > (u * c[:, -1])[:, None]
    return np.asarray(np.where(reached.any(axis=-1), reached.argmax(axis=-1), w.shape[-1] - 1 - (w[:, ::-1] > 0).argmax(axis=-1)))
