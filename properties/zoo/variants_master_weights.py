"""Legal variants of masters over many steps: other formats, halves of a master, sums put off, fewer methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.reference import MasterWeights

from .specimen import variant
from .textbook_masters import Masters

FAMILY = "mixed-precision"


@variant("master_weights", id="oracle-masters", family=FAMILY)
class Oracle(MasterWeights):
    """The oracle itself: masters in float64."""


@variant("master_weights", id="masters-textbook", family=FAMILY)
class Textbook(Masters):
    """Masters and moments in float32."""


@variant("master_weights", id="masters-in-two-halves", family=FAMILY, source="https://github.com/imoneoi/bf16_fused_adam")
class TwoHalves(Masters):
    """No master is kept: its upper half is a weight cut to 16 bits, its lower half stands apart, and a weight in use is rounded anew."""

    upper: Any
    lower: Any

    @property
    def master(self) -> Any:
        return (np.uint32(self.upper) << 16 | np.uint32(self.lower)).view(np.float32)

    @master.setter
    def master(self, value: Any) -> None:
        bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
        self.upper, self.lower = np.uint16(bits >> 16), np.uint16(bits & 0xFFFF)


@variant("master_weights", id="masters-that-gather-late", family=FAMILY)
class GathersLate(Masters):
    """Micro-batches are kept and added up when a step is made, the last one first; the weights are made when they are asked for."""

    def __init__(self, weights: Any, **options: Any) -> None:
        super().__init__(weights, **options)
        self.parts: list[Any] = []

    def weights(self) -> Any:
        return self.master.astype(self.narrow)

    def accumulate(self, grad: Any) -> None:
        self.parts.append(np.array(grad))

    def step(self, *, loss_scale: float) -> bool:
        for part in reversed(self.parts):
            super().accumulate(part)
        self.parts = []
        return super().step(loss_scale=loss_scale)


@variant("master_weights", id="masters-without-a-state", family=FAMILY)
class WithoutAState:
    """Nothing can be saved."""

    def __init__(self, weights: Any, **options: Any) -> None:
        masters = Masters(weights, **options)
        self.weights, self.accumulate, self.step, self.load = masters.weights, masters.accumulate, masters.step, masters.load
