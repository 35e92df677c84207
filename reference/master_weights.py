"""Master weights over many steps: accumulated gradients, skipped steps, loading and resuming. One step is mixed_precision's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64
from .float_format import FloatFormat
from .mixed_precision import master_weight_step
from .optimizers import not_negative

STATE = ("master", "m", "v", "step")


class MasterWeights:
    """Weights in a narrow format, the masters that AdamW steps behind them, and the gradient gathered for the next step.

        accumulate(grad)   G' = G + grad, never in the narrow format
        step(loss_scale)   g = G / loss_scale,  G' = 0;  without NaN or inf in g:  t' = t + 1,  master', m', v' = AdamW with lr[t'];
                           with:  nothing changes, t and so the learning rate neither
        weights()          the masters rounded once to fmt
        load(weights)      master' = weights: other weights to go on from; m, v and t stay
        state(), resume(state)   {"master", "m", "v", "step"}, from which another object goes on bit for bit

    lr is a number, or the learning rates of step 1, 2, …, of which the last one stays.

    >>> w = MasterWeights([1.0], fmt="bfloat16", lr=[2.0**-9, 2.0**-10], beta1=0.0, beta2=0.0, eps=0.0)
    >>> w.accumulate([np.inf])
    >>> w.step(loss_scale=1024.0), w.state()["step"]                            # the step is left out, and not counted
    (False, 0)
    >>> for _ in range(256): w.accumulate([1.0])
    >>> w.step(loss_scale=1024.0), w.weights(), w.state()["master"], w.state()["m"]
    (True, array([1.]), array([0.99804688]), array([0.25]))

    A sum of gradients in bfloat16 stops at 256 times its addends (deepspeedai/DeepSpeed#6485). Masters that a `load` leaves as they
    were bring the old weights back with the next step (stanford-futuredata/Megatron-LM#5); masters made of the rounded weights lose
    what the weights do not hold (TensorAuto/OpenTau#185). A schedule that counts skipped steps runs ahead (huggingface/accelerate#4242).

    Raises ValueError as `master_weight_step`, and for shapes that are not those of the weights. Error bound: that of
    `master_weight_step` for each step, from its own masters.
    Source: Micikevicius et al. 2018 (arXiv 1710.03740), sections 3.1 and 3.2.
    """

    def __init__(self, weights: ArrayLike, *, fmt: str, lr: float | Sequence[float], beta1: float = 0.9, beta2: float = 0.999,
                 eps: float = 1e-8, weight_decay: float = 0.0) -> None:  # fmt: skip
        self._format = FloatFormat(fmt)
        self._rates = [not_negative("lr", x) for x in (lr if isinstance(lr, Sequence) else [lr])]
        if not self._rates:
            raise ValueError("lr: got no learning rate; want one at least")
        self._options = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay, "fmt": fmt}
        self._master = arguments.widen("weights", weights).copy()
        self._m, self._v, self._gathered = (np.zeros(self._master.shape) for _ in range(3))
        self._step = 0

    def weights(self) -> Float64:
        """What the model computes with: numbers of fmt."""
        return self._format.round(self._master)

    def accumulate(self, grad: ArrayLike) -> None:
        """Add the gradient of one micro-batch."""
        with np.errstate(invalid="ignore"):                                     # inf - inf: a step that will be left out
            self._gathered = self._gathered + arguments.widen("grad", grad, self._master.shape)

    def step(self, *, loss_scale: float = 1.0) -> bool:
        """Whether a step was taken with what was gathered, which is used up either way."""
        grad, self._gathered = self._gathered, np.zeros(self._master.shape)
        t = self._step + 1
        _, *state = master_weight_step(grad, self._master, self._m, self._v, loss_scale=loss_scale, max_norm=None, step=t,
                                       lr=self._rates[min(t, len(self._rates)) - 1], **self._options)  # type: ignore[arg-type]
        taken = bool(np.isfinite(grad / loss_scale).all())
        if taken:
            (self._master, self._m, self._v), self._step = state, t
        return taken

    def load(self, weights: ArrayLike) -> None:
        """Go on from other weights."""
        self._master = arguments.widen("weights", weights, self._master.shape).copy()

    def state(self) -> dict[str, Any]:
        """What goes into a checkpoint, as copies."""
        return {"master": self._master.copy(), "m": self._m.copy(), "v": self._v.copy(), "step": self._step}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where the object that gave this state stood."""
        if set(state) != set(STATE):
            raise ValueError(f"state: got {', '.join(map(str, state)) or 'nothing'}; want {', '.join(STATE)}")
        arrays = [arguments.widen(f"state {name}", state[name], self._master.shape).copy() for name in STATE[:3]]
        self._step = arguments.whole_number("state step", state["step"], least=0)
        self._master, self._m, self._v = arrays
        self._gathered = np.zeros(self._master.shape)
