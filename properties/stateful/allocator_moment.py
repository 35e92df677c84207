"""Allocator moment: one call on a block allocator, what came of it, and what its caller knows then. Prepared by `allocator_model`.

It needs nothing but its neighbour `sequence`, so that a repro can carry a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .sequence import RETURNED, Answer, Call

if TYPE_CHECKING:
    from .allocator_model import AllocatorModel

Content = tuple[bytes, tuple[int, ...]]                                         # salt, and all tokens up to the end of a block or a slot
Slot = tuple[int, int]                                                          # block, offset


@dataclass
class Sequence:
    """What the caller knows of one sequence."""

    tokens: list[int]
    salt: bytes
    committed: int = 0

    def content(self, end: int) -> Content:
        """What keys and values behind the first `end` tokens depend on."""
        return self.salt, tuple(self.tokens[:end])


@dataclass
class AllocatorMoment:
    """One call, what came of it, and what is known after it. See `play.Moment`.

    wrong_call   why ValueError is the only right answer, or ""
    need, room   blocks that the call may need at most, and blocks that no table named before it
    tables, stats          what the allocator said after the call; the same before it
    undead       sequences that have a table, and should be unknown
    in_use       blocks that were named by a table before the call
    fewest, count          how many blocks had to be found, and what was returned as found: tokens, or blocks of match_prefix
    found        (block, content that it was found for)
    verdicts     block -> why it must not be found for that: "", "uncommitted", "salt", "tokens" or "given anew"
    given        blocks newly named that hold nothing of what was asked: they are to be filled
    evicted      blocks that were taken or returned by evict although they held published content
    too_recent   (taken, stays): evicted blocks, and one that stays though it is unused for longer
    overwritten  (reader, slot): another sequence's tokens that this call's writes and copies changed
    written      slots written or copied to
    revived      blocks found that no table named; perhaps: blocks named that hold what was asked, though not said to be found
    released     blocks that tables named before the call, and none after it
    """

    call: Call
    answer: Answer
    model: AllocatorModel
    tables_before: dict[str, list[int]]
    tables: dict[str, list[int]]
    stats_before: dict[str, int]
    stats: dict[str, int]
    in_use: frozenset[int]
    undead: list[str] = field(default_factory=list)
    defect: str = ""
    lost: bool = False
    wrong_call: str = ""
    need: int = 0
    room: int = 0
    fewest: int = 0
    count: int | None = None
    found: list[tuple[int, Content]] = field(default_factory=list)
    verdicts: dict[int, str] = field(default_factory=dict)
    given: list[int] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)
    too_recent: list[tuple[int, int]] = field(default_factory=list)
    overwritten: list[tuple[str, Slot]] = field(default_factory=list)
    written: int = 0
    revived: int = 0
    perhaps: int = 0
    released: int = 0

    @property
    def returned(self) -> bool:
        return self.answer.kind == RETURNED

    def has(self, *methods: str) -> bool:
        """Whether this is a call of one of these methods that returned."""
        return self.returned and self.call.method in methods
