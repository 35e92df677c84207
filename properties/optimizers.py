"""The operations of optimizers: a step of AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oracles import reference

from . import bounds
from .case import Case
from .laws.optimizers import ADAM_LAWS
from .operation import Operation

# 1 - beta^t is 1 in float64 from far fewer steps on, whatever beta: a step that is not corrected.
UNCORRECTED = 2**62


def _adam_cases() -> Any:
    from .cases.optimizers import ADAM_CASES

    return ADAM_CASES


def _as_declared(case: Case, conventions: Mapping[str, str]) -> dict[str, Any]:
    """The arguments, of a step so late that no bias is left where none is corrected."""
    arguments = case.arguments()
    return {**arguments, "step": UNCORRECTED} if conventions["bias_correction"] == "off" else arguments


ADAMW_STEP = Operation(
    name="adamw_step",
    summary="One step of Adam with decoupled weight decay: the parameters and both moments.",
    oracle=reference.adamw_step,
    answer=lambda case, conventions: dict(zip(("param", "m", "v"), reference.adamw_step(**_as_declared(case, conventions)))),
    bound=lambda arithmetic, case, conventions: bounds.adamw_step_bound(arithmetic, **_as_declared(case, conventions)),
    cases=_adam_cases,
    laws=ADAM_LAWS,
    source="Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2; Kingma and Ba 2015 (arXiv 1412.6980)",
)
