"""Guided decoding as a textbook has it, for the zoo: derivatives of regular expressions. It shares nothing with the oracle.

One character is matched by Python's re; all else is here. For the patterns of the designed and the drawn walks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

Regex = tuple[Any, ...]                                                         # atom, source; cat, r, s; alt, {r, …}; star, r
Array = np.ndarray[Any, np.dtype[np.bool_]]
NONE: Regex = ("none",)
EMPTY: Regex = ("empty",)
DONE: Regex = ("done",)                                                         # after eos


class Guide:
    """A guide whose state is the derivative of the pattern by the text so far. Mutants and variants change one method of it."""

    def __init__(self, pattern: str, vocabulary: Sequence[str], *, eos: int) -> None:
        self.vocabulary, self.eos = list(vocabulary), eos
        self.start: Any = parsed(pattern)
        self._ends: dict[Regex, bool] = {}

    def token_mask(self, state: Any) -> Array:
        """One entry a token."""
        return np.array([self.allows(state, token) for token in range(len(self.vocabulary))], dtype=np.bool_)

    def advance(self, state: Any, token: int) -> Any:
        """The derivative by a token's text; ValueError for a token that is not allowed."""
        if not 0 <= token < len(self.vocabulary) or not self.allows(state, token):
            raise ValueError(f"token {token} is not allowed")
        return self.after(state, token)

    def draft_masks(self, state: Any, draft: Sequence[int]) -> Array:
        """A mask before each draft token up to the first that is not allowed, and one behind the last."""
        rows = [self.token_mask(state)]
        for token in draft:
            if not rows[-1][token]:
                break
            state = self.advance(state, token)
            rows.append(self.token_mask(state))
        return np.stack(rows)

    def allows(self, state: Any, token: int) -> bool:
        """eos at the end of a text, and then alone; a token with text if the vocabulary can go on behind it."""
        if state == DONE or token == self.eos:
            return token == self.eos and (state == DONE or nullable(state))
        return bool(self.vocabulary[token]) and self.can_end(self.after(state, token))

    def after(self, state: Any, token: int) -> Any:
        """The state behind a token, allowed or not."""
        return DONE if token == self.eos else by_text(state, self.vocabulary[token])

    def can_end(self, state: Any) -> bool:
        """Whether tokens of the vocabulary lead to the end of some text: all states from here are looked at once."""
        if state not in self._ends:
            seen, waiting = {state}, [state]
            while waiting and not nullable(waiting[-1]):
                at = waiting.pop()
                reached = {by_text(at, text) for i, text in enumerate(self.vocabulary) if text and i != self.eos} - seen - {NONE}
                seen |= reached
                waiting.extend(reached)
            self._ends[state] = bool(waiting)
        return self._ends[state]


def by_text(r: Regex, text: str) -> Regex:
    """The derivative by one character after another."""
    for c in text:
        r = derivative(r, c)
    return r


@functools.cache
def nullable(r: Regex) -> bool:
    """Whether the empty text matches."""
    kind = r[0]
    if kind == "cat":
        return nullable(r[1]) and nullable(r[2])
    return kind in ("empty", "star") or (kind == "alt" and any(map(nullable, r[1])))


@functools.lru_cache(maxsize=2**16)
def derivative(r: Regex, c: str) -> Regex:
    """What must follow once c was read: Brzozowski 1964 (doi 10.1145/321239.321249)."""
    kind = r[0]
    if kind == "atom":
        return EMPTY if _matches(r[1], c) else NONE
    if kind == "cat":
        first = cat(derivative(r[1], c), r[2])
        return alt(first, derivative(r[2], c)) if nullable(r[1]) else first
    if kind == "alt":
        return alt(*(derivative(part, c) for part in r[1]))
    return cat(derivative(r[1], c), r) if kind == "star" else NONE


@functools.lru_cache(maxsize=2**16)
def _matches(source: str, c: str) -> bool:
    return re.fullmatch(source, c, re.ASCII) is not None


def cat(r: Regex, s: Regex) -> Regex:
    """r, then s; bracketed to the right."""
    if NONE in (r, s):
        return NONE
    if r == EMPTY:
        return s
    return cat(r[1], cat(r[2], s)) if r[0] == "cat" else r if s == EMPTY else ("cat", r, s)


def alt(*parts: Regex) -> Regex:
    """Any of the parts; without order, repetitions and parts that match nothing, so that there are finitely many derivatives."""
    flat = frozenset(p for part in parts for p in (part[1] if part[0] == "alt" else (part,))) - {NONE}
    return NONE if not flat else next(iter(flat)) if len(flat) == 1 else ("alt", flat)


def star(r: Regex) -> Regex:
    """r any number of times."""
    return r if r[0] == "star" else EMPTY if r in (NONE, EMPTY) else ("star", r)


@functools.lru_cache(maxsize=2**10)
def parsed(pattern: str) -> Regex:
    """The expression of a pattern."""
    tree, rest = _alternatives(re.findall(r"\(\?:|\{\d+(?:,\d*)?\}|\[\^?(?:\\.|[^\]\\])*\]|\\.|.", pattern, re.DOTALL))
    assert not rest, f"{pattern}: {rest} is left"
    return tree


def _alternatives(signs: list[str]) -> tuple[Regex, list[str]]:
    branches = [EMPTY]
    while signs and signs[0] != ")":
        sign, *signs = signs
        if sign == "|":
            branches.append(EMPTY)
            continue
        if sign in ("(", "(?:"):
            piece, signs = _alternatives(signs)
            assert signs[0] == ")"
            signs = signs[1:]
        else:
            piece = ("atom", sign)
        if signs and re.fullmatch(r"[*+?]|\{.*\}", signs[0]):
            piece, signs = _repeated(piece, signs[0]), signs[1:]
        branches[-1] = cat(branches[-1], piece)
    return alt(*branches), signs


def _repeated(r: Regex, sign: str) -> Regex:
    bounds = {"*": "0,", "+": "1,", "?": "0,1"}.get(sign, sign.strip("{}"))
    least, _, most = bounds.partition(",")
    tail = EMPTY
    if "," not in bounds or most:
        for _ in range(int(most or least) - int(least)):
            tail = alt(EMPTY, cat(r, tail))
    else:
        tail = star(r)
    for _ in range(int(least)):
        tail = cat(r, tail)
    return tail
