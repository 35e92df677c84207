"""The operations of mixed precision: a step on master weights."""

from __future__ import annotations

from typing import Any

from oracles import reference

from . import bounds
from .laws.mixed_precision import MASTER_LAWS, RESULTS
from .operation import Operation


def _master_cases() -> Any:
    from .cases.mixed_precision import MASTER_CASES

    return MASTER_CASES


MASTER_WEIGHT_STEP = Operation(
    name="master_weight_step",
    summary="A step of AdamW on master weights from the gradient of a scaled loss, and the weights rounded to a narrow format.",
    oracle=reference.master_weight_step,
    answer=lambda case, conventions: dict(zip(RESULTS, reference.master_weight_step(**case.arguments()))),
    bound=lambda arithmetic, case, conventions: bounds.master_weight_step_bound(arithmetic, **case.arguments()),
    cases=_master_cases,
    laws=MASTER_LAWS,
    source="Micikevicius et al. 2018 (arXiv 1710.03740), sections 3.1 and 3.2",
)
