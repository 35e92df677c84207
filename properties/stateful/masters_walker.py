"""Masters walker: an object of weights and masters whose states go by number, so that calls on it are plain data.

It needs nothing but NumPy, so that a repro can carry a copy.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

METHODS = ("weights", "accumulate", "step", "load")


def numbers(given: Sequence[Any]) -> Any:
    """float32 numbers; the texts inf, -inf, nan among them."""
    return np.array([float(x) for x in given], np.float32)


class MastersWalker:
    """One object and the states it gave: `state` makes the next number, `resume` goes on from one in an object made anew.

    make   factory of the object, called as make(weights, fmt=…, lr=…, beta1=0.0, beta2=0.0, eps=0.0): with weights(), accumulate(grad),
           step(loss_scale=…), load(weights) and, where it has them, state() and resume(state)

    With betas and eps of 0 a step moves each master by lr, m is the gradient and v its square: all of them exact.

    >>> from oracles.reference import MasterWeights
    >>> walker = MastersWalker(MasterWeights, (1, 2), "bfloat16", (0.5,))
    >>> walker.accumulate((4, -4)), walker.step(2), walker.weights(), walker.state()
    (None, True, array([0.5, 2.5]), 0)
    """

    def __init__(self, make: Callable[..., Any], weights: Sequence[Any], fmt: str, lr: Sequence[float]) -> None:
        self._make = functools.partial(make, fmt=fmt, lr=list(lr), beta1=0.0, beta2=0.0, eps=0.0)
        self._first = numbers(weights)
        self.object = self._make(self._first.copy())
        missing = [name for name in METHODS if not hasattr(self.object, name)]
        if missing:
            raise TypeError(f"the object has no {', '.join(missing)}; want {', '.join(METHODS)}")
        self._states: list[Any] = []
        if hasattr(self.object, "state"):
            self.state = self._state
        if hasattr(self.object, "state") and hasattr(self.object, "resume"):
            self.resume = self._resume

    def weights(self) -> Any:
        """The weights, widened."""
        return np.array(np.asarray(self.object.weights()), np.float64)

    def accumulate(self, grad: Sequence[Any]) -> Any:
        """One micro-batch's gradient."""
        return self.object.accumulate(numbers(grad))

    def step(self, loss_scale: float) -> Any:
        """Whether a step was taken."""
        return self.object.step(loss_scale=float(loss_scale))

    def load(self, weights: Sequence[Any]) -> Any:
        """Other weights to go on from."""
        return self.object.load(numbers(weights))

    def contents(self) -> Any:
        """What a checkpoint holds: master, m, v and step; None where the object gives none."""
        if not hasattr(self.object, "state"):
            return None
        state = self.object.state()
        return {name: np.array(np.asarray(state[name]), np.float64) for name in ("master", "m", "v")} | {"step": int(state["step"])}

    def _state(self) -> int:
        self._states.append(copy.deepcopy(self.object.state()))
        return len(self._states) - 1

    def _resume(self, number: int) -> None:
        if not 0 <= number < len(self._states):
            raise LookupError(f"no state {number}; {len(self._states)} were given")
        self.object = self._make(np.zeros_like(self._first))
        self.object.resume(copy.deepcopy(self._states[number]))


def by_number(make: Callable[..., Any]) -> Callable[..., MastersWalker]:
    """The factory of walkers over the objects that a factory makes."""
    return functools.partial(MastersWalker, make)
