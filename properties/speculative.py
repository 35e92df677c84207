"""The operations of speculative decoding: verification of one draft, and where the nodes of a tree of drafts stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .arithmetic import ResolvedArithmetic
from .case import Case
from .comparison import Float64
from .laws.speculative import VERIFY_LAWS
from .laws.tree_positions import TREE_LAWS
from .operation import Operation, as_float64


def _verify_cases() -> Any:
    from .cases.speculative import VERIFY_CASES

    return VERIFY_CASES


def _tree_cases() -> Any:
    from .cases.speculative import TREE_CASES

    return TREE_CASES


def verify_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """0 in rows whose outcome no rounding changes, inf in others, and everywhere for a subject with uniforms of its own use."""
    allowed = bounds.speculative_verify_bound(arithmetic, **case.arguments(), conventions=conventions)
    if conventions["uniforms"] == "contract":
        return allowed
    return {name: np.full(value.shape, np.inf) for name, value in allowed.items()}


def verified(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The tokens and their number by the subject's rule."""
    oracle = {"token": reference.speculative_verify, "block": reference.verify_block}[conventions["rule"]]
    return as_float64(dict(zip(("tokens", "n_accepted"), oracle(**case.arguments()))))


SPECULATIVE_VERIFY = Operation(
    name="speculative_verify",
    summary="Keep a prefix of each draft and add one token, so that what comes out has the law of the target alone.",
    oracle=reference.speculative_verify,
    answer=verified,
    bound=verify_allowed,
    cases=_verify_cases,
    laws=VERIFY_LAWS,
    source="Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318), algorithm 2",
)

TREE_POSITIONS = Operation(
    name="tree_positions",
    summary="Where each node of a tree of drafts stands in its sequence: n_past and its depth.",
    oracle=reference.tree_positions,
    answer=lambda case, conventions: as_float64({"positions": reference.tree_positions(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.tree_positions_bound(arithmetic, **case.arguments()),
    cases=_tree_cases,
    laws=TREE_LAWS,
    source="Miao et al. 2023 (arXiv 2305.09781), section 4.2; the depth, not the flat index: lablup/mlxcel#1214",
)
