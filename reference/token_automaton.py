"""Automata over the tokens of a vocabulary, from a pattern of characters: which tokens may follow, and the masks along a draft.

It needs NumPy and the automaton of the pattern alone. Patterns, schemas and laws are left to guided.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .regex_automaton import PatternAutomaton
from .regex_automaton import State as Positions
from .regex_pattern import Tree

Mask = NDArray[np.bool_]
State = TypeVar("State")
MAX_STATES = 20_000


class Automaton(Protocol[State]):
    """What guides: a start, the mask at a state, the state after a token. States are values: advancing changes none."""

    @property
    def start(self) -> State: ...

    def token_mask(self, state: State) -> ArrayLike: ...

    def advance(self, state: State, token: int) -> State: ...


def draft_masks(automaton: Automaton[State], state: State, draft: Sequence[int]) -> Mask:
    """The masks of the target's rows in one pass over a draft: before each draft token, and after the last one.

        row j = token_mask(state after draft[:j]),   j = 0 … n

    n, one less than the rows, is the number of leading draft tokens that the language allows: the draft ends before the first
    that it forbids (vllm-project/vllm#15554), and each row has a state of its own (vllm-project/vllm#44297). Going back over
    a rejected draft is keeping the state one had.

    >>> from oracles.reference import compile_regex
    >>> digits = compile_regex("[0-9]+", ["1", "2", "null", "<eos>"], eos=3)
    >>> draft_masks(digits, digits.start, [1, 2, 0])
    array([[ True,  True, False, False],
           [ True,  True, False,  True]])

    Returns (n + 1, V).
    """
    rows = [np.asarray(automaton.token_mask(state))]
    for token in draft:
        if not 0 <= operator.index(token) < len(rows[-1]) or not rows[-1][token]:
            break
        state = automaton.advance(state, token)
        rows.append(np.asarray(automaton.token_mask(state)))
    return np.stack(rows)


class TokenAutomaton:
    """The automaton that `compile_regex` and `compile_json_schema` make; see there. States are integers, the last that after eos."""

    start = 0

    def __init__(self, tree: Tree, vocabulary: Sequence[str], *, eos: int, dead_ends: str = "tokens") -> None:
        self.vocabulary, self.eos = _checked(vocabulary, eos)
        if dead_ends not in ("tokens", "characters"):
            raise ValueError(f"dead_ends: got {dead_ends!r}; want 'tokens' or 'characters'")
        leads, accepting = _explored(PatternAutomaton(tree), _trie(self.vocabulary, self.eos))
        self._live = _live(leads, accepting) if dead_ends == "tokens" else set(range(len(leads)))
        if (not leads[0] and 0 not in accepting) or 0 not in self._live:
            raise ValueError("pattern: no sequence of the vocabulary's tokens ends in its language; want one that some do")
        self.done = len(leads)
        self._leads = [{token: target for token, target in row.items() if target in self._live} for row in leads]
        for state in accepting:
            self._leads[state][self.eos] = self.done
        self._leads.append({self.eos: self.done})

    def token_mask(self, state: int) -> Mask:
        """The mask at a state: (V,)."""
        mask = np.zeros(len(self.vocabulary), dtype=np.bool_)
        mask[list(self._row(state))] = True
        return mask

    def advance(self, state: int, token: int) -> int:
        """The state after one more token. Raises ValueError for one that the mask forbids; 2^32 + 1 is not 1 (mlc-ai/xgrammar#902)."""
        row, token = self._row(state), operator.index(token)
        if token not in row:
            known = repr(self.vocabulary[token]) if 0 <= token < len(self.vocabulary) else "which is none"
            raise ValueError(f"token: got {token}, {known}; want one that token_mask allows at state {state}")
        return row[token]

    def draft_masks(self, state: int, draft: Sequence[int]) -> Mask:
        """See the function of that name."""
        return draft_masks(self, state, draft)

    def _row(self, state: int) -> dict[int, int]:
        if state not in range(len(self._leads)) or (state != self.done and state not in self._live):
            raise ValueError(f"state: got {state!r}; want one that start or advance gave")
        return self._leads[state]


def _checked(vocabulary: Sequence[str], eos: int) -> tuple[tuple[str, ...], int]:
    if isinstance(vocabulary, str):
        raise TypeError("vocabulary: got one str; want a list of them")
    texts = tuple(vocabulary)
    for index, token in enumerate(texts):
        if not isinstance(token, str):
            raise TypeError(f"vocabulary: got {type(token).__name__} at {index}; want a str")
        if any(0xD800 <= ord(c) <= 0xDFFF for c in token):
            raise ValueError(f"vocabulary: got a surrogate in {token!r} at {index}; want characters")
    if isinstance(eos, bool) or not hasattr(eos, "__index__") or not 0 <= operator.index(eos) < len(texts):
        raise ValueError(f"eos: got {eos!r}; want an index of the vocabulary, from 0 to {len(texts) - 1}")
    return texts, operator.index(eos)


class _Node:
    """A place in the tree of all tokens' texts: which tokens end here, which characters go on."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.children: dict[str, _Node] = {}


def _trie(vocabulary: Sequence[str], eos: int) -> _Node:
    root = _Node()
    for index, token in enumerate(vocabulary):
        node = root
        for c in token:
            node = node.children.setdefault(c, _Node())
        if index != eos:                                                        # a token without text stays at the root, where none is read
            node.tokens.append(index)
    return root


def _explored(pattern: PatternAutomaton, trie: _Node) -> tuple[list[dict[int, int]], set[int]]:
    """Every state that tokens reach, by number: token → state, and the states that accept."""
    numbers: dict[Positions, int] = {pattern.start: 0}
    leads: list[dict[int, int]] = []
    waiting = deque([pattern.start])
    while waiting:
        at = waiting.popleft()
        row: dict[int, int] = {}
        places = [(trie, at)]
        while places:
            node, state = places.pop()
            for c, child in node.children.items():
                after = pattern.step(state, c)
                if not after:
                    continue
                if child.tokens and after not in numbers:
                    if len(numbers) == MAX_STATES:
                        raise ValueError(f"pattern: got more than {MAX_STATES} states over these tokens; want fewer")
                    numbers[after] = len(numbers)
                    waiting.append(after)
                row.update(dict.fromkeys(child.tokens, numbers.get(after, 0)))
                places.append((child, after))
        leads.append(row)
    return leads, {number for state, number in numbers.items() if pattern.accepts(state)}


def _live(leads: list[dict[int, int]], accepting: set[int]) -> set[int]:
    """The states from which some sequence of tokens ends in the language."""
    before: list[set[int]] = [set() for _ in leads]
    for state, row in enumerate(leads):
        for target in row.values():
            before[target].add(state)
    live, waiting = set(accepting), list(accepting)
    while waiting:
        for state in before[waiting.pop()] - live:
            live.add(state)
            waiting.append(state)
    return live
