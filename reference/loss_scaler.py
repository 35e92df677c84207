"""Loss scaling: the state machine that keeps small gradients above underflow and steps back from overflow. No optimizer is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64
from .float_format import FloatFormat

# The scale is kept within the normal numbers of float32, in which losses are multiplied with it.
_FLOAT32 = FloatFormat("float32")


class LossScaler:
    """A loss scale that backs off when gradients overflow and grows after a run of steps without.

        found_inf       value' = value backoff_factor,   the run starts again
        growth_interval updates without, one after another:   value' = value growth_factor,   the run starts again
        value' beyond the normal numbers of float32: value stays as it is, so that it is never inf and never 0

    >>> scaler = LossScaler(init_scale=8.0, growth_interval=2)
    >>> grads, found_inf = scaler.unscale([[16.0], [np.inf]])
    >>> scaler.step(lambda: print("stepped"), [[16.0], [np.inf]])               # a step that would spoil the weights is left out
    False
    >>> scaler.update(found_inf)
    >>> scaler.value
    4.0
    >>> scaler.update(False); scaler.update(False)
    >>> scaler.value
    8.0

    One iteration: `scale` the loss, `unscale` the gradients, `step` with them, `update` with what was found, whether or not the
    step was taken (Haian-Jin/LVSM#19). `step` calls update(); a subject may call update(grads). The number of the step, which
    Adam's bias correction and the schedule read, counts steps that were taken (huggingface/accelerate#4242). `state` and `load`
    carry the scale and its run over to another process.

    Raises ValueError for a scale outside the normal numbers of float32, growth_factor < 1, backoff_factor outside (0, 1],
    growth_interval < 1. Error bound: exact for powers of two; else one rounding of each product.
    Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2; the schedule: torch.amp.GradScaler.
    """

    def __init__(self, *, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000) -> None:
        self._value = arguments.real_number("init_scale", init_scale, positive=True)
        if not _holds(self._value):
            raise ValueError(f"init_scale: got {self._value}; want a normal number of float32, {_FLOAT32.tiny} to {_FLOAT32.max}")
        self._growth = arguments.real_number("growth_factor", growth_factor, positive=True)
        self._backoff = arguments.real_number("backoff_factor", backoff_factor, positive=True)
        if self._growth < 1.0:
            raise ValueError(f"growth_factor: got {self._growth}; want a number >= 1")
        if self._backoff > 1.0:
            raise ValueError(f"backoff_factor: got {self._backoff}; want a number in (0, 1]")
        self._interval = arguments.whole_number("growth_interval", growth_interval, least=1)
        self._run = 0

    @property
    def value(self) -> float:
        """The scale that the next loss is multiplied with."""
        return self._value

    def scale(self, loss: ArrayLike) -> Float64:
        """loss times the scale."""
        return arguments.widen("loss", loss) * self._value

    def unscale(self, grads: Sequence[ArrayLike]) -> tuple[list[Float64], bool]:
        """The gradients over the scale, and whether any of them is NaN or infinite. The scale does not change."""
        wide = [arguments.widen(f"grads[{i}]", g) / self._value for i, g in enumerate(grads)]
        return wide, not all(np.isfinite(g).all() for g in wide)

    def step(self, update: Callable[[], Any], grads: Sequence[ArrayLike]) -> bool:
        """Call update() unless a gradient is NaN or infinite; whether it was called."""
        found_inf = not all(np.isfinite(arguments.widen(f"grads[{i}]", g)).all() for i, g in enumerate(grads))
        if not found_inf:
            update()
        return not found_inf

    def update(self, found_inf: bool) -> None:
        """The scale of the next iteration, after one in which an overflow was found or not."""
        if not isinstance(found_inf, bool | np.bool_):
            raise TypeError(f"found_inf: got {found_inf!r}; want True or False")
        self._run = 0 if found_inf else self._run + 1
        if found_inf:
            self._move(self._backoff)
        elif self._run >= self._interval:                                            # beyond it: loaded from one of a longer interval
            self._run = 0
            self._move(self._growth)

    def state(self) -> dict[str, float | int]:
        """What goes into a checkpoint: the scale, and the updates without an overflow since it last moved."""
        return {"value": self._value, "run": self._run}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where the scaler that gave this state stood. Raises ValueError for a state that is none."""
        if set(state) != {"value", "run"}:
            raise ValueError(f"state: got {', '.join(map(str, state)) or 'nothing'}; want value, run")
        value = arguments.real_number("state value", state["value"], positive=True)
        run = arguments.whole_number("state run", state["run"], least=0)
        if not _holds(value):
            raise ValueError(f"state value: got {value}; want a normal number of float32, {_FLOAT32.tiny} to {_FLOAT32.max}")
        self._value, self._run = value, run

    def _move(self, factor: float) -> None:
        if _holds(self._value * factor):
            self._value *= factor


def _holds(value: float) -> bool:
    return bool(_FLOAT32.tiny <= value <= _FLOAT32.max)
