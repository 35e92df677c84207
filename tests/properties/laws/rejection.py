"""Rejection: a law put to an implementation that breaks it, and the ways in which attention is broken for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles.properties.declaration import declaration_of
from oracles.properties.law import within
from oracles.properties.operation import Operation
from oracles.properties.operations import operation_named
from oracles.properties.run import Failure, begin, judge_one, recipes_of
from oracles.properties.subjects import InProcess

Function = Callable[..., Any]


def rejects(operation: str, law: str, function: Function) -> str:
    """The reason why a law rejects a declared function on the designed cases, or "". A law that compared nothing accepts nothing."""
    run = begin(operation_named(operation), InProcess(function, declaration_of(function, operation)), (law,))
    (tally,) = run.tallies
    for index, recipe in enumerate(recipes_of(run, "quick", 0)[0]):
        judge_one(run, index, recipe)
        assert not tally.broken, tally.broken
        if tally.failure:
            assert accused(run.operation, tally.failure, run.subject.declaration.conventions) == ""
            return tally.failure.judgement.reason
    assert tally.compared, f"{law}: nothing was compared: {tally.not_covered}"
    return ""


def accused(operation: Operation, found: Failure, conventions: Mapping[str, str]) -> str:
    """What the evidence of a failure holds against the oracle, or "": a repro keeps it, and must end well once the kernel is right."""
    evidence = found.judgement.evidence
    on = evidence.other if evidence.of_other and evidence.other else found.case
    right = operation.answer(on, conventions)
    for name, wanted in evidence.wanted.items():
        if name not in right or right[name].shape != wanted.shape:
            return f"{name}: of shape {wanted.shape} it is no result"
        if within({name: right[name]}, {name: wanted}, {name: evidence.allowed[name]}).failed:
            return f"{name}: the oracle's is not what is wanted"
    return ""


@dataclass(frozen=True)
class Broken:
    """What a right function of named arguments, which returns (out, lse), becomes where something is wrong."""

    right: Function

    def returning(self, change: Callable[[Any, Any, dict[str, Any]], Any]) -> Function:
        """The right answer, then a change of (out, lse, arguments)."""
        return lambda **given: change(*self.right(**given), given)

    def asked(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Function:
        """The right answer to other arguments."""
        return lambda **given: self.right(**{**given, **change(given)})

    def grown(self, by: Callable[[dict[str, Any]], Any]) -> Function:
        """out times 1 + by(arguments)."""
        return self.returning(lambda out, lse, given: ((out * (1 + by(given))).astype(out.dtype), lse))

    def sometimes(self) -> Function:
        """Another last bit in every second call."""
        calls: list[None] = []

        def change(out: Any, lse: Any, given: dict[str, Any]) -> Any:
            calls.append(None)
            return (np.nextafter(out, out.dtype.type(np.inf)) if len(calls) % 2 else out), lse

        return self.returning(change)
