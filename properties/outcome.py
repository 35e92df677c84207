"""Outcome: what one call of a subject gave, wherever it ran, as plain data that a process can send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .safetensors_file import Array

RETURNED, REFUSED, RAISED, MALFORMED, DIED, HUNG = "returned", "refused", "raised", "malformed", "died", "hung"


@dataclass(frozen=True)
class Outcome:
    """What one call gave.

    kind        returned; refused (NotImplementedError: not covered); raised; malformed (None, a wrong number of results,
                no arrays); died (the process ended); hung (no answer in time)
    outputs     result name -> array, in the contract's layout
    message     for people: the exception, the signal, what was returned instead
    changed     input arrays whose bytes differ after the call
    shared      results that share memory with an input
    """

    kind: str
    outputs: Mapping[str, Array] = field(default_factory=dict)
    message: str = ""
    changed: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    traceback: str = ""
