"""Mutants of the mixed-precision family that are loss scalers: what a skipped step leaves behind. Those of one step: `mixed_precision`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..stateful.scaler_model import new_scaler
from ..stateful.scaler_sequences import iteration, left_out
from .specimen import mutant
from .textbook_scaler import F, Scaler

FAMILY = "mixed-precision"


@mutant(
    "loss_scaler", id="scheduler-advances-on-skipped-step", family=FAMILY,
    source="https://github.com/huggingface/accelerate/issues/4242 https://github.com/NVIDIA-NeMo/Speech/pull/3293",
    trigger=lambda: (new_scaler(8), *iteration(("inf",)), *iteration((8,))),
)  # fmt: skip
class SaysThatItStepped(Scaler):
    """The fused optimizer was called, which itself looks for inf: the step counts as taken, and the schedule goes on."""

    def step(self, update: Callable[[], Any], grads: Any) -> bool:
        super().step(update, grads)
        return True


@mutant(
    "loss_scaler", id="update-skipped-when-user-skips-step", family=FAMILY, source="https://github.com/Haian-Jin/LVSM/pull/19",
    trigger=lambda: (new_scaler(8), *left_out((8,)), *iteration((8,))),
)  # fmt: skip
class EndsTheIterationInStep(Scaler):
    """The end of an iteration hangs on its step: where the caller leaves that out, gradients pass for unscaled, and no update is made."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.unscaled = False

    def unscale(self, grads: Any) -> tuple[list[Any], bool]:
        if self.unscaled:
            return [np.asarray(g, F) for g in grads], self.found(grads)
        self.unscaled = True
        return super().unscale(grads)

    def step(self, update: Callable[[], Any], grads: Any) -> bool:
        self.unscaled = False
        return super().step(update, grads)

    def update(self, found_inf: bool) -> None:
        if not self.unscaled:
            super().update(found_inf)
