"""Guide walker: a guide whose states go by number, so that calls on it are plain data whatever its states are made of.

It needs nothing, so that a repro can carry a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

METHODS = ("token_mask", "advance")


class GuideWalker:
    """One guide and the states met so far: 0 is its start, each `advance` that returns makes the next number.

    make   factory of the guide, called as make(pattern, vocabulary, eos=eos): an object with start, token_mask(state),
           advance(state, token) and, where it has one, draft_masks(state, draft)

    >>> from oracles.reference import compile_regex
    >>> walker = GuideWalker(compile_regex, "ab?", ["a", "b", "end"], 2)
    >>> walker.advance(0, 0), walker.token_mask(1).tolist()
    (1, [False, True, True])
    """

    def __init__(self, make: Callable[..., Any], pattern: str, vocabulary: Sequence[str], eos: int) -> None:
        self.guide = make(pattern, vocabulary, eos=eos)
        missing = [name for name in ("start", *METHODS) if not hasattr(self.guide, name)]
        if missing:
            raise TypeError(f"the guide has no {', '.join(missing)}; want start, token_mask(state) and advance(state, token)")
        self.states = [self.guide.start]
        if hasattr(self.guide, "draft_masks"):
            self.draft_masks = self._draft_masks

    def token_mask(self, number: int) -> Any:
        """The guide's mask at a state."""
        return self.guide.token_mask(self._state(number))

    def advance(self, number: int, token: int) -> int:
        """The number of the state after one more token."""
        self.states.append(self.guide.advance(self._state(number), token))
        return len(self.states) - 1

    def _draft_masks(self, number: int, draft: Sequence[int]) -> Any:
        return self.guide.draft_masks(self._state(number), draft)

    def _state(self, number: int) -> Any:
        if not 0 <= number < len(self.states):
            raise LookupError(f"no state {number}; {len(self.states)} were met")
        return self.states[number]


def by_number(make: Callable[..., Any]) -> Callable[..., GuideWalker]:
    """The factory of walkers over the guides that a factory makes."""
    return functools.partial(GuideWalker, make)
