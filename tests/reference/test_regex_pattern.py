"""The parser of patterns: what it reads as Python's re does, and what it refuses by name."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from oracles.reference.regex_automaton import PatternAutomaton, common_text
from oracles.reference.regex_pattern import SCALARS, all_but, intervals_of, parse_pattern

PATTERNS = [
    "", "a", "ab|c", "(ab|a)b?", "a*", "a+b+", "(a|b)*a(a|b){2}", "[ab]{2,}", "[^a]", "[^a]b{1,2}|", "a{0}", "a{0,2}c", "(a*)*", "(a*b*)+c",
    "^a+$|b", "^|c$", "(?:a|(?P<name>b))c", "(?P<x>a)", "a??b", "a*?", "a{1,2}?", ".", ".*c", "[a-b]+c", "[abc-]", "[-a]", r"\w", r"\W*",
    r"\d?a", r"[\w]", r"[^\W]b", r"[\s\S]c", r"\x61", r"\u0062", r"\U00000063", r"[\x61-\x62]", "(|a)(|b)", "()", "(a|)+", "[^\\w]", "a|b|",
    r"a\-b", r"\/?a", "}a", "]",
]  # fmt: skip
REFUSED = {
    r"(a)\1": "a backreference", "(?P=n)": "a backreference", "a(?=b)": "lookahead", "(?!a)": "lookahead", "(?<=a)b": "lookbehind",
    "(?<!a)b": "lookbehind", "(?i)a": "flags", "(?i:a)": "flags", "(?>a)": "an atomic group", "(?#a)": "a comment",
    "(?(1)a|b)": "a condition", r"\ba": "a word boundary", r"\p{L}": "a Unicode property", r"a\Z": "an anchor",
    "a++": "a possessive repetition", "a**": "a repetition of a repetition", "a{2}{3}": "a repetition of a repetition",
    "*a": "repeats nothing", "a|+": "repeats nothing", "(?:?)": "repeats nothing", "a^b": "an anchor inside", "(^a)": "an anchor inside",
    "(a$)": "an anchor inside the pattern", "a$b": "an anchor inside", "{": "a {", "a{": "a { without a number",
    "a{,3}": "a { without a number", "a{3,2}": "decrease", "a{1": "something else than }", "(a": "a group that is not closed",
    "a)": "a ) without (", "(?P<a": "> after a group's name is missing", "[a": "] is missing", "[]a]": "an empty class",
    "[[:alpha:]]": "a [ inside a class", "[a&&b]": "an operation on classes", "[b-a]": "a range that decreases",
    r"[\d-z]": "a range between classes", r"[a-\d]": "a range between classes", r"\x4": "2 hexadecimal digits",
    r"\u12": "4 hexadecimal digits", r"\UFFFFFFFF": "8 hexadecimal digits", r"\ud800": "a surrogate", "\\": r"what \ escapes is missing",
    r"\q": r"the unknown escape \q", "\ud800": "a surrogate", r"[\ud800]": "a surrogate", "(a$|b)": "an anchor inside a group",
}  # fmt: skip


def accepts(automaton: PatternAutomaton, text: str) -> bool:
    state = automaton.start
    for character in text:
        state = automaton.step(state, character)
    return automaton.accepts(state)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_language_is_that_of_python(pattern: str) -> None:
    automaton, oracle = PatternAutomaton(parse_pattern(pattern)), re.compile(pattern, re.ASCII)
    for n in range(7):
        for characters in itertools.product("abc", repeat=n):
            text = "".join(characters)
            assert accepts(automaton, text) == bool(oracle.fullmatch(text)), text


SINGLE = [r"\w", r"\d", r"\s", r"\W", r"\D", r"\S", ".", "[^a-z]", r"[é-ü]|\x41", r"\.", r"[\]\\^\-]", "\\\u00e9"]


@pytest.mark.parametrize("pattern", SINGLE)
def test_single_characters_are_those_of_python(pattern: str) -> None:
    automaton, oracle = PatternAutomaton(parse_pattern(pattern)), re.compile(pattern, re.ASCII)
    for code in [*range(0x250), 0x2028, 0x660, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF]:
        assert accepts(automaton, chr(code)) == bool(oracle.fullmatch(chr(code))), hex(code)


def test_random_patterns_have_the_language_of_python() -> None:
    draw = random.Random(0)
    seen = 0
    for _ in range(150):
        pattern = random_pattern(draw, 4)
        automaton, oracle = PatternAutomaton(parse_pattern(pattern)), re.compile(pattern)
        for n in range(6):
            for characters in itertools.product("ab", repeat=n):
                text = "".join(characters)
                found = accepts(automaton, text)
                assert found == bool(oracle.fullmatch(text)), (pattern, text)
                seen += found
    assert seen > 500


def random_pattern(draw: random.Random, depth: int) -> str:
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(["a", "b", "[ab]", "[^a]", ".", "ab", "ba"])
    kind = draw.randrange(4)
    if kind == 0:
        return f"(?:{random_pattern(draw, depth - 1)}|{random_pattern(draw, depth - 1)})"
    if kind == 1:
        return f"(?:{random_pattern(draw, depth - 1)})" + draw.choice(["*", "+", "?", "{2}", "{1,3}", "{0,1}", "{2,}", "*?"])
    return random_pattern(draw, depth - 1) + random_pattern(draw, depth - 1)


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_is_not_known_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(ValueError, match=re.escape(REFUSED[pattern])) as error:
        parse_pattern(pattern)
    assert str(error.value).startswith("pattern: got ")


def test_a_pattern_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="pattern: got bytes"):
        parse_pattern(b"a")  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["a", "^a", "a$", "^a$", "^a|b$", "a|^$", "", "^ab*|(?:b|c)$"])
def test_a_pattern_that_matches_somewhere_is_that_of_a_search(pattern: str) -> None:
    automaton, oracle = PatternAutomaton(parse_pattern(pattern, whole=False)), re.compile(pattern)
    for n in range(6):
        for characters in itertools.product("abc", repeat=n):
            text = "".join(characters)
            assert accepts(automaton, text) == bool(oracle.search(text)), text


def test_intervals_join_where_they_touch_and_never_across_surrogates() -> None:
    assert intervals_of([(5, 6), (1, 4), (6, 9)]) == ((1, 9),)
    assert intervals_of([(0, 0x10FFFF)]) == SCALARS
    assert all_but(SCALARS) == ()
    assert all_but(()) == SCALARS
    assert all_but(((0, 9), (11, 0x10FFFF))) == ((10, 10),)


def test_a_class_of_nothing_matches_nothing_and_what_needs_it_is_dead() -> None:
    automaton = PatternAutomaton(parse_pattern(r"a[^\s\S]|b"))
    assert automaton.step(automaton.start, "a") == frozenset()
    assert accepts(automaton, "b")


def test_too_many_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 200000 positions"):
        PatternAutomaton(parse_pattern("((a{100}){100}){100}"))


def test_common_texts_are_found_where_there_are_some() -> None:
    assert common_text(parse_pattern("(ab)*"), parse_pattern("a.*b|c")) == "ab"
    assert common_text(parse_pattern("(ab)*c"), parse_pattern("[ab]*")) is None
    assert common_text(parse_pattern("a*"), parse_pattern("b*")) == ""
