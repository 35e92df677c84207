"""The operation of latent attention, whose two forms a subject may choose between: oracle, bound and laws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .arithmetic import ResolvedArithmetic
from .case import Case
from .comparison import Float64
from .laws.mla import LATENT_LAWS
from .laws.mla_terms import visible
from .operation import Operation


def mla_answer(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's out and lse, with queries that see nothing as the subject declares them."""
    out, lse = reference.mla_attention(**case.arguments())
    if conventions["empty_rows"] == "nan" and case.arrays["latent"].shape[1] > 0:
        out = np.where(_blind(case)[..., None], np.nan, out)
    return {"out": out, "lse": lse}


def mla_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The bound of out and lse; no promise where a declared convention leaves the value open.

    The oracle reconstructs: beside a subject of the absorbed form its own float64 roundings are no small share of the subject's by
    construction, so that its bound is added.
    """
    allowed = bounds.mla_attention_bound(arithmetic, **case.arguments())
    if arithmetic.absorbed:
        oracle = bounds.mla_attention_bound(replace(arithmetic.widened(), absorbed=False), **case.arguments())
        allowed = {name: bound + oracle[name] for name, bound in allowed.items()}
    blind = _blind(case)
    open_out, open_lse = blind & (conventions["empty_rows"] == "mean_v"), blind & (conventions["empty_lse"] == "any")
    return {"out": np.where(open_out[..., None], np.inf, allowed["out"]), "lse": np.where(open_lse, np.inf, allowed["lse"])}


def _blind(case: Case) -> np.ndarray:
    return np.asarray(~visible(case).any(axis=-1))


def _latent_cases() -> Any:
    from .cases.mla import LATENT_CASES

    return LATENT_CASES


MLA_ATTENTION = Operation(
    name="mla_attention",
    summary="Multi-head latent attention: keys and values made from one small latent a token, or never made at all.",
    oracle=reference.mla_attention,
    answer=mla_answer,
    bound=mla_allowed,
    cases=_latent_cases,
    laws=LATENT_LAWS,
    source="DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1",
)
