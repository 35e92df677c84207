"""The operations of collectives and data parallelism: sums over ranks, what is gathered, buckets, accumulation, flat buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracles.reference import collectives, data_parallel, zero_state

from . import bounds
from .array_lists import spread
from .laws import collectives as laws
from .operation import Operation


def _cases(name: str) -> Callable[[], Any]:
    def load() -> Any:
        from .cases import collectives as cases

        return getattr(cases, name)

    return load


ALL_REDUCE = Operation(
    name="all_reduce",
    summary="The sum, mean, maximum or minimum of the arrays of all ranks, on every rank.",
    oracle=collectives.all_reduce,
    answer=lambda case, conventions: spread("out", collectives.all_reduce(**case.arguments())[0]),
    bound=lambda arithmetic, case, conventions: bounds.all_reduce_bound(arithmetic, **case.arguments()),
    cases=_cases("ALL_REDUCE_CASES"),
    laws=laws.ALL_REDUCE_LAWS,
    source="Patarasu and Yuan 2009 (doi 10.1016/j.jpdc.2008.09.002); Thakur, Rabenseifner and Gropp 2005 (doi 10.1177/1094342005051521)",
)

REDUCE_SCATTER = Operation(
    name="reduce_scatter",
    summary="Rank r's part of the sum, mean, maximum or minimum of the arrays of all ranks.",
    oracle=collectives.reduce_scatter,
    answer=lambda case, conventions: spread("out", collectives.reduce_scatter(**case.arguments())[0]),
    bound=lambda arithmetic, case, conventions: bounds.reduce_scatter_bound(arithmetic, **case.arguments()),
    cases=_cases("REDUCE_SCATTER_CASES"),
    laws=laws.REDUCE_SCATTER_LAWS,
    source="Patarasu and Yuan 2009 (doi 10.1016/j.jpdc.2008.09.002), section 4",
)

ALL_GATHER = Operation(
    name="all_gather",
    summary="The arrays of all ranks one behind the other, on every rank.",
    oracle=collectives.all_gather,
    answer=lambda case, conventions: spread("out", collectives.all_gather(**case.arguments())[0]),
    bound=lambda arithmetic, case, conventions: bounds.all_gather_bound(arithmetic, **case.arguments()),
    cases=_cases("ALL_GATHER_CASES"),
    laws=laws.ALL_GATHER_LAWS,
    source="Thakur, Rabenseifner and Gropp 2005 (doi 10.1177/1094342005051521), section 4.1",
)

BUCKETED_ALL_REDUCE = Operation(
    name="bucketed_all_reduce",
    summary="The mean over ranks of each gradient, in buckets, whatever the order in which gradients become ready.",
    oracle=data_parallel.bucketed_all_reduce,
    answer=lambda case, conventions: spread("grads", data_parallel.bucketed_all_reduce(**case.arguments())[0]),
    bound=lambda arithmetic, case, conventions: bounds.bucketed_all_reduce_bound(arithmetic, **case.arguments()),
    cases=_cases("BUCKETED_CASES"),
    laws=laws.BUCKETED_LAWS,
    source="Li et al. 2020 (arXiv 2006.15704), section 3.2",
)

ACCUMULATE_GRADIENTS = Operation(
    name="accumulate_gradients",
    summary="The gradient of the mean over all tokens of all ranks and micro-batches, on every rank.",
    oracle=data_parallel.accumulate_gradients,
    answer=lambda case, conventions: {"grads": data_parallel.accumulate_gradients(**case.arguments())},
    bound=lambda arithmetic, case, conventions: bounds.accumulate_gradients_bound(arithmetic, **case.arguments()),
    cases=_cases("ACCUMULATE_CASES"),
    laws=laws.ACCUMULATE_LAWS,
    source="Goyal et al. 2017 (arXiv 1706.02677), section 3; the token counts: huggingface/transformers#34191",
)

TIED_GRADIENTS = Operation(
    name="tied_gradients",
    summary="The gradient of a weight of which several pipeline stages hold a copy: summed over copies, averaged over ranks.",
    oracle=data_parallel.tied_gradients,
    answer=lambda case, conventions: {"grads": data_parallel.tied_gradients(**case.arguments())},
    bound=lambda arithmetic, case, conventions: bounds.tied_gradients_bound(arithmetic, **case.arguments()),
    cases=_cases("TIED_CASES"),
    laws=laws.TIED_LAWS,
    source="Press and Wolf 2017 (arXiv 1608.05859); Shoeybi et al. 2019 (arXiv 1909.08053)",
)

FLAT_LAYOUT = Operation(
    name="flat_layout",
    summary="Where each array begins in a flat buffer, aligned, and how long a buffer of equal shards is.",
    oracle=zero_state.flat_layout,
    answer=lambda case, conventions: dict(zip(("offsets", "total"), (x.astype(float) for x in zero_state.flat_layout(**case.arguments())))),
    bound=lambda arithmetic, case, conventions: bounds.flat_layout_bound(arithmetic, **case.arguments()),
    cases=_cases("FLAT_LAYOUT_CASES"),
    laws=laws.FLAT_LAYOUT_LAWS,
    source="Rajbhandari et al. 2020 (arXiv 1910.02054), section 5",
)
