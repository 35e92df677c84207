"""The operation of rotary position embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oracles import reference

from . import bounds
from .arithmetic import ResolvedArithmetic
from .case import Case
from .comparison import Float64
from .laws.rope import ROPE_LAWS
from .operation import Operation, as_float64


def _rope_cases() -> Any:
    from .cases.rope import ROPE_CASES

    return ROPE_CASES


def rope_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The bound of out."""
    arguments: dict[str, Any] = case.arguments()
    return bounds.rope_bound(arithmetic, **arguments)


ROPE = Operation(
    name="rope",
    summary="Rotary position embedding: pairs of coordinates turned by position times frequency; plain, linear, NTK, YaRN, Llama 3.",
    oracle=reference.rope,
    answer=lambda case, conventions: as_float64({"out": reference.rope(**case.arguments())}),
    bound=rope_allowed,
    cases=_rope_cases,
    laws=ROPE_LAWS,
    source="Su et al. 2021 (arXiv 2104.09864); scalings: Chen et al. 2023 (arXiv 2306.15595), Peng et al. 2023 (arXiv 2309.00071), "
           "Grattafiori et al. 2024 (arXiv 2407.21783)",
)  # fmt: skip
