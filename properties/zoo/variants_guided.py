"""Legal variants of guided decoding: other states, other tables, other ways through the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .specimen import variant
from .textbook_guide import DONE, NONE, Array, Guide, by_text, derivative, nullable

FAMILY = "guided"


@variant("token_mask", id="guide-by-derivatives", family=FAMILY, source="https://doi.org/10.1145/321239.321249")
class ByDerivatives(Guide):
    """The state is what remains of the pattern; nothing is computed before it is asked for."""


class _Around:
    """A guide around another: draft masks come from its own masks and steps."""

    start: Any
    draft_masks = Guide.draft_masks

    def __init__(self, pattern: str, vocabulary: Sequence[str], *, eos: int) -> None:
        self.inner, self.vocabulary, self.eos = Guide(pattern, vocabulary, eos=eos), list(vocabulary), eos

    def token_mask(self, state: Any) -> Array:
        raise NotImplementedError

    def advance(self, state: Any, token: int) -> Any:
        """The state behind an allowed token; ValueError for another."""
        if token not in np.flatnonzero(self.token_mask(state)):
            raise ValueError(f"token {token} is not allowed")
        return self.after(state, token)

    def after(self, state: Any, token: int) -> Any:
        raise NotImplementedError


@variant("token_mask", id="guide-of-texts", family=FAMILY)
class OfTexts(_Around):
    """The state is the text so far and whether it has ended; every mask follows it from the beginning again."""

    start = ("", False)

    def token_mask(self, state: Any) -> Array:
        text, ended = state
        return self.inner.token_mask(DONE if ended else by_text(self.inner.start, text))

    def after(self, state: Any, token: int) -> Any:
        text, ended = state
        return (text, True) if token == self.eos else (text + self.vocabulary[token], ended)


@variant("token_mask", id="guide-of-histories", family=FAMILY)
class OfHistories(_Around):
    """The state is the tuple of all tokens so far, followed from the start each time."""

    start = ()

    def token_mask(self, state: Any) -> Array:
        at = self.inner.start
        for token in state:
            at = self.inner.advance(at, token)
        return self.inner.token_mask(at)

    def after(self, state: Any, token: int) -> Any:
        return (*state, token)


def _tables(guide: Guide) -> list[dict[int, int]]:
    """Where each allowed token leads from each state, the states numbered as tokens reach them."""
    states: list[Any] = [guide.start]
    numbers: dict[Any, int] = {guide.start: 0}
    leads: list[dict[int, int]] = []
    for state in states:                                                        # grows while it is walked
        row = {int(token): guide.after(state, int(token)) for token in np.flatnonzero(guide.token_mask(state))}
        for target in row.values():
            if target not in numbers:
                numbers[target] = len(states)
                states.append(target)
        leads.append({token: numbers[target] for token, target in row.items()})
    return leads


@variant("token_mask", id="guide-dict-of-sets", family=FAMILY, source="https://arxiv.org/abs/2307.09702")
class DictOfSets(_Around):
    """All states are numbered when it is made; a dict tells the set of allowed tokens of each, another where they lead."""

    start = 0

    def __init__(self, pattern: str, vocabulary: Sequence[str], *, eos: int) -> None:
        super().__init__(pattern, vocabulary, eos=eos)
        self.leads = dict(enumerate(_tables(self.inner)))
        self.sets = {state: set(row) for state, row in self.leads.items()}

    def token_mask(self, state: Any) -> Array:
        return np.array([token in self.sets[state] for token in range(len(self.vocabulary))], dtype=np.bool_)

    def after(self, state: Any, token: int) -> Any:
        return self.leads[state][token]


def _minimal(leads: list[dict[int, int]]) -> list[int]:
    """The block of each state: those that no sequence of tokens tells apart share one. Moore's refinement."""
    block = [0] * len(leads)
    while True:
        signs = [(block[state], *sorted((token, block[target]) for token, target in row.items())) for state, row in enumerate(leads)]
        names = {sign: number for number, sign in enumerate(dict.fromkeys(signs))}
        if len(names) == len(set(block)):
            return block
        block = [names[sign] for sign in signs]


@variant("token_mask", id="guide-minimised-and-packed", family=FAMILY)
class MinimisedAndPacked(_Around):
    """States that no continuation tells apart are one; the masks lie in a table made beforehand, eight tokens a byte."""

    def __init__(self, pattern: str, vocabulary: Sequence[str], *, eos: int) -> None:
        super().__init__(pattern, vocabulary, eos=eos)
        leads = _tables(self.inner)
        block = _minimal(leads)
        self.leads = {block[state]: {token: block[target] for token, target in row.items()} for state, row in enumerate(leads)}
        allowed = [[token in self.leads[state] for token in range(len(vocabulary))] for state in range(len(self.leads))]
        self.packed = np.packbits(np.array(allowed), axis=1)
        self.start = block[0]

    def token_mask(self, state: Any) -> Array:
        return np.unpackbits(self.packed[state], count=len(self.vocabulary)).astype(np.bool_)

    def after(self, state: Any, token: int) -> Any:
        return self.leads[state][token]


@variant("token_mask", id="guide-trie-walk", family=FAMILY)
class TrieWalk(_Around):
    """The vocabulary is a tree of characters, which each mask walks once, as deep as the pattern goes along."""

    def __init__(self, pattern: str, vocabulary: Sequence[str], *, eos: int) -> None:
        super().__init__(pattern, vocabulary, eos=eos)
        self.start = self.inner.start
        self.trie: dict[str, Any] = {}
        for token, text in enumerate(vocabulary):
            node = self.trie
            for c in text:
                node = node.setdefault(c, {})
            if text and token != eos:
                node.setdefault("", []).append(token)

    def token_mask(self, state: Any) -> Array:
        mask = np.zeros(len(self.vocabulary), dtype=np.bool_)
        mask[self.eos] = state == DONE or nullable(state)
        waiting = [(self.trie, state)]
        while waiting:
            node, at = waiting.pop()
            if at == NONE:
                continue
            mask[node.get("", [])] = bool(node.get("")) and self.inner.can_end(at)
            waiting += [(child, derivative(at, c)) for c, child in node.items() if c]
        return mask

    def after(self, state: Any, token: int) -> Any:
        return self.inner.after(state, token)


@variant("token_mask", id="guide-of-bytes", family=FAMILY)
class OfBytes(_Around):
    """Inside it goes byte by byte: a state is what remains of the pattern, and the bytes of a character that is not complete."""

    def __init__(self, pattern: str, vocabulary: Sequence[str], *, eos: int) -> None:
        super().__init__(pattern, vocabulary, eos=eos)
        self.start = (self.inner.start, b"")
        self.bytes = [text.encode() for text in vocabulary]

    def token_mask(self, state: Any) -> Array:
        assert state[1] == b""                                                  # tokens here are whole characters
        ends = [bool(text) and token != self.eos and self._can_end(self.after(state, token)) for token, text in enumerate(self.bytes)]
        ends[self.eos] = state[0] == DONE or nullable(state[0])
        return np.array(ends, dtype=np.bool_)

    def _can_end(self, state: Any) -> bool:
        return self.inner.can_end(state[0])

    def after(self, state: Any, token: int) -> Any:
        if token == self.eos:
            return DONE, b""
        at, pending = state
        for byte in self.bytes[token]:
            pending += bytes([byte])
            if byte < 0x80 or len(pending) == (pending[0] >= 0xE0) + (pending[0] >= 0xF0) + 2:
                at, pending = derivative(at, pending.decode()), b""
        return at, pending


@variant("token_mask", id="guide-by-characters", family=FAMILY)
class ByCharacters(Guide):
    """What can be completed by any characters is allowed, whether the vocabulary has them or not; and there are no masks of drafts."""

    def can_end(self, state: Any) -> bool:
        return bool(state != NONE)

    @property
    def draft_masks(self) -> Callable[..., Array]:
        raise AttributeError("draft_masks")
