"""One published line beside our own, and the five kinds of it."""

from __future__ import annotations

from dataclasses import dataclass

DERIVED, FORMULA, EXERCISE, QUOTED, CONTRADICTED = "derived", "formula", "exercise", "quoted", "contradicted"


@dataclass(frozen=True)
class Figure:
    """One published line.

    published, ours   as they are printed; published is "" for exercises, which have no printed answer
    kind              derived: ours is the same, digit for digit; formula: both sides agree exactly on the values named; exercise: our
                      answer; quoted: it cannot be derived; contradicted: our own count differs
    reason            why a line is quoted or contradicted, or what an answer leaves out
    """

    section: str
    what: str
    published: str
    ours: str
    kind: str = DERIVED
    reason: str = ""

    @property
    def good(self) -> bool:
        """Whether the line is what its kind says it is."""
        same = self.published == self.ours
        return {DERIVED: same, FORMULA: self.ours == "holds", CONTRADICTED: not same and bool(self.reason),
                QUOTED: bool(self.reason), EXERCISE: not self.published}[self.kind]  # fmt: skip


def told(held: bool) -> str:
    """What a formula prints.

    >>> told(True)
    'holds'
    """
    return "holds" if held else "fails"
