"""Keeper: puts every specimen of the zoo through the checker: what each mutant dies of, and which variants are accused wrongly."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..case import Case
from ..comparison import compare
from ..declaration import UsageError
from ..loading import load_file
from ..operations import operation_named
from ..outcome import RETURNED
from ..run import Run, begin, judge_one, recipes_of
from ..stateful.names import STATEFUL_NAMES
from ..subjects import InProcess
from ..trial import Trial
from . import ZOO_MODULES
from .specimen import NOBODY, Specimen, specimens_in

TURNS = 6                                                                       # legal specimens see every sixth designed case, in turn
CRASH = "answers"                                                               # the law that a crash breaks


@dataclass(frozen=True)
class Fate:
    """What became of one specimen.

    status  killed, missed, lives, false alarm, invalid (a mutant that crashes, or does not differ on its own trigger)
    law     the law that rejected it, or ""
    """

    specimen: Specimen
    status: str
    law: str
    reason: str
    seconds: float
    worst_ratio: float


def families() -> tuple[str, ...]:
    """All families of faults in the zoo."""
    return tuple(dict.fromkeys(family for names in ZOO_MODULES.values() for family in names))


def inhabitants(wanted: tuple[str, ...] | None = None, extra: Path | None = None) -> list[Specimen]:
    """The specimens of some families (None: all), and those that the Python files of a folder mark.

    Raises UsageError for an unknown family or a folder without specimens.
    """
    unknown = [family for family in wanted or () if family not in families()]
    if unknown:
        raise UsageError(f"family: got {', '.join(unknown)}; want some of {', '.join(families())}")
    modules = [importlib.import_module(f"{__package__}.{name}") for name in ZOO_MODULES]
    found = [specimen for module in modules for specimen in specimens_in(module) if wanted is None or specimen.family in wanted]
    if extra is not None:
        strangers = [specimen for path in sorted(extra.glob("*.py")) for specimen in specimens_in(load_file(path))]
        if not strangers:
            raise UsageError(f"extra: {extra} has no Python file that marks a mutant or a variant")
        found += strangers
    return found


def visit(
    specimens: list[Specimen], *, budget: int | str, seed: int = 0, processes: int = 1, progress: Callable[[int, int], None] | None = None
) -> Iterator[Fate]:
    """The fate of each specimen, as it is known; with several processes in the order in which they are done.

    Processes are forked, where the system can: specimens are functions, which cannot be sent.
    """
    def counted(fates: Iterator[Fate]) -> Iterator[Fate]:
        for done, fate in enumerate(fates, start=1):
            if progress:
                progress(done, len(specimens))
            yield fate

    if processes > 1 and "fork" in multiprocessing.get_all_start_methods():
        with multiprocessing.get_context("fork").Pool(processes, _adopt, (specimens, budget, seed)) as pool:
            told = pool.imap_unordered(_told_fate, range(len(specimens)))
            yield from counted(replace(fate, specimen=specimens[turn]) for turn, fate in told)
    else:
        yield from counted(fate_of(specimen, budget=budget, seed=seed, turn=turn) for turn, specimen in enumerate(specimens))


_adopted: tuple[list[Specimen], int | str, int] = ([], 0, 0)


def _adopt(specimens: list[Specimen], budget: int | str, seed: int) -> None:
    global _adopted
    _adopted = (specimens, budget, seed)


def _told_fate(turn: int) -> tuple[int, Fate]:
    """A fate without its specimen, which stays where it is."""
    specimens, budget, seed = _adopted
    return turn, replace(fate_of(specimens[turn], budget=budget, seed=seed, turn=turn), specimen=NOBODY)


def fate_of(specimen: Specimen, *, budget: int | str, seed: int = 0, turn: int = 0) -> Fate:
    """Run one specimen: a mutant until the first law breaks, a legal one through all laws.

    With the budget "default" legal specimens take turns: each sees every `TURNS`-th designed case, from its turn on, so that
    together they see all of them in a fraction of the time; any other budget gives each of them everything.
    """
    if specimen.operation in STATEFUL_NAMES:
        from .object_keeper import fate_of_object

        return fate_of_object(specimen, budget=budget, seed=seed)
    start = time.monotonic()
    hunted = specimen.kind == "mutant"
    invalid = why_invalid(specimen) if hunted else ""
    if invalid:
        return Fate(specimen, "invalid", "", invalid, time.monotonic() - start, 0.0)
    run = begin(operation_named(specimen.operation), InProcess(specimen.function, specimen.declaration))
    in_turns = budget == "default" and not hunted
    designed, drawn = recipes_of(run, 0 if in_turns else budget, seed)
    for index, recipe in enumerate([*designed, *drawn]):
        if in_turns and index % TURNS != turn % TURNS:
            continue
        judge_one(run, index // TURNS if in_turns else index, recipe)
        if hunted and any(tally.failure or tally.broken for tally in run.tallies):
            break
    return _fate(specimen, run, time.monotonic() - start)


def _fate(specimen: Specimen, run: Run, seconds: float) -> Fate:
    broken = next((tally for tally in run.tallies if tally.broken), None)
    if broken:
        return Fate(specimen, "invalid", broken.law.name, broken.broken, seconds, 0.0)
    rejecting = [(tally.law.name, tally.failure.judgement) for tally in run.tallies if tally.failure]
    law, reason, ratio = (rejecting[0][0], rejecting[0][1].reason, rejecting[0][1].worst_ratio) if rejecting else ("", "", 0.0)
    if specimen.kind == "mutant":
        if law == CRASH:
            return Fate(specimen, "invalid", law, f"dies by a crash, not by a law: {reason}", seconds, ratio)
        return Fate(specimen, "killed" if law else "missed", law, reason, seconds, ratio)
    if not law and not any(tally.compared for tally in run.tallies):
        return Fate(specimen, "invalid", "", run.defect or run.refusal or "nothing was compared", seconds, ratio)
    return Fate(specimen, "false alarm" if law else "lives", law, reason, seconds, ratio)


def why_invalid(specimen: Specimen) -> str:
    """Why a mutant shows nothing, or "": no trigger, an exception on it, or no difference from the oracle beyond the bound there.

    Where the oracle refuses the trigger, a mutant that answers differs.
    """
    if specimen.operation in STATEFUL_NAMES:
        from .object_keeper import why_object_invalid

        return why_object_invalid(specimen)
    if specimen.trigger is None:
        return "it has no trigger"
    arguments = dict(specimen.trigger())
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    options: dict[str, Any] = {name: value for name, value in arguments.items() if name not in arrays}
    trial = Trial(operation_named(specimen.operation), InProcess(specimen.function, specimen.declaration),
                  Case(specimen.operation, arrays, options, origin=f"trigger of {specimen.id}"))  # fmt: skip
    try:
        wanted = trial.wanted
    except (TypeError, ValueError) as refusal:                                  # the mutant's fault is that it answers at all
        return "" if trial.outcome.kind == RETURNED else f"on its trigger: it refuses like the oracle, which says {refusal}"
    if trial.defects:
        return f"on its trigger: {trial.defects}"
    if trial.conventions.get("uniforms", "contract") != "contract":
        return ""                                                               # its law is at fault, which no single answer shows
    compared = [compare(name, got, wanted[name], trial.allowed[name]) for name, got in trial.answer.items()]
    return "" if any(comparison.failed for comparison in compared) else "it agrees with the oracle on its own trigger"
