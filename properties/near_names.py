"""Near names: what somebody may have meant who named something that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

SHOWN = 4


def near_names(word: str, names: Sequence[str]) -> str:
    """Those that hold the word, then those that are spelt alike, four at most; the first of all where none is.

    >>> near_names("ring", ["softmax", "ring_attention", "ring_attention_backward"])
    'ring_attention, ring_attention_backward'
    >>> near_names("sofmax", ["ring_attention", "softmax"]), near_names("?", ["softmax", "rope"])
    ('softmax', 'softmax')
    """
    holding = [name for name in names if word and word.lower() in name]
    alike = [name for name in difflib.get_close_matches(word.lower(), names, SHOWN) if name not in holding]
    return ", ".join([*holding, *alike][:SHOWN] or names[:1])
