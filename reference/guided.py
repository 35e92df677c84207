"""Guided decoding: which tokens may come next so that the text ends in a language; which that is, is left to others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import arguments
from .arguments import Float64
from .json_schema import schema_tree
from .regex_pattern import parse_pattern
from .token_automaton import Automaton, Mask, State, TokenAutomaton


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

    Patterns: literals; `.`, all but the line feed; classes; \\d \\w \\s of ASCII, \\D \\W \\S all else; | * + ? {m,n}, lazy or not;
    groups; ^ $ at the ends. The rest, of which \\b, backreferences and looking around, is refused by name.

    Exact: no rounding. Raises TypeError or ValueError for a vocabulary of other things than texts (of characters: no surrogates),
    an eos outside it, a pattern that `parse_pattern` refuses, one that no sequence of tokens completes, and one with more than
    `MAX_STATES` states.
    Source: Willard and Louf 2023 (arXiv 2307.09702), algorithms 3 and 4.
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
