"""Guides of XGrammar, outlines-core and llguidance.

Addresses: https://xgrammar.mlc.ai/docs/api/python/matcher.html, https://github.com/dottxt-ai/outlines-core,
https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .calls import guided as calls
from .installed import library_version

EXTRA = "guided"

# name: (distribution, package, factory)
PEERS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "xgrammar": ("xgrammar", "xgrammar", calls.XGrammar),
    "outlines_core": ("outlines_core", "outlines_core", calls.OutlinesCore),
    "llguidance": ("llguidance", "llguidance", calls.LLGuidance),
    "llguidance_unforced": ("llguidance", "llguidance", calls.LLGuidanceUnforced),
}


def library_versions(name: str) -> dict[str, str]:
    """The version of the library. Raises UsageError where it is missing."""
    return {PEERS[name][0]: library_version(PEERS[name][1], extra=EXTRA)}


def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """No functions: these peers make objects."""
    library_versions(name)
    return ()


def objects(name: str) -> dict[str, Callable[..., Any]]:
    """The factory of guides by operation. Raises UsageError where the library is missing."""
    library_versions(name)
    return {"token_mask": PEERS[name][2]}
