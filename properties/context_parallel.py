"""The operations of context parallelism: attention of a sequence or a cache over ranks, forward and backward."""

from __future__ import annotations

from typing import Any

from oracles import reference

from . import bounds
from .array_lists import spread
from .case import Case
from .comparison import Float64
from .laws.context_parallel import RING_BACKWARD_LAWS, RING_LAWS
from .laws.exchanged_ranks import CACHE_LAWS, NORM_LAWS
from .operation import Operation, as_float64


def _ring_cases() -> Any:
    from .cases.context_parallel import RING_CASES

    return RING_CASES


def _ring_backward_cases() -> Any:
    from .cases.context_parallel import RING_BACKWARD_CASES

    return RING_BACKWARD_CASES


def _forward(case: Case) -> dict[str, Float64]:
    outs, lses = reference.ring_attention(**case.arguments())
    return {**spread("out", outs), **spread("lse", lses)}


def _backward(case: Case) -> dict[str, Float64]:
    lists = zip(("dq", "dk", "dv"), reference.ring_attention_backward(**case.arguments()))
    return {name: x for whole, shards in lists for name, x in spread(whole, shards).items()}


RING_ATTENTION = Operation(
    name="ring_attention",
    summary="Attention of a sequence over itself, of which each rank holds a part: output and log-sum-exp of each part.",
    oracle=reference.ring_attention,
    answer=lambda case, conventions: _forward(case),
    bound=lambda arithmetic, case, conventions: bounds.ring_attention_bound(arithmetic, **case.arguments()),
    cases=_ring_cases,
    laws=RING_LAWS,
    source="Liu, Zaharia and Abbeel 2023 (arXiv 2310.01889), algorithm 1",
)

RING_ATTENTION_BACKWARD = Operation(
    name="ring_attention_backward",
    summary="Gradients of attention of a sequence over ranks, each part's on the rank that holds it.",
    oracle=reference.ring_attention_backward,
    answer=lambda case, conventions: _backward(case),
    bound=lambda arithmetic, case, conventions: bounds.ring_attention_backward_bound(arithmetic, **case.arguments()),
    cases=_ring_backward_cases,
    laws=RING_BACKWARD_LAWS,
    source="Liu, Zaharia and Abbeel 2023 (arXiv 2310.01889), section 3; Dao et al. 2022 (arXiv 2205.14135), appendix B.2",
)


def _cache_cases() -> Any:
    from .cases.exchanged_ranks import CACHE_CASES

    return CACHE_CASES


def _norm_cases() -> Any:
    from .cases.exchanged_ranks import NORM_CASES

    return NORM_CASES


def _norm(case: Case) -> dict[str, Float64]:
    dx, dweight = reference.exchanged_norm_backward(**case.arguments())
    return {**spread("dx", dx), "dweight": dweight}


SHARDED_CACHE_ATTENTION = Operation(
    name="sharded_cache_attention",
    summary="Attention of one query a sequence over chosen tokens of a cache that ranks share out in turn.",
    oracle=reference.sharded_cache_attention,
    answer=lambda case, conventions: as_float64(dict(zip(("out", "lse"), reference.sharded_cache_attention(**case.arguments())))),
    bound=lambda arithmetic, case, conventions: bounds.sharded_cache_attention_bound(arithmetic, **case.arguments()),
    cases=_cache_cases,
    laws=CACHE_LAWS,
    source="The report vllm-project/vllm#54541; Milakov and Gimelshein 2018 (arXiv 1805.02867), section 3.1",
)

EXCHANGED_NORM_BACKWARD = Operation(
    name="exchanged_norm_backward",
    summary="Gradients through an RMS norm and the all-to-all behind it that gives heads for tokens.",
    oracle=reference.exchanged_norm_backward,
    answer=lambda case, conventions: _norm(case),
    bound=lambda arithmetic, case, conventions: bounds.exchanged_norm_backward_bound(arithmetic, **case.arguments()),
    cases=_norm_cases,
    laws=NORM_LAWS,
    source="Jacobs et al. 2023 (arXiv 2309.14509), section 3.1; the report ByteDance-Seed/VeOmni#419",
)
