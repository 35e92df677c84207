"""Sequence shrinking: from calls after which a law is broken to the fewest and plainest after which the same law is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from .operation import StatefulOperation
from .play import Play, SequenceLaw, play_through
from .run import SequenceRun, SequenceTally, Session, draw_sequences
from .sequence import Call, Sequence
from .subjects import ObjectSubject

Size = tuple[int, ...]
STARTS = 8                                                                      # failing sequences that are shrunk; the least is shown


def breaks(operation: StatefulOperation, subject: ObjectSubject, abilities: frozenset[str], law: SequenceLaw, calls: Sequence) -> str:
    """What is wrong by this law with the calls as they are, without closing ones, or ""."""
    play = Play(operation.model(calls[0], abilities), subject.speak)
    return play_through(play, calls, (law,), most_closing=0)[1]


def hunted(run: SequenceRun, law: SequenceLaw, *, count: int, seed: int, seconds: float) -> list[Sequence]:
    """The first random sequences that break one law, STARTS of them at most: from each, shrinking may end elsewhere."""
    tally = SequenceTally(law)
    alone = SequenceRun(run.operation, run.subject, run.abilities, [tally], deadline=time.monotonic() + seconds)
    found: list[Sequence] = []

    def after(session: Session, ended: bool) -> None:
        if tally.failure is not None:
            found.append(tally.failure[0])
            tally.failure = None                                                # open again for the next sequence
            alone.stopped = "enough was found" if len(found) == STARTS else ""

    draw_sequences(alone, count, seed, after)
    return found


def shortest(calls: Sequence, fails: Callable[[Sequence], bool], in_bounds: Callable[[Call], bool], *, seconds: float) -> Sequence:
    """The smallest sequence found that still fails. Greedy: the first smaller one is taken, until none fails or the time is over."""
    deadline = time.monotonic() + seconds
    tried = {calls}
    while True:
        for candidate in _simpler(calls):
            if time.monotonic() > deadline:
                return calls
            if candidate in tried or size(candidate) >= size(calls) or not all(map(in_bounds, candidate)):
                continue
            tried.add(candidate)
            if fails(candidate):
                calls = candidate
                break
        else:
            return calls


def size(calls: Sequence) -> Size:
    """Calls, then entries in their arguments, then the numbers themselves."""
    given = [value for call in calls for value in (*call.args, *(value for _, value in call.named))]
    return len(calls), sum(_entries(value) for value in given), sum(_amount(value) for value in given)


def _entries(value: Any) -> int:
    return len(value) if isinstance(value, tuple | bytes) else 0


def _amount(value: Any) -> int:
    if isinstance(value, tuple):
        return sum(_amount(entry) for entry in value)
    return 2 * abs(value) + (value < 0) if isinstance(value, int) else 0


def _simpler(calls: Sequence) -> Iterator[Sequence]:
    """Without a stretch of calls, longest first, or with one argument of one call made plainer. The first call stays a first call."""
    length = len(calls) - 1
    while length:
        for start in range(len(calls) - length, 0, -1):
            yield calls[:start] + calls[start + length :]
        length //= 2
    for i, call in enumerate(calls):
        for plainer in _plainer_calls(call):
            yield (*calls[:i], plainer, *calls[i + 1 :])
    yield from _other_numbers(calls)


def _plainer_calls(call: Call) -> Iterator[Call]:
    for j, value in enumerate(call.args):
        for plainer in _plainer(value):
            yield replace(call, args=(*call.args[:j], plainer, *call.args[j + 1 :]))
    for j in range(len(call.named)):
        yield replace(call, named=call.named[:j] + call.named[j + 1 :])
        for plainer in _plainer(call.named[j][1]):
            yield replace(call, named=(*call.named[:j], (call.named[j][0], plainer), *call.named[j + 1 :]))


def _plainer(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield from dict.fromkeys(n for n in (0, 1, value // 2, value - 1) if abs(n) < abs(value))
    elif isinstance(value, tuple):
        for i in reversed(range(len(value))):
            yield value[:i] + value[i + 1 :]
        for i, entry in enumerate(value):
            for plainer in _plainer(entry):
                yield (*value[:i], plainer, *value[i + 1 :])
    elif isinstance(value, bytes) and value:
        yield from (b"", value[:1], value[1:])


def _other_numbers(calls: Sequence) -> Iterator[Sequence]:
    """One number made another wherever it stands behind the first call: tokens that must be equal stay so."""
    numbers = sorted({n for call in calls[1:] for value in call.args for n in (value if isinstance(value, tuple) else (value,))
                      if isinstance(n, int)}, reverse=True)  # fmt: skip
    for old in numbers:
        for new in _plainer(old):
            changed = (replace(call, args=tuple(_with(value, old, new) for value in call.args)) for call in calls[1:])
            yield (calls[0], *changed)


def _with(value: Any, old: int, new: int) -> Any:
    if isinstance(value, tuple):
        return tuple(new if entry == old else entry for entry in value)
    return value
