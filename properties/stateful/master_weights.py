"""Master weights: their contract over many steps as a stateful operation. The oracle is `oracles.reference.MasterWeights`."""

from __future__ import annotations

from oracles.reference import MasterWeights

from .masters_laws import MASTERS_LAWS
from .masters_model import MastersModel, new_masters
from .masters_sequences import WEIGHTS, designed_sequences, drawn_call, drawn_new, in_bounds
from .operation import StatefulOperation

MASTER_WEIGHTS = StatefulOperation(
    name="master_weights",
    summary="weights in a narrow format and the masters behind them, over many steps: gathered gradients, skipped steps, checkpoints",
    oracle=MasterWeights,
    required=("weights", "accumulate", "step", "load"),
    optional=("state", "resume"),
    arguments=(),
    sample=new_masters(1),
    probes=(),
    model=MastersModel,
    laws=MASTERS_LAWS,
    designed=designed_sequences,
    weights=WEIGHTS,
    drawn_new=drawn_new,
    drawn_call=drawn_call,
    in_bounds=in_bounds,
    carried=("sequence", "play", "masters_walker", "masters_model", "masters_laws"),
    model_name="masters_model:MastersModel",
    laws_name="masters_laws:MASTERS_LAWS",
    source="Micikevicius et al. 2018 (arXiv 1710.03740), sections 3.1 and 3.2",
    walker_name="masters_walker:by_number",
)
