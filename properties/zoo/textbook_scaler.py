"""Textbook scaler: a plain dynamic loss scaler that mutants and variants are made from. It shares nothing with the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

F = np.float32
SMALLEST, LARGEST = np.finfo(F).smallest_normal, np.finfo(F).max


class Scaler:
    """The scale in float32, and how many updates have been clean since it last moved."""

    def __init__(self, *, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000) -> None:  # fmt: skip
        self.value: Any = F(init_scale)
        self.growth, self.backoff, self.interval = F(growth_factor), F(backoff_factor), growth_interval
        self.clean = 0

    def scale(self, loss: Any) -> Any:
        return np.multiply(loss, self.value, dtype=F)

    def unscale(self, grads: Any) -> tuple[list[Any], bool]:
        with np.errstate(over="ignore"):
            return [np.divide(g, self.value, dtype=F) for g in grads], self.found(grads)

    def found(self, grads: Any) -> bool:
        return any(not np.isfinite(g).all() for g in grads)

    def step(self, update: Callable[[], Any], grads: Any) -> bool:
        if self.found(grads):
            return False
        update()
        return True

    def update(self, found_inf: bool) -> None:
        self.clean = 0 if found_inf else self.clean + 1
        if found_inf:
            self.move(self.backoff)
        elif self.clean >= self.interval:
            self.clean = 0
            self.move(self.growth)

    def move(self, factor: Any) -> None:
        with np.errstate(over="ignore", under="ignore"):
            moved = self.value * factor
        if SMALLEST <= moved <= LARGEST:
            self.value = moved

    def state(self) -> dict[str, Any]:
        return {"value": self.value, "clean": self.clean}

    def load(self, state: dict[str, Any]) -> None:
        self.value, self.clean = state["value"], state["clean"]
