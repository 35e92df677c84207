"""Worker process: a Python process of ours at the other end of two pipes, started, spoken with, and ended whatever it is doing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile

from . import wire
from .declaration import UsageError
from .safetensors_file import Array

START_SECONDS = 120.0


class WorkerProcess:
    """`python -m MODULE READ WRITE ARGUMENTS…`, which says "ready" or "unusable" first. spec names the subject in messages."""

    def __init__(self, module: str, spec: str, arguments: list[str], *, seconds: float) -> None:
        self._module, self._spec, self._arguments, self.seconds = module, spec, arguments, seconds
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the subject does
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def descriptor(self) -> int:
        """What can be waited for: readable where there is a message, or the process has hung up."""
        return self._from

    @property
    def has_ended(self) -> bool:
        """Whether it was started and has ended, by itself or otherwise."""
        return self._process is not None and self._process.poll() is not None

    def send(self, kind: str, tensors: dict[str, Array], metadata: dict[str, str]) -> None:
        """Send one message. Raises wire.HungUp where the process has ended."""
        wire.send(self._to, kind, tensors, metadata)

    def receive(self) -> tuple[str, dict[str, Array], dict[str, str]]:
        """The next message. Raises wire.Silence, wire.HungUp."""
        return wire.receive(self._from, self.seconds)

    def start(self) -> dict[str, str]:
        """Start the process; the metadata of its first message. Raises UsageError where it can not serve."""
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # Fresh memory of the C heap is filled with a pattern, so that a result nobody wrote shows (glibc's mallopt(3)).
        environment = {"MALLOC_PERTURB_": "90", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, str(theirs_in), str(theirs_out), *self._arguments],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=environment,
            start_new_session=True,                                             # a `cmd:` program ends with its worker
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            kind, _, metadata = wire.receive(self._from, START_SECONDS)
        except wire.Silence:
            self.close()
            raise UsageError(f"SUBJECT: {self._spec} did not finish importing within {START_SECONDS:g} s") from None
        except wire.HungUp:
            raise UsageError(f"SUBJECT: {self._spec} ended the process while being imported: {self.how_it_ended()}") from None
        if kind == "unusable":
            self.close()
            raise UsageError(metadata["message"])
        return metadata

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is None:
            return
        os.close(self._to)
        os.close(self._from)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def how_it_ended(self) -> str:
        """What became of a process that hung up, which is closed by this."""
        assert self._process is not None
        try:
            code = self._process.wait(self.seconds)
        except subprocess.TimeoutExpired:                                       # it closed the pipe and went on
            self.close()
            return f"the process closed its pipe, and did not end within {self.seconds:g} s"
        self.close()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 400))
        said = self._log.read().decode(errors="replace").strip()
        return f"the process {how}" + (f"; its last words: {said.splitlines()[-1]}" if said else "")
