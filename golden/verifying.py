"""Verifying a golden folder: every byte, every draw, both routes of every trace, then values against double-double while time lasts.

With `certify` every value is proven again by ball arithmetic, and a sample goes through the second route too (see `second_route`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oracles.properties.case import Case

from . import store, traces
from .certified import Limbs, certified
from .recheck import recheck
from .sets import SETS
from .store import Entry, GoldenFault
from .trace_answers import answers
from .trace_second_route import second_answers

Progress = Callable[[str, str], None]                                           # stage, name of the case


@dataclass
class Verification:
    """What a verification saw.

    files      named by the manifest and whole to the last byte
    values     numbers expected of numeric operations, each of two limbs; answers of traces are exact and not counted here
    certified  of these, values that the manifest says are proven by ball arithmetic
    rechecked  of these, values held against double-double in this run, `to_an_ulp` of them so closely that one unit in the last place
               of hi would have been seen; `left_out`: those for which the bound gives no promise
    reproven   of these, values proven again by ball arithmetic in this run; `second` by the second route as well
    failed     what is wrong, one line each
    """

    files: int = 0
    values: int = 0
    certified: int = 0
    traces: int = 0
    rechecked: int = 0
    to_an_ulp: int = 0
    left_out: int = 0
    reproven: int = 0
    second: int = 0
    worst_ratio: float = 0.0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


Cases = list[tuple[Entry, Case, dict[str, Limbs]]]


def verify(folder: Path = store.DATA, *, seconds: float | None = 20.0, certify: bool = False,
           progress: Progress = lambda stage, name: None) -> Verification:
    """Verify a folder. seconds: for double-double, None for everything; small cases go first, and one at least is done.

    Raises ImportError with `certify` where python-flint or mpmath are missing.
    """
    start, seen = time.monotonic(), Verification()
    try:
        entries = store.read_manifest(folder)
    except GoldenFault as fault:
        seen.failed.append(str(fault))
        return seen
    cases = _read(entries, folder, seen, progress)
    for entry, case, limbs in _within(seconds, sorted(cases, key=lambda one: one[0].bytes)):
        progress("double-double", entry.name)
        _recheck(entry, case, limbs, seen)
    if certify:
        _certify(cases, seen, progress)
    seen.seconds = time.monotonic() - start
    return seen


def _read(entries: list[Entry], folder: Path, seen: Verification, progress: Progress) -> Cases:
    """Every byte; what is drawn today; traces by both routes. The numeric cases that are whole."""
    seen.failed += [f"{file}: surplus file: the manifest does not name it" for file in store.strangers(entries, folder)]
    cases: Cases = []
    for entry in entries:
        progress("bytes", entry.name)
        try:
            if entry.is_trace:
                _replay(store.read_trace(entry, folder), entry, seen)
            else:
                case, limbs = store.read(entry, folder)
                cases.append((entry, case, limbs))
                count = sum(value.hi.size for value in limbs.values())
                seen.values += count
                seen.certified += count * (entry.certified.get("by") == "ball arithmetic")
            seen.files += 1
        except GoldenFault as fault:
            seen.failed.append(str(fault))
    if not seen.failed:
        progress("draws", "")
        seen.failed += [str(fault) for fault in store.redrawn(entries, folder)]
    return cases


def _replay(trace: traces.Trace, entry: Entry, seen: Verification) -> None:
    """Answers of a trace that the oracles, or the second route, do not give."""
    for route, play in (("the oracle", answers), ("the second route", second_answers)):
        try:
            steps = play(trace.questions)
        except Exception as error:                                              # calls that there are not, arguments of another kind
            raise GoldenFault("wrong answer", entry.file, f"{route} cannot play it: {type(error).__name__}: {error}") from error
        for number, (held, given) in enumerate(zip(trace.steps, steps, strict=True)):
            if traces.dumps(traces.Trace("", "", {}, (held,))) != traces.dumps(traces.Trace("", "", {}, (given,))):
                raise GoldenFault("wrong answer", entry.file, f"call {number}, {held.call}: {route} answers otherwise")
    seen.traces += 1


def _within(seconds: float | None, cases: Cases) -> Iterator[tuple[Entry, Case, dict[str, Limbs]]]:
    """The cases until the time is over, which counts what is done with them."""
    start = time.monotonic()
    for number, one in enumerate(cases):
        if number and seconds is not None and time.monotonic() - start > seconds:
            return
        yield one


def _recheck(entry: Entry, case: Case, limbs: Mapping[str, Limbs], seen: Verification) -> None:
    found = recheck(case, limbs)
    seen.rechecked += found.values
    seen.to_an_ulp += found.to_an_ulp
    seen.left_out += found.left_out
    seen.worst_ratio = max(seen.worst_ratio, found.worst_ratio)
    seen.failed += [f"{entry.file}: wrong value: {place}" for place in found.failed]


def _certify(cases: Cases, seen: Verification, progress: Progress) -> None:
    from .second_route import disagreements, sample

    balls = {one.operation: one.balls for one in SETS}
    for entry, case, limbs in cases:
        progress("ball arithmetic", entry.name)
        proven, _ = certified(lambda case=case: balls[case.operation](**case.arguments()))  # type: ignore[misc]
        for name, value in proven.items():
            wrong = (value.hi.view(np.int64) != limbs[name].hi.view(np.int64)) | (value.lo.view(np.int64) != limbs[name].lo.view(np.int64))
            seen.failed += [f"{entry.file}: wrong value: {name}{at.tolist()} is {limbs[name].hi[tuple(at)]!r}; ball arithmetic proves "
                            f"{value.hi[tuple(at)]!r} and {value.lo[tuple(at)]!r}" for at in np.argwhere(wrong)]  # fmt: skip
            seen.reproven += value.hi.size
        progress("second route", entry.name)
        places = sample(case, limbs)
        seen.second += len(places)
        seen.failed += [f"{entry.file}: wrong value: {line}" for line in disagreements(case, limbs, places)]
