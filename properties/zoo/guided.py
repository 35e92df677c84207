"""Mutants of guided decoding: token numbers, ends of texts, and drafts put to a guide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..stateful.guide_sequences import BOUNDED, DIGITS, FREE, HUGE, STARS, WIDE, draft, walk
from .specimen import mutant
from .textbook_guide import DONE, EMPTY, Array, Guide, nullable

FAMILY = "guided"


@mutant(
    "token_mask", id="token-id-narrowed-to-32-bit", family=FAMILY, source="https://github.com/mlc-ai/xgrammar/pull/902",
    trigger=lambda: walk(BOUNDED, HUGE),
)  # fmt: skip
class Narrowed(Guide):
    """A token's number is cut to 32 bits before it is looked up: 2^32 + 1 is taken for 1."""

    def advance(self, state: Any, token: int) -> Any:
        return super().advance(state, int(np.int64(token).astype(np.int32)))


@mutant(
    "token_mask", id="guided-fill-after-terminate", family=FAMILY, source="https://github.com/openvinotoolkit/openvino.genai/issues/4081",
    trigger=lambda: (STARS, draft(STARS, "a", "<eos>", "a")),
)  # fmt: skip
class FilledAfterTheEnd(Guide):
    """In a draft the mask behind eos is filled before it is asked whether the text has ended: as if eos had not come."""

    def draft_masks(self, state: Any, draft: Sequence[int]) -> Array:
        rows = [self.token_mask(state)]
        for token in draft:
            if not rows[-1][token]:
                break
            state = state if token == self.eos else self.advance(state, token)
            rows.append(self.token_mask(state))
        return np.stack(rows)


@mutant(
    "token_mask", id="stop-at-first-accepting-state", family=FAMILY,
    source="https://github.com/dottxt-ai/outlines/pull/544 https://github.com/dottxt-ai/outlines/pull/874 "
           "https://github.com/dottxt-ai/outlines-core/pull/125",
    trigger=lambda: walk(STARS, "a", "a"),
)  # fmt: skip
class StopsAtOnce(Guide):
    """Once a token leads to a text that matches, only eos is allowed, though longer ones match: a* behaves as a?."""

    def after(self, state: Any, token: int) -> Any:
        moved = super().after(state, token)
        return EMPTY if moved != DONE and nullable(moved) else moved


@mutant(
    "token_mask", id="guided-mask-stale-inside-draft-window", family=FAMILY,
    source="https://github.com/vllm-project/vllm/pull/44297 https://github.com/vllm-project/vllm/pull/36138",
    trigger=lambda: (FREE, draft(FREE, "x", "<", "y", "1")),
)  # fmt: skip
class Stale(Guide):
    """Whether the pattern constrains anything is decided once, at the start of a draft, for all its rows."""

    def draft_masks(self, state: Any, draft: Sequence[int]) -> Array:
        free = self.token_mask(state)
        rows = super().draft_masks(state, draft)
        constrained = not free[[i for i, text in enumerate(self.vocabulary) if len(text) == 1]].all()
        return rows if constrained else np.stack([free] * (len(draft) + 1))


@mutant(
    "token_mask", id="guided-draft-tokens-not-validated", family=FAMILY, source="https://github.com/vllm-project/vllm/issues/15554",
    trigger=lambda: (DIGITS, draft(DIGITS, "null")),
)  # fmt: skip
class Unvalidated(Guide):
    """Draft tokens are not held to the pattern: only the row behind the whole draft is masked, where it still can be."""

    def draft_masks(self, state: Any, draft: Sequence[int]) -> Array:
        rows = super().draft_masks(state, draft)
        missing = len(draft) + 1 - len(rows)
        return np.concatenate([rows, np.ones((missing, rows.shape[1]), dtype=np.bool_)])


@mutant(
    "token_mask", id="eos-consumed-state-not-advanced-in-batch", family=FAMILY, source="https://github.com/dottxt-ai/outlines-core/issues/227",
    trigger=lambda: walk(BOUNDED, "1", "1", "1"),
)  # fmt: skip
class StandsStill(Guide):
    """Where a text that matches is reached, the state is not advanced any more, though the row goes on: longer ones slip through."""

    def after(self, state: Any, token: int) -> Any:
        moved = super().after(state, token)
        return state if nullable(state) and self.can_end(moved) and token != self.eos else moved


@mutant("token_mask", id="bitmask-narrower-than-the-vocabulary", family=FAMILY, source="https://github.com/mlc-ai/xgrammar/pull/694",
        trigger=lambda: walk(WIDE))
class Unmasked(Guide):
    """The mask has only the whole words of 32 bits that the vocabulary fills: tokens behind them are left as they were, allowed."""

    def token_mask(self, state: Any) -> Array:
        mask = np.array(super().token_mask(state))
        words = len(mask) // 32
        mask[32 * words :] |= words > 0
        return mask
