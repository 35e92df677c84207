"""The operation of attention through block tables: oracle, bound and laws. Its cases and laws have files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .arithmetic import ResolvedArithmetic
from .case import Case
from .comparison import Float64
from .laws.paged_attention import PAGED_LAWS
from .laws.paged_terms import counts, padding
from .operation import Operation


def paged_answer(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's out and lse, with queries that see nothing as the subject declares them."""
    out, lse = reference.paged_attention(**case.arguments())
    if conventions["empty_rows"] == "nan" and "sinks" not in case.arrays:
        out = np.where(_blind(case)[..., None], np.nan, out)
    return {"out": out, "lse": lse}


def paged_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The bound of out and lse; no promise where a declared convention leaves the value open."""
    allowed = bounds.paged_attention_bound(arithmetic, **case.arguments())
    blind = _blind(case)
    open_out = blind & (conventions["empty_rows"] == "mean_v") & ("sinks" not in case.arrays)
    open_lse = blind & (conventions["empty_lse"] == "any")
    if conventions["padding_queries"] == "any":
        open_out, open_lse = open_out | padding(case)[:, None], open_lse | padding(case)[:, None]
    return {"out": np.where(open_out[..., None], np.inf, allowed["out"]), "lse": np.where(open_lse, np.inf, allowed["lse"])}


def _blind(case: Case) -> np.ndarray:
    """Which queries, padding left out, see no key: bool (B, Hq, Lq)."""
    return np.asarray((counts(case) == 0) & ~padding(case)[:, None])


def _paged_cases() -> Any:
    from .cases.paged_attention import PAGED_CASES

    return PAGED_CASES


PAGED_ATTENTION = Operation(
    name="paged_attention",
    summary="Attention of each sequence over keys and values that stand in pages, found through its block table.",
    oracle=reference.paged_attention,
    answer=paged_answer,
    bound=paged_allowed,
    cases=_paged_cases,
    laws=PAGED_LAWS,
    source="Kwon et al. 2023 (arXiv 2309.06180), section 4.1",
)
