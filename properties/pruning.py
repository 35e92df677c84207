"""The operations of pruning: masks by magnitude, two of every four, and masks that stay through retraining."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .array_lists import spread
from .bounds.pruning import counts_of, ranked_together
from .case import Case
from .comparison import Float64
from .laws.pruning import GRADUAL_LAWS, PRUNE_2_4_LAWS, PRUNE_LAWS
from .operation import Operation, as_float64


def _magnitude_cases() -> Any:
    from .cases.pruning import MAGNITUDE_CASES

    return MAGNITUDE_CASES


def _two_four_cases() -> Any:
    from .cases.pruning import TWO_FOUR_CASES

    return TWO_FOUR_CASES


def _gradual_cases() -> Any:
    from .cases.pruning import GRADUAL_CASES

    return GRADUAL_CASES


def prune_magnitude_answer(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's masks; with the nearest whole number of weights where the subject declares that."""
    given = case.arguments()
    if conventions["pruned_count"] == "floor" or given.get("rule", "count") == "quantile":
        masks = reference.prune_magnitude(**given)
        return as_float64(spread("masks", masks) if isinstance(masks, list) else {"masks": masks})

    def kept(row: Float64) -> Float64:
        mask = np.ones(row.shape)
        mask[np.argsort(row, kind="stable")[: counts_of(given["sparsity"], len(row), "nearest")[0]]] = 0.0
        return mask

    return ranked_together(given["weights"], given["scope"], kept)


PRUNE_MAGNITUDE = Operation(
    name="prune_magnitude",
    summary="Masks that keep the weights of large magnitude, over all layers or in each by itself.",
    oracle=reference.prune_magnitude,
    answer=prune_magnitude_answer,
    bound=lambda arithmetic, case, conventions: bounds.prune_magnitude_bound(arithmetic, **case.arguments(), conventions=conventions),
    cases=_magnitude_cases,
    laws=PRUNE_LAWS,
    source="Han et al. 2015 (arXiv 1506.02626), section 3; Blalock et al. 2020 (arXiv 2003.03033), section 2.3",
)

PRUNE_2_4 = Operation(
    name="prune_2_4",
    summary="A mask that keeps the two largest magnitudes of every four weights along an axis.",
    oracle=reference.prune_2_4,
    answer=lambda case, conventions: as_float64({"mask": reference.prune_2_4(**{"axis": -1, **case.arguments()})}),
    bound=lambda arithmetic, case, conventions: bounds.prune_2_4_bound(arithmetic, **{"axis": -1, **case.arguments()},
                                                                       conventions=conventions),
    cases=_two_four_cases,
    laws=PRUNE_2_4_LAWS,
    source="Mishra et al. 2021 (arXiv 2104.08378), section 2",
)  # fmt: skip

GRADUAL_MASKS = Operation(
    name="gradual_masks",
    summary="Masks step by step while training goes on: what was pruned stays pruned.",
    oracle=reference.gradual_masks,
    answer=lambda case, conventions: as_float64({"masks": reference.gradual_masks(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.gradual_masks_bound(arithmetic, **case.arguments()),
    cases=_gradual_cases,
    laws=GRADUAL_LAWS,
    source="Zhu and Gupta 2017 (arXiv 1710.01878), section 3",
)
