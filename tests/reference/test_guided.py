"""Guided decoding: masks against every continuation, tokens of all kinds, drafts, forced tokens, and the masked target chain."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import numpy as np
import pytest

from oracles.reference import advance, compile_json_schema, compile_regex, draft_masks, forced_tokens, guided_process, token_mask

VOCABULARY = ["a", "b", "ab", "ba", "aab", "", "c", "b"]
EOS = len(VOCABULARY)
PATTERNS = ["a*", "(ab)*a?", "a{1,3}b", "(a|ba)*bb?", "[^b]a|b*", "aab|ba(b|c)", "c?(ab){1,2}", "(aa)*|(aaa)*b"]


def texts(vocabulary: list[str], most: int) -> list[str]:
    """All texts of at most `most` of these tokens, empty ones aside."""
    pieces = [text for text in vocabulary if text]
    return sorted({"".join(t) for n in range(most + 1) for t in itertools.product(pieces, repeat=n)}, key=len)


def brute_mask(pattern: str, vocabulary: list[str], eos: int, so_far: str, continuations: list[str]) -> list[bool]:
    """A token is allowed iff one of the continuations behind it completes a match."""
    matches = re.compile(pattern, re.ASCII).fullmatch
    return [matches(so_far) is not None if i == eos else bool(token) and any(matches(so_far + token + more) for more in continuations)
            for i, token in enumerate(vocabulary)]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("vocabulary", [VOCABULARY, ["a", "ab", "b"], ["ab", "aab", "ba", "b"]], ids=["all", "letters", "no single a"])
def test_the_mask_is_what_some_continuation_completes(pattern: str, vocabulary: list[str]) -> None:
    tokens = [*vocabulary, "<eos>"]
    eos, continuations = len(vocabulary), texts(vocabulary, 4)
    try:
        automaton = compile_regex(pattern, tokens, eos=eos)
    except ValueError:
        assert not any(re.fullmatch(pattern, text) for text in continuations)
        return
    seen = 0
    waiting = [("", automaton.start)]
    while waiting:
        text, state = waiting.pop()
        mask = token_mask(automaton, state)
        assert mask.dtype == np.bool_
        assert mask.tolist() == brute_mask(pattern, tokens, eos, text, continuations), text
        seen += 1
        if len(text) < 4:
            waiting += [(text + tokens[t], advance(automaton, state, t)) for t in range(eos) if mask[t]]
    assert seen >= 1


def test_dead_ends_are_of_the_vocabulary_or_of_all_characters() -> None:
    tokens = ["a", "c", "<eos>"]
    assert token_mask(compile_regex("ab|c", tokens, eos=2), 0).tolist() == [False, True, False]
    by_characters = compile_regex("ab|c", tokens, eos=2, dead_ends="characters")
    assert by_characters.token_mask(0).tolist() == [True, True, False]
    assert not by_characters.token_mask(by_characters.advance(0, 0)).any()


def test_after_eos_only_eos() -> None:
    automaton = compile_regex("a*", ["a", "<eos>"], eos=1)
    done = automaton.advance(automaton.start, 1)
    assert automaton.token_mask(done).tolist() == [False, True]
    assert automaton.advance(done, 1) == done
    with pytest.raises(ValueError, match="token: got 0, 'a'; want one that token_mask allows"):
        automaton.advance(done, 0)


@pytest.mark.parametrize("token", [2, -1, 2**32, 2**32 + 1, 2**64 + 1])
def test_a_number_that_is_no_token_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match="which is none"):
        compile_regex("a*", ["a", "<eos>"], eos=1).advance(0, token)


def test_the_text_of_eos_never_counts() -> None:
    automaton = compile_regex("aa", ["a", "a"], eos=1)
    assert automaton.token_mask(0).tolist() == [True, False]
    assert automaton.token_mask(automaton.advance(automaton.advance(0, 0), 0)).tolist() == [False, True]


def test_two_tokens_of_one_text_are_both_allowed() -> None:
    assert compile_regex("a", ["a", "a", "<eos>"], eos=2).token_mask(0).tolist() == [True, True, False]


def test_characters_beyond_the_first_plane_are_one() -> None:
    automaton = compile_regex("[😀-🙏]x", ["🙂", "🙂x", "x", "é", "<eos>"], eos=4)
    assert automaton.token_mask(0).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(("vocabulary", "eos", "error", "said"), [
    (["a", 3], 0, TypeError, "vocabulary: got int at 1"), ("ab", 0, TypeError, "vocabulary: got one str"),
    (["a"], 1, ValueError, "eos: got 1"), (["a"], -1, ValueError, "eos: got -1"), (["a", "\ud83d"], 0, ValueError, "a surrogate"),
    (["b", ""], 1, ValueError, "pattern: no sequence"),
])  # fmt: skip
def test_bad_input_is_named(vocabulary: Any, eos: int, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        compile_regex("a", vocabulary, eos=eos)


def test_dead_ends_are_named_where_they_are_unknown() -> None:
    with pytest.raises(ValueError, match="dead_ends: got 'none'"):
        compile_regex("a", ["a", ""], eos=1, dead_ends="none")


@pytest.mark.parametrize("state", [-1, 5, None, "0"])
def test_a_state_that_is_none_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="state: got"):
        compile_regex("a", ["a", ""], eos=1).token_mask(state)


def test_a_state_that_nothing_leads_out_of_is_none() -> None:
    automaton = compile_regex("ab|c", ["a", "c", "<eos>"], eos=2)
    dead = [state for state in range(automaton.done) if state not in (automaton.start, automaton.advance(automaton.start, 1))]
    assert len(dead) == 1
    with pytest.raises(ValueError, match="state: got"):
        automaton.token_mask(dead[0])


def test_too_many_states_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 20000 states"):
        compile_regex("[ab]*a[ab]{20}", ["a", "b", "<eos>"], eos=2)


def test_forced_tokens_end_where_there_is_a_choice_and_at_eos() -> None:
    tokens = ["a", "b", "c", "<eos>"]
    assert forced_tokens(compile_regex("abc?", tokens, eos=3), 0) == [0, 1]
    assert forced_tokens(compile_regex("abc", tokens, eos=3), 0) == [0, 1, 2, 3]
    assert forced_tokens(compile_regex("[ab]", tokens, eos=3), 0) == []
    assert forced_tokens(compile_regex("abc", [*tokens, "ab"], eos=3), 0) == []


def test_forced_tokens_end_in_a_circle_without_an_end() -> None:
    circle = compile_regex("a*b", ["a", "<eos>"], eos=1, dead_ends="characters")
    assert forced_tokens(circle, 0) == []


def test_the_names_of_a_schema_are_forced() -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    tokens = [*'{}"n:12', "<eos>"]
    automaton = compile_json_schema(schema, tokens, eos=7)
    assert "".join(tokens[t] for t in forced_tokens(automaton, 0)) == '{"n":'


def test_each_row_of_a_draft_has_its_own_mask() -> None:
    automaton = compile_regex("[^<]*<[0-9]", ["x", "<", "1", "<eos>"], eos=3)
    rows = draft_masks(automaton, automaton.start, [0, 1, 2, 3])
    assert rows.tolist() == [[True, True, True, False], [True, True, True, False], [False, False, True, False], [False] * 3 + [True],
                             [False] * 3 + [True]]  # fmt: skip


DRAFTS = [([], 0), ([2], 0), ([0, 2, 0], 1), ([0, 3, 0], 2), ([0, 3, 3], 3), ([0, 2**32], 1), ([-1], 0)]


@pytest.mark.parametrize(("draft", "taken"), DRAFTS)
def test_a_draft_ends_before_its_first_forbidden_token(draft: list[int], taken: int) -> None:
    automaton = compile_regex("[0-9]+", ["1", "2", "null", "<eos>"], eos=3)
    assert len(draft_masks(automaton, automaton.start, draft)) == taken + 1


def test_a_law_keeps_its_shares_of_what_is_allowed() -> None:
    process = guided_process(compile_regex("x[ab]", ["x", "a", "b", "<eos>"], eos=3), prompt_length=1)
    assert process([3, 0], np.array([0.5, 0.125, 0.25, 0.125])).tolist() == [0.0, 1 / 3, 2 / 3, 0.0]
    assert process([3, 0], np.array([0.5, 0.0, 0.0, 0.5])).tolist() == [0.0, 0.5, 0.5, 0.0]
    with pytest.raises(ValueError, match="token: got 3"):
        process([3, 0, 3], np.full(4, 0.25))


def test_every_walk_over_a_schema_reads_as_json() -> None:
    schema = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, "minItems": 1, "maxItems": 2}
    tokens = ["[", "]", ",", '"', "1", "-", "0", "a", '",', '"]', "[1", '\\n"', "<eos>"]
    automaton = compile_json_schema(schema, tokens, eos=12)
    draw = np.random.default_rng(0)
    ended = 0
    for _ in range(200):
        state, text = automaton.start, ""
        for _ in range(30):
            token = int(draw.choice(np.flatnonzero(automaton.token_mask(state))))
            state = automaton.advance(state, token)
            if token == 12:
                ended += 1
                assert 1 <= len(json.loads(text)) <= 2
                break
            text += tokens[token]
    assert ended > 150
