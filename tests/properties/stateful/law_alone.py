"""What the designed sequences find with one law alone: the runner of every test that a law of an object can fail."""

from __future__ import annotations

from typing import Any

from oracles.properties.stateful.operation import StatefulOperation
from oracles.properties.stateful.run import begin, put
from oracles.properties.stateful.subjects import ObjectInProcess


def broken_alone(operation: StatefulOperation, law: str, maker: type[Any], *, may_not_cover: bool = False) -> str:
    """What is wrong by this law, or "": no other ends a sequence first. To have judged nothing is an error, unless it may not cover."""
    run = begin(operation, ObjectInProcess(maker, operation), (law,))
    for calls in operation.designed_for(run.abilities):
        put(run, calls)
    (tally,) = run.tallies
    assert not tally.error
    assert tally.compared or (may_not_cover and tally.not_covered)
    return "" if tally.failure is None else tally.failure[1]
