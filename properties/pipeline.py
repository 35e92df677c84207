"""The operations of pipeline parallelism: a schedule, the loss that its micro-batches share, and a step that runs through it."""

from __future__ import annotations

from typing import Any

from oracles import reference

from . import bounds
from .array_lists import spread
from .case import Case
from .comparison import Float64
from .laws.pipeline import PIPELINE_LOSS_LAWS, PIPELINE_STEP_LAWS, SCHEDULE_LAWS
from .operation import Operation, as_float64


def _schedule_cases() -> Any:
    from .cases.pipeline import SCHEDULE_CASES

    return SCHEDULE_CASES


def _loss_cases() -> Any:
    from .cases.pipeline import LOSS_CASES

    return LOSS_CASES


def _step_cases() -> Any:
    from .cases.pipeline import STEP_CASES

    return STEP_CASES


def _step(case: Case) -> dict[str, Float64]:
    loss, dx, dweights = reference.pipeline_step(**case.arguments())
    return {"loss": loss, "dx": dx, **spread("dweights", dweights)}


SCHEDULE = Operation(
    name="schedule",
    summary="The order in which the stages of a pipeline work on the micro-batches of a step; any order that costs no more is right.",
    oracle=reference.schedule,
    answer=lambda case, conventions: as_float64({"actions": reference.schedule(**case.arguments()).actions}),
    bound=lambda arithmetic, case, conventions: bounds.schedule_bound(arithmetic, **case.arguments()),
    cases=_schedule_cases,
    laws=SCHEDULE_LAWS,
    source="Huang et al. 2019 (arXiv 1811.06965); Narayanan et al. 2021 (arXiv 2104.04473); Qi et al. 2023 (arXiv 2401.10241)",
)

PIPELINE_LOSS = Operation(
    name="pipeline_loss",
    summary="The mean loss over all tokens of a batch of ragged sequences, summed up micro-batch by micro-batch.",
    oracle=reference.pipeline_loss,
    answer=lambda case, conventions: as_float64({"loss": reference.pipeline_loss(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.pipeline_loss_bound(arithmetic, **case.arguments()),
    cases=_loss_cases,
    laws=PIPELINE_LOSS_LAWS,
    source="The reports ml-explore/mlx-lm#1413 and huggingface/transformers#34191",
)

PIPELINE_STEP = Operation(
    name="pipeline_step",
    summary="Loss and gradients of a model of tanh pieces that runs through a pipeline in micro-batches, accumulated.",
    oracle=reference.pipeline_step,
    answer=lambda case, conventions: _step(case),
    bound=lambda arithmetic, case, conventions: bounds.pipeline_step_bound(arithmetic, **case.arguments()),
    cases=_step_cases,
    laws=PIPELINE_STEP_LAWS,
    source="Huang et al. 2019 (arXiv 1811.06965), section 2",
)
