"""Enumeration: every path that an algorithm with random draws can take, as fractions. No sampling, no rounding.

An algorithm is a generator: it yields a distribution, is sent the index that was drawn from it, and returns the tokens it
emits (`decoding_algorithms` has them). The probabilities of its paths, added up, are its law.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

Tokens = tuple[int, ...]
Distribution = Sequence[Fraction]
Model = Callable[[Tokens], Distribution]                                        # a context -> the law of the next token
Decoding = Generator[Distribution, int, Tokens]
Algorithm = Callable[[Model, Model, int], Decoding]                             # draft, target, draft length
Law = dict[Tokens, Fraction]


@dataclass(frozen=True)
class Path:
    """One way an algorithm can go: its probability, what it emits, and for each draw the piece of [0, 1) that stands for it.

    The piece of index i is [p_0 + … + p_{i-1}, p_0 + … + p_i), as in `sample`: an implementation that takes uniforms can be
    led along the same path.
    """

    probability: Fraction
    choices: Tokens
    pieces: tuple[tuple[Fraction, Fraction], ...]
    emitted: Tokens


def paths(decoding: Callable[[], Decoding]) -> Iterator[Path]:
    """Every path of positive probability; `decoding` starts the algorithm anew each time."""
    open_prefixes: list[Path] = [Path(Fraction(1), (), (), ())]
    while open_prefixes:
        path = open_prefixes.pop()
        running = decoding()
        try:
            asked = next(running)
            for choice in path.choices:
                asked = running.send(choice)
            while True:
                *others, path = _continued(path, asked)
                open_prefixes += others
                asked = running.send(path.choices[-1])
        except StopIteration as end:
            yield Path(path.probability, path.choices, path.pieces, tuple(end.value))


def _continued(path: Path, p: Distribution) -> list[Path]:
    if sum(p) != 1 or min(p) < 0:
        raise ValueError(f"decoding: drew from {[str(x) for x in p]}; want probabilities that sum to 1")
    ends = list(itertools.accumulate(p))
    return [Path(path.probability * p[i], (*path.choices, i), (*path.pieces, (ends[i] - p[i], ends[i])), ())
            for i in range(len(p)) if p[i] > 0]  # fmt: skip


def enumerated_law(decoding: Callable[[], Decoding]) -> Law:
    """The joint law of everything emitted: tokens and their number.

    >>> def two_coins():
    ...     first = yield [Fraction(1, 3), Fraction(2, 3)]
    ...     return (first,) if first else (first, (yield [Fraction(1, 2), Fraction(1, 2)]))
    >>> law = enumerated_law(two_coins)
    >>> {emitted: str(law[emitted]) for emitted in sorted(law)}
    {(0, 0): '1/6', (0, 1): '1/6', (1,): '2/3'}
    """
    law: Law = {}
    for path in paths(decoding):
        law[path.emitted] = law.get(path.emitted, Fraction(0)) + path.probability
    return law
