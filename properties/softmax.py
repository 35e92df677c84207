"""The operations of the softmax family: softmax, log-sum-exp, and the merge of partial attention results."""

from __future__ import annotations

from typing import Any

from oracles import reference

from . import bounds
from .laws.softmax import LOG_SUM_EXP_LAWS, MERGE_LAWS, SOFTMAX_LAWS
from .operation import Operation, as_float64


def _softmax_cases() -> Any:
    from .cases.softmax import SOFTMAX_CASES

    return SOFTMAX_CASES


def _log_sum_exp_cases() -> Any:
    from .cases.softmax import LOG_SUM_EXP_CASES

    return LOG_SUM_EXP_CASES


def _merge_cases() -> Any:
    from .cases.softmax import MERGE_CASES

    return MERGE_CASES


SOFTMAX = Operation(
    name="softmax",
    summary="Softmax along one axis; a row of nothing but -inf gives zeros.",
    oracle=reference.softmax,
    answer=lambda case, conventions: as_float64({"p": reference.softmax(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.softmax_bound(arithmetic, **case.arguments()),
    cases=_softmax_cases,
    laws=SOFTMAX_LAWS,
    source="Blanchard, Higham and Higham 2021 (doi 10.1093/imanum/draa038); one pass: Milakov and Gimelshein 2018 (arXiv 1805.02867)",
)

LOG_SUM_EXP = Operation(
    name="log_sum_exp",
    summary="Natural logarithm of the sum of exponentials along one axis; -inf for nothing.",
    oracle=reference.log_sum_exp,
    answer=lambda case, conventions: as_float64({"lse": reference.log_sum_exp(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.log_sum_exp_bound(arithmetic, **case.arguments()),
    cases=_log_sum_exp_cases,
    laws=LOG_SUM_EXP_LAWS,
    source="Blanchard, Higham and Higham 2021 (doi 10.1093/imanum/draa038)",
)

MERGE_ATTENTION = Operation(
    name="merge_attention",
    summary="Attention over the union of two disjoint sets of keys, from the output and log-sum-exp of each.",
    oracle=reference.merge_attention,
    answer=lambda case, conventions: dict(zip(("out", "lse"), reference.merge_attention(**case.arguments()))),
    bound=lambda arithmetic, case, conventions: bounds.merge_bound(arithmetic, **case.arguments()),
    cases=_merge_cases,
    laws=MERGE_LAWS,
    source="Milakov and Gimelshein 2018 (arXiv 1805.02867), section 3.1",
)
