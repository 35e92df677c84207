"""The operations of the softmax family: softmax, log-sum-exp, and the merge of partial attention results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .arithmetic import ResolvedArithmetic
from .case import Case
from .comparison import Float64
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


def softmax_answer(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's p, with rows of nothing but -inf as the subject declares them."""
    if conventions["empty_rows"] == "mean_v":
        return {"p": reference.softmax(**_equal_shares(case).arguments())}
    p = reference.softmax(**case.arguments())
    return {"p": np.where(_nothing_finite(case), np.nan, p) if conventions["empty_rows"] == "nan" else p}


def softmax_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The bound of p; that of equal entries where rows of nothing but -inf are declared to be equal shares."""
    judged = _equal_shares(case) if conventions["empty_rows"] == "mean_v" else case
    return bounds.softmax_bound(arithmetic, **judged.arguments())


def log_sum_exp_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The bound of lse; no promise for nothing but -inf where that is declared open."""
    allowed = bounds.log_sum_exp_bound(arithmetic, **case.arguments())
    if conventions["empty_lse"] == "any":
        empty = _nothing_finite(case).squeeze(case.arguments().get("axis", -1))
        allowed["lse"] = np.where(empty, np.inf, allowed["lse"])
    return allowed


def _nothing_finite(case: Case) -> np.ndarray:
    """Which rows hold nothing but -inf, the axis kept with length 1."""
    return np.asarray(np.isneginf(case.arrays["x"]).all(axis=case.arguments().get("axis", -1), keepdims=True))


def _equal_shares(case: Case) -> Case:
    """The case with zeros in place of rows of nothing but -inf."""
    x = case.arrays["x"]
    return case.with_arrays(x=np.where(_nothing_finite(case), x.dtype.type(0), x))


SOFTMAX = Operation(
    name="softmax",
    summary="Softmax along one axis; a row of nothing but -inf gives zeros.",
    oracle=reference.softmax,
    answer=softmax_answer,
    bound=softmax_allowed,
    cases=_softmax_cases,
    laws=SOFTMAX_LAWS,
    source="Blanchard, Higham and Higham 2021 (doi 10.1093/imanum/draa038); one pass: Milakov and Gimelshein 2018 (arXiv 1805.02867)",
)

LOG_SUM_EXP = Operation(
    name="log_sum_exp",
    summary="Natural logarithm of the sum of exponentials along one axis; -inf for nothing.",
    oracle=reference.log_sum_exp,
    answer=lambda case, conventions: as_float64({"lse": reference.log_sum_exp(**case.arguments())}),
    bound=log_sum_exp_allowed,
    cases=_log_sum_exp_cases,
    laws=LOG_SUM_EXP_LAWS,
    source="Blanchard, Higham and Higham 2021 (doi 10.1093/imanum/draa038)",
)

MERGE_ATTENTION = Operation(
    name="merge_attention",
    summary="Attention over the union of two disjoint sets of keys, from the output and log-sum-exp of each.",
    oracle=reference.merge_attention,
    answer=lambda case, conventions: dict(zip(("out", "lse"), reference.merge_attention(**case.arguments()))),
    bound=lambda arithmetic, case, conventions: bounds.merge_attention_bound(arithmetic, **case.arguments()),
    cases=_merge_cases,
    laws=MERGE_LAWS,
    source="Milakov and Gimelshein 2018 (arXiv 1805.02867), section 3.1",
)
