"""Guide model: the states that a guide must be in, by the automaton of `oracles.reference`, and what it showed of them.

It needs nothing but NumPy, the automaton and its neighbours, so that a repro can carry a copy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oracles.reference.regex_pattern import parse_pattern
from oracles.reference.token_automaton import TokenAutomaton

from .play import unusable
from .sequence import NEW, RAISED, RETURNED, Answer, Call

LOOKED_AT = 12                                                                  # states whose masks are looked at again after a call
BY_TOKENS = "tokens"                                                            # the ability to see dead ends of the vocabulary
DOT = "dot"                                                                     # that a dot leaves out the line feed
A_DOT = re.compile(r"(\\.|\[\^?(?:\\.|[^\]\\])*\])|\.")                         # group 1: what holds a dot of another kind


@dataclass(frozen=True)
class Place:
    """One state of the walk: by the automaton, and by the text and tokens that led there."""

    state: int
    text: str
    tokens: tuple[int, ...]


@dataclass
class GuideMoment:
    """One call on a guide, what came of it, and what is known after it. See `play.Moment`.

    place, token   where an `advance` started, and with which token; None for other calls, and for states that there are not
    allowed        whether the token is one that the language allows there
    entered        the mask of the state that a forbidden token led to, if one did
    masks, wanted  number of a state -> what its mask is now, and what it must be
    first          number of a state -> what its mask was when it was first looked at
    rows, wanted_rows   the masks that draft_masks gave, and those it must give; None for other calls
    """

    call: Call
    answer: Answer
    model: GuideModel
    defect: str = ""
    lost: bool = False
    place: Place | None = None
    token: int = -1
    allowed: bool = False
    entered: Any = None
    masks: dict[int, Any] = field(default_factory=dict)
    wanted: dict[int, Any] = field(default_factory=dict)
    first: dict[int, Any] = field(default_factory=dict)
    rows: Any = None
    wanted_rows: Any = None

    @property
    def returned(self) -> bool:
        return self.answer.kind == RETURNED


class GuideModel:
    """Follows a guide through its states. One that takes no account of what its vocabulary lacks is followed by characters."""

    def __init__(self, new: Call, abilities: frozenset[str]) -> None:
        pattern, self.vocabulary, self.eos = new.args[0], list(new.args[1]), new.args[2]
        self.pattern = pattern if DOT in abilities else A_DOT.sub(lambda found: found[1] or r"[\s\S]", pattern)
        dead_ends = "tokens" if BY_TOKENS in abilities else "characters"
        self.automaton = TokenAutomaton(parse_pattern(self.pattern), self.vocabulary, eos=self.eos, dead_ends=dead_ends)
        self.places: list[Place] = []
        self.first: dict[int, Any] = {}
        self._asked: list[Call] = []

    def looks(self, call: Call) -> list[Call]:
        """The masks of the newest states, and of the one that the call may have made."""
        end = len(self.places) + 1
        numbers = {0, *range(max(0, end - LOOKED_AT), end)} if call.method in (NEW, "advance") else set()
        self._asked = [Call("token_mask", (number,)) for number in sorted(numbers)]
        return self._asked

    def follow(self, call: Call, answer: Answer, seen: list[Answer]) -> GuideMoment:
        """The moment of a call, once the walk has gone along."""
        moment = GuideMoment(call, answer, self, defect=unusable(call, answer))
        if moment.defect:
            return moment
        if call.method == NEW:
            self._met(self.automaton.start, "", ())
            moment.defect = f"{call} raised {answer.message}" if answer.kind == RAISED else ""
        elif call.args[0] < len(self.places):
            self._advanced(moment) if call.method == "advance" else self._drafted(moment)
        if not moment.defect:
            self._look(moment, seen)
        return moment

    def closing(self) -> Call | None:
        """Nothing ends a walk."""
        return None

    def mask(self, number: int) -> Any:
        """The mask that a state must have."""
        return self.automaton.token_mask(self.places[number].state)

    def _met(self, state: int, text: str, tokens: tuple[int, ...]) -> None:
        self.places.append(Place(state, text, tokens))

    def _advanced(self, moment: GuideMoment) -> None:
        number, token = moment.call.args
        place = moment.place = self.places[number]
        moment.token = token
        mask = self.mask(number)
        moment.allowed = 0 <= token < len(mask) and bool(mask[token])
        if moment.allowed and moment.returned:
            text = place.text if token == self.eos else place.text + self.vocabulary[token]
            self._met(self.automaton.advance(place.state, token), text, (*place.tokens, token))
        moment.lost = moment.allowed != moment.returned

    def _drafted(self, moment: GuideMoment) -> None:
        number, draft = moment.call.args
        state = self.places[number].state
        rows = [self.automaton.token_mask(state)]
        for token in draft:
            if not (0 <= token < len(rows[-1]) and rows[-1][token]):
                break
            state = self.automaton.advance(state, token)
            rows.append(self.automaton.token_mask(state))
        moment.wanted_rows = np.stack(rows)
        if moment.answer.kind == RAISED:
            moment.defect = f"{moment.call} raised {moment.answer.message}"
            return
        moment.rows = np.asarray(moment.answer.value)
        if moment.rows.ndim != 2 or moment.rows.shape[1] != len(rows[0]) or moment.rows.dtype != np.bool_:
            moment.defect = f"{moment.call} returned {_form(moment.rows)}; want bool of shape (n + 1, {len(rows[0])})"

    def _look(self, moment: GuideMoment, seen: list[Answer]) -> None:
        for call, answer in zip(self._asked, seen):
            number = call.args[0]
            mask = np.asarray(answer.value) if answer.kind == RETURNED else None
            if number >= len(self.places):
                moment.entered = mask
                continue
            wrong = unusable(call, answer) or (f"{call} raised {answer.message}" if answer.kind == RAISED else "")
            if not wrong and (mask is None or mask.shape != (len(self.vocabulary),) or mask.dtype != np.bool_):
                wrong = f"{call} returned {_form(mask)}; want bool of shape ({len(self.vocabulary)},)"
            if wrong:
                moment.defect = moment.defect or f"{wrong}, after {moment.call}"
                return
            moment.masks[number], moment.wanted[number] = mask, self.mask(number)
            self.first.setdefault(number, mask)
        moment.first = self.first


def _form(value: Any) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)
