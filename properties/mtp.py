"""The operation of multi-token prediction: the loss of heads that each look one token further."""

from __future__ import annotations

from typing import Any

from oracles import reference

from . import bounds
from .laws.mtp import MTP_LAWS
from .operation import Operation, as_float64


def _mtp_cases() -> Any:
    from .cases.mtp import MTP_CASES

    return MTP_CASES


MTP_LOSS = Operation(
    name="mtp_loss",
    summary="The weighted sum over heads of each head's mean cross-entropy; head j is scored on the token j places on.",
    oracle=reference.mtp_loss,
    answer=lambda case, conventions: as_float64({"loss": reference.mtp_loss(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.mtp_loss_bound(arithmetic, **case.arguments()),
    cases=_mtp_cases,
    laws=MTP_LAWS,
    source="DeepSeek-V3 (arXiv 2412.19437), equations 24 and 25; Gloeckle et al. 2024 (arXiv 2404.19737), equation 2",
)
