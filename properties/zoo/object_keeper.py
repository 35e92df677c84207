"""Object keeper: what becomes of a specimen that is a class, put through the laws of its stateful operation. See `keeper`."""

from __future__ import annotations

import time

from ..run import random_cases
from ..stateful.operation import StatefulOperation
from ..stateful.operations import stateful_named
from ..stateful.play import ANSWERS, Play, play_through
from ..stateful.run import SequenceRun, begin, draw_sequences, put
from ..stateful.subjects import ObjectInProcess
from .keeper import Fate
from .specimen import Specimen

LEGAL_RANDOM = 20                                                               # random sequences for a legal one, budget "default"


def fate_of_object(specimen: Specimen, *, budget: int | str, seed: int = 0) -> Fate:
    """Run one class: a mutant until the first law breaks, a legal one through all laws."""
    start = time.monotonic()
    hunted = specimen.kind == "mutant"
    invalid = why_object_invalid(specimen) if hunted else ""
    if invalid:
        return Fate(specimen, "invalid", "", invalid, time.monotonic() - start, 0.0)
    operation = stateful_named(specimen.operation)
    run = begin(operation, ObjectInProcess(specimen.function, operation))
    _put_all(run, LEGAL_RANDOM if budget == "default" and not hunted else random_cases(budget), seed, hunted)
    return _fate(specimen, run, time.monotonic() - start)


def _put_all(run: SequenceRun, count: int, seed: int, hunted: bool) -> None:
    for calls in run.operation.designed_for(run.abilities):
        put(run, calls)
        if hunted and any(tally.failure or tally.error for tally in run.tallies):
            return
    draw_sequences(run, count, seed, lambda session, ended: None)


def _fate(specimen: Specimen, run: SequenceRun, seconds: float) -> Fate:
    error = next((tally for tally in run.tallies if tally.error), None)
    if error:
        return Fate(specimen, "invalid", error.law.name, error.error, seconds, 0.0)
    broken = next((tally for tally in run.tallies if tally.failure), None)
    if broken is None or broken.failure is None:
        if specimen.kind == "mutant":
            return Fate(specimen, "missed", "", "", seconds, 0.0)
        nothing = "" if any(tally.compared for tally in run.tallies) else "nothing was compared"
        return Fate(specimen, "invalid" if nothing else "lives", "", nothing, seconds, 0.0)
    law, wrong = broken.law.name, broken.failure[1]
    if specimen.kind != "mutant":
        return Fate(specimen, "false alarm", law, wrong, seconds, float("inf"))
    if law == ANSWERS:
        return Fate(specimen, "invalid", law, f"dies by a crash, not by a law: {wrong}", seconds, float("inf"))
    return Fate(specimen, "killed", law, wrong, seconds, float("inf"))


def why_object_invalid(specimen: Specimen) -> str:
    """Why a mutant shows nothing, or "": no trigger, no law that its trigger breaks, a crash on it, or an oracle that breaks one too."""
    if specimen.trigger is None:
        return "it has no trigger"
    operation = stateful_named(specimen.operation)
    calls = specimen.trigger()
    law, wrong = _broken_by(operation, ObjectInProcess(operation.oracle, operation), calls)
    if law:
        return f"the oracle itself breaks {law} on its trigger: {wrong}"
    law, wrong = _broken_by(operation, ObjectInProcess(specimen.function, operation), calls)
    if law == ANSWERS:
        return f"on its trigger: {wrong}"
    return "" if law else "it breaks no law on its own trigger"


def _broken_by(operation: StatefulOperation, subject: ObjectInProcess, calls: tuple[object, ...]) -> tuple[str, str]:
    run = begin(operation, subject)
    laws = tuple(tally.law for tally in run.tallies if not tally.not_covered)
    sequence = operation.covered(calls, run.abilities)  # type: ignore[arg-type]  # a trigger's type is its operation's business
    return play_through(Play(operation.model(sequence[0], run.abilities), subject.speak), sequence, laws)
