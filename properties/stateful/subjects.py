"""Objects: subjects that are made and then called again and again, in this process or in a worker of their own."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .. import wire
from ..declaration import UsageError
from ..loading import PEERS, named_object
from ..worker_process import WorkerProcess
from .operation import StatefulOperation
from .sequence import DIED, HUNG, NEW, RETURNED, Answer, Call, from_json, perform, to_json


class ObjectSubject(Protocol):
    """A class or factory, and the one object of it that is being called.

    name, spec   for people; the text that names it for a later process, or None
    abilities    methods it has, and optional arguments they take
    version      the libraries behind a peer and their versions, or ""
    """

    name: str
    spec: str | None
    abilities: frozenset[str]
    version: str

    def speak(self, calls: list[Call]) -> list[Answer]:
        """Make calls in order; `NEW` makes another object. The list ends with the call of which the process died or hung."""

    def close(self) -> None: ...


class ObjectInProcess:
    """A class or factory called in this process."""

    def __init__(self, factory: Callable[..., Any], operation: StatefulOperation, spec: str | None = None) -> None:
        self.factory, self.spec, self.version = factory, spec, version_of(spec or "")
        self.name: str = spec or getattr(factory, "__name__", None) or type(factory).__name__
        self._object: Any = None
        self._held = operation.held(factory)
        self.abilities = abilities_of(self._held, operation.sample, _wanted(operation))
        must_have(self.abilities, operation, self.name)

    def speak(self, calls: list[Call]) -> list[Answer]:
        given = []
        for call in calls:
            answer, made = perform(self._held if call.method == NEW else self._object, call)
            if call.method == NEW:
                self._object = made
            given.append(answer)
        return given

    def close(self) -> None:
        """Nothing to end."""


class ObjectInWorker:
    """A class or factory named by text, in a worker process that is started again after it died or hung."""

    def __init__(self, spec: str, operation: StatefulOperation, *, seconds: float) -> None:
        self.name = spec
        self.spec: str | None = spec
        arguments = [spec, operation.name, json.dumps(to_json(operation.sample)), json.dumps(_wanted(operation)), operation.walker_name]
        self._worker = WorkerProcess("oracles.properties.stateful.worker", spec, arguments, seconds=seconds)
        ready = self._worker.start()
        self.abilities, self.version = frozenset(json.loads(ready["abilities"])), ready["version"]
        must_have(self.abilities, operation, spec)

    def speak(self, calls: list[Call]) -> list[Answer]:
        if not self._worker.running:
            self._worker.start()
        try:
            self._worker.send("calls", {}, {"calls": json.dumps(to_json(calls))})
            answers: list[Answer] = from_json(json.loads(self._worker.receive()[2]["answers"]))
            return answers
        except wire.Silence:
            self.close()
            return [Answer(HUNG, message=f"did not return within {self._worker.seconds:g} s")]
        except wire.HungUp:
            return [Answer(DIED, message=self._worker.how_it_ended())]

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        self._worker.close()


def open_object(
    subject: str | Callable[..., Any], operation: StatefulOperation, *, in_process: bool = False, seconds: float = 30.0
) -> ObjectSubject:
    """A subject from its text (worker process) or from a class or factory (this process).

    Raises UsageError where there is none, where it makes no object, or where the object lacks a required method.
    """
    if not isinstance(subject, str):
        return ObjectInProcess(subject, operation)
    if in_process:
        return ObjectInProcess(factory_named(subject, operation.name), operation, subject)
    return ObjectInWorker(subject, operation, seconds=seconds)


def factory_named(spec: str, operation: str) -> Callable[..., Any]:
    """The class or factory behind `module:name`, `file.py:name` or `peers:name`."""
    if not spec.startswith("peers:"):
        found: Callable[..., Any] = named_object(spec)
        return found
    name, module = _peer(spec)
    factories = module.objects(name) if hasattr(module, "objects") else {}
    if operation not in factories:
        raise UsageError(f"SUBJECT: peers:{name} has no {operation}")
    factory: Callable[..., Any] = factories[operation]
    return factory


def version_of(spec: str) -> str:
    """The libraries behind `peers:name` and their versions; "" for any other text."""
    if not spec.startswith("peers:"):
        return ""
    from ..peers.installed import versions_text

    name, module = _peer(spec)
    return versions_text(module.library_versions(name))


def _peer(spec: str) -> tuple[str, Any]:
    """The name of a peer and the module that declares it."""
    from ..peers import PEER_MODULES

    name = spec.removeprefix("peers:")
    if name not in PEER_MODULES:
        raise UsageError(f"SUBJECT: got peers:{name}; want one of {', '.join('peers:' + peer for peer in PEER_MODULES)}")
    return name, __import__(f"{PEERS}.{PEER_MODULES[name]}", fromlist=["objects"])


def abilities_of(factory: Callable[..., Any], sample: Call, wanted: Iterable[str]) -> frozenset[str]:
    """Which methods and optional arguments of `wanted` (`method`, `method.argument`, `new.argument`) there are.

    Raises UsageError where the factory makes no object.
    """
    answer, made = perform(factory, sample)
    if answer.kind != RETURNED:
        given = ", ".join(map(str, sample.args))
        raise UsageError(f"SUBJECT: called with ({given}) it raised {answer.message}; want a class or factory of an object")
    found = []
    for name in wanted:
        method, _, argument = name.partition(".")
        function = factory if method == NEW else getattr(made, method, None)
        if callable(function) and (not argument or _takes(function, argument)):
            found.append(name)
    return frozenset(found)


def _takes(function: Any, argument: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _wanted(operation: StatefulOperation) -> list[str]:
    return [*operation.required, *operation.optional, *operation.arguments]


def must_have(abilities: frozenset[str], operation: StatefulOperation, name: str) -> None:
    """Raises UsageError naming the required methods that are missing."""
    missing = [method for method in operation.required if method not in abilities]
    if missing:
        raise UsageError(f"SUBJECT: {name} makes an object without {', '.join(missing)}; want {', '.join(operation.required)}")
