"""The operations of mixture of experts: routing, the loss that balances it, the layer, and its gradient over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .case import Case
from .comparison import Float64
from .laws.balance import BALANCE_BACKWARD_LAWS, BALANCE_LAWS
from .laws.experts import EXPERT_BACKWARD_LAWS, MOE_LAWS
from .laws.routing import ROUTE_LAWS
from .operation import Operation, as_float64


def _route_cases() -> Any:
    from .cases.routing import ROUTE_CASES

    return ROUTE_CASES


def _balance_cases() -> Any:
    from .cases.routing import BALANCE_CASES

    return BALANCE_CASES


def _balance_backward_cases() -> Any:
    from .cases.routing import BALANCE_BACKWARD_CASES

    return BALANCE_BACKWARD_CASES


def _moe_cases() -> Any:
    from .cases.experts import MOE_CASES

    return MOE_CASES


def _expert_backward_cases() -> Any:
    from .cases.experts import EXPERT_BACKWARD_CASES

    return EXPERT_BACKWARD_CASES


def _share(case: Case, conventions: Mapping[str, str]) -> float:
    """What the loss is multiplied with where f is a share of the tokens: it sums to k then."""
    return float(case.arrays["ids"].shape[1]) if conventions["balance_share"] == "of_tokens" else 1.0


def _balance(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The loss, or what a subject declares that a batch without a real token has."""
    nobody = not len(case.arrays["probs"]) or not case.arrays.get("mask", np.ones(1, np.bool_)).any()
    if nobody and conventions["all_ignored"] == "nan":
        return {"loss": np.asarray(np.nan)}
    return _times(_share(case, conventions), {"loss": reference.balance_loss(**case.arguments())})


def _times(factor: float, results: Mapping[str, Float64]) -> dict[str, Float64]:
    return {name: np.asarray(factor * value) for name, value in results.items()}


def _stacked(case: Case) -> dict[str, Float64]:
    """The gradients of all ranks, one array each."""
    return {name: np.stack(parts) for name, parts in reference.expert_parallel_backward(**case.arguments()).items()}


ROUTE = Operation(
    name="route",
    summary="The k experts of each token and their gates: the largest probabilities, with a bias that chooses and does nothing else.",
    oracle=reference.route,
    answer=lambda case, conventions: as_float64(dict(zip(("ids", "gates"), reference.route(**case.arguments())))),
    bound=lambda arithmetic, case, conventions: bounds.route_bound(arithmetic, **case.arguments(), ties=conventions["route_ties"]),
    cases=_route_cases,
    laws=ROUTE_LAWS,
    source="Shazeer et al. 2017 (arXiv 1701.06538), section 2.1; DeepSeek-AI 2024 (arXiv 2412.19437), equation 16",
)

BALANCE_LOSS = Operation(
    name="balance_loss",
    summary="How unequally the experts are used: 1 when balanced, the number of experts when one does everything.",
    oracle=reference.balance_loss,
    answer=_balance,
    bound=lambda arithmetic, case, conventions: _times(
        _share(case, conventions), bounds.balance_loss_bound(arithmetic, **case.arguments())),
    cases=_balance_cases,
    laws=BALANCE_LAWS,
    source="Fedus, Zoph and Shazeer 2021 (arXiv 2101.03961), equations 4 to 6",
)

BALANCE_LOSS_BACKWARD = Operation(
    name="balance_loss_backward",
    summary="The gradient of the balance loss with respect to the probabilities: what pulls a token away from a busy expert.",
    oracle=reference.balance_loss_backward,
    answer=lambda case, conventions: _times(
        _share(case, conventions), {"dprobs": reference.balance_loss_backward(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: _times(
        _share(case, conventions), bounds.balance_loss_backward_bound(arithmetic, **case.arguments())),
    cases=_balance_backward_cases,
    laws=BALANCE_BACKWARD_LAWS,
    source="Fedus, Zoph and Shazeer 2021 (arXiv 2101.03961), equation 4 differentiated",
)

MOE_LAYER = Operation(
    name="moe_layer",
    summary="Tokens through the experts they are routed to, within the places these have, and the weighted sum of what comes back.",
    oracle=reference.moe_layer,
    answer=lambda case, conventions: as_float64(dict(zip(("out", "slots"), reference.moe_layer(**case.arguments())))),
    bound=lambda arithmetic, case, conventions: bounds.moe_layer_bound(arithmetic, **case.arguments()),
    cases=_moe_cases,
    laws=MOE_LAWS,
    source="Shazeer et al. 2017 (arXiv 1701.06538), equation 1; Lepikhin et al. 2020 (arXiv 2006.16668), algorithm 1",
)

EXPERT_PARALLEL_BACKWARD = Operation(
    name="expert_parallel_backward",
    summary="The gradients of a layer whose tokens and experts are spread over R ranks: those of one rank, whatever R is.",
    oracle=reference.expert_parallel_backward,
    answer=lambda case, conventions: _stacked(case),
    bound=lambda arithmetic, case, conventions: bounds.expert_parallel_backward_bound(arithmetic, **case.arguments()),
    cases=_expert_backward_cases,
    laws=EXPERT_BACKWARD_LAWS,
    source="Lepikhin et al. 2020 (arXiv 2006.16668), section 3.2, differentiated",
)
