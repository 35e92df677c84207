"""Mutants of generation loops: a cache, a hidden state, a row of logits or a history that is not that of the last accepted token."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_loops as textbook
from .specimen import mutant
from .textbook_decoding import Array, working


def _certain(V: int, step: int) -> Array:
    """After tokens a, b the token a + b + step modulo V, for certain."""
    a, b = np.indices((V, V))
    return np.asarray(np.eye(V, dtype=np.float32)[(a + b + step) % V])


def _drafted_alike(K: int) -> dict[str, Any]:
    """A target that is certain, and as a draft the same model: K drafts a pass."""
    return {"target": _certain(5, 1), "draft": _certain(5, 1), "prompt": np.array([[1, 2]]),
            "uniforms": np.full((1, 9, 2 * K + 1), 0.5, np.float32)}  # fmt: skip


@mutant("speculative_loop", id="bonus-token-kv-missing-when-k-above-1", family="speculative",
        source="https://github.com/vllm-project/vllm/pull/9730", trigger=lambda: _drafted_alike(3))
def drafts_behind_another_bonus(
    target: Any, draft: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """After a bonus token the draft's cache holds its own last draft in place of it: the second draft and later ones read that."""
    q = working(draft)

    def read_from_cache(text: list[int], x: list[int], whole: bool) -> Array:
        cached = [*text]
        if whole and x:
            cached[-1] = text[-2]
        return np.asarray(q[textbook.last_two([*cached, *x])])

    return textbook.looped(read_from_cache, target, prompt, uniforms, eos=eos, forbidden=forbidden)


def _heads_alike(K: int, **options: Any) -> dict[str, Any]:
    """A target that is certain, and heads that are the same model."""
    given = _drafted_alike(K)
    return {"target": given["target"], "heads": np.stack([given.pop("draft")] * K), "prompt": given["prompt"],
            "uniforms": given["uniforms"], **options}  # fmt: skip


@mutant("mtp_loop", id="mtp-chained-depths-reuse-stale-hidden", family="mtp", source="https://github.com/vllm-project/vllm/pull/36531",
        trigger=lambda: _heads_alike(2))
def every_depth_from_the_models_state(
    target: Any, heads: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """Every head reads the model's own hidden state in place of that of the head before."""
    q = working(heads)

    def from_one_state(text: list[int], x: list[int], whole: bool) -> Array:
        return np.asarray(q[len(x), text[-2], [*text, *x][-1]])

    return textbook.looped(from_one_state, target, prompt, uniforms, eos=eos, forbidden=forbidden, silent_first=True)


def _one_of_two_accepted() -> dict[str, Any]:
    """Two heads, the first right and the second wrong, on a target that is certain."""
    given = _heads_alike(2)
    return {**given, "heads": np.stack([_certain(5, 1), _certain(5, 2)])}


@mutant("mtp_loop", id="mtp-rollback-uses-wrong-logit-row", family="mtp", source="https://github.com/antirez/ds4/issues/750",
        trigger=_one_of_two_accepted)
def first_row_after_a_partial_accept(
    target: Any, heads: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """After some drafts but not all are accepted, the next token is drawn from the first row of the pass."""
    def weights(p: list[Array], q: list[Array], n: int) -> Array:
        return p[0] if 0 < n < len(q) else textbook.after_drafts(p, q, n)

    return textbook.mtp_loop(target, heads, prompt, uniforms, eos=eos, forbidden=forbidden, weights=weights)


def _no_token_twice() -> dict[str, Any]:
    """One head, all tokens alike, none twice in a row."""
    third = np.full((1, 4, 4, 4), 0.25, np.float32)
    return {"target": third[0], "heads": third, "prompt": np.array([[1, 2]]), "uniforms": np.full((1, 6, 3), 0.625, np.float32),
            "forbidden": np.eye(4, dtype=bool)}  # fmt: skip


@mutant("mtp_loop", id="mtp-logits-processor-misses-last-token", family="mtp", source="https://github.com/ml-explore/mlx-lm/pull/990",
        trigger=_no_token_twice)
def drafts_forbid_by_an_older_history(
    target: Any, heads: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None
) -> tuple[Array, Array]:  # fmt: skip
    """What a draft may not be is decided by the history without its last token."""
    def last(text: list[int]) -> int:
        return text[-2]

    return textbook.mtp_loop(target, heads, prompt, uniforms, eos=eos, forbidden=forbidden, last=last)
