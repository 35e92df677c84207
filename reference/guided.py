"""Guided decoding: which tokens may come next so that the text ends in a language; which that is, is left to others."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import arguments
from .arguments import Float64
from .json_schema import schema_tree
from .regex_automaton import PatternAutomaton
from .regex_automaton import State as Positions
from .regex_pattern import Tree, parse_pattern

Mask = NDArray[np.bool_]
State = TypeVar("State")
MAX_STATES = 20_000


class Automaton(Protocol[State]):
    """What guides: a start, the mask at a state, the state after a token. States are values: advancing changes none."""

    @property
    def start(self) -> State: ...

    def token_mask(self, state: State) -> ArrayLike: ...

    def advance(self, state: State, token: int) -> State: ...


def compile_regex(pattern: str, vocabulary: Sequence[str], *, eos: int, dead_ends: str = "tokens") -> TokenAutomaton:
    """The automaton over tokens of a regular expression, which must match the whole text.

        token_mask(s)[t] = some text of tokens after s t is in the language, then eos
        token_mask(s)[eos] = the text that led to s is in the language

    A token is the text that stands at its index, whatever is in it; several may have the same. eos is a token by its index
    alone: its own text never counts. An empty token is never allowed. After eos only eos. dead_ends="tokens": allowed is what
    some sequence of this vocabulary's tokens can complete, so that no state is a dead end; "characters": what some sequence
    of characters could complete, whether the vocabulary has them or not.

    >>> automaton = compile_regex("a+b?", ["a", "b", "ab", "", "<eos>"], eos=4)
    >>> automaton.token_mask(automaton.start)
    array([ True, False,  True, False, False])
    >>> automaton.token_mask(automaton.advance(automaton.start, 0))
    array([ True,  True,  True, False,  True])

    Exact: no rounding. Raises TypeError or ValueError for a vocabulary of other things than texts (of characters: no surrogates),
    an eos outside it, a pattern that `parse_pattern` refuses, one that no sequence of tokens completes, and one with more than
    `MAX_STATES` states.
    Source: Willard and Louf 2023 (arXiv 2307.09702), algorithms 3 and 4; several texts of one token: dottxt-ai/outlines#544.
    """
    return TokenAutomaton(parse_pattern(pattern), vocabulary, eos=eos, dead_ends=dead_ends)


def compile_json_schema(
    schema: Any, vocabulary: Sequence[str], *, eos: int, whitespace: str = "none", dead_ends: str = "tokens"
) -> TokenAutomaton:
    """The automaton over tokens of the JSON texts that a schema allows; what of JSON Schema is known says `schema_tree`.

    whitespace: "none", or "any": whatever JSON allows between the parts of an object or array, none before and after the text.

    >>> schema = {"type": "array", "items": {"type": "null"}, "maxItems": 1}
    >>> automaton = compile_json_schema(schema, ["[", "]", "[]", "null", "<eos>"], eos=4)
    >>> automaton.token_mask(automaton.start)
    array([ True, False,  True, False, False])

    eos, dead_ends and errors as in `compile_regex`. Source: JSON Schema 2020-12, https://json-schema.org/draft/2020-12/json-schema-validation.
    """
    return TokenAutomaton(schema_tree(schema, whitespace=whitespace), vocabulary, eos=eos, dead_ends=dead_ends)


def token_mask(automaton: Automaton[State], state: State) -> Mask:
    """What may come next at a state: (V,), True where some continuation can still end in the language; see `compile_regex`."""
    return np.asarray(automaton.token_mask(state))


def advance(automaton: Automaton[State], state: State, token: int) -> State:
    """The state after one more token. Raises ValueError for a token that the mask forbids, or that is none."""
    return automaton.advance(state, token)


def forced_tokens(automaton: Automaton[State], state: State) -> list[int]:
    """The tokens that must come next whatever a model says, up to the first place with a choice, or through eos.

    >>> forced_tokens(compile_regex("abc?", ["a", "b", "c", "<eos>"], eos=3), 0)
    [0, 1]

    One choice of token, not of text: a vocabulary with "a", "b" and "ab" forces neither where the text must go on with "ab".
    Empty at a state with a choice, and after eos. Ends at a state seen before, which only dead_ends="characters" can force.
    """
    forced: list[int] = []
    seen = [state]
    while (mask := token_mask(automaton, state)).sum() == 1:
        token = int(mask.argmax())
        state = automaton.advance(state, token)
        if state in seen:
            break
        seen.append(state)
        forced.append(token)
    return forced


def draft_masks(automaton: Automaton[State], state: State, draft: Sequence[int]) -> Mask:
    """The masks of the target's rows in one pass over a draft: before each draft token, and after the last one.

        row j = token_mask(state after draft[:j]),   j = 0 … n

    n, one less than the rows, is the number of leading draft tokens that the language allows: the draft ends before the first
    that it forbids (vllm-project/vllm#15554), and each row has a state of its own (vllm-project/vllm#44297). Going back over
    a rejected draft is keeping the state one had.

    >>> digits = compile_regex("[0-9]+", ["1", "2", "null", "<eos>"], eos=3)
    >>> draft_masks(digits, digits.start, [1, 2, 0])
    array([[ True,  True, False, False],
           [ True,  True, False,  True]])

    Returns (n + 1, V).
    """
    rows = [token_mask(automaton, state)]
    for token in draft:
        if not 0 <= operator.index(token) < len(rows[-1]) or not rows[-1][token]:
            break
        state = automaton.advance(state, token)
        rows.append(token_mask(automaton, state))
    return np.stack(rows)


def guided_process(automaton: Automaton[State], *, prompt_length: int) -> Callable[[Sequence[int], Float64], Float64]:
    """A `process` for `speculative_generate` and `self_speculate`: every law restricted to what the automaton allows.

        p'(t) = p(t) mask(t) / sum over t' of p(t') mask(t')

    Where a law gives no mass to anything allowed, equal shares of what is allowed, which is what equal finite logits give.
    The state is that after all tokens behind the prompt, those of the round's draft included, found anew at each call.

    Returns process(tokens, law) → law (V,); it raises ValueError where the tokens behind the prompt left the language.
    """
    prompt_length = arguments.whole_number("prompt_length", prompt_length, least=0)

    def process(tokens: Sequence[int], law: Float64) -> Float64:
        state = automaton.start
        for token in tokens[prompt_length:]:
            state = automaton.advance(state, token)
        mask = token_mask(automaton, state)
        kept = np.where(mask, np.asarray(law, dtype=np.float64), 0.0)            # (V,)
        kept = kept if kept.any() else mask.astype(np.float64)
        return np.asarray(kept / kept.sum())

    return process


class TokenAutomaton:
    """The automaton that `compile_regex` and `compile_json_schema` make. States are integers; the last is that after eos."""

    start = 0

    def __init__(self, tree: Tree, vocabulary: Sequence[str], *, eos: int, dead_ends: str) -> None:
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
    eos = arguments.whole_number("eos", eos, least=0)
    if eos >= len(texts):
        raise ValueError(f"eos: got {eos}; want an index of the vocabulary, below {len(texts)}")
    return texts, eos


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
        if token and index != eos:
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
