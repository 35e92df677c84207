"""ZeRO: the contract of a sharded optimizer as a stateful operation. The oracle is `oracles.reference.Zero`."""

from __future__ import annotations

from oracles.reference import Zero

from .operation import StatefulOperation
from .zero_laws import ZERO_LAWS
from .zero_model import ADAM, ZeroModel, new_zero
from .zero_sequences import WEIGHTS, designed_sequences, drawn_call, drawn_new, in_bounds

ZERO = StatefulOperation(
    name="zero",
    summary="AdamW whose moments, gradients and parameters are shared out over ranks: one rank's step, whatever stage and world",
    oracle=Zero,
    required=("attach", "step", "params"),
    optional=("accumulate", "reload", "held", "moved"),
    arguments=(*(f"new.{name}" for name in ADAM), "new.max_norm", "step.tokens", "accumulate.tokens"),
    sample=new_zero(1, 1),
    probes=(),
    model=ZeroModel,
    laws=ZERO_LAWS,
    designed=designed_sequences,
    weights=WEIGHTS,
    drawn_new=drawn_new,
    drawn_call=drawn_call,
    in_bounds=in_bounds,
    carried=("sequence", "play", "zero_model", "zero_laws", "zero_walker"),
    model_name="zero_model:ZeroModel",
    laws_name="zero_laws:ZERO_LAWS",
    walker_name="zero_walker:with_reload",
    source="Rajbhandari et al. 2020 (arXiv 1910.02054), sections 5 and 7",
)
