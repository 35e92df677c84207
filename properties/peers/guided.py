"""Guides of XGrammar, outlines-core and llguidance.

Addresses: https://xgrammar.mlc.ai/docs/api/python/matcher.html, https://github.com/dottxt-ai/outlines-core,
https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md

What they declare, and where it is from:
- eos. XGrammar's matcher has terminated once it accepted the stop token, and raises when asked for another mask (its API page);
  llguidance's stops by itself where nothing can follow (`stop_reason` NoExtension), and then takes no eos; outlines-core lists eos
  in final states and has no state behind it (dottxt-ai/outlines-core#227). The state after eos is the adapter's own.
- Tokens without text. XGrammar counts them among the special tokens, which no grammar allows; llguidance never allows them;
  outlines-core does.
- Dead ends of the vocabulary. XGrammar and llguidance go by characters; outlines-core refuses to build an index that has one,
  which is not covered then.
- Forced text. llguidance allows the tokens alone that its tokenizer would write it in (guidance-ai/llguidance#263);
  `llguidance_unforced` sets its grammars' option no_forcing.
- The dot takes the line feed in XGrammar, and leaves it out in both others, as in Python.
- Whitespace in JSON is free by default in XGrammar and llguidance (`any_whitespace`, `whitespace_flexible`), one space or none in
  outlines-core; the masks of schemas are compared without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .calls import guided as calls
from .installed import library_version

EXTRA = "guided"
OBJECT = "token_mask"                                                           # the operation whose objects these are

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
    return {OBJECT: PEERS[name][2]}
