"""Legal variants of loss scalers: other formats and ends of the scale, the iteration kept track of, fewer methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from oracles.reference import LossScaler

from .specimen import variant
from .textbook_scaler import LARGEST, SMALLEST, Scaler

FAMILY = "mixed-precision"


@variant("loss_scaler", id="oracle-scaler", family=FAMILY)
class Oracle(LossScaler):
    """The oracle itself: the scale in float64."""


@variant("loss_scaler", id="scaler-textbook", family=FAMILY)
class Textbook(Scaler):
    """The scale in float32, which stays where it would pass the normal numbers."""


@variant("loss_scaler", id="scaler-clamped", family=FAMILY)
class Clamped(Scaler):
    """The scale stops at the smallest and the largest number."""

    def move(self, factor: Any) -> None:
        self.value = np.float32(min(max(float(self.value) * float(factor), float(SMALLEST)), float(LARGEST)))


@variant("loss_scaler", id="scaler-by-reciprocal", family=FAMILY,
         source="https://github.com/pytorch/pytorch/blob/main/torch/amp/grad_scaler.py")
class ByReciprocal(Scaler):
    """Gradients are multiplied by 1 / scale, and tested when they are unscaled."""

    def unscale(self, grads: Any) -> tuple[list[Any], bool]:
        with np.errstate(over="ignore"):
            unscaled = [np.asarray(g, np.float32) * np.float32(1.0 / float(self.value)) for g in grads]
        return unscaled, self.found(unscaled)


@variant("loss_scaler", id="scaler-by-exponent", family=FAMILY)
class ByExponent:
    """The scale is a power of two, kept as its exponent; value is a method."""

    def __init__(self, *, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000) -> None:  # fmt: skip
        self.exponent, self.growth, self.backoff = (round(math.log2(x)) for x in (init_scale, growth_factor, backoff_factor))
        self.interval, self.left = growth_interval, growth_interval

    def value(self) -> float:
        return 2.0**self.exponent

    def scale(self, loss: Any) -> Any:
        return np.ldexp(np.float64(loss), self.exponent)

    def unscale(self, grads: Any) -> tuple[list[Any], bool]:
        return [np.ldexp(np.float64(g), -self.exponent) for g in grads], not all(np.isfinite(g).all() for g in grads)

    def step(self, update: Callable[[], Any], grads: Any) -> bool:
        taken = all(np.isfinite(g).all() for g in grads)
        if taken:
            update()
        return taken

    def update(self, found_inf: bool) -> None:
        self.left = self.interval if found_inf else self.left - 1
        if found_inf:
            self.exponent = max(-126, self.exponent + self.backoff)
        elif self.left == 0:
            self.left, self.exponent = self.interval, min(127, self.exponent + self.growth)


@variant("loss_scaler", id="scaler-that-keeps-the-order", family=FAMILY,
         source="https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling")
class KeepsTheOrder(Scaler):
    """It remembers whether this iteration's gradients were unscaled, and refuses to do so twice before the next update."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.unscaled = False

    def unscale(self, grads: Any) -> tuple[list[Any], bool]:
        if self.unscaled:
            raise RuntimeError("already unscaled since the last update")
        self.unscaled = True
        return super().unscale(grads)

    def update(self, found_inf: bool) -> None:
        self.unscaled = False
        super().update(found_inf)
