"""How JSON spells a string: every text that reads as some characters, for a tree of characters."""

from __future__ import annotations

from collections.abc import Iterator

from .regex_pattern import Chain, Chars, Choice, Intervals, Repeat, Tree, intervals_of, one_of, text

HEX = "0123456789abcdef"
SHORT = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
RAW = intervals_of([(0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)])              # what stands for itself: all but controls, " and \


def spelled(tree: Tree) -> Tree:
    """The tree of all spellings, inside the quotes, of the strings that a tree matches.

        a character is itself, unless it is a control character, " or \\; or \\ and one letter, where JSON has one; or \\uXXXX, with
        hexadecimal digits in either case, two of them for characters above U+FFFF

    Source: RFC 8259, section 7.
    """
    if isinstance(tree, Chars):
        return _spelled_character(tree.intervals)
    if isinstance(tree, Repeat):
        return Repeat(spelled(tree.part), tree.least, tree.most)
    return type(tree)(tuple(map(spelled, tree.parts)))


def _spelled_character(intervals: Intervals) -> Tree:
    ways: list[Tree] = [Chars(_both(intervals, RAW))]
    ways += [text("\\" + letter) for character, letter in SHORT.items() if _both(intervals, ((ord(character),) * 2,))]
    ways += [Chain((text("\\u"), _hexadecimal(lo, hi))) for lo, hi in _both(intervals, ((0, 0xFFFF),))]
    for lo, hi in _both(intervals, ((0x10000, 0x10FFFF),)):
        ways += [Chain((text("\\u"), _hexadecimal(0xD800 + first[0], 0xD800 + first[1]),
                        text("\\u"), _hexadecimal(0xDC00 + last[0], 0xDC00 + last[1])))
                 for first, last in _products(_digits(lo - 0x10000, 1024, 2), _digits(hi - 0x10000, 1024, 2), 1023)]  # fmt: skip
    return Choice(tuple(ways))


def _both(a: Intervals, b: Intervals) -> Intervals:
    return tuple((max(lo, first), min(hi, last)) for lo, hi in a for first, last in b if max(lo, first) <= min(hi, last))


def _hexadecimal(lo: int, hi: int) -> Tree:
    """Four hexadecimal digits, in either case, of a number from lo to hi."""
    return Choice(tuple(Chain(tuple(one_of(HEX[a : b + 1] + HEX[a : b + 1].upper()) for a, b in product))
                        for product in _products(_digits(lo, 16, 4), _digits(hi, 16, 4), 15)))  # fmt: skip


def _digits(number: int, radix: int, count: int) -> tuple[int, ...]:
    return tuple(number // radix**place % radix for place in reversed(range(count)))


def _products(lo: tuple[int, ...], hi: tuple[int, ...], largest: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The numbers from lo to hi, given by their digits, as products of ranges of digits.

    >>> list(_products((1, 3), (3, 5), 9))
    [((1, 1), (3, 9)), ((2, 2), (0, 9)), ((3, 3), (0, 5))]
    """
    if not lo:
        yield ()
        return
    zeros, nines = (0,) * (len(lo) - 1), (largest,) * (len(lo) - 1)
    if lo[0] == hi[0]:
        yield from (((lo[0], lo[0]), *rest) for rest in _products(lo[1:], hi[1:], largest))
        return
    first, last = lo[0], hi[0]
    if lo[1:] != zeros:
        yield from (((first, first), *rest) for rest in _products(lo[1:], nines, largest))
        first += 1
    if hi[1:] != nines:
        last -= 1
    if first <= last:
        yield ((first, last), *((0, largest),) * len(zeros))
    if hi[1:] != nines:
        yield from (((hi[0], hi[0]), *rest) for rest in _products(zeros, hi[1:], largest))
