"""Object worker: the process in which an object from outside lives. Its arguments: READ WRITE SPEC OPERATION SAMPLE WANTED.

It protects the checker from crashes and hangs, not from malice: a subject runs with all the rights of the user.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from .. import wire
from ..declaration import UsageError
from .operation import walked
from .sequence import NEW, from_json, perform, to_json


def main(arguments: list[str]) -> None:
    """Load the subject, say what it can, then make calls until the pipe closes."""
    from .subjects import abilities_of, factory_named, version_of

    reading, writing, spec, operation = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3]
    try:
        factory = walked(factory_named(spec, operation), arguments[6])
        abilities = abilities_of(factory, from_json(json.loads(arguments[4])), json.loads(arguments[5]))
        version = version_of(spec)
    except UsageError as error:
        wire.send(writing, "unusable", {}, {"message": str(error)})
        return
    except BaseException as error:                                              # the subject's own import failed
        text = "".join(traceback.format_exception(error)[-3:])
        wire.send(writing, "unusable", {}, {"message": f"SUBJECT: {spec} fails on import: {type(error).__name__}: {error}\n{text}"})
        return
    wire.send(writing, "ready", {}, {"abilities": json.dumps(sorted(abilities)), "version": version})
    target: Any = None
    while True:
        try:
            _, _, metadata = wire.receive(reading)
        except wire.HungUp:
            return
        answers = []
        for call in from_json(json.loads(metadata["calls"])):
            answer, made = perform(factory if call.method == NEW else target, call)
            target = made if call.method == NEW else target
            answers.append(answer)
        wire.send(writing, "answers", {}, {"answers": json.dumps(to_json(answers))})


if __name__ == "__main__":
    main(sys.argv[1:])
