"""Subject: what the checker calls, whether it lives in this process or in a worker of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from . import wire
from .calling import call
from .case import Case
from .declaration import Declaration, declaration_of
from .outcome import DIED, HUNG, Outcome
from .worker_process import WorkerProcess

Buffers = Mapping[str, tuple[tuple[int, ...], str]]


class Subject(Protocol):
    """Something with a declaration that answers cases.

    spec names it for a later process, or is None; declared are the arguments of `subject` it was opened with.
    """

    declaration: Declaration
    spec: str | None
    declared: Mapping[str, Any]

    def run(self, case: Case, buffers: Buffers) -> Outcome: ...

    def close(self) -> None: ...


class InProcess:
    """A Python function called in this process: what the caller handed in as an object, and `--in-process`."""

    def __init__(
        self, function: Callable[..., Any], declaration: Declaration, spec: str | None = None, declared: Mapping[str, Any] | None = None
    ) -> None:
        self.function, self.declaration, self.spec = function, declaration, spec
        self.declared: Mapping[str, Any] = dict(declared or {})

    def run(self, case: Case, buffers: Buffers) -> Outcome:
        return call(self.function, self.declaration, case, buffers)

    def close(self) -> None:
        """Nothing to end."""


class InWorker:
    """A subject named by text, in a worker process that is started again after it died or hung."""

    def __init__(self, spec: str, operation: str | None, *, seconds: float, declared: Mapping[str, Any] | None = None) -> None:
        self.spec: str | None = spec
        self.declared: Mapping[str, Any] = dict(declared or {})
        arguments = [spec, operation or "", json.dumps(self.declared)]
        self._worker = WorkerProcess("oracles.properties.worker", spec, arguments, seconds=seconds)
        self.declaration = Declaration.from_json(json.loads(self._worker.start()["declaration"]))

    def run(self, case: Case, buffers: Buffers) -> Outcome:
        if not self._worker.running:
            self._worker.start()
        try:
            self._worker.send("call", *wire.call_message(case, dict(buffers)))
            _, tensors, metadata = self._worker.receive()
            return wire.outcome_of(tensors, metadata)
        except wire.Silence:
            self.close()
            return Outcome(HUNG, message=f"did not return within {self._worker.seconds:g} s")
        except wire.HungUp:
            return Outcome(DIED, message=self._worker.how_it_ended())

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        self._worker.close()


def open_subject(
    subject: str | Callable[..., Any], operation: str | None, *, in_process: bool = False, seconds: float = 30.0,
    declared: Mapping[str, Any] | None = None,
) -> Subject:  # fmt: skip
    """A subject from its text (worker process) or from a function object (this process).

    seconds: how long one call may take, in a worker. declared: arguments of `subject`, plain data, for what does not declare
    itself. Raises UsageError where there is no such subject.
    """
    if not isinstance(subject, str):
        return InProcess(subject, declaration_of(subject, operation))
    if in_process:
        from .loading import load

        return InProcess(*load(subject, operation, declared), spec=subject, declared=declared)
    return InWorker(subject, operation, seconds=seconds, declared=declared)
