"""Law: one statement that must hold of every implementation of an operation, and what judging it on one case gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .case import Case
from .comparison import Comparison, Float64, compare
from .safetensors_file import Array

if TYPE_CHECKING:
    from .declaration import Declaration
    from .trial import Trial


@dataclass(frozen=True)
class Evidence:
    """What a reader needs to see the failure again with NumPy alone.

    wanted, allowed   result name -> what the result must be, and within what
    other, equal      a second case, and the elements in which both results must be bitwise equal
    of_other          `wanted` and `allowed` speak of the second case: it is that call which is wrong
    """

    wanted: Mapping[str, Float64] = field(default_factory=dict)
    allowed: Mapping[str, Float64] = field(default_factory=dict)
    other: Case | None = None
    equal: Mapping[str, Array] = field(default_factory=dict)
    of_other: bool = False


@dataclass(frozen=True)
class Judgement:
    """What one law found on one case. `compared` = 0 with no failure means that the law had nothing to say here.

    warning   something a reader should know that is no failure
    """

    compared: int = 0
    left_out: int = 0
    worst_ratio: float = 0.0
    worst_at: str = ""
    failed: bool = False
    reason: str = ""
    evidence: Evidence = field(default_factory=Evidence)
    warning: str = ""


NOTHING = Judgement()


@dataclass(frozen=True)
class Law:
    """A statement and how it is judged.

    name, statement   the name reads as a sentence in the report; the statement is the docstring of the judging function
    judge             what it finds on a prepared case
    prepare           makes the case it needs from an ordinary one; None: it has nothing to say about that case
    not_covered       why it does not bind a subject of this declaration, or ""
    every             it is judged on every n-th case only: probes need fewer than the comparison itself
    minimise          values may be simplified freely without leaving the law's own kind of case
    """

    name: str
    statement: str
    judge: Callable[[Trial], Judgement]
    prepare: Callable[[Case], Case | None]
    not_covered: Callable[[Declaration], str]
    every: int = 1
    minimise: bool = True


def law(
    *, prepare: Callable[[Case], Case | None] | None = None, not_covered: Callable[[Declaration], str] | None = None, every: int = 1,
    minimise: bool | None = None,
) -> Callable[[Callable[[Trial], Judgement]], Law]:  # fmt: skip
    """Make a law of a judging function; see `Law`. A law with its own `prepare` keeps its values, unless it says otherwise."""

    def make(judge: Callable[[Trial], Judgement]) -> Law:
        return Law(judge.__name__, (judge.__doc__ or "").strip(), judge, prepare or _as_it_is, not_covered or _always, every,
                   prepare is None if minimise is None else minimise)  # fmt: skip

    return make


def _as_it_is(case: Case) -> Case | None:
    return case


def _always(declaration: Declaration) -> str:
    return ""


def within(outputs: Mapping[str, Array], wanted: Mapping[str, Float64], allowed: Mapping[str, Float64]) -> Judgement:
    """The judgement that every output named in `wanted` lies within what is allowed of it."""
    comparisons = [compare(name, outputs[name], wanted[name], allowed[name]) for name in wanted if name in outputs]
    return of_comparisons(comparisons, Evidence(dict(wanted), dict(allowed)))


def of_comparisons(comparisons: list[Comparison], evidence: Evidence) -> Judgement:
    """The worst of several comparisons, with their counts added."""
    if not comparisons:
        return NOTHING
    worst = max(comparisons, key=lambda c: (c.compared > 0, c.worst_ratio))
    return Judgement(
        compared=sum(c.compared for c in comparisons),
        left_out=sum(c.left_out for c in comparisons),
        worst_ratio=worst.worst_ratio,
        worst_at=worst.place,
        failed=worst.failed,
        reason=str(worst) if worst.failed else "",
        evidence=evidence,
    )
