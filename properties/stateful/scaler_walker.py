"""Scaler walker: a loss scaler in a training loop of ours, so that calls on it are plain data whatever its arrays and states are.

It needs nothing but NumPy, so that a repro can carry a copy.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

METHODS = ("value", "scale", "unscale", "step", "update")
Training = dict[str, float]
FRESH: Training = {"param": 1.0, "m": 0.0, "v": 0.0, "steps": 0, "schedule": 0}


def stepped(training: Training, gradient: float) -> Training:
    """One step of an optimizer with two moments, at half the learning rate of the step before by the schedule.

        m' = (m + g) / 2      v' = (3 v + g^2) / 4      param' = param - 2^-schedule m'      steps' = steps + 1
    """
    m, v = (training["m"] + gradient) / 2, (3 * training["v"] + gradient * gradient) / 4
    return {**training, "param": training["param"] - 2.0 ** -training["schedule"] * m, "m": m, "v": v, "steps": training["steps"] + 1}


class ScalerWalker:
    """One scaler and one parameter that it helps to train; states are kept by number, gradients go by lists of numbers.

    make   factory of the scaler, called as make(init_scale=…, growth_factor=…, backoff_factor=…, growth_interval=…), what is not
           named left to it: an object with value, scale(loss), unscale(grads), step(update, grads), update(found_inf) and, where
           it has them, state() and load(state)

    `step` calls update(), or update(grads). The gradient of the parameter is the sum of all that were unscaled, or of those given.
    The schedule goes on after each step that was taken.

    >>> from oracles.reference import LossScaler
    >>> walker = ScalerWalker(LossScaler, init_scale=4)
    >>> walker.unscale([8, 2], ["inf"]), walker.step(), walker.update(), walker.value()
    (([array([2. , 0.5]), array([inf])], True), False, None, 2.0)
    """

    def __init__(self, make: Callable[..., Any], **options: Any) -> None:
        self._make = functools.partial(make, **options)
        self.scaler = self._make()
        missing = [name for name in METHODS if not hasattr(self.scaler, name)]
        if missing:
            raise TypeError(f"the scaler has no {', '.join(missing)}; want {', '.join(METHODS)}")
        self._training = dict(FRESH)
        self._grads: list[Any] = []
        self._found: Any = False
        self._saved: list[Any] = []
        if hasattr(self.scaler, "state") and hasattr(self.scaler, "load"):
            self.state, self.load = self._state, self._load

    def value(self) -> float:
        """The scale: an attribute, a property or a method of the scaler."""
        value = self.scaler.value
        return float(value() if callable(value) else value)

    def training(self) -> Training:
        """The parameter, its moments, the steps it made, and those that the schedule knows of."""
        return dict(self._training)

    def scale(self, loss: int) -> float:
        """What a loss is multiplied to."""
        return float(np.asarray(self.scaler.scale(np.float32(loss))))

    def unscale(self, *grads: Any) -> Any:
        """The arrays of gradients unscaled, and whether NaN or inf was found."""
        self._grads, self._found = self.scaler.unscale([np.array([float(x) for x in g], np.float32) for g in grads])
        return [np.array(g, np.float64) for g in self._grads], self._found

    def step(self) -> Any:
        """Whether the step was taken."""
        taken = self.scaler.step(self._update, self._grads)
        self._training["schedule"] += bool(taken)
        return taken

    def update(self) -> Any:
        """The end of an iteration."""
        return self.scaler.update(self._found)

    def _update(self, *given: Any) -> None:
        """The step of the caller's optimizer, called with nothing, or with the gradients that it is to be taken with."""
        if len(given) > 1:
            raise TypeError(f"update: called with {len(given)} arguments; want update(), or update(grads)")
        grads = given[0] if given else self._grads
        self._training = stepped(self._training, float(sum(np.asarray(g, np.float64).sum() for g in grads)))

    def _state(self) -> int:
        """The number of the scaler's state as it is."""
        self._saved.append(copy.deepcopy(self.scaler.state()))
        return len(self._saved) - 1

    def _load(self, number: int) -> None:
        """Another scaler, made as this one was, goes on from a saved state."""
        if not 0 <= number < len(self._saved):
            raise LookupError(f"no state {number}; {len(self._saved)} were saved")
        self.scaler = self._make()
        self.scaler.load(copy.deepcopy(self._saved[number]))


def in_a_loop(make: Callable[..., Any]) -> Callable[..., ScalerWalker]:
    """The factory of training loops around the scalers that a factory makes."""
    walking = functools.partial(ScalerWalker, make)
    with contextlib.suppress(TypeError, ValueError):                            # it is asked which arguments it takes: the scaler's
        walking.__signature__ = inspect.signature(make)  # type: ignore[attr-defined]
    return walking
