"""Installed: which version of a library is here, and the error where none is."""

from __future__ import annotations

import importlib
from importlib import metadata

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


def versions_text(versions: dict[str, str]) -> str:
    """Versions in one line, for the declaration.

    >>> versions_text({"onnxruntime": "1.32.0", "onnx": "1.23.2"})
    'onnxruntime 1.32.0, onnx 1.23.2'
    """
    return ", ".join(f"{library} {version}" for library, version in versions.items())
