"""The automaton of a pattern: sets of positions in its tree, followed character by character. Tokens are left to guided."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from .regex_pattern import Chain, Chars, Choice, Intervals, Repeat, Tree

State = frozenset[int]
MAX_POSITIONS = 200_000


class PatternAutomaton:
    """Follows a text through a pattern.

        a state is the set of positions in the tree at which one can be after the text read so far, that is, the left quotient
        of the language by it; positions from which no text reaches the end are left out, so that

        the empty set <=> no continuation is in the language,   the end in the set <=> the text itself is in it

    Characters that no part of the pattern tells apart share a class. Thompson's construction, and the subsets as they are met.

    >>> a, b = Chars(((97, 97),)), Chars(((98, 98),))
    >>> ab = PatternAutomaton(Chain((a, Repeat(b, 0, None))))
    >>> state = ab.step(ab.start, "a")
    >>> ab.accepts(state), ab.accepts(ab.start), ab.step(ab.start, "b")
    (True, False, frozenset())

    Raises ValueError where the repetitions written out have more than `MAX_POSITIONS` positions.
    Source: Thompson 1968 (doi 10.1145/363347.363387).
    """

    def __init__(self, tree: Tree) -> None:
        self._edges: list[tuple[Intervals, int] | None] = []                    # position -> what it reads, and where that leads
        self._free: list[tuple[int, ...]] = []                                  # position -> where it leads reading nothing
        self.end = self._position()
        first = self._build(tree, self.end)
        self._live = self._reaching_the_end()
        starts = sorted({edge for read in self._edges if read for lo, hi in read[0] for edge in (lo, hi + 1)})
        self._starts = starts                                                   # of the classes of characters, but for the first
        self._leads: dict[tuple[State, int], State] = {}
        self.start: State = self._closure([first])

    def step(self, state: State, character: str) -> State:
        """The state after one more character."""
        return self._step(state, bisect_right(self._starts, ord(character)))

    def accepts(self, state: State) -> bool:
        """Whether the text that led here is in the language."""
        return self.end in state

    def steps(self, state: State) -> Iterator[tuple[int, State]]:
        """Each class of characters that can follow, by its first character, and the state it leads to."""
        for number, first in enumerate(self._starts, start=1):
            target = self._step(state, number)
            if target:
                yield first, target

    def _step(self, state: State, number: int) -> State:
        if (state, number) not in self._leads:
            code = self._starts[number - 1] if number else -1
            read = (self._edges[position] for position in state)
            self._leads[state, number] = self._closure([edge[1] for edge in read if edge and _holds(edge[0], code)])
        return self._leads[state, number]

    def _closure(self, positions: list[int]) -> State:
        reached, waiting = set(positions), list(positions)
        while waiting:
            for target in self._free[waiting.pop()]:
                if target not in reached:
                    reached.add(target)
                    waiting.append(target)
        return frozenset(p for p in reached if p in self._live and (p == self.end or self._edges[p]))

    def _position(self, read: tuple[Intervals, int] | None = None, free: tuple[int, ...] = ()) -> int:
        if len(self._edges) == MAX_POSITIONS:
            raise ValueError(f"pattern: got more than {MAX_POSITIONS} positions with its repetitions written out; want fewer")
        self._edges.append(read)
        self._free.append(free)
        return len(self._edges) - 1

    def _build(self, tree: Tree, then: int) -> int:
        """The first position of a tree that is followed by the position `then`."""
        if isinstance(tree, Chars):
            return self._position((tree.intervals, then))
        if isinstance(tree, Chain):
            for part in reversed(tree.parts):
                then = self._build(part, then)
            return then
        if isinstance(tree, Choice):
            return self._position(free=tuple(self._build(part, then) for part in tree.parts))
        assert isinstance(tree, Repeat)
        if tree.most is None:
            loop = self._position()
            self._free[loop] = (self._build(tree.part, loop), then)
            then = loop
        else:
            over = then
            for _ in range(tree.most - tree.least):
                then = self._position(free=(self._build(tree.part, then), over))
        for _ in range(tree.least):
            then = self._build(tree.part, then)
        return then

    def _reaching_the_end(self) -> set[int]:
        before: list[list[int]] = [[] for _ in self._edges]
        for position, (read, free) in enumerate(zip(self._edges, self._free)):
            for target in (*free, *([read[1]] if read and read[0] else [])):
                before[target].append(position)
        live, waiting = {self.end}, [self.end]
        while waiting:
            for position in before[waiting.pop()]:
                if position not in live:
                    live.add(position)
                    waiting.append(position)
        return live


def common_text(one: Tree, other: Tree) -> str | None:
    """A shortest text that both patterns match, or None.

    >>> letter, b = Chars(((97, 122),)), Chars(((98, 98),))
    >>> common_text(Chain((letter, b)), Repeat(b, 1, None)), common_text(b, Repeat(b, 2, 3))
    ('bb', None)
    """
    both = PatternAutomaton(one), PatternAutomaton(other)
    start = both[0].start, both[1].start
    found: dict[tuple[State, State], str] = {start: ""}
    waiting = deque([start])
    while waiting:
        pair = waiting.popleft()
        if both[0].accepts(pair[0]) and both[1].accepts(pair[1]):
            return found[pair]
        firsts = {first for automaton, state in zip(both, pair) for first, _ in automaton.steps(state)}
        for character in map(chr, sorted(firsts)):
            target = both[0].step(pair[0], character), both[1].step(pair[1], character)
            if all(target) and target not in found:
                found[target] = found[pair] + character
                waiting.append(target)
    return None


def _holds(intervals: Intervals, code: int) -> bool:
    return any(lo <= code <= hi for lo, hi in intervals)
