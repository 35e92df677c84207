"""Loss scaler: its contract as a stateful operation. The oracle is `oracles.reference.LossScaler`."""

from __future__ import annotations

from oracles.reference import LossScaler

from .operation import StatefulOperation
from .scaler_laws import SCALER_LAWS
from .scaler_model import ScalerModel, new_scaler
from .scaler_sequences import WEIGHTS, designed_sequences, drawn_call, drawn_new, in_bounds

LOSS_SCALER = StatefulOperation(
    name="loss_scaler",
    summary="the scale of a loss in mixed precision: backed off after an overflow, whose step is left out, grown after a run without",
    oracle=LossScaler,
    required=("value", "scale", "unscale", "step", "update"),
    optional=("state", "load"),
    arguments=("new.init_scale", "new.growth_factor", "new.backoff_factor", "new.growth_interval"),
    sample=new_scaler(),
    probes=(),
    model=ScalerModel,
    laws=SCALER_LAWS,
    designed=designed_sequences,
    weights=WEIGHTS,
    drawn_new=drawn_new,
    drawn_call=drawn_call,
    in_bounds=in_bounds,
    carried=("sequence", "play", "scaler_walker", "scaler_model", "scaler_laws"),
    model_name="scaler_model:ScalerModel",
    laws_name="scaler_laws:SCALER_LAWS",
    source="Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2; the schedule: torch.amp.GradScaler",
    walker_name="scaler_walker:in_a_loop",
)
