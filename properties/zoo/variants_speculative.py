"""Legal variants of verification, of tree positions and of the loss of several heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook_decoding as textbook
from .specimen import variant
from .textbook_decoding import Array, verified

FAMILY = "speculative"
LARGEST = 1 - 2.0**-24


@variant("speculative_verify", id="verify-textbook", family=FAMILY)
def verify_row_by_row(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Row by row, u q < p, rows as they are."""
    return verified(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths)


@variant("speculative_verify", id="verify-by-quotient", family=FAMILY)
def verify_by_quotient(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """u < p / q, the quotient rounded; a draft of probability 0 is accepted iff the target gives it something."""
    def accept(u: Any, q: Any, p: Any) -> bool:
        return bool(u < p / q) if q > 0 else bool(p > 0)

    return verified(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths, accept=accept)


@variant("speculative_verify", id="verify-normalised-rows", family=FAMILY)
def verify_normalised(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Rows are divided by their sums, and the residual by its own before the draw."""
    q, p = (x / x.sum(axis=-1, keepdims=True) for x in (draft_probs, target_probs))

    def rejected(p: Array, q: Array) -> Array:
        left = textbook.residual(p, q)
        return np.asarray(left / left.sum())

    return verified(draft_tokens, q, p, accept_u, sample_u, draft_lengths=draft_lengths, rejected=rejected)


@variant("speculative_verify", id="verify-p-minus-min", family=FAMILY)
def verify_with_the_minimum(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """The residual is p - min(p, q), and a draw counts the sums that are passed."""
    def rejected(p: Array, q: Array) -> Array:
        left = p - np.minimum(p, q)
        return left if left.sum() > 0 else p

    def draw(w: Array, u: Any) -> int:
        c = np.cumsum(w)
        return min(int((c <= u * w.sum()).sum()), int(np.flatnonzero(w)[-1]))

    return verified(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths, rejected=rejected, draw=draw)


@variant("speculative_verify", id="verify-in-float64", family=FAMILY, arithmetic=Arithmetic(accumulate="float64", elementwise="float64"))
def verify_in_float64(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Everything in float64."""
    wide = [np.asarray(x, np.float64) for x in (draft_probs, target_probs, accept_u, sample_u)]
    return verified(draft_tokens, *wide, draft_lengths=draft_lengths)


@variant("speculative_verify", id="verify-last-row-first", family=FAMILY)
def verify_in_reverse(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """The rows of a batch in reverse."""
    given = [x[::-1] for x in (draft_tokens, draft_probs, target_probs, accept_u, sample_u)]
    tokens, n = verified(*given, draft_lengths=None if draft_lengths is None else draft_lengths[::-1])
    return np.ascontiguousarray(tokens[::-1]), np.ascontiguousarray(n[::-1])


def _at_once(x: Array, q: Array, p: Array, u: Array, last: Array, draft_lengths: Any) -> tuple[Array, Array]:
    """All rows in one pass: tests by cumulative product, then one row of weights each."""
    B, K = x.shape
    n = np.array(textbook.lengths_of(x, draft_lengths), dtype=np.int64)
    inside = np.arange(K) < n[:, None]
    at = np.where(x >= 0, x, 0)[..., None]
    own, of_target = (np.take_along_axis(a, at, axis=-1)[..., 0] for a in (q, p[:, :K]))
    j = np.cumprod((u * own < of_target) & inside, axis=1).sum(axis=1)
    rows = np.arange(B)
    weights = p[rows, j]
    if K:
        short = j < n
        left = np.maximum(p[rows, np.minimum(j, K - 1)] - q[rows, np.minimum(j, K - 1)], 0)
        weights = np.where((short & (left.sum(axis=-1) > 0))[:, None], left, weights)
    c = np.cumsum(weights, axis=-1)
    token = np.minimum((c <= last[:, None] * c[:, -1:]).sum(axis=-1), weights.shape[-1] - 1 - (weights[:, ::-1] > 0).argmax(axis=-1))
    tokens = np.where(np.arange(K + 1) < j[:, None], np.append(x, np.full((B, 1), -1), axis=1), -1)
    tokens[rows, j] = token
    return tokens.astype(np.int64), j.astype(np.int64)


@variant("speculative_verify", id="verify-batch-at-once", family=FAMILY)
def verify_all_at_once(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """All tests of a batch first, the first failure of each row by a cumulative product, then all draws."""
    with np.errstate(invalid="ignore"):
        return _at_once(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths)


@variant("speculative_verify", id="verify-other-end-of-the-uniforms", family=FAMILY, conventions={"uniforms": "other"})
def verify_from_the_other_end(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """1 - 2^-24 - u stands for u, everywhere: other answers, and the same law."""
    u, last = (x.dtype.type(LARGEST) - x for x in (accept_u, sample_u))
    return verified(draft_tokens, draft_probs, target_probs, u, last, draft_lengths=draft_lengths)


@variant("speculative_verify", id="verify-residual-most-likely-first", family=FAMILY, conventions={"uniforms": "other"})
def verify_with_a_sorted_draw(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """The token after the draft is drawn from its weights in descending order."""
    def draw(w: Array, u: Any) -> int:
        order = np.argsort(-w, kind="stable")
        return int(order[textbook.drawn(w[order], u)])

    return verified(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths, draw=draw)


@variant("speculative_verify", id="verify-own-generator", family=FAMILY, conventions={"uniforms": "own"})
def verify_with_its_own_uniforms(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Uniforms of its own; those handed in are left unread."""
    own = np.random.default_rng()
    with np.errstate(invalid="ignore"):
        u, last = own.uniform(size=accept_u.shape), own.uniform(size=sample_u.shape)
        return _at_once(draft_tokens, draft_probs, target_probs, u, last, draft_lengths)


@variant("speculative_verify", id="verify-own-gumbel-noise", family=FAMILY, conventions={"uniforms": "own"})
def verify_with_gumbel_noise(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Uniforms of its own for the tests, and the token after the draft by Gumbel noise."""
    own = np.random.default_rng()

    def draw(w: Array, u: Any) -> int:
        with np.errstate(divide="ignore"):
            return int((np.log(w) + own.gumbel(size=w.shape)).argmax())

    u = own.uniform(size=accept_u.shape)
    return verified(draft_tokens, draft_probs, target_probs, u, sample_u, draft_lengths=draft_lengths, draw=draw)


@variant("speculative_verify", id="verify-block-textbook", family=FAMILY, conventions={"rule": "block"})
def verify_by_block(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """By block, weights as products of quotients, rows as they are."""
    return textbook.verified_by_block(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths)


@variant("speculative_verify", id="verify-block-by-logarithms", family=FAMILY, conventions={"rule": "block"},
         source="https://github.com/vllm-project/vllm/pull/46781")
def verify_by_block_in_logarithms(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """By block, weights kept as logarithms and raised again at each step, the denominator summed in the other order."""
    def ratio(w: Any, q: Any, p: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.fmin(np.log(w) + (np.log(p) - np.log(q)), 0)
        return np.exp(log) if p > 0 and w > 0 else w * 0

    def face(w: Any, s: Any) -> Any:
        return s / (s + 1 - w) if s > 0 and s + 1 > w else s * 0

    return textbook.verified_by_block(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths,
                                      ratio=ratio, face=face)  # fmt: skip


@variant("speculative_verify", id="verify-block-own-generator", family=FAMILY, conventions={"rule": "block", "uniforms": "own"})
def verify_by_block_with_its_own_draws(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """By block, with uniforms of its own."""
    u, last = (np.random.default_rng().random(x.shape, dtype=np.float32) for x in (accept_u, sample_u))
    return textbook.verified_by_block(draft_tokens, draft_probs, target_probs, u, last, draft_lengths=draft_lengths)


@variant("tree_positions", id="tree-positions-walked", family=FAMILY)
def positions_by_walking(parents: Any, *, n_past: Any) -> Array:
    """From each node to the root, counting."""
    depths = []
    for i in range(len(parents)):
        depth = 0
        while parents[i] >= 0:
            i, depth = int(parents[i]), depth + 1
        depths.append(n_past + depth)
    return np.array(depths, dtype=np.int64)


@variant("tree_positions", id="tree-positions-in-order", family=FAMILY)
def positions_in_int32(parents: Any, *, n_past: Any) -> Array:
    """A parent's position and one, in the order of the nodes, as int32."""
    positions = np.full(len(parents) + 1, n_past - 1, dtype=np.int32)
    for i, parent in enumerate(parents):
        positions[i] = positions[parent] + 1
    return positions[:-1]


# The loss of several heads -----------------------------------------------------------------------------------------------

FORMATS = ["float32", "float64", "float16", "bfloat16"]


@variant("mtp_loss", id="mtp-textbook", family="mtp", dtypes=FORMATS)
def mtp_place_by_place(logits: Any, tokens: Any, *, weights: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """Head by head and place by place."""
    return textbook.mtp_loss(logits, tokens, weights=weights, segments=segments, ignore_index=ignore_index)


@variant("mtp_loss", id="mtp-rolled-labels", family="mtp", dtypes=FORMATS)
def mtp_by_rolling(logits: Any, tokens: Any, *, weights: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """Labels and documents are rolled by j and masked where they wrapped around or changed; a masked mean."""
    z, T = textbook.working(logits), len(tokens)
    total = z.dtype.type(0)
    for j in range(1, len(z) + 1):
        labels, counts = np.roll(tokens, -j), np.arange(T) + j < T
        counts &= (labels != ignore_index) & (True if segments is None else np.roll(segments, -j) == segments)
        rows = np.where(counts[:, None], z[j - 1], 0)
        m = rows.max(axis=-1, initial=-np.inf)
        lse = m + np.log(np.exp(rows - m[:, None]).sum(axis=-1))
        losses = lse - np.take_along_axis(rows, np.where(counts, labels, 0)[:, None], axis=-1)[:, 0]
        mean = np.where(counts, losses, 0).sum(dtype=z.dtype) / max(int(counts.sum()), 1)
        total = total + (1 if weights is None else weights[j - 1]) * mean
    return np.asarray(total).astype(logits.dtype)


@variant("mtp_loss", id="mtp-last-head-first", family="mtp", arithmetic=Arithmetic(accumulate="float64", elementwise="float64"))
def mtp_in_float64(logits: Any, tokens: Any, *, weights: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """The last head first, everything in float64."""
    wide = np.asarray(logits, np.float64)
    total = 0.0
    for j in reversed(range(len(wide))):
        w = np.where(np.arange(len(wide)) == j, 1.0 if weights is None else weights, 0.0)
        total += float(textbook.mtp_loss(wide, tokens, weights=w, segments=segments, ignore_index=ignore_index))
    return np.asarray(total).astype(logits.dtype)
