"""Mutants of the speculative family: the wrong distribution after an acceptance or a rejection, the wrong test, the wrong position."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_decoding as textbook
from .specimen import mutant
from .textbook_decoding import Array, verified

FAMILY = "speculative"


def _one_draft(x: int, q: list[float], p: list[float], u: float, last: float, *, after: list[float] | None = None) -> dict[str, Any]:
    """Arguments of one draft of one token, the same target after it unless another is given."""
    target = np.array([[p, p if after is None else after]], np.float32)
    return {"draft_tokens": np.array([[x]]), "draft_probs": np.array([[q]], np.float32), "target_probs": target,
            "accept_u": np.array([[u]], np.float32), "sample_u": np.array([last], np.float32)}  # fmt: skip


@mutant(
    "speculative_verify", id="bonus-after-all-accepted-from-residual", family=FAMILY, source="https://github.com/SafeAILab/EAGLE/pull/47",
    trigger=lambda: _one_draft(1, [0, 1, 0], [0, 1, 0], 0.0, 0.5, after=[0, 0, 1]),
)  # fmt: skip
def bonus_of_the_row_before(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """After a draft that was accepted whole, the extra token is drawn from the distribution of its last token, adjusted already."""
    def before(p: Array, q: Array, n: int) -> Array:
        return textbook.residual(p[n - 1], q[n - 1]) if n else p[0]

    return verified(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths, bonus=before)


@mutant(
    "speculative_verify", id="equality-acceptance-at-nonzero-temperature", family=FAMILY,
    source="https://github.com/ml-explore/mlx-swift-lm/pull/459",
    trigger=lambda: _one_draft(0, [0.4, 0.6], [0.6, 0.4], 0.75, 0.5),
)  # fmt: skip
def accepted_where_a_draw_agrees(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """A draft token is accepted iff a draw of the target gives the same; where it does not, a second draw comes out."""
    B, K = draft_tokens.shape
    tokens, n_accepted = np.full((B, K + 1), -1, dtype=np.int64), np.zeros(B, dtype=np.int64)
    for b, n in enumerate(textbook.lengths_of(draft_tokens, draft_lengths)):
        p, j = textbook.working(target_probs[b]), 0
        while j < n and textbook.drawn(p[j], accept_u[b, j]) == draft_tokens[b, j]:
            j += 1
        tokens[b, : j + 1] = [*draft_tokens[b, :j], textbook.drawn(p[j], sample_u[b])]
        n_accepted[b] = j
    return tokens, n_accepted


@mutant(
    "speculative_verify", id="block-verification-by-the-rule-of-tokens", family=FAMILY, conventions={"rule": "block"},
    source="https://github.com/vllm-project/vllm-ascend/issues/7807",
    trigger=lambda: _one_draft(0, [0.75, 0.25], [0.5, 0.5], 0.5, 0.25) | {
        "draft_tokens": np.array([[0, 0]]), "draft_probs": np.array([[[0.75, 0.25], [0.5, 0.5]]], np.float32),
        "target_probs": np.array([[[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]], np.float32), "accept_u": np.array([[0.5, 0.9]], np.float32)},
)  # fmt: skip
def block_without_what_is_left_of_it(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """A block is accepted below its running product, as one token is below its ratio, and the residual after it knows nothing of it."""
    return textbook.verified_by_block(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths,
                                      face=lambda w, s: w, left_of=lambda w, p, q: textbook.residual(p, q))  # fmt: skip


@mutant(
    "speculative_verify", id="nan-draft-row-re-emits-rejected-token", family=FAMILY, source="https://github.com/vllm-project/vllm/pull/41834",
    trigger=lambda: _one_draft(0, [float("nan")] * 4, [1e-22, 0.97, 0.02, 0.01], 0.5, 0.5),
)  # fmt: skip
def nothing_left_is_token_0(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Where nothing is left of the residual, all scores are 0 and the first index wins: a NaN in the draft is one way there."""
    def left(p: Array, q: Array) -> Array:
        rest = np.fmax(p - q, 0)
        return rest if rest.any() else np.asarray(np.arange(len(p)) == 0, dtype=p.dtype)

    return verified(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths, rejected=left)


@mutant(
    "speculative_verify", id="proposal-q-not-the-sampled-one", family=FAMILY,
    source="https://github.com/huggingface/transformers/issues/47932 https://github.com/deepseek-ai/DeepSpec/issues/31",
    trigger=lambda: _one_draft(0, [0.8671, 0.1173, 0.0156], [0.3334, 0.3333, 0.3333], 0.45, 0.5),
)  # fmt: skip
def another_draft_than_the_one_drawn_from(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Drafts come from logits at temperature 1/2, and are judged by the probabilities at temperature 1: the roots, renormalised."""
    raw = np.sqrt(textbook.working(draft_probs))
    raw = raw / raw.sum(axis=-1, keepdims=True)
    return verified(draft_tokens, raw, target_probs, accept_u, sample_u, draft_lengths=draft_lengths)


def _one_target_for_two() -> dict[str, Any]:
    """Two drafts whose targets are one array in memory."""
    row = np.array([0.5, 0.3, 0.2], np.float32)
    return {"draft_tokens": np.array([[0], [1]]), "draft_probs": np.array([[[1, 0, 0]], [[0, 1, 0]]], np.float32),
            "target_probs": np.broadcast_to(row, (2, 2, 3)), "accept_u": np.array([[0.75], [0.75]], np.float32),
            "sample_u": np.array([0.1, 0.1], np.float32)}  # fmt: skip


@mutant(
    "speculative_verify", id="residual-mutates-target-in-place", family=FAMILY,
    source="https://github.com/vllm-project/vllm-ascend/pull/2881", trigger=_one_target_for_two,
)  # fmt: skip
def rejected_token_zeroed_in_the_target(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """The rejected token is zeroed in the target's own array before the residual is taken, for whoever reads it next."""
    B, K = draft_tokens.shape
    tokens, n_accepted = np.full((B, K + 1), -1, dtype=np.int64), np.zeros(B, dtype=np.int64)
    for b, n in enumerate(textbook.lengths_of(draft_tokens, draft_lengths)):
        x, j = draft_tokens[b], 0
        while j < n and textbook.accepts(accept_u[b, j], draft_probs[b, j, x[j]], target_probs[b, j, x[j]]):
            j += 1
        if j < n and (np.arange(target_probs.shape[2]) != x[j]).dot(target_probs[b, j]) > 0:
            target_probs[b, j, x[j]] = 0
        weights = textbook.residual(target_probs[b, j], draft_probs[b, j]) if j < n else target_probs[b, n]
        tokens[b, : j + 1] = [*x[:j], textbook.drawn(textbook.working(weights), sample_u[b])]
        n_accepted[b] = j
    return tokens, n_accepted


@mutant(
    "speculative_verify", id="acceptance-inclusive-at-zero", family=FAMILY, source="https://github.com/sgl-project/sglang/issues/35771",
    trigger=lambda: _one_draft(0, [1, 0], [0, 1], 0.0, 0.5),
)  # fmt: skip
def accepted_at_equality(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """A draft token is accepted where u q <= p: at u = 0 one that the target never gives."""
    def accept(u: Any, q: Any, p: Any) -> bool:
        return bool(u * q <= p)

    return verified(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths, accept=accept)


@mutant(
    "tree_positions", id="tree-node-position-is-flat-index", family=FAMILY, source="https://github.com/lablup/mlxcel/pull/1214",
    trigger=lambda: {"parents": np.array([-1, -1, 0]), "n_past": 10},
)  # fmt: skip
def position_by_index(parents: Any, *, n_past: Any) -> Array:
    """A node stands at n_past and its index in the tree, which a chain does not show."""
    return np.asarray(n_past + np.arange(len(parents)), dtype=np.int64)
