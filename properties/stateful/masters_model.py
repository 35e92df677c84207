"""Masters model: masters, moments and the number of steps as they must be, kept beside any object that trains narrow weights.

It needs nothing but NumPy and its neighbours, so that a repro can carry a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .masters_walker import numbers
from .play import unusable
from .sequence import NEW, RAISED, RETURNED, Answer, Call

LOOKS = (Call("weights"), Call("contents"))


@dataclass
class Training:
    """master, m, v and the number of steps."""

    master: Any
    m: Any
    v: Any
    step: int = 0


@dataclass
class MastersMoment:
    """One call, what came of it, and what is known after it. See `play.Moment`.

    in_order           whether the call may stand where it stands; else nothing is judged
    overflow, taken    whether what was gathered held a NaN or inf, and what `step` said
    weights, wanted_weights     the weights after the call, and as they must be
    contents, wanted   what a checkpoint would hold, None where the object gives none, and what it must hold
    since_load, since_resume    whether weights were loaded, or a state resumed, before
    """

    call: Call
    answer: Answer
    model: MastersModel
    defect: str = ""
    lost: bool = False
    in_order: bool = True
    overflow: bool = False
    taken: bool = False
    weights: Any = None
    wanted_weights: Any = None
    contents: dict[str, Any] | None = None
    wanted: dict[str, Any] = field(default_factory=dict)
    since_load: bool = False
    since_resume: bool = False


class MastersModel:
    """training: what a checkpoint holds. gathered: the gradient of the next step, None where there is none yet."""

    def __init__(self, new: Call, abilities: frozenset[str]) -> None:
        self.fmt, self.rates = new.args[1:]
        master = np.float64(numbers(new.args[0]))
        self.training = Training(master, np.zeros(master.shape), np.zeros(master.shape))
        self.gathered: Any = None
        self.states: list[Training] = []
        self.loaded = self.resumed = False

    def looks(self, call: Call) -> list[Call]:
        return list(LOOKS)

    def closing(self) -> Call | None:
        """What was gathered needs no step."""
        return None

    def follow(self, call: Call, answer: Answer, seen: list[Answer]) -> MastersMoment:
        moment = MastersMoment(call, answer, self, in_order=self._in_order(call))
        if not moment.in_order:
            moment.lost = True
            return moment
        moment.defect = unusable(call, answer) or (f"{call} raised {answer.message}; want a result" if answer.kind == RAISED else "")
        moment.defect = moment.defect or (self._apply(moment) if call.method != NEW else "") or self._read(moment, seen)
        moment.since_load, moment.since_resume = self.loaded, self.resumed
        return moment

    def _in_order(self, call: Call) -> bool:
        n = self.training.master.shape
        if call.method in ("accumulate", "load"):
            return bool(numbers(call.args[0]).shape == n) and (call.method == "accumulate" or self.gathered is None)
        if call.method == "step":
            # A gathered 0 is left out: with eps of 0 the quotient 0 / 0 is a convention.
            return self.gathered is not None and bool(np.all(self.gathered != 0.0))
        return call.method == NEW or (self.gathered is None and (call.method == "state" or call.args[0] < len(self.states)))

    def _apply(self, moment: MastersMoment) -> str:
        call, now = moment.call, self.training
        if call.method == "accumulate":
            with np.errstate(invalid="ignore"):
                self.gathered = np.float64(numbers(call.args[0])) + (0.0 if self.gathered is None else self.gathered)
        elif call.method == "step":
            return self._step(moment)
        elif call.method == "load":
            self.training, self.loaded = Training(np.float64(numbers(call.args[0])), now.m, now.v, now.step), True
        elif call.method == "state":
            self.states.append(now)
        else:
            self.training, self.resumed = self.states[call.args[0]], True
        return ""

    def _step(self, moment: MastersMoment) -> str:
        said = np.asarray(moment.answer.value)
        if said.dtype != np.bool_ or said.size != 1:
            return f"{moment.call} returned {moment.answer.value!r}; want True or False"
        moment.taken = bool(said.reshape(()))
        g, now, self.gathered = self.gathered / moment.call.args[0], self.training, None
        moment.overflow = not np.isfinite(g).all()
        if not moment.overflow:
            t = now.step + 1
            master = now.master - self.rates[min(t, len(self.rates)) - 1] * np.sign(g)
            self.training = Training(master, g, g * g, t)
        return ""

    def _read(self, moment: MastersMoment, seen: list[Answer]) -> str:
        for look, answer in zip(LOOKS, seen, strict=True):
            if answer.kind != RETURNED:
                return f"{look} after {moment.call}: {answer.message}"
        moment.weights, moment.contents = seen[0].value, seen[1].value
        moment.wanted_weights = rounded(self.training.master, self.fmt)
        if np.shape(moment.weights) != moment.wanted_weights.shape:
            return f"weights after {moment.call} have shape {np.shape(moment.weights)}; want {moment.wanted_weights.shape}"
        moment.wanted = vars(self.training)
        same = np.array_equal(moment.weights, moment.wanted_weights)
        moment.lost = not same or (moment.contents is not None and not all(
            np.array_equal(moment.contents[name], want) for name, want in moment.wanted.items()))  # fmt: skip
        return ""


def rounded(x: Any, fmt: str) -> Any:
    """float32 numbers rounded to float16 or bfloat16, ties to even, widened."""
    if fmt == "float16":
        return np.float64(np.float16(x))
    bits = np.float32(x).view(np.uint32)
    return np.float64((bits + 0x7FFF + (bits >> 16 & 1) & np.uint32(0xFFFF0000)).view(np.float32))


def new_masters(*weights: Any, fmt: str = "bfloat16", lr: tuple[float, ...] = (0.5,)) -> Call:
    """The first call: an object of these weights, and the learning rates of step 1, 2, …."""
    return Call(NEW, (weights, fmt, lr))
