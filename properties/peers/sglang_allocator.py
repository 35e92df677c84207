"""SGLang's RadixCache with a pool of pages, as a block allocator.

Address: https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/mem_cache/radix_cache.py. What is the tree's own way:
- It evicts leaves whole, however many pages they hold; the adapter splits every node at its pages before nobody holds it any more.
- Publishing and looking up are use, being let go is none; the scheduler publishes once more where a request ends, and so does the adapter.
- Equal pages are merged when they are published, and the table names the tree's page from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..declaration import UsageError
from .calls.sglang_tree import RadixPool

OBJECT = "block_allocator"                                                      # the operation whose object it is
PEERS: dict[str, Callable[..., Any]] = {"sglang_radix": RadixPool}


def library_versions(name: str) -> dict[str, str]:
    """The version of SGLang. Raises UsageError where it is missing."""
    from importlib import metadata

    try:
        return {"sglang": metadata.version("sglang")}
    except metadata.PackageNotFoundError:
        raise UsageError("SUBJECT: sglang cannot be imported; want it: pip install sglang") from None


def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """No function: it is an object."""
    return ()


def objects(name: str) -> dict[str, Callable[..., Any]]:
    """The allocator, by the name of its operation. Raises UsageError where the library is missing."""
    library_versions(name)
    return {OBJECT: PEERS[name]}
