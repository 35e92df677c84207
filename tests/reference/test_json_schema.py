"""Schemas as patterns: the texts are those that the json module reads, and jsonschema allows, in the forms the docstring states."""

from __future__ import annotations

import itertools
import json
import random
import re
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from oracles.reference.json_schema import schema_tree
from oracles.reference.json_spelling import spelled
from oracles.reference.regex_automaton import PatternAutomaton
from oracles.reference.regex_pattern import Chars

CLOSED = {"type": "object", "additionalProperties": False}
NULL: dict[str, Any] = {"type": "null"}

# schema, the characters of which every text is tried, and how long these are
SCHEMAS: list[tuple[dict[str, Any], str, int]] = [
    ({"type": "number"}, "-01.e+", 6),
    ({"type": "integer"}, "-01.e", 6),
    ({"type": "boolean"}, "trueflas", 5),
    ({"type": ["null", "integer"]}, "nul-1", 5),
    ({"type": "string"}, '"a\\u0n/', 5),
    ({"type": "string", "minLength": 1, "maxLength": 2}, '"a\\n', 7),
    ({"type": "string", "minLength": 2}, '"ab', 7),
    ({"type": "string", "maxLength": 0}, '"a', 6),
    ({"type": "string", "pattern": "^a+$"}, '"ab', 7),
    ({"type": "string", "pattern": "ab"}, '"ab', 7),
    ({"type": "string", "pattern": "^a|b$"}, '"ab', 6),
    ({"type": "string", "pattern": "^[\"\\\\a]{2}$"}, '"a\\', 7),
    ({"type": "array", "items": {"type": "integer"}}, "[],1-", 5),
    ({"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2}, "[],12", 5),
    ({"type": "array", "items": {"const": 1}, "minItems": 2}, "[],1", 7),
    ({"type": "array", "maxItems": 0}, "[],1", 5),
    ({"type": "array", "items": {"const": 1}, "minItems": 0, "maxItems": 1}, "[],1", 6),
    ({"type": "array", "items": {"type": "array", "items": {"const": 1}}}, "[],1", 7),
    ({"enum": ["a", 1, None, 1.5, True]}, '"a1.5nultre', 4),
    ({"enum": ["a", 1, 2, True], "type": ["string", "boolean"]}, '"a12true', 4),
    ({"enum": [1, 2, 3], "const": 2}, "123", 2),
    ({"const": [1, {"a": "b"}]}, '[1,{"a:b}]', 3),
    ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"const": 0}}]}, "[]0,1", 6),
    ({"oneOf": [{"const": 1}, {"type": "string", "maxLength": 1}]}, '1"a', 5),
    ({"$ref": "#/$defs/x~1y", "$defs": {"x/y": {"type": "integer"}}}, "01-", 4),
    ({**CLOSED}, "{}", 4),
    ({**CLOSED, "properties": {"a": {"const": 1}}}, '{"a:1}', 5),
]
OBJECTS: list[dict[str, Any]] = [
    {**CLOSED, "properties": {"a": {"const": 1}, "b": {"const": 2}}},
    {**CLOSED, "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a"]},
    {**CLOSED, "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"]},
    {**CLOSED, "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {**CLOSED, "properties": {"d": NULL}}}, "required": ["b"]},
    {**CLOSED, "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": NULL}, "required": ["a", "b", "c"]},
    {**CLOSED, "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}}, "$defs": {"n": NULL}},
    {"const": {"a": [], "b": {}, "c": [1, "x"]}},
]


class NotInTheForms(Exception):
    """A text that JSON reads, in a form that the pattern leaves out."""


def allowed(schema: dict[str, Any], text: str, *, whitespace: bool = False) -> bool:
    """Whether a text is JSON that the schema allows, in the forms stated by `schema_tree`."""
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    if text != text.strip() or (not whitespace and re.search(r"\s", outside)):
        return False
    order = re.findall(r'"(\w+)"\s*:', text)
    if order != sorted(order):                                                  # the schemas here declare their names in that order
        return False

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise NotInTheForms
        return dict(pairs)

    try:
        # a fraction is a number and no integer: 1.0 is one to jsonschema, and none in the pattern
        value = json.loads(text, object_pairs_hook=members, parse_float=Decimal if "enum" not in schema else float)
        value_written = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (ValueError, NotInTheForms):
        return False
    if any(0xD800 <= ord(c) <= 0xDFFF for c in value_written):
        return False
    if ("enum" in schema or "const" in schema) and not whitespace and value_written != text:
        return False
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def accepts(automaton: PatternAutomaton, text: str) -> bool:
    state = automaton.start
    for character in text:
        state = automaton.step(state, character)
    return automaton.accepts(state)


def walk(automaton: PatternAutomaton, draw: random.Random, most: int = 60) -> str | None:
    """A text of the pattern drawn at random, or None where the draw became too long."""
    state, text = automaton.start, ""
    while len(text) < most:
        choices = list(automaton.steps(state))
        if automaton.accepts(state) and (not choices or draw.random() < 0.3):
            return text
        first, state = draw.choice(choices)
        text += chr(first)
    return None


@pytest.mark.parametrize(("schema", "alphabet", "length"), SCHEMAS, ids=[json.dumps(s) for s, _, _ in SCHEMAS])
def test_short_texts_are_those_of_json_and_the_schema(schema: dict[str, Any], alphabet: str, length: int) -> None:
    automaton = PatternAutomaton(schema_tree(schema))
    found = 0
    for n in range(length + 1):
        for characters in itertools.product(sorted(set(alphabet)), repeat=n):
            text = "".join(characters)
            wanted = allowed(schema, text)
            assert accepts(automaton, text) == wanted, text
            found += wanted
    drawn = {text for seed in range(40) if (text := walk(automaton, random.Random(seed)))}
    assert found or drawn
    for text in drawn:
        assert allowed(schema, text), text


@pytest.mark.parametrize("whitespace", ["none", "any"])
@pytest.mark.parametrize("schema", [s for s, _, _ in SCHEMAS if s.get("type") == "array"] + OBJECTS, ids=json.dumps)
def test_texts_one_change_away_are_judged_as_by_json_and_the_schema(schema: dict[str, Any], whitespace: str) -> None:
    automaton = PatternAutomaton(schema_tree(schema, whitespace=whitespace))
    texts = {text for seed in range(25) if (text := walk(automaton, random.Random(seed)))}
    assert texts
    judged = {True: 0, False: 0}
    for text in texts:
        near = {text} | {text[:i] + c + text[j:] for i in range(len(text) + 1) for j in (i, i + 1) for c in ("", *'{}[]",: 1a')}
        swapped = {",".join(parts) for parts in itertools.permutations(text[1:-1].split(","))} if text.count(",") < 4 else set()
        for other in near | {text[0] + inside + text[-1] for inside in swapped}:
            wanted = allowed(schema, other, whitespace=whitespace == "any")
            assert accepts(automaton, other) == wanted, other
            judged[wanted] += 1
    assert all(judged.values())


PAIRS = [(0x61, 0x7A), (0x00, 0x10FFFF), (0x1F, 0x110), (0xFFF, 0x2001), (0xFFFF, 0x10400), (0x103FF, 0x20005), (0x1F600,) * 2]


@pytest.mark.parametrize("pair", PAIRS)
def test_spellings_are_those_that_json_reads(pair: tuple[int, int]) -> None:
    lo, hi = pair
    automaton = PatternAutomaton(spelled(Chars((pair,) if hi < 0xD800 or lo > 0xDFFF else ((lo, 0xD7FF), (0xE000, hi)))))
    draw = random.Random(hi)
    near = {c for edge in (lo, hi, 0x22, 0x5C, 0x7F, 0xD7FF, 0xE000, 0xFFFF, 0x10000) for c in range(edge - 2, edge + 3)}
    codes = {c for c in near | {draw.randrange(0x110000) for _ in range(300)} if 0 <= c <= 0x10FFFF and not 0xD800 <= c <= 0xDFFF}
    for code in codes:
        escaped = "".join(f"\\u{unit:04x}" for unit in memoryview(chr(code).encode("utf-16-le")).cast("H"))
        for text in (chr(code), escaped, escaped.upper().replace("U", "u"), "\\" + chr(code)):
            try:
                read = json.loads(f'"{text}"')
            except ValueError:
                read = ""
            assert accepts(automaton, text) == (len(read) == 1 and lo <= ord(read) <= hi), (text, hex(code))


REFUSED: list[tuple[Any, str]] = [
    (True, "any value is no regular language"), ({}, "no type at #"), ({"type": "object"}, "additionalProperties not given"),
    ({"type": "object", "additionalProperties": True}, "additionalProperties True at #"),
    ({"type": "integer", "minimum": 3}, "minimum at #"), ({"type": "array"}, "an array without items"),
    ({"type": "array", "items": True}, "got True at #/items"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "a pattern and a length"), ({"type": "string", "format": "date"}, "format at #"),
    ({"type": "text"}, "type 'text'"), ({"type": "string", "minLength": -1}, "minLength -1"),
    ({"type": "string", "minLength": True}, "minLength True"),
    ({**CLOSED, "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, "lookahead"), ({"enum": []}, r"enum \[\]"),
    ({"anyOf": []}, "a list of schemas"), ({**CLOSED, "required": ["a"]}, "required a at #"),
    ({"$ref": "other.json"}, "want a path in the schema"), ({"$ref": "#/$defs/a"}, "a path that exists"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}, "inside itself at #/\\$defs/a/items"),
    ({"type": "array", "items": {"$ref": "#"}}, "inside itself"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'0' in both 0 and 1"),
    ({"allOf": [{"type": "null"}], "type": "null"}, "allOf at #"), ({"anyOf": [{"type": "null"}], "type": "null"}, "type at #"),
    ({"const": "\ud800"}, "a surrogate"), ({"not": {"type": "null"}}, "no type"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_not_kept_is_refused_by_name(schema: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        schema_tree(schema)


def test_whitespace_is_named_where_it_is_unknown() -> None:
    with pytest.raises(ValueError, match="whitespace: got 'some'; want 'none' or 'any'"):
        schema_tree({"type": "null"}, whitespace="some")


def test_a_reference_used_twice_is_no_recursion() -> None:
    schema = {**CLOSED, "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "null"}}}
    assert accepts(PatternAutomaton(schema_tree(schema)), '{"a":null,"b":null}')


IMPOSSIBLE = [
    {"type": "string", "minLength": 2, "maxLength": 1}, {"type": "array", "items": NULL, "minItems": 2, "maxItems": 1},
    {"type": "array", "minItems": 1, "maxItems": 0}, {"enum": [1], "type": "string"}, {"enum": [1], "const": True},
]  # fmt: skip


@pytest.mark.parametrize("schema", IMPOSSIBLE)
def test_a_schema_that_nothing_keeps_has_no_text(schema: dict[str, Any]) -> None:
    assert PatternAutomaton(schema_tree(schema)).start == frozenset()
