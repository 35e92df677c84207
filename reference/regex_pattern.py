"""Regular expressions as trees of characters: the parser of guided decoding's patterns. What the trees accept is left to regex_automaton.

Written by hand: of the parsers on PyPI, `re._parser` is private, interegular is no longer kept, and greenery 4.2 refuses anchors
and escapes such as \\- and \\/ and cannot say what it does not know; each of them reads some patterns otherwise than engines do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Intervals = tuple[tuple[int, int], ...]                                         # of code points, both ends inclusive, sorted, disjoint


@dataclass(frozen=True)
class Chars:
    """One character of some intervals."""

    intervals: Intervals


@dataclass(frozen=True)
class Chain:
    """One part after another."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Choice:
    """One of the parts; none of none."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Repeat:
    """A part, `least` to `most` times; most None: no end."""

    part: Tree
    least: int
    most: int | None


Tree = Chars | Chain | Choice | Repeat
SCALARS: Intervals = ((0, 0xD7FF), (0xE000, 0x10FFFF))                          # surrogates are no characters
NOTHING = Chain(())


def intervals_of(pairs: Iterable[tuple[int, int]]) -> Intervals:
    """Intervals that may overlap, in order and joined, without surrogates.

    >>> intervals_of([(50, 60), (40, 49), (70, 0xDFFF)])
    ((40, 60), (70, 55295))
    """
    cut = sorted((max(lo, first), min(hi, last)) for lo, hi in pairs for first, last in SCALARS if max(lo, first) <= min(hi, last))
    joined: list[tuple[int, int]] = []
    for lo, hi in cut:
        if joined and lo <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return tuple(joined)


def all_but(intervals: Intervals) -> Intervals:
    """Every character that is in none of the intervals."""
    gaps, start = [], 0
    for lo, hi in intervals:
        gaps.append((start, lo - 1))
        start = hi + 1
    return intervals_of([*gaps, (start, 0x10FFFF)])


def text(characters: str) -> Chain:
    """The tree of one text."""
    return Chain(tuple(Chars(((ord(c), ord(c)),)) for c in characters))


def one_of(characters: str) -> Chars:
    """The tree of one character among some."""
    return Chars(intervals_of((ord(c), ord(c)) for c in characters))


DIGITS: Intervals = ((48, 57),)
WORD = intervals_of([(48, 57), (65, 90), (95, 95), (97, 122)])
SPACE = intervals_of([(9, 13), (32, 32)])
SHORTHANDS = {"d": DIGITS, "D": all_but(DIGITS), "w": WORD, "W": all_but(WORD), "s": SPACE, "S": all_but(SPACE)}
CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
ANYTHING = Repeat(Chars(SCALARS), 0, None)
DOT = all_but(((10, 10),))

# What stands behind "(?", longest first, and what it would mean.
UNKNOWN_GROUPS = {
    "P=": "a backreference", "P>": "recursion", "<=": "lookbehind", "<!": "lookbehind", "=": "lookahead", "!": "lookahead",
    ">": "an atomic group", "#": "a comment", "(": "a condition", "|": "a branch reset", "&": "recursion", "R": "recursion",
}  # fmt: skip
UNKNOWN_ESCAPES = {
    "b": "a word boundary", "B": "a word boundary", "A": "an anchor (write ^)", "Z": "an anchor (write $)", "z": "an anchor (write $)",
    "p": "a Unicode property", "P": "a Unicode property", "k": "a backreference", "G": "an anchor", "X": "a grapheme", "R": "a line break",
}  # fmt: skip


def parse_pattern(pattern: str, *, whole: bool = True) -> Tree:
    """The tree of a regular expression that must match the whole text, or with whole=False some part of it, as JSON Schema reads it.

    Literals; . (all but the line feed); [classes], negated or not; \\d \\w \\s and their negations, of ASCII; \\n \\r \\t \\f \\v \\xHH
    \\uHHHH \\UHHHHHHHH and \\ before punctuation; a|b; * + ? {m} {m,} {m,n}, lazy or not, which is the same language; ( ), (?: ),
    (?P<name> ), (?<name> ); ^ and $ at the ends of the whole pattern's alternatives.

    >>> parse_pattern("a|[0-9]?")
    Choice(parts=(Chars(intervals=((97, 97),)), Repeat(part=Chars(intervals=((48, 57),)), least=0, most=1)))

    Raises TypeError for a pattern that is no str, ValueError naming the place and what is not known there: backreferences,
    lookaround, flags, word boundaries, Unicode properties, and what engines read differently ({ and [ that are not escaped).
    Source: Python's re, https://docs.python.org/3/library/re.html, in its ASCII form.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"pattern: got {type(pattern).__name__}; want a str")
    parser = _Parser(pattern)
    branches = [_anchored(parser, whole)]
    while parser.take("|"):
        branches.append(_anchored(parser, whole))
    if parser.at < len(pattern):
        parser.refuse("a ) without (" if parser.ahead(")") else "a character that opens nothing")
    return branches[0] if len(branches) == 1 else Choice(tuple(branches))


def _anchored(parser: _Parser, whole: bool) -> Tree:
    starts = parser.take("^")
    branch = parser.chain()
    ends = parser.take("$")
    if whole or (starts and ends):
        return branch
    return Chain((*(() if starts else (ANYTHING,)), branch, *(() if ends else (ANYTHING,))))


class _Parser:
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def refuse(self, what: str) -> None:
        raise ValueError(f"pattern: got {what} at {self.at} of {self.pattern!r}; want a pattern of those in parse_pattern")

    def ahead(self, what: str) -> bool:
        return self.pattern.startswith(what, self.at)

    def take(self, what: str) -> bool:
        found = self.ahead(what)
        self.at += len(what) if found else 0
        return found

    def next(self, missing: str) -> str:
        if self.at == len(self.pattern):
            self.refuse(f"an end where {missing} is missing")
        self.at += 1
        return self.pattern[self.at - 1]

    def alternatives(self) -> Tree:
        branches = [self.chain()]
        while self.take("|"):
            branches.append(self.chain())
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def chain(self) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.pattern) and not self.ahead("|") and not self.ahead(")") and not self._at_end_anchor():
            parts.append(self.repeated(self.atom()))
        return parts[0] if len(parts) == 1 else Chain(tuple(parts))

    def _at_end_anchor(self) -> bool:
        return self.ahead("$") and (self.at + 1 == len(self.pattern) or self.pattern[self.at + 1] == "|")

    def repeated(self, part: Tree) -> Tree:
        bounds = self.bounds()
        if bounds is None:
            return part
        self.take("?")                                                          # lazy: the same language
        if self.ahead("+"):
            self.refuse("a possessive repetition")
        if self.bounds() is not None:
            self.refuse("a repetition of a repetition")
        return Repeat(part, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                return bounds
        if not self.take("{"):
            return None
        least = self.number()
        most: int | None = least
        if self.take(","):
            most = None if self.ahead("}") else self.number()
        if not self.take("}"):
            self.refuse("something else than } after the bounds of a repetition")
        if most is not None and most < least:
            self.refuse(f"bounds {least},{most} that decrease")
        return least, most

    def number(self) -> int:
        start = self.at
        while self.at < len(self.pattern) and self.pattern[self.at] in "0123456789":
            self.at += 1
        if start == self.at:
            self.refuse("a { without a number (write \\{ for the character)")
        return int(self.pattern[start : self.at])

    def atom(self) -> Tree:
        for sign, meaning in (("*", "a * that repeats nothing"), ("+", "a + that repeats nothing"), ("?", "a ? that repeats nothing"),
                              ("{", "a { that repeats nothing (write \\{ for the character)"),
                              ("^", "an anchor inside the pattern"), ("$", "an anchor inside the pattern")):  # fmt: skip
            if self.ahead(sign):
                self.refuse(meaning)
        c = self.next("a character")
        if c == ".":
            return Chars(DOT)
        if c == "[":
            return Chars(self.character_class())
        if c == "\\":
            return Chars(self.escape())
        return self.group() if c == "(" else Chars(_single(self, ord(c)))

    def group(self) -> Tree:
        if self.take("?"):
            unknown = next((meaning for sign, meaning in UNKNOWN_GROUPS.items() if self.ahead(sign)), None)
            if unknown is not None:
                self.refuse(unknown)
            if self.take("P<") or self.take("<"):
                while self.next("> after a group's name") != ">":
                    pass
            elif not self.take(":"):
                self.refuse("flags")
        inside = self.alternatives()
        if not self.take(")"):
            self.refuse("a group that is not closed" if self.at == len(self.pattern) else "an anchor inside a group")
        return inside

    def escape(self) -> Intervals:
        c = self.next("what \\ escapes")
        if c in SHORTHANDS:
            return SHORTHANDS[c]
        if c in CONTROLS:
            return ((CONTROLS[c],) * 2,)
        if c in HEX_DIGITS:
            digits = self.pattern[self.at : self.at + HEX_DIGITS[c]]
            if len(digits) < HEX_DIGITS[c] or not set(digits) <= set("0123456789abcdefABCDEF") or int(digits, 16) > 0x10FFFF:
                self.refuse(f"\\{c} without {HEX_DIGITS[c]} hexadecimal digits of a character")
            self.at += HEX_DIGITS[c]
            return _single(self, int(digits, 16))
        if c.isascii() and c.isalnum():
            self.refuse("a backreference or an octal escape" if c.isdigit() else UNKNOWN_ESCAPES.get(c, f"the unknown escape \\{c}"))
        return _single(self, ord(c))

    def character_class(self) -> Intervals:
        negated = self.take("^")
        pairs: list[tuple[int, int]] = []
        if self.ahead("]"):
            self.refuse("an empty class (write \\] for the character)")
        while not self.take("]"):
            if any(self.ahead(sign) for sign in ("&&", "--", "~~", "||")):
                self.refuse("an operation on classes (escape its signs)")
            first = self._member()
            if self.ahead("-") and not self.ahead("-]"):
                self.at += 1
                last = self._member()
                if len(first) != 1 or first[0][0] != first[0][1] or len(last) != 1 or last[0][0] != last[0][1]:
                    self.refuse("a range between classes")
                if first[0][0] > last[0][0]:
                    self.refuse("a range that decreases")
                first = ((first[0][0], last[0][0]),)
            pairs.extend(first)
        members = intervals_of(pairs)
        return all_but(members) if negated else members

    def _member(self) -> Intervals:
        if self.ahead("["):
            self.refuse("a [ inside a class (write \\[)")
        c = self.next("]")
        return self.escape() if c == "\\" else _single(self, ord(c))


def _single(parser: _Parser, code: int) -> Intervals:
    if 0xD800 <= code <= 0xDFFF:
        parser.refuse("a surrogate")
    return ((code, code),)
