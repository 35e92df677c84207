"""Worker: the process in which a subject from outside lives. `python -m oracles.properties.worker READ WRITE SPEC OPERATION DECLARED`.

It protects the checker from crashes and hangs, not from malice: a subject runs with all the rights of the user.
"""

from __future__ import annotations

import json
import sys
import traceback

from . import wire
from .calling import call
from .declaration import UsageError
from .loading import load
from .outcome import MALFORMED, Outcome
from .safetensors_file import DTYPES


def main(arguments: list[str]) -> None:
    """Load the subject, say what it declares, then answer calls until the pipe closes."""
    reading, writing, spec, operation = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3] or None
    try:
        function, declaration = load(spec, operation, json.loads(arguments[4]))
    except UsageError as error:
        wire.send(writing, "unusable", {}, {"message": str(error)})
        return
    except BaseException as error:                                              # the subject's own import failed
        text = "".join(traceback.format_exception(error)[-3:])
        wire.send(writing, "unusable", {}, {"message": f"SUBJECT: {spec} fails on import: {type(error).__name__}: {error}\n{text}"})
        return
    wire.send(writing, "ready", {}, {"declaration": json.dumps(declaration.to_json())})
    while True:
        try:
            _, tensors, metadata = wire.receive(reading)
        except wire.HungUp:
            return
        case, buffers = wire.call_of(tensors, metadata)
        outcome = call(function, declaration, case, buffers)
        wire.send(writing, "outcome", *wire.outcome_message(_sendable(outcome)))


def _sendable(outcome: Outcome) -> Outcome:
    foreign = [f"{name} of dtype {array.dtype}" for name, array in outcome.outputs.items() if array.dtype not in DTYPES.values()]
    return Outcome(MALFORMED, message=f"returned {', '.join(foreign)}; want arrays of numbers") if foreign else outcome


if __name__ == "__main__":
    main(sys.argv[1:])
