"""Loading: from the text that names a subject to the function and its declaration. Whoever loads runs the subject's code."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .declaration import ATTRIBUTE, Declaration, UsageError, declaration_of, subject

PEERS = "oracles.properties.peers"


def load(spec: str, operation: str | None, declared: Mapping[str, Any] | None = None) -> tuple[Callable[..., Any], Declaration]:
    """The function and declaration behind `module:function`, `path/file.py:function`, `peers:name` or `cmd:program`.

    declared: arguments of `subject` for a function that does not declare itself. Raises UsageError saying what could not be found.
    """
    if spec.startswith("cmd:"):
        from .command_subject import command_subject

        return command_subject(spec.removeprefix("cmd:"), operation, declared or {})
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise UsageError(f"SUBJECT: got {spec!r}; want module:function, file.py:function, peers:name or cmd:PROGRAM")
    if place == "peers":
        return _peer(name, operation)
    function = named_object(spec)
    if declared:
        if "takes" in declared:
            raise UsageError(f"takes: {spec} is a Python function, whose signature tells what it takes; want it for cmd:PROGRAM alone")
        if hasattr(function, ATTRIBUTE):
            raise UsageError(f"{', '.join(declared)}: {spec} declares itself; change its @subject instead")
        if operation is None:
            raise UsageError(f"OPERATION: not given; want it, since {spec} does not declare itself")
        try:
            function = subject(operation, **declared)(function)
        except UsageError:
            raise
        except ValueError as error:                                             # an arithmetic or convention that there is not
            raise UsageError(str(error)) from None
    return function, declaration_of(function, operation)


def named_object(spec: str) -> Any:
    """The function, class or factory behind `module:name` or `path/file.py:name`. Raises UsageError saying what could not be found."""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise UsageError(f"SUBJECT: got {spec!r}; want module:name or file.py:name")
    module = load_file(Path(place)) if place.endswith(".py") else _module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            offered = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
            raise UsageError(f"SUBJECT: {place} has no {part!r}; it has {', '.join(offered) or 'no functions'}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"SUBJECT: {spec} is {type(found).__name__}; want a function")
    return found


def _peer(name: str, operation: str | None) -> tuple[Callable[..., Any], Declaration]:
    from .peers import PEER_MODULES

    if name not in PEER_MODULES:
        raise UsageError(f"SUBJECT: got peers:{name}; want one of {', '.join('peers:' + peer for peer in PEER_MODULES)}")
    module = _module(f"{PEERS}.{PEER_MODULES[name]}")
    functions = module.subjects(name)
    for function in functions:
        try:
            return function, declaration_of(function, operation)
        except UsageError:
            continue
    raise UsageError(f"SUBJECT: peers:{name} has no {operation}")


def load_file(path: Path) -> Any:
    """The module in a file, under the name of the file. Raises UsageError where there is none."""
    if not path.is_file():
        raise UsageError(f"SUBJECT: no file {path}; want an existing Python file")
    path = path.resolve()
    sys.path.insert(0, str(path.parent))                                        # its own imports, as when it is run
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise UsageError(f"SUBJECT: {path} is no Python file; want a name ending in .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module


def _module(name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        hint = f"; the file {name}.py is here: want {name}.py:FUNCTION" if Path(f"{name}.py").is_file() else ""
        raise UsageError(f"SUBJECT: {name} cannot be imported ({error}){hint}") from None
