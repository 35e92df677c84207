"""Installed: which version of a library is here, the error where none is, how it is made ready, and a call of it to be declared."""

from __future__ import annotations

import importlib
import os
import types
from collections.abc import Callable
from importlib import metadata
from typing import Any

from ..declaration import UsageError


def library_version(library: str, *, extra: str) -> str:
    """The version of an installed library, imported to be sure that it works.

    Raises UsageError naming the extra to install where it cannot be imported.
    """
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise UsageError(f"SUBJECT: {library} cannot be imported ({error}); want it: pip install 'oracles[{extra}]'") from None
    return metadata.version(library)


def quick_compilation() -> None:
    """XLA told to compile fast rather than well, before it is loaded: half the time of a shape, and every shape is a compilation."""
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")


def versions_text(versions: dict[str, str]) -> str:
    """Versions in one line, for the declaration.

    >>> versions_text({"onnxruntime": "1.32.0", "onnx": "1.23.2"})
    'onnxruntime 1.32.0, onnx 1.23.2'
    """
    return ", ".join(f"{library} {version}" for library, version in versions.items())


def copy_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as another object, so that two peers can declare one call differently."""
    assert isinstance(function, types.FunctionType)
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__doc__ = function.__kwdefaults__, function.__doc__
    return copy
