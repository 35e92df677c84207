"""Wire: messages between the checker and a worker process, each a safetensors frame; nothing is unpickled on either side."""

from __future__ import annotations

import json
import os
import select
import struct
import time
from typing import Any

from .case import Case
from .outcome import Outcome
from .safetensors_file import Array, dumps, loads


class Silence(Exception):
    """The other side did not answer in time."""


class HungUp(Exception):
    """The other side closed the pipe."""


def send(descriptor: int, kind: str, tensors: dict[str, Array], metadata: dict[str, str]) -> None:
    """Write one message. Raises HungUp where nobody reads."""
    frame = dumps(tensors, {**metadata, "kind": kind})
    data = memoryview(struct.pack("<Q", len(frame)) + frame)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        raise HungUp from None


def receive(descriptor: int, seconds: float | None = None) -> tuple[str, dict[str, Array], dict[str, str]]:
    """Read one message: kind, tensors, metadata. Raises Silence after `seconds` without one, HungUp at the end."""
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = struct.unpack("<Q", _read(descriptor, 8, deadline))
    tensors, metadata = loads(_read(descriptor, length, deadline))
    return metadata.pop("kind"), tensors, metadata


def _read(descriptor: int, length: int, deadline: float | None) -> bytes:
    parts, missing = [], length
    while missing:
        if deadline is not None and not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise Silence
        part = os.read(descriptor, min(missing, 1 << 20))
        if not part:
            raise HungUp
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def outcome_message(outcome: Outcome) -> tuple[dict[str, Array], dict[str, str]]:
    """An outcome as tensors and metadata; an output dtype that safetensors does not know is reported as malformed by the caller."""
    data: dict[str, Any] = {"kind": outcome.kind, "message": outcome.message, "changed": outcome.changed, "shared": outcome.shared,
                            "traceback": outcome.traceback}  # fmt: skip
    return dict(outcome.outputs), {"outcome": json.dumps(data)}


def outcome_of(tensors: dict[str, Array], metadata: dict[str, str]) -> Outcome:
    """The inverse of `outcome_message`."""
    data = json.loads(metadata["outcome"])
    return Outcome(data["kind"], tensors, data["message"], tuple(data["changed"]), tuple(data["shared"]), data["traceback"])


def call_message(case: Case, buffers: dict[str, tuple[tuple[int, ...], str]]) -> tuple[dict[str, Array], dict[str, str]]:
    """A case, and the shapes and dtypes of the result buffers, as tensors and metadata."""
    tensors, metadata = case.to_tensors()
    return tensors, {**metadata, "buffers": json.dumps(buffers)}


def call_of(tensors: dict[str, Array], metadata: dict[str, str]) -> tuple[Case, dict[str, tuple[tuple[int, ...], str]]]:
    """The inverse of `call_message`."""
    case, _ = Case.from_tensors(tensors, metadata)
    return case, {name: (tuple(shape), dtype) for name, (shape, dtype) in json.loads(metadata["buffers"]).items()}
