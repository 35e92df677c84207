"""Specimen: one implementation in the zoo, a mutant that carries a real fault or a legal variant, and how it is marked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..declaration import Declaration, declaration_of, subject
from ..near_names import near_names
from ..signatures import SIGNATURES
from ..stateful.names import STATEFUL_NAMES

Function = TypeVar("Function", bound=Callable[..., Any])
MARK = "__oracles_specimens__"


@dataclass(frozen=True)
class Specimen:
    """One implementation in the zoo.

    kind        "mutant": a fault, which a law must find; "variant": legal, which every law must accept; "control": a mutant
                that is equivalent to the oracle, and must be accepted
    id, family  its name and that of its family of faults
    source      address of the report that taught us the fault; for variants, where the form is from, or ""
    fault       what is wrong with it (or what is peculiar to it), in one sentence
    trigger     gives the arguments on which a mutant differs from the oracle; of an object, the calls after which a law is broken
    """

    kind: str
    id: str
    family: str
    operation: str
    function: Callable[..., Any]
    declaration: Declaration
    source: str
    fault: str
    trigger: Callable[[], Any] | None


def mutant(
    operation: str, *, id: str, source: str, family: str = "", trigger: Callable[[], Any] | None = None,
    equivalent: bool = False, **declared: Any,
) -> Callable[[Function], Function]:  # fmt: skip
    """Mark a function, or the class of a stateful operation, as a mutant: right everywhere but for the one fault that its docstring states.

    >>> @mutant("softmax", id="shift-forgotten", source="a report's address", trigger=lambda: {"x": np.array([1000.0, 0.0])})
    ... def softmax_without_shift(x, *, axis=-1):
    ...     \"\"\"e^x is taken without subtracting the maximum first.\"\"\"

    id          the fault's name, lower-case words joined by hyphens
    source      address of the report: a mutant without one is a guess
    family      the family it is listed under; by default the operation's name
    trigger     gives arguments on which it differs from the oracle by more than the bound; for a class, calls that show the fault
    equivalent  the change makes no difference in real arithmetic: a control, which no law may reject
    declared    further arguments of `subject`: a mutant declares what the kernel it stands for would declare

    Raises ValueError for an unknown operation, a missing docstring or a missing source.
    """
    if not source:
        raise ValueError(f"source: {id} has none; want the address of the report")
    return _mark("control" if equivalent else "mutant", operation, id, family, source, trigger, declared)


def variant(operation: str, *, id: str, source: str = "", family: str = "", **declared: Any) -> Callable[[Function], Function]:
    """Mark a function as a legal variant: another way to compute the operation within the arithmetic it declares.

    >>> @variant("softmax", id="two-passes")
    ... def softmax_in_two_passes(x, *, axis=-1):
    ...     \"\"\"The maximum first, then the sum.\"\"\"

    Arguments as in `mutant`. A law that rejects a variant accuses an innocent: a false alarm.
    """
    return _mark("variant", operation, id, family, source, None, declared)


def specimens_in(module: Any) -> tuple[Specimen, ...]:
    """All specimens marked in a module, in the order of its text."""
    return tuple(specimen for value in vars(module).values() if callable(value) for specimen in _marks_of(value))


def _marks_of(value: Any) -> tuple[Specimen, ...]:
    """Its own, not those of the class it is derived from."""
    marks: tuple[Specimen, ...] = getattr(value, "__dict__", {}).get(MARK, ())
    return marks


def _mark(
    kind: str, operation: str, id: str, family: str, source: str, trigger: Callable[[], Any] | None, declared: dict[str, Any]
) -> Callable[[Function], Function]:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id):
        raise ValueError(f"id: got {id!r}; want lower-case words joined by hyphens")
    if operation not in (*SIGNATURES, *STATEFUL_NAMES):
        raise ValueError(f"operation: got {operation!r}; want one of `oracles list`, such as "
                         f"{near_names(operation, (*SIGNATURES, *STATEFUL_NAMES))}")
    if operation in STATEFUL_NAMES and declared:
        raise ValueError(f"{', '.join(declared)}: {id} is an object of {operation}, which declares nothing; want no such argument")

    def mark(function: Function) -> Function:
        fault = " ".join((function.__doc__ or "").split())
        if not fault:
            raise ValueError(f"{id}: {function.__name__} has no docstring; want one sentence that says what is wrong or peculiar")
        if operation in STATEFUL_NAMES:
            declaration = Declaration(operation=operation, name=id)
        else:
            declaration = declaration_of(subject(operation, name=id, **declared)(function), operation)
        specimen = Specimen(kind, id, family or operation, operation, function, declaration, source, fault, trigger)
        setattr(function, MARK, (*_marks_of(function), specimen))
        return function

    return mark


NOBODY = Specimen("variant", "nobody", "", "softmax", print, Declaration(operation="softmax", name="nobody"), "", "", None)
