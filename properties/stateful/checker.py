"""Stateful checker: puts sequences of calls to an object, lets every law judge after each, shrinks what fails. It renders nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..declaration import UsageError
from ..report import ERROR, FAILED, HELD, NOT_COVERED, Report, Verdict
from ..run import random_cases
from .counterexample import write_sequence
from .operation import StatefulOperation
from .operations import stateful_named
from .run import SequenceRun, SequenceTally, begin, draw_sequences, put
from .sequence import NEW
from .shrinking import breaks, hunted, shortest, size
from .subjects import open_object

SHRINK_SECONDS = 20.0                                                           # for one law
ALL_SHRINK_SECONDS = 90.0


def check_object(
    operation: str | StatefulOperation, subject: str | Callable[..., Any], *, budget: int | str = "default", seed: int = 0,
    max_seconds: float | None = None, call_seconds: float = 30.0, in_process: bool = False, failures: Path | str | None = None,
    laws: tuple[str, ...] | None = None, progress: Callable[[int, int], None] | None = None,
) -> Report:  # fmt: skip
    """Hold an object to all laws of a stateful operation.

    >>> from oracles.reference import BlockAllocator
    >>> check_object("block_allocator", BlockAllocator, budget="quick").held
    True

    subject   a class or factory, or its text: `file.py:name`, `module:name`, `peers:name`. What the object has no method for is
              not covered; the designed sequences are put to it without those calls
    budget    random sequences after the designed ones: a number, or one of `run.BUDGETS`
    The other arguments are those of `check`. Raises UsageError where operation, subject, budget or laws are not what they should be.
    """
    chosen = stateful_named(operation) if isinstance(operation, str) else operation
    count = random_cases(budget)                                                # before a process is started for nothing
    _known_laws(chosen, laws)
    start = time.monotonic()
    opened = open_object(subject, chosen, in_process=in_process, seconds=call_seconds)
    try:
        run = begin(chosen, opened, laws)
        run.deadline = None if max_seconds is None else start + max_seconds
        designed = chosen.designed_for(run.abilities)
        _put_all(run, designed, count, seed, progress)
        if run.deadline is not None and time.monotonic() > run.deadline:
            run.stopped = run.stopped or f"stopped after {max_seconds:g} s, {run.sequences} of {len(designed) + count} sequences"
        verdicts = _verdicts(run, count, seed, Path(failures) if failures is not None else None)
        return Report(chosen.name, opened.name, {}, {}, seed, time.monotonic() - start, verdicts, _not_covered(run), len(designed), count,
                      opened.version, run.stopped)  # fmt: skip
    finally:
        opened.close()


def _known_laws(operation: StatefulOperation, names: tuple[str, ...] | None) -> None:
    known = [law.name for law in operation.laws]
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise UsageError(f"laws: {operation.name} has no {', '.join(unknown)}; want some of {', '.join(known)}")


def _put_all(run: SequenceRun, designed: list[Any], count: int, seed: int, progress: Callable[[int, int], None] | None) -> None:
    total = len(designed) + count

    def told() -> None:
        if progress:
            progress(min(run.sequences, total), total)

    for calls in designed:
        if run.over:
            return
        put(run, calls)
        told()
    if not run.over:
        draw_sequences(run, count, seed, lambda session, ended: told() if ended else None)


def _verdicts(run: SequenceRun, count: int, seed: int, folder: Path | None) -> tuple[Verdict, ...]:
    deadline = time.monotonic() + ALL_SHRINK_SECONDS

    def seconds() -> float:
        return min(SHRINK_SECONDS, max(0.0, deadline - time.monotonic()))

    return tuple(_verdict(run, tally, count, seed, folder, seconds()) for tally in run.tallies)


def _verdict(run: SequenceRun, tally: SequenceTally, count: int, seed: int, folder: Path | None, seconds: float) -> Verdict:
    name = tally.law.name
    if tally.not_covered:
        return Verdict(name, NOT_COVERED, tally.not_covered)
    if tally.error:
        return Verdict(name, ERROR, tally.error, tally.cases, tally.compared)
    if tally.failure is not None:
        return _failed(run, tally, count, seed, folder, seconds)
    if tally.compared:
        return Verdict(name, HELD, "", tally.cases, tally.compared)
    if run.stopped:
        return Verdict(name, ERROR, f"nothing was judged: {run.stopped}")
    return Verdict(name, NOT_COVERED, "no sequence that the subject covers leads to what this law speaks of")


def _failed(run: SequenceRun, tally: SequenceTally, count: int, seed: int, folder: Path | None, seconds: float) -> Verdict:
    """The verdict on a broken law: shrunk and written down. What goes wrong in that is said, and leaves the law broken."""
    assert tally.failure is not None
    (calls, wrong), note, written = tally.failure, "", None
    try:
        if not run.stopped:                                                     # a hang would be waited for again and again
            calls, wrong, note = _smallest(run, tally, count, seed, seconds)
        if folder is not None:
            written = str(write_sequence(folder, run.operation, run.subject, run.abilities, tally.law, calls, wrong))
    except Exception as error:                                                  # ours, or the disk's
        note += f" (it could not be shrunk and written down: {type(error).__name__}: {error})"
    return Verdict(tally.law.name, FAILED, wrong + note, tally.cases, tally.compared, worst_ratio=float("inf"),
                   worst_at=f"call {len(calls) - 1}", counterexample=written, case="; ".join(map(str, calls)))  # fmt: skip


def _smallest(run: SequenceRun, tally: SequenceTally, count: int, seed: int, seconds: float) -> tuple[Any, str, str]:
    """The smallest failing sequence found, what the law says of it, and a remark."""
    assert tally.failure is not None
    calls, wrong = tally.failure
    law, operation, subject = tally.law, run.operation, run.subject

    def fails(candidate: Any) -> bool:
        return bool(breaks(operation, subject, run.abilities, law, candidate))

    if not fails(calls):
        return calls, wrong, " (once: the same calls on a new object did not fail again, so objects share state, or chance has a part)"
    starts = [calls, *(hunted(run, law, count=count, seed=seed, seconds=seconds / 2) if tally.random else ())]
    least = [shortest(start, fails, operation.in_bounds, seconds=seconds / 2 / len(starts)) for start in starts if fails(start)]
    calls = min(least, key=size, default=calls)
    return calls, breaks(operation, subject, run.abilities, law, calls) or wrong, ""


def _not_covered(run: SequenceRun) -> tuple[str, ...]:
    """What the verdicts do not speak of, one line each."""
    operation = run.operation
    lines = [f"{method}: the subject has no such method" for method in operation.optional if method not in run.abilities]
    arguments = [name.split(".") for name in operation.arguments if name not in run.abilities]
    lines += [f"argument {argument} of {'the constructor' if method == NEW else method}: the subject does not take it"
              for method, argument in arguments if method == NEW or method in run.abilities]  # fmt: skip
    lines += [probe.without for probe in operation.probes if probe.ability not in run.abilities]
    if run.refusals:
        lines.append(f"{len(run.refusals)} sequences ended with NotImplementedError, the last: {run.refusals[-1]}")
    return tuple(lines)
