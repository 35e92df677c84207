"""Subject: what the checker calls, whether it lives in this process or in a worker of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from . import wire
from .calling import call
from .case import Case
from .declaration import Declaration, UsageError, declaration_of
from .outcome import DIED, HUNG, Outcome

START_SECONDS = 120.0
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
        self._operation, self._seconds = operation, seconds
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the subject does
        self._process: subprocess.Popen[bytes] | None = None
        self.declaration = self._start()

    def run(self, case: Case, buffers: Buffers) -> Outcome:
        if self._process is None:
            self._start()
        try:
            wire.send(self._to, "call", *wire.call_message(case, dict(buffers)))
            _, tensors, metadata = wire.receive(self._from, self._seconds)
            return wire.outcome_of(tensors, metadata)
        except wire.Silence:
            self.close()
            return Outcome(HUNG, message=f"did not return within {self._seconds:g} s")
        except wire.HungUp:
            return Outcome(DIED, message=self._how_it_ended())

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        if self._process is None:
            return
        os.close(self._to)
        os.close(self._from)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _start(self) -> Declaration:
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # Fresh memory of the C heap is filled with a pattern, so that a result nobody wrote shows (glibc's mallopt(3)).
        environment = {"MALLOC_PERTURB_": "90", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        module = "oracles.properties.worker"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs_in), str(theirs_out), str(self.spec), self._operation or "",
             json.dumps(self.declared)],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=environment,
            start_new_session=True,                                             # a `cmd:` program ends with its worker
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            kind, _, metadata = wire.receive(self._from, START_SECONDS)
        except wire.Silence:
            self.close()
            raise UsageError(f"SUBJECT: {self.spec} did not finish importing within {START_SECONDS:g} s") from None
        except wire.HungUp:
            raise UsageError(f"SUBJECT: {self.spec} ended the process while being imported: {self._how_it_ended()}") from None
        if kind == "unusable":
            self.close()
            raise UsageError(metadata["message"])
        return Declaration.from_json(json.loads(metadata["declaration"]))

    def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(self._seconds)
        except subprocess.TimeoutExpired:                                       # it closed the pipe and went on
            self.close()
            return f"the process closed its pipe, and did not end within {self._seconds:g} s"
        self.close()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 400))
        said = self._log.read().decode(errors="replace").strip()
        return f"the process {how}" + (f"; its last words: {said.splitlines()[-1]}" if said else "")


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
