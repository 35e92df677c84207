"""Zero model: AdamW of one rank on whole arrays, in float64, with the error that legal rounding may have made, kept beside any layout.

It needs nothing but NumPy and its neighbours, so that a repro can carry a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .play import unusable
from .sequence import NEW, RAISED, RETURNED, Answer, Call

ADAM = {"lr": 0.125, "beta1": 0.5, "beta2": 0.5, "eps": 1.0, "weight_decay": 0.25}
UNITS = {"float32": 2.0**-24, "float64": 2.0**-53}


@dataclass
class ZeroMoment:
    """One call, what came of it, and what is known after it. See `play.Moment`.

    wrong_call               why ValueError (or TypeError) is the only right answer, or ""
    params_before, params    what `params` gave before and after the call, by name; None before anything is attached
    held, moved              bytes of each rank by role, bytes that each rank sent; None where the object does not say
    norm                     what `step` returned
    """

    call: Call
    answer: Answer
    model: ZeroModel
    wrong_call: str = ""
    defect: str = ""
    lost: bool = False
    params_before: dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    held: list[dict[str, int]] | None = None
    moved: list[int] | None = None
    norm: float | None = None


@dataclass
class State:
    """One parameter: value and moments, and how far a legal computation may be from each, in units of roundoff."""

    p: Any
    m: Any
    v: Any
    errors: dict[str, Any] = field(default_factory=dict)


class ZeroModel:
    """states: by name; sums: what was accumulated since the last step; parts, size: how many arrays that were, and their absolute sum."""

    def __init__(self, new: Call, abilities: frozenset[str]) -> None:
        self.abilities = abilities
        self.stage, self.world = new.args
        self.max_norm: float | None = new.option("max_norm")
        self.states: dict[str, State] = {}
        self.steps, self.unit = 0, UNITS["float64"]
        self.norm = self.norm_allowed = 0.0
        self.params: dict[str, Any] | None = None
        self.last_pending = 0
        self._clear()

    def looks(self, call: Call) -> list[Call]:
        attached = bool(self.states) or call.method == "attach"
        names = [name for name in ("held", "moved") if name in self.abilities]
        return [Call("params"), *map(Call, names)] if attached else []

    def closing(self) -> Call | None:
        """Nothing has to be closed."""
        return None

    def follow(self, call: Call, answer: Answer, seen: list[Answer]) -> ZeroMoment:
        moment = ZeroMoment(call, answer, self, self._wrong_call(call), params_before=self.params)
        moment.defect = unusable(call, answer) or self._out_of_form(moment)
        if moment.defect:
            return moment
        refused_to_be = call.method == NEW and answer.kind == RAISED
        moment.lost = refused_to_be or (answer.kind == RETURNED and bool(moment.wrong_call))
        if answer.kind == RETURNED and not moment.wrong_call:
            self._apply(call)
        moment.defect = self._read(moment, seen)
        self.params = moment.params
        return moment

    @property
    def elements(self) -> int:
        return int(sum(state.p.size for state in self.states.values()))

    @property
    def pending(self) -> int:
        return self._pending

    def allowed(self, name: str) -> Any:
        """How far a parameter may be from the model's, both having rounded."""
        return 2.0 * self.unit * self.states[name].errors["p"]

    def _wrong_call(self, call: Call) -> str:
        if call.method == NEW:
            stage, world = call.args
            return f"there is no stage {stage}" if stage not in (0, 1, 2, 3) else f"{world} ranks are none" if world < 1 else ""
        if call.method in ("accumulate", "step", "reload") and not self.states:
            return "nothing is attached"
        if call.method in ("accumulate", "step"):
            grads, tokens = call.args[0], call.option("tokens")
            for what, given in (("gradients", grads), ("tokens", tokens)):
                if given is not None and len(given) != self.world:
                    return f"{what} of {len(given)} ranks are given to {self.world}"
            shapes = [state.p.shape for state in self.states.values()]
            if any([g.shape for g in own] != shapes for own in grads):
                return "the gradients have other shapes than the parameters"
        if call.method == "reload" and self._pending:
            return f"{self._pending} micro-batches would be lost"
        return ""

    def _out_of_form(self, moment: ZeroMoment) -> str:
        """Why a call that returned or raised did not do so in the contract's form, or ""."""
        answer, call = moment.answer, moment.call
        if answer.kind == RETURNED:
            if call.method == "step" and not moment.wrong_call:
                value = np.asarray(answer.value) if isinstance(answer.value, float | int | np.ndarray) else None
                if value is None or value.ndim != 0:
                    return f"{call} returned {answer.value!r}; want the norm of the gradient"
                moment.norm = float(value)
            return ""
        if moment.wrong_call and (answer.raised("ValueError") or answer.raised("TypeError")):
            return ""
        return f"{call} raised {answer.message}; want " + ("ValueError" if moment.wrong_call else "a result")

    def _read(self, moment: ZeroMoment, seen: list[Answer]) -> str:
        for look, answer in zip(self.looks(moment.call), seen):
            if unusable(look, answer):
                return unusable(look, answer)
            if answer.kind == RAISED:
                if self.states:
                    return f"{look.method} after {moment.call} raised {answer.message}"
                continue
            setattr(moment, look.method, answer.value)
        params = moment.params
        if params is None:
            return ""
        wrong = not isinstance(params, dict) or any(not hasattr(array, "dtype") for array in params.values())
        if wrong or any(str(array.dtype) not in UNITS for array in params.values()):
            return f"params after {moment.call}: want a mapping of names to arrays of float32 or float64"
        self.unit = max((UNITS[str(array.dtype)] for array in params.values()), default=self.unit)
        return ""

    def _clear(self) -> None:
        self.sums: list[Any] = []
        self._size: list[Any] = []
        self._tokens, self._pending = 0, 0

    def _apply(self, call: Call) -> None:
        if call.method == "attach":
            arrays = {name: np.asarray(value.array(), np.float64) for name, value in call.args[0]}
            self.states = {name: State(p, 0.0 * p, 0.0 * p, {key: 0.0 * p for key in "pmv"}) for name, p in arrays.items()}
            self.steps = 0
            self._clear()
        elif call.method == "reload":
            self.stage, self.world = call.args
        elif call.method in ("accumulate", "step"):
            grads = [[np.asarray(g.array(), np.float64) for g in own] for own in call.args[0]]
            new, size = ([sum(f(own[k]) for own in grads) for k in range(len(grads[0]))] for f in (np.asarray, np.abs))
            self.sums = [a + b for a, b in zip(self.sums, new)] if self.sums else new
            self._size = [a + b for a, b in zip(self._size, size)] if self._size else size
            tokens = call.option("tokens")
            self._tokens += self.world if tokens is None else sum(tokens)
            self._pending += 1
            if call.method == "step":
                self._step()

    def _step(self) -> None:
        n, terms = max(self._tokens, 1), self.world * self._pending + 4
        zero = 0.0 if self._tokens == 0 else 1.0
        grads = [zero * g / n for g in self.sums]
        errors = [terms * zero * s / n for s in self._size]
        self.norm = float(np.sqrt(sum(float((g * g).sum()) for g in grads)))
        spread = float(np.sqrt(sum(float((e * e).sum()) for e in errors)))       # of the norm, by the triangle inequality
        norm_units = spread + (self.elements / 2.0 + self.world + 8.0) * self.norm
        self.norm_allowed = 2.0 * norm_units
        if self.max_norm is not None and self.norm + 2.0 * self.unit * norm_units > self.max_norm:
            factor = min(1.0, self.max_norm / self.norm) if self.norm else 1.0
            relative = norm_units / self.norm + 4.0 if self.norm else 0.0
            errors = [e * factor + relative * np.abs(g) * factor for e, g in zip(errors, grads)]
            grads = [g * factor for g in grads]
        self.steps += 1
        for state, g, e in zip(self.states.values(), grads, errors):
            _adam(state, g, e, self.steps, self.unit)
        self.last_pending = self._pending
        self._clear()


def _adam(state: State, g: Any, e: Any, t: int, u: float) -> None:
    """One step of AdamW with `ADAM`, and how far a legal one may be: every error in units of roundoff u, squares of them times u.

    m' = b m + (1 - b) g and v' = b v + (1 - b) g^2 round four times each, their correction, the root, the sum with eps, the quotient
    and the move at most twice each; 1 - b^t is exact for b = 1/2. The root of v' is off by at most e_v / sqrt(v'), or sqrt(e_v).
    """
    b, c = ADAM["beta1"], 1.0 - ADAM["beta1"] ** t
    errors = state.errors
    errors["m"] = b * errors["m"] + (1 - b) * e + 4.0 * (b * np.abs(state.m) + (1 - b) * np.abs(g))
    errors["v"] = b * errors["v"] + (1 - b) * (2.0 * np.abs(g) * e + u * e * e) + 6.0 * (b * state.v + (1 - b) * g * g)
    state.m, state.v = b * state.m + (1 - b) * g, b * state.v + (1 - b) * g * g
    m, v = state.m / c, state.v / c
    e_m, e_v = errors["m"] / c + 2.0 * np.abs(m), errors["v"] / c + 2.0 * v
    root = np.sqrt(v)
    e_root = np.minimum(np.sqrt(e_v / u), e_v / np.where(root > 0.0, root, 1e-300)) + 2.0 * root
    d = root + ADAM["eps"]
    e_d = e_root + 2.0 * d
    q = np.abs(m) / d
    e_q = (e_m + q * e_d) / np.maximum(d - u * e_d, d / 2.0) + 2.0 * q
    lr, decay = ADAM["lr"], ADAM["weight_decay"]
    errors["p"] = errors["p"] + lr * e_q + 6.0 * (np.abs(state.p) + lr * q)
    state.p = state.p * (1.0 - lr * decay) - lr * m / d


def new_zero(stage: int, world: int, max_norm: float | None = None) -> Call:
    given = {**ADAM, **({} if max_norm is None else {"max_norm": max_norm})}
    return Call(NEW, (stage, world), tuple(given.items()))
