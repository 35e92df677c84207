"""Scaler model: the scale that a loss scaler must have, and the training loop as it must go on.

It needs nothing but NumPy and its neighbours, so that a repro can carry a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .play import unusable
from .scaler_walker import FRESH, Training, stepped
from .sequence import NEW, RAISED, RETURNED, Answer, Call

LOOKS = (Call("value"), Call("training"))
# The normal numbers of float32, in which losses are multiplied with the scale.
SMALLEST, LARGEST = 2.0**-126, 2.0**128 * (1 - 2.0**-24)
DEFAULTS = {"init_scale": 2.0**16, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
# Where in an iteration a method may be called: at its beginning, once gradients are unscaled, once the step was tried.
OPEN, UNSCALED, STEPPED = "open", "unscaled", "stepped"
PLACES = {"scale": (OPEN, UNSCALED, STEPPED), "unscale": (OPEN,), "step": (UNSCALED,), "update": (UNSCALED, STEPPED),
          "state": (OPEN,), "load": (OPEN,)}  # fmt: skip


@dataclass
class ScalerMoment:
    """One call, what came of it, and what is known after it. See `play.Moment`.

    in_order            whether the call may stand where it stands in an iteration; else nothing is judged
    value_before, value the scale before and after the call; wanted_value what it must be, None where several are legal
    grown, loaded       an update after which it must have grown; whether a load came before, and no growth or backoff since
    training_before, training, wanted_training   the loop before and after, and as it must be
    sent, got           gradients given to `unscale`, and what it made of them
    overflow, found     whether a gradient of this iteration was NaN or inf, scaled or unscaled, and what the scaler said of it
    taken               what `step` said
    """

    call: Call
    answer: Answer
    model: ScalerModel
    defect: str = ""
    lost: bool = False
    in_order: bool = True
    value_before: float = 0.0
    value: float = 0.0
    wanted_value: float | None = None
    grown: bool = False
    loaded: bool = False
    training_before: Training = field(default_factory=dict)
    training: Training = field(default_factory=dict)
    wanted_training: Training = field(default_factory=dict)
    sent: list[Any] = field(default_factory=list)
    got: list[Any] = field(default_factory=list)
    overflow: bool = False
    found: bool = False
    taken: bool = False

    @property
    def exact(self) -> bool:
        """Whether products with the scale and quotients by it are exact: it is a power of two, as long as no end of the format is met."""
        return 0.0 < self.value_before < np.inf and float(np.frexp(self.value_before)[0]) == 0.5


class ScalerModel:
    """value, run: the scale and the updates without an overflow since it last moved. place: where in an iteration the loop is."""

    def __init__(self, new: Call, abilities: frozenset[str]) -> None:
        options = {name: new.option(name, default) for name, default in DEFAULTS.items()}
        self.value, self.growth, self.backoff, self.interval = (float(options[name]) for name in DEFAULTS)
        self.run, self.place, self.loaded = 0, OPEN, False
        self.training: Training = dict(FRESH)
        self.gradient, self.overflow = 0.0, False
        self.saved: list[tuple[float, int]] = []

    def looks(self, call: Call) -> list[Call]:
        return list(LOOKS)

    def closing(self) -> Call | None:
        """An iteration that was begun is ended."""
        return Call("update") if self.place != OPEN else None

    def follow(self, call: Call, answer: Answer, seen: list[Answer]) -> ScalerMoment:
        moment = ScalerMoment(call, answer, self, value_before=self.value, training_before=self.training, loaded=self.loaded)
        moment.in_order = call.method == NEW or self.place in PLACES[call.method]
        if call.method == "load":
            moment.in_order &= call.args[0] < len(self.saved)
        if not moment.in_order:
            moment.lost = True
            return moment
        moment.wanted_value, moment.wanted_training, moment.overflow = self.value, self.training, self.overflow
        moment.defect = unusable(call, answer) or (f"{call} raised {answer.message}; want a result" if answer.kind == RAISED else "")
        moment.defect = moment.defect or self._read(moment, seen) or self._apply(moment)
        if not moment.defect:
            self.value, self.training = moment.value, moment.training
            moment.lost = moment.lost or moment.wanted_value not in (None, moment.value) or not 0.0 < moment.value <= LARGEST
        return moment

    def _read(self, moment: ScalerMoment, seen: list[Answer]) -> str:
        for look, answer in zip(LOOKS, seen, strict=True):
            if answer.kind != RETURNED:
                return f"{look} after {moment.call}: {answer.message}"
        moment.value, moment.training = seen[0].value, seen[1].value
        return ""

    def _apply(self, moment: ScalerMoment) -> str:
        method = moment.call.method
        return "" if method == NEW else str(getattr(self, f"_{method}")(moment) or "")

    def _scale(self, moment: ScalerMoment) -> str:
        return "" if isinstance(moment.answer.value, float) else f"{moment.call} returned {moment.answer.value!r}; want a number"

    def _unscale(self, moment: ScalerMoment) -> str:
        moment.sent = [np.array([float(x) for x in g]) for g in moment.call.args]
        answer: Any = moment.answer.value
        pair: list[Any] = answer if isinstance(answer, list) and len(answer) == 2 else [None, None]
        shapes, found = [g.shape for g in moment.sent], _truth(pair[1])
        moment.got = pair[0] if isinstance(pair[0], list) else [None]
        if [np.shape(g) for g in moment.got] != shapes or found is None:
            return f"{moment.call} returned {answer!r}; want gradients of shapes {shapes}, and True or False"
        moment.found, self.place = found, UNSCALED
        moment.overflow = self.overflow = not all(np.isfinite(g).all() for g in (*moment.sent, *moment.got))
        moment.lost = moment.found != moment.overflow
        self.gradient = float(sum(g.sum() for g in moment.got))                 # what it made of them is judged by itself
        return ""

    def _step(self, moment: ScalerMoment) -> str:
        taken = _truth(moment.answer.value)
        if taken is None:
            return f"{moment.call} returned {moment.answer.value!r}; want True or False"
        moment.taken, self.place = taken, STEPPED
        if not self.overflow:
            moment.wanted_training = {**stepped(self.training, self.gradient), "schedule": self.training["schedule"] + 1}
        moment.lost = moment.taken == self.overflow or moment.training != moment.wanted_training
        return ""

    def _update(self, moment: ScalerMoment) -> str:
        self.run = 0 if self.overflow else self.run + 1
        moment.grown = self.run >= self.interval
        wanted = self.value * (self.backoff if self.overflow else self.growth if moment.grown else 1.0)
        self.run = 0 if moment.grown else self.run
        self.loaded = self.loaded and not (self.overflow or moment.grown)
        moment.wanted_value = wanted if SMALLEST <= wanted <= LARGEST else None
        self.place, self.overflow = OPEN, False
        return ""

    def _state(self, moment: ScalerMoment) -> str:
        self.saved.append((self.value, self.run))
        return ""

    def _load(self, moment: ScalerMoment) -> str:
        moment.wanted_value, self.run = self.saved[moment.call.args[0]]
        self.loaded = moment.loaded = True
        return ""


def new_scaler(init_scale: float | None = None, **options: float) -> Call:
    """The first call: a scaler, of what is not named the default."""
    named = {**({} if init_scale is None else {"init_scale": init_scale}), **options}
    return Call(NEW, (), tuple(named.items()))


def _truth(value: Any) -> bool | None:
    """True or False, also as an array of one; None for anything else."""
    array = np.asarray(value)
    return bool(array.reshape(())) if array.dtype == np.bool_ and array.size == 1 else None
