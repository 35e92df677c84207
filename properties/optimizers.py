"""The operations of optimizers: a step of AdamW, and the clipping of gradients by their global norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .array_lists import spread
from .case import Case
from .comparison import Float64
from .laws.clip_grad_norm import CLIP_LAWS
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


def _clip_cases() -> Any:
    from .cases.clip_grad_norm import CLIP_CASES

    return CLIP_CASES


def _added(conventions: Mapping[str, str]) -> float:
    """What is added to the norm before the limit is divided by it."""
    return 1e-6 if conventions["clip_denominator"] == "norm_plus_1e-6" else 0.0


def clipped(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's gradients, one by one, and the norm; scaled once more where the convention divides by a little more."""
    arguments = case.arguments()
    grads, norm = reference.clip_grad_norm(**arguments)
    limit, added = arguments["max_norm"], _added(conventions)
    if added and norm + added > limit:
        wide = [np.asarray(g, np.float64) for g in arguments["grads"]]
        grads = [g * (limit / (float(norm) + added)) for g in wide]
    return {**spread("grads", grads), "norm": norm}


CLIP_GRAD_NORM = Operation(
    name="clip_grad_norm",
    summary="All gradients of a list scaled by one factor, so that their global norm is at most max_norm.",
    oracle=reference.clip_grad_norm,
    answer=clipped,
    bound=lambda arithmetic, case, conventions: bounds.clip_grad_norm_bound(arithmetic, **case.arguments(), added=_added(conventions)),
    cases=_clip_cases,
    laws=CLIP_LAWS,
    source="Pascanu, Mikolov and Bengio 2013 (arXiv 1211.5063), algorithm 1",
)

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
