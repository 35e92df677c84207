"""Questions: what each golden case asks and what is right, whether it is certified values, an exact function or the calls on an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from oracles.properties.arithmetic import Arithmetic, ResolvedArithmetic
from oracles.properties.case import Case
from oracles.properties.operation import BOOLEAN, INTEGER, Operation, result_format
from oracles.properties.operations import OPERATIONS
from oracles.properties.safetensors_file import Array

from .certified import Limbs
from .store import DATA, Entry, read, read_manifest, read_trace
from .traces import Step, Trace

FORWARD = {"attention_backward": "attention", "attention_packed_backward": "attention_packed"}
RESULTS_OF_FORWARD = ("out", "lse")
CHECKED: dict[str, Operation] = {operation.name: operation for operation in OPERATIONS}


@dataclass(frozen=True)
class Question:
    """One case as it is put to a program, and what is right.

    case      its arguments
    wanted    result -> what is right, to two limbs; empty for an object
    exact     result -> dtype of the exact answer, for functions that are no operation of the checker
    withheld  arguments that are not given: they are the answers to another question, and a program makes them itself
    making, calls   for an object: the arguments that make it, and the calls with their answers
    """

    case: Case
    wanted: Mapping[str, Limbs]
    exact: Mapping[str, np.dtype[Any]]
    withheld: tuple[str, ...] = ()
    making: Mapping[str, Any] | None = None
    calls: tuple[Step, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.case.operation}/{self.case.origin}"

    @property
    def file(self) -> str:
        """Where it and its answer stand, below `inputs` and below `answers`."""
        return f"{self.name}.{'json' if self.is_object else 'safetensors'}"

    @property
    def is_object(self) -> bool:
        return self.making is not None

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that a program receives."""
        return {name: value for name, value in self.case.arguments().items() if name not in self.withheld}

    def resolved(self, arithmetic: Arithmetic) -> ResolvedArithmetic:
        """What an arithmetic means for this case; who is not given the forward pass's results recomputes them."""
        operation = CHECKED.get(self.case.operation)
        resolved = arithmetic.resolve(operation.input_format(self.case) if operation else "float64")
        return replace(resolved, recomputes=True) if self.withheld else resolved

    def format_of(self, result: str, arithmetic: ResolvedArithmetic) -> str:
        """The dtype in which a result is to be written, or `INTEGER` for any integer dtype."""
        if self.case.operation in CHECKED:
            return result_format(CHECKED[self.case.operation].signature, result, arithmetic)
        return {"b": BOOLEAN, "i": INTEGER, "u": INTEGER}.get(self.exact[result].kind, self.exact[result].name)


def questions(folder: Path = DATA, operations: Sequence[str] = ()) -> Iterator[Question]:
    """The questions of a golden folder, those of some operations only where any are named. Raises store.GoldenFault."""
    entries = read_manifest(folder)
    named = {entry.name: entry for entry in entries}
    for entry in entries:
        if not operations or entry.operation in operations:
            yield _of_trace(read_trace(entry, folder)) if entry.is_trace else _of_values(entry, folder, named)


def operations_there(folder: Path = DATA) -> list[str]:
    """The operations of a golden folder."""
    return list(dict.fromkeys(entry.operation for entry in read_manifest(folder)))


def _of_values(entry: Entry, folder: Path, named: Mapping[str, Entry]) -> Question:
    case, wanted = read(entry, folder)
    return Question(case, wanted, {}, withheld=RESULTS_OF_FORWARD if _tells_another(case, folder, named) else ())


def _tells_another(case: Case, folder: Path, named: Mapping[str, Entry]) -> bool:
    """Whether the results handed to a backward pass answer a question about the forward pass."""
    forward = FORWARD.get(case.operation)
    entry = named.get(f"{forward}/{case.origin}")
    if forward is None or entry is None:
        return False
    arrays = {name: array for name, array in case.arrays.items() if name not in (*RESULTS_OF_FORWARD, "dout")}
    return read(entry, folder)[0].hash == Case(forward, arrays, case.options).hash


def _of_trace(trace: Trace) -> Question:
    if trace.arguments:
        return Question(Case(trace.operation, {}, {}, origin=trace.case), {}, {}, making=trace.arguments, calls=trace.steps)
    (step,) = trace.steps
    arrays = {name: value for name, value in step.arguments.items() if isinstance(value, np.ndarray)}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in step.arguments.items() if name not in arrays}
    answer: dict[str, Array] = {name: np.asarray(value) for name, value in step.answer.items()}
    wanted = {name: Limbs(value.astype(np.float64), np.zeros(value.shape)) for name, value in answer.items()}
    return Question(Case(trace.operation, arrays, options, origin=trace.case), wanted, {name: a.dtype for name, a in answer.items()})
