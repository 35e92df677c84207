"""Mutants of the mixed-precision family that are masters over many steps: what is gathered narrow, and what a load does not reach."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..stateful.masters_model import new_masters
from ..stateful.masters_sequences import accumulate, load, step
from .specimen import mutant
from .textbook_masters import Masters

FAMILY = "mixed-precision"


@mutant(
    "master_weights", id="step-before-cast-of-accumulated-grad", family=FAMILY, source="https://github.com/deepspeedai/DeepSpeed/pull/6485",
    trigger=lambda: (new_masters(1), accumulate(1), *(accumulate(2.0**-9),) * 256, step()),
)  # fmt: skip
class GathersInTheFormatOfTheWeights(Masters):
    """The gradient is gathered in the format of the weights, and widened only for the step: what is below half a unit is lost."""

    def accumulate(self, grad: Any) -> None:
        with np.errstate(invalid="ignore"):
            self.gathered = np.asarray(self.gathered, self.narrow) + np.asarray(grad, self.narrow)


@mutant(
    "master_weights", id="loaded-weights-overwritten-by-stale-master", family=FAMILY,
    source="https://github.com/stanford-futuredata/Megatron-LM/pull/5",
    trigger=lambda: (new_masters(0), load(1), accumulate(1), step()),
)  # fmt: skip
class LoadsTheWeightsAlone(Masters):
    """Loaded weights do not reach the masters: the first step brings the old weights back."""

    def load(self, weights: Any) -> None:
        self.narrow_weights = np.array(weights, np.float32).astype(self.narrow)
