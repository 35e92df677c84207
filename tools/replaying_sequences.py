"""Replaying sequences: the calls of a saved counterexample made again on an object, with what each gave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from oracles.properties.declaration import UsageError
from oracles.properties.stateful.counterexample import SEQUENCE, read_sequence
from oracles.properties.stateful.operations import stateful_named
from oracles.properties.stateful.play import Play, SequenceLaw
from oracles.properties.stateful.sequence import RETURNED, Answer
from oracles.properties.stateful.subjects import open_object


@dataclass(frozen=True)
class SequenceReplay:
    """What a sequence shows today: calls and what each gave, and after which of them the law is broken."""

    operation: str
    subject: str
    law: SequenceLaw
    steps: tuple[tuple[str, str], ...]
    reason: str

    @property
    def failed(self) -> bool:
        return bool(self.reason)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"operation": self.operation, "subject": self.subject, "law": self.law.name, "failed": self.failed, "reason": self.reason,
                "calls": [{"call": call, "gave": gave} for call, gave in self.steps]}  # fmt: skip

    def view(self, *, explain: bool) -> Group:
        """The replay for a terminal."""
        state = ("still fails", "bold red") if self.failed else ("holds now", "bold green")
        table = Table("call", "gave", box=box.SIMPLE, pad_edge=False)
        for call, gave in self.steps:
            table.add_row(Text(call), Text(gave))
        head = Text.assemble((f"{self.operation}  ", "bold"), self.subject, "  ", (self.law.name, "bold"), "  ", state)
        return Group(head, Text(" ".join(self.law.statement.split())), table, Text(self.reason))


def is_sequence(place: Path) -> bool:
    """Whether this is the folder of a counterexample that is a sequence of calls, or a file in it."""
    return ((place if place.is_dir() else place.parent) / SEQUENCE).is_file()


def replay(place: Path, *, subject: str | None = None, in_process: bool = False) -> SequenceReplay:
    """Make the calls in a folder again. Raises UsageError where they can not be read, or speak of what there is not."""
    folder = place if place.is_dir() else place.parent
    try:
        data, calls, abilities = read_sequence(folder)
        operation = stateful_named(data["operation"])
        law = next(law for law in operation.laws if law.name == data["law"])
        spec = subject or data["spec"]
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise UsageError(f"FAILURE: {folder} cannot be read ({error}); want a folder that a check has written") from None
    if not spec:
        raise UsageError(f"SUBJECT: the failure was of the Python object {data['subject']}; name it with --subject FILE.py:NAME")
    opened = open_object(spec, operation, in_process=in_process)
    try:
        play = Play(operation.model(calls[0], abilities), opened.speak)
        steps: list[tuple[str, str]] = []
        for call in calls:
            moment = None if play.over else play.do(call)
            if moment is None:
                steps.append((str(call), play.refusal or "not made"))
                break
            steps.append((str(call), _told(moment.answer)))
            found = law.judge(moment) if not moment.defect or law.name == "answers" else None
            if found is not None and found.wrong:
                return SequenceReplay(operation.name, spec, law, tuple(steps), found.wrong)
        return SequenceReplay(operation.name, spec, law, tuple(steps), "")
    finally:
        opened.close()


def _told(answer: Answer) -> str:
    return repr(answer.value) if answer.kind == RETURNED else answer.message
