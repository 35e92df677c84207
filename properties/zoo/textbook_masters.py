"""Textbook masters: narrow weights trained through float32 masters, from which mutants and variants are made. No oracle is in it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

F = np.float32
NARROW = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


class Masters:
    """Arrays of float32 for masters, moments and the gradient that is gathered; the weights are made from the masters after each step."""

    def __init__(self, weights: Any, *, fmt: str, lr: Any, beta1: float, beta2: float, eps: float) -> None:
        self.narrow, self.rates = NARROW[fmt], [F(x) for x in lr]
        self.b1, self.b2, self.eps = F(beta1), F(beta2), F(eps)
        self.master = np.array(weights, F)
        self.m, self.v, self.gathered = (np.zeros_like(self.master) for _ in range(3))
        self.t = 0
        self.copy_to_the_weights()

    def copy_to_the_weights(self) -> None:
        self.narrow_weights = self.master.astype(self.narrow)

    def weights(self) -> Any:
        return self.narrow_weights

    def accumulate(self, grad: Any) -> None:
        with np.errstate(invalid="ignore"):
            self.gathered = self.gathered + np.asarray(grad, F)

    def step(self, *, loss_scale: float) -> bool:
        g = np.asarray(self.gathered, F) / F(loss_scale)
        self.gathered = np.zeros_like(self.gathered)
        if not np.isfinite(g).all():
            return False
        self.t += 1
        self.update(g)
        return True

    def update(self, g: Any) -> None:
        one, t = F(1), self.t
        self.m, self.v = self.b1 * self.m + (one - self.b1) * g, self.b2 * self.v + (one - self.b2) * g * g
        m, v = self.m / (one - self.b1**t), self.v / (one - self.b2**t)
        self.master = self.master - self.rates[min(t, len(self.rates)) - 1] * m / (np.sqrt(v) + self.eps)
        self.copy_to_the_weights()

    def load(self, weights: Any) -> None:
        self.master = np.array(weights, F)
        self.copy_to_the_weights()

    def state(self) -> dict[str, Any]:
        return {"master": self.master, "m": self.m, "v": self.v, "step": self.t}

    def resume(self, state: dict[str, Any]) -> None:
        self.master, self.m, self.v, self.t = (state[name] for name in ("master", "m", "v", "step"))
        self.copy_to_the_weights()
