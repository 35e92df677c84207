"""The operations of a whole generation loop, with a draft model and with the model's own heads, over models that are tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .arithmetic import ResolvedArithmetic
from .case import Case
from .comparison import Float64
from .laws.speculative_loop import LOOP_LAWS
from .operation import Operation, as_float64

RESULTS = ("tokens", "n_accepted")


def _speculative_cases() -> Any:
    from .cases.speculative_loop import SPECULATIVE_LOOP_CASES

    return SPECULATIVE_LOOP_CASES


def _mtp_cases() -> Any:
    from .cases.speculative_loop import MTP_LOOP_CASES

    return MTP_LOOP_CASES


def _allowed(bound: Callable[..., dict[str, Float64]]) -> Callable[[ResolvedArithmetic, Case, Mapping[str, str]], dict[str, Float64]]:
    """0 up to the first open pass, inf behind it, and everywhere for a subject with uniforms of its own use."""
    def allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
        if conventions["uniforms"] != "contract":
            return {name: np.full(case.arrays["uniforms"].shape[:2], np.inf) for name in RESULTS}
        return bound(arithmetic, **case.arguments())

    return allowed


SPECULATIVE_LOOP = Operation(
    name="speculative_loop",
    summary="A text generated with a draft model: the target's own law, and as many drafts accepted in each pass as there should be.",
    oracle=reference.speculative_loop,
    answer=lambda case, conventions: as_float64(dict(zip(RESULTS, reference.speculative_loop(**case.arguments())))),
    bound=_allowed(bounds.speculative_loop_bound),
    cases=_speculative_cases,
    laws=LOOP_LAWS,
    source="Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), section 2; the draft's cache: vllm-project/vllm#9730",
)

MTP_LOOP = Operation(
    name="mtp_loop",
    summary="A text generated with the model's own heads as the draft: the model's own law, drafts chained through hidden states.",
    oracle=reference.mtp_loop,
    answer=lambda case, conventions: as_float64(dict(zip(RESULTS, reference.mtp_loop(**case.arguments())))),
    bound=_allowed(bounds.mtp_loop_bound),
    cases=_mtp_cases,
    laws=LOOP_LAWS,
    source="DeepSeek-V3 (arXiv 2412.19437), section 2.2; the row after a partial accept: antirez/ds4#750",
)
