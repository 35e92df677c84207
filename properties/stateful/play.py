"""Play: an object and the model of what it must be, taken through a sequence of calls together; laws judge after every call.

It needs nothing but NumPy and its neighbour `sequence`, so that a repro can carry a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from .sequence import DIED, HUNG, MALFORMED, REFUSED, Answer, Call

ANSWERS = "answers"                                                             # the law that a crash, a hang and a wrong form break


@dataclass(frozen=True)
class Found:
    """What a law found at one moment: how much it compared, and what is wrong, or ""."""

    compared: int
    wrong: str = ""


SILENT = Found(0)


class Moment(Protocol):
    """One call with what came of it, as a model prepared it for the laws.

    call, answer  what was called, what it gave
    defect        why the answer has no usable form, or ""
    lost          the model can not follow the object any further
    """

    call: Call
    answer: Answer
    defect: str
    lost: bool


class Model(Protocol):
    """What the object must be. It follows the answers and prepares what the laws judge; it decides nothing itself."""

    def looks(self, call: Call) -> list[Call]:
        """Calls that change nothing, made after this one to see what it did."""

    def follow(self, call: Call, answer: Answer, seen: list[Answer]) -> Any:
        """The moment of this call, once the model has followed it."""

    def closing(self) -> Call | None:
        """The next call of those that end every sequence, or None."""


@dataclass(frozen=True)
class SequenceLaw:
    """A statement that holds after every call.

    name, statement   the name reads as a sentence in the report; the statement is the docstring of the judging function
    judge             what it finds at a moment
    needs             methods, arguments (`method.argument`) and abilities without which it has nothing to speak of
    """

    name: str
    statement: str
    judge: Callable[[Any], Found]
    needs: tuple[str, ...] = ()


def sequence_law(*needs: str) -> Callable[[Callable[[Any], Found]], SequenceLaw]:
    """Make a law of a judging function; see `SequenceLaw`."""

    def make(judge: Callable[[Any], Found]) -> SequenceLaw:
        return SequenceLaw(judge.__name__, (judge.__doc__ or "").strip(), judge, needs)

    return make


@sequence_law()
def answers(moment: Any) -> Found:
    """Every call returns a result of the contract's form, or raises what the contract names; it does not crash, hang or print rubbish."""
    return Found(1, moment.defect)


class Play:
    """One object and its model.

    speak   makes calls on the object, in order, and gives an answer each; fewer where it died or hung
    """

    def __init__(self, model: Model, speak: Callable[[list[Call]], list[Answer]]) -> None:
        self.model, self._speak = model, speak
        self.performed: list[Call] = []
        self.over = False
        self.refusal = ""

    def do(self, call: Call) -> Any:
        """The moment of one more call, or None where the object refused it: that ends the play."""
        self.performed.append(call)
        looks = self.model.looks(call)
        first, *seen = self._speak([call, *looks])
        silent = next((answer for answer in (first, *seen) if answer.kind in (DIED, HUNG)), None)
        if silent is not None:
            first, seen = silent, []
        refused = next((answer for answer in (first, *seen) if answer.kind == REFUSED), None)
        if refused is not None:
            self.over, self.refusal = True, f"{call}: {refused.message}"
            return None
        moment = self.model.follow(call, first, seen)
        self.over = moment.lost or bool(moment.defect)
        return moment


def unusable(call: Call, answer: Answer) -> str:
    """What is wrong with an answer that can not be followed, or ""."""
    return f"{call}: {answer.message}" if answer.kind in (DIED, HUNG, MALFORMED) else ""


def broken(laws: Iterable[SequenceLaw], moment: Any) -> dict[str, Found]:
    """What each law found at a moment. Where the answer has no usable form, only the law `answers` can tell."""
    return {law.name: law.judge(moment) for law in laws if not moment.defect or law.name == ANSWERS}


def play_through(play: Play, calls: Iterable[Call], laws: tuple[SequenceLaw, ...], *, most_closing: int = 100) -> tuple[str, str]:
    """Make all calls and the closing ones: (law, what is wrong) of the first law that breaks, or ("", "")."""
    remaining = list(calls)
    for _ in range(len(remaining) + most_closing):
        call = remaining.pop(0) if remaining else play.model.closing()
        if call is None or play.over:
            break
        moment = play.do(call)
        if moment is None:
            break
        for name, found in broken(laws, moment).items():
            if found.wrong:
                return name, found.wrong
    return "", ""
