"""XGrammar, outlines-core and llguidance held to the laws of guides, and where they differ from JSON Schema or from each other."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from oracles.properties.peers import PEER_MODULES
from oracles.properties.peers.calls import guided as calls
from oracles.properties.report import FAILED
from oracles.properties.stateful.checker import check_object
from oracles.properties.stateful.guide_laws import GUIDE_LAWS
from oracles.reference import compile_json_schema, compile_regex

pytestmark = pytest.mark.more_peers

BY_CHARACTERS = "dead ends of the vocabulary"
# What each peer breaks on the designed walks, and the conventions that it is found to have.
BROKEN = {
    "xgrammar": {"forbidden_tokens_raise_ValueError"},
    "llguidance": {"eos_exactly_where_the_text_is_in_the_language", "masks_agree_with_the_oracle"},
    "llguidance_unforced": {"eos_exactly_where_the_text_is_in_the_language", "masks_agree_with_the_oracle"},
    "outlines_core": {"empty_tokens_never", "allowed_tokens_advance", "forbidden_tokens_raise_ValueError", "masks_agree_with_the_oracle"},
}


@pytest.mark.parametrize("peer", BROKEN)
def test_what_each_peer_breaks(peer: str) -> None:
    report = check_object("token_mask", f"peers:{peer}", budget="quick")
    assert {verdict.law for verdict in report.verdicts if verdict.status == FAILED} == BROKEN[peer]
    assert not report.stopped
    assert any(line.startswith(BY_CHARACTERS) for line in report.not_covered)
    assert any(line.startswith("the line feed behind a dot") for line in report.not_covered) == (peer == "xgrammar")


@pytest.mark.parametrize("peer", ["llguidance_unforced"])
def test_what_is_kept_is_kept_on_random_walks(peer: str) -> None:
    kept = tuple(law.name for law in GUIDE_LAWS if law.name not in BROKEN[peer])
    assert check_object("token_mask", f"peers:{peer}", budget=40, laws=kept).held


def test_every_peer_of_guides_is_tried() -> None:
    assert {name for name, module in PEER_MODULES.items() if module == "guided"} == set(BROKEN)


def allowed(guide: Any, *tokens: int) -> list[int]:
    state = guide.start
    for token in tokens:
        state = guide.advance(state, token)
    return np.flatnonzero(guide.token_mask(state)).tolist()


def test_xgrammar_cuts_token_ids_to_32_bits() -> None:
    """mlc-ai/xgrammar#902: 2^32 is taken for token 0."""
    guide = calls.XGrammar("a+", ["a", "<eos>"], eos=1)
    assert guide.start.accept_token(2**32)


def test_outlines_core_forbids_the_first_token_behind_a_complete_text() -> None:
    """(ab)* allows nothing but its end, and (ab)+ one repetition: what goes on behind a match and is none itself is left out."""
    outlines_core = import_module("outlines_core")
    for pattern, reached in (("(ab)*", [2]), ("(ab)+", [0])):
        guide = outlines_core.Guide(outlines_core.Index(pattern, outlines_core.Vocabulary(2, {"a": [0], "b": [1]})))
        assert guide.get_tokens() == reached
    assert allowed(calls.OutlinesCore("(ab)+", ["a", "b", "<eos>"], eos=2), 0, 1) == [2]
    assert allowed(compile_regex("(ab)+", ["a", "b", "<eos>"], eos=2), 0, 1) == [0, 2]


def test_outlines_core_allows_empty_tokens() -> None:
    assert allowed(calls.OutlinesCore("a*", ["a", "", "<eos>"], eos=2)) == [0, 1, 2]


def test_llguidance_allows_but_the_longest_token_of_a_forced_text() -> None:
    """guidance-ai/llguidance#263; and of two tokens of one text, the first. Without forcing all are there."""
    vocabulary = ["a", "ab", "b", "a", "<eos>"]
    assert allowed(calls.LLGuidance("ab", vocabulary, eos=4)) == [1]
    assert allowed(calls.LLGuidance("a", vocabulary, eos=4)) == [0]
    assert allowed(calls.LLGuidanceUnforced("ab", vocabulary, eos=4)) == [0, 1, 3]


def test_llguidance_ends_a_text_that_is_none_where_the_vocabulary_has_no_way_on() -> None:
    guide = calls.LLGuidanceUnforced("ab|c", ["a", "c", "<eos>"], eos=2)
    assert allowed(guide, 0) == [2]
    assert not guide.advance(guide.start, 0).is_accepting()


# JSON Schema -------------------------------------------------------------------------------------------------------------

CLOSED = {"additionalProperties": False}
NULL = {"type": "null"}
CHARACTERS = [*map(chr, range(32, 127)), "\n", "é", "\u2028", "🙂"]
VOCABULARY, EOS = [*CHARACTERS, "<eos>"], len(CHARACTERS)
SAME: list[dict[str, Any]] = [
    {"type": "number"}, {"type": "boolean"}, NULL, {"enum": ["a", 1, None]}, {"const": "é"},
    {"type": "array", "items": NULL, "minItems": 1, "maxItems": 2},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}},
    {"type": "object", "properties": {"a": {"type": "number"}, "b": NULL}, "required": ["a"], **CLOSED},
    {"type": "object", "properties": {"a": NULL, "b": NULL, "c": NULL}, **CLOSED},
    {"anyOf": [NULL, {"type": "boolean"}]},
]  # fmt: skip
PEERS: dict[str, Callable[..., Any]] = {"xgrammar": calls.XGrammarSchema, "llguidance": calls.LLGuidanceSchema}


def differences(schema: dict[str, Any], peer: str) -> set[tuple[str, str, str]]:
    """(text, what the peer does, character) on random walks along what both allow."""
    guide = PEERS[peer](json.dumps(schema), VOCABULARY, eos=EOS)
    oracle = compile_json_schema(schema, VOCABULARY, eos=EOS, dead_ends="characters")
    draw, found = random.Random(0), set()
    for _ in range(20):
        text, states = "", (guide.start, oracle.start)
        for _ in range(20):
            got, want = guide.token_mask(states[0]), oracle.token_mask(states[1])
            found |= {(text, "allows" if got[t] else "forbids", VOCABULARY[t]) for t in np.flatnonzero(got != want)}
            both = [int(t) for t in np.flatnonzero(got & want) if t != EOS]
            if not both:
                break
            token = draw.choice(both)
            text, states = text + VOCABULARY[token], (guide.advance(states[0], token), oracle.advance(states[1], token))
    return found


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("schema", SAME, ids=json.dumps)
def test_masks_of_a_schema_are_the_same(peer: str, schema: dict[str, Any]) -> None:
    found = differences(schema, peer)
    assert found == set()


def test_xgrammar_has_no_minus_zero_among_integers() -> None:
    assert differences({"type": "integer"}, "xgrammar") == {("-", "forbids", "0")}
    assert differences({"type": "integer"}, "llguidance") == set()


def test_xgrammar_has_no_escapes_where_a_length_is_given() -> None:
    assert differences({"type": "string"}, "xgrammar") == set()
    found = differences({"type": "string", "maxLength": 2}, "xgrammar")
    assert {(does, c) for _, does, c in found} == {("forbids", "\\")}


def test_xgrammar_takes_a_pattern_for_the_whole_string() -> None:
    """JSON Schema says that it matches somewhere, as llguidance has it."""
    assert ('"', "forbids", "b") in differences({"type": "string", "pattern": "a"}, "xgrammar")
    spellings = {(does, c) for _, does, c in differences({"type": "string", "pattern": "a"}, "llguidance")}
    assert spellings <= {("forbids", "/"), ("forbids", "u")}


def test_llguidance_has_no_escaped_slash() -> None:
    found = differences({"type": "string"}, "llguidance")
    assert {(does, c) for _, does, c in found} == {("forbids", "/")}
    assert all(text.endswith("\\") for text, _, _ in found)


def test_outlines_core_writes_other_patterns_for_schemas() -> None:
    """Exponents need a sign, strings have no escapes by number and no C1 controls, and whitespace is one space by default."""
    build = import_module("outlines_core.json_schema").build_regex_from_schema
    assert build('{"type":"number"}').endswith("([eE][+-][0-9]+)?")
    assert build('{"type":"string"}') == '"([^"\\\\\\x00-\\x1F\\x7F-\\x9F]|\\\\["\\\\/bfnrt])*"'
    assert build('{"type":"array","items":{"type":"null"},"minItems":1,"maxItems":1}') == "\\[[ ]?((null)(,[ ]?(null)){0,0})[ ]?\\]"
