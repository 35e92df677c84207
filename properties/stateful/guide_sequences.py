"""Guide sequences: walks through the states of a guide, designed ones for each known kind of fault, and random ones."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from oracles.reference import compile_regex

from .guide_model import GuideModel
from .sequence import NEW, Call, Numbers, Sequence

END = "<eos>"
WEIGHTS = {"advance": 6, "draft_masks": 1}
HUGE = 2**32                                                                    # added to a token's number, 32 bits drop it


def new(pattern: str, *tokens: str) -> Call:
    """A guide over some tokens, and eos behind them."""
    return Call(NEW, (pattern, (*tokens, END), len(tokens)))


def walk(first: Call, *tokens: str | int | tuple[int, str | int]) -> Sequence:
    """A walk: each token is taken from the newest state, or, as (number, token), from that one. Tokens by text, or by number.

    >>> print(*walk(new("a*", "a", "aa"), "a", (0, "aa"), END), sep="; ")
    x = SUBJECT('a*', ['a', 'aa', '<eos>'], 2); x.advance(0, 0); x.advance(0, 1); x.advance(2, 2)
    """
    vocabulary, calls = first.args[1], [first]
    for made, token in enumerate(tokens):
        number, what = token if isinstance(token, tuple) else (made, token)
        calls.append(Call("advance", (number, vocabulary.index(what) if isinstance(what, str) else what)))
    return tuple(calls)


def draft(first: Call, *tokens: str, number: int = 0) -> Call:
    """A draft put to the guide from one of its states."""
    return Call("draft_masks", (number, tuple(first.args[1].index(token) for token in tokens)))


ABC = ("a", "b", "c", "ab", "bc", "abc", "ca", "")
STARS = new("a*", "a", "b", "aa", "")
BOUNDED = new("1{1,3}", "1", "11", "0", "1111")
FREE = new("[^<]*<[0-9]+", "x", "y", "<", "1", "x<", "<1", "1y")
DIGITS = new("[0-9]+", "1", "2", "null", "1a", "")
PREFIXES = new("(ab|abc)+d?", *ABC, "d", "abcd")
DEAD = new("ab|c(x|y)|c", "a", "c", "x", "ax", "cy")                              # no b and no y alone: a leads nowhere
LATER = new("c(ab|c)", "a", "c")
UNICODE = new("[α-ω]+(🙂|é)?", "α", "ω", "🙂", "é", "α🙂", "😀", "e\u0301", "", "ωé")
NUMBERS = new(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", "-", "0", "1", "00", "10", ".", ".5", "-0.", "1.0", "1.", "")
QUOTED = new(r'"([^"\\]|\\["\\n])*"', '"', "a", "\\", 'a"', '\\"', 'n"', '""', "\\\\", '"\\n')
TWICE = new("(a|b)c", "a", "b", "c", "a", "c", "ac")                             # two tokens of one text, twice
CLASSES = new(r"\w+\s\d{2}|\D", "a", "_", " ", "1", "12", "a ", "\t1", "!")
SPACES = new(r"\s{2,}-", " ", "\t", "\n", "\r", "\v", "\f", "-", "\b", "\r\n")
FEEDS = new(r"\D\W[^a][1_a]{2,}", "a", "1", "\n", "_", "\n\n", "a1")
ANGLES = new("<[bi]+>|<\\|end\\|>", "<b>", "<", "b", ">", "<|end|>", "</b>")
# As many tokens as several words of a bit mask hold, and not a whole number of words; allowed are those at odd places and some others.
MANY = tuple(chr(0x100 + 61 * i) for i in range(299))
WIDE = new(f"[{''.join(MANY[1::2])}{MANY[32]}{MANY[64]}{MANY[256]}]+", *MANY)
LONG = new("(ab){10,20}c", "a", "b", "c", "ab" * 10, "ab" * 20, "ab" * 21)
LOOKS_AHEAD = new("ab|c", "a", "c")                                             # a can never be completed

DESIGNED: dict[str, Sequence] = {
    "a star goes on past its accepting states": walk(STARS, "a", "a", "aa", END),
    "a star may end at once": walk(STARS, END, END),
    "after eos nothing but eos": (*walk(STARS, "a", END), *walk(STARS, (2, "a"))[1:]),
    "after eos no number either": (*walk(STARS, END), *walk(STARS, (1, "aa"))[1:]),
    "an empty token is refused": walk(STARS, ""),
    "a bounded repetition ends at its bound": walk(BOUNDED, "1", "11", "1"),
    "a bounded repetition ends": walk(BOUNDED, "1", "1", "1", END),
    "a token longer than the bound": walk(BOUNDED, "1111"),
    "numbers beyond 32 bits": walk(BOUNDED, HUGE + 0),
    "numbers beyond 32 bits, later": walk(DIGITS, "1", HUGE + 1),
    "the number after the last token": walk(DIGITS, len(DIGITS.args[1])),
    "a number below 0": walk(DIGITS, -len(DIGITS.args[1])),
    "minus one": walk(STARS, "a", -1),
    "the constraint begins midway": walk(FREE, "x", "<", "1", "1", END),
    "the constraint begins inside a token": walk(FREE, "x<", "1", END),
    "a draft over the place where the constraint begins": (*walk(FREE), draft(FREE, "x", "<", "y", "1"), draft(FREE, "x", "<", "1", "1")),
    "a draft inside the free section": (*walk(FREE, "x"), draft(FREE, "y", "x", number=1)),
    "a draft that breaks the pattern": (*walk(DIGITS), draft(DIGITS, "null", "1")),
    "a draft that breaks it at the end": (*walk(DIGITS, "1"), draft(DIGITS, "2", "1", "null", number=1)),
    "a draft past eos": (*walk(STARS, "a"), draft(STARS, "a", END, "a", "a", number=1), draft(STARS, "aa", END, END, number=1)),
    "an empty draft": (*walk(STARS), draft(STARS)),
    "a draft leaves its state as it was": (*walk(BOUNDED), draft(BOUNDED, "1", "11"), *walk(BOUNDED, (0, "11"), "1", END)[1:]),
    "a forbidden token right after the start": walk(DIGITS, "null"),
    "a token that leaves the pattern midway": walk(DIGITS, "1a"),
    "tokens that are prefixes of each other": walk(PREFIXES, "ab", "ab", "c", "a", "bc", "d", END),
    "one text in many tokens": walk(PREFIXES, "abc", (0, "ab"), "c", (0, "a"), "bc", (4, "b"), "c"),
    "two branches from one state": walk(PREFIXES, "ab", (1, "c"), (1, "ab"), (1, "d"), (2, "a"), (2, "d"), (3, END)),
    "back to the start and again": walk(BOUNDED, "1", "1", "1", (0, "11"), "1", (2, END), (2, "1"), (0, "1")),
    "a dead end of the vocabulary": walk(DEAD, "c", "x", (0, "c"), END),
    "a token that leads nowhere": walk(DEAD, "ax"),
    "into a dead end of the vocabulary": walk(DEAD, "a"),
    "into a dead end behind another token": walk(LATER, "c", "a"),
    "characters beyond the first plane": walk(UNICODE, "α", "🙂", (1, "ωé"), END),
    "a token of two code points that look like one": walk(UNICODE, "α", "e\u0301"),
    "a neighbour of a character beyond the first plane": walk(UNICODE, "ω", "😀"),
    "numbers": walk(NUMBERS, "-", "10", ".", "1", "00", END),
    "numbers in long tokens": walk(NUMBERS, "-0.", ".5", (0, "1.0"), (1, "1.")),
    "leading zeros": walk(NUMBERS, "0", "0"),
    "strings with escapes": walk(QUOTED, '"', "\\", 'n"', END, (0, '"'), '\\"', "\\\\", 'a"'),
    "two tokens of one text": walk(TWICE, 3, 4, END, (0, "a"), 2),
    "classes": walk(CLASSES, "_", "a ", "12", (0, "!"), END, (0, "a"), "\t1", "1"),
    "every kind of space": walk(SPACES, " ", "\v", "\f", "\t", "\r\n", "\n", "\r", "-", END),
    "a space that is none": walk(SPACES, "\b"),
    "classes of all but something take the line feed": walk(FEEDS, "\n", "\n\n", "1", "_", "a1", END, (4, "\n")),
    "tokens that look like tags": walk(ANGLES, "<b>", END, (0, "<|end|>"), END, (0, "<"), "b", "b", ">", (0, "</b>")),
    "a vocabulary of many words of a bit mask": walk(WIDE, MANY[31], MANY[32], MANY[63], MANY[64], MANY[255], MANY[256], MANY[297], END),
    "the last token of many": walk(WIDE, MANY[298]),
    "a long text": walk(LONG, *"ab" * 20, "c", END),
    "a long token": walk(LONG, "ab" * 20, "c", END, (0, "ab" * 10), "c", (0, "ab" * 21)),
    "one letter is nearly everything": walk(new(".*b", *ABC, "\n"), "ca", "b", "abc", "b", END, (1, "\n")),
    "an unambiguous end": walk(new("abc", *ABC), "ab", "c", END),
    "eos is the first token": walk(Call(NEW, ("[ab]*", (END, "a", "b"), 0)), "a", "b", END, END),
    "eos has no text": walk(Call(NEW, ("a+", ("a", "", "b", ""), 3)), "a", 3, 3, (1, "a"), (0, 3)),
    "the text of eos never counts": walk(Call(NEW, ("a*b", ("a", "b", "ab", "a"), 3)), "a", "b", 3, (0, 3)),
    "only eos is left, and nothing else is tried": walk(new("", "a"), END),
}


def designed_sequences() -> dict[str, Sequence]:
    """The designed walks by what they are about."""
    return DESIGNED


def drawn_new(numbers: Numbers, abilities: frozenset[str]) -> Call:
    """A guide of a random pattern over a, b and c, and a vocabulary of them and of longer tokens, now and then without one of them."""
    a, b, c = numbers
    pattern = _pattern(Random(a), a % 4)
    draw = Random(b)
    letters = draw.sample("abc", 3)
    longer = ["".join(draw.choices("abc", k=draw.randint(1, 4))) for _ in range(draw.randint(0, 5))]
    tokens = [*letters, *longer, *[""] * (c % 2)]
    less = new(pattern, *tokens[1:])
    return less if c % 3 == 0 and in_bounds(less) else new(pattern, *tokens)


def _pattern(draw: Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(["a", "b", "c", "ab", "[ab]", "[^a]", ".", "(a|bc)", "(?:ab|a)"])
    one, other = _pattern(draw, depth - 1), _pattern(draw, draw.randrange(depth))
    return draw.choice([one + other, f"(?:{one}|{other})", f"(?:{one})" + draw.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}"])])


def drawn_call(method: str, numbers: Numbers, model: GuideModel, abilities: frozenset[str]) -> Call:
    """A step, mostly with an allowed token and from the newest state, or a draft, which may be forbidden anywhere."""
    a, b, c = numbers
    newest = len(model.places) - 1
    number = newest if a % 3 else a // 3 % (newest + 1)
    V = len(model.vocabulary)
    if method == "draft_masks":
        draw = Random(b)
        return Call("draft_masks", (number, tuple(draw.randrange(V) for _ in range(c % 6))))
    allowed = [token for token in range(V) if model.mask(number)[token]]
    anything = [*range(V), V, -1, HUGE, HUGE + 1]
    choices = allowed if allowed and c % 10 else anything
    return Call("advance", (number, choices[b % len(choices)]))


def in_bounds(call: Call) -> bool:
    """Whether a call is one that the contract speaks of: a shrunk sequence must be."""
    return call.args[0] >= 0 if call.method != NEW else _has_texts(*call.args)


@lru_cache(maxsize=4096)
def _has_texts(pattern: str, vocabulary: tuple[str, ...], eos: int) -> bool:
    try:
        compile_regex(pattern, vocabulary, eos=eos)
    except ValueError:
        return False
    return vocabulary[eos] in (END, "")
