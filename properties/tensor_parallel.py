"""The operations of tensor and vocabulary parallelism: products by columns and rows, whole heads, the vocabulary, norms, the clip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oracles.reference import tensor_parallel, vocab_parallel

from . import bounds
from .array_lists import spread
from .case import Case
from .comparison import Float64
from .laws import tensor_parallel as laws
from .operation import Operation

_MEGATRON = "Shoeybi et al. 2019 (arXiv 1909.08053), section 3"


def _cases(name: str) -> Callable[[], Any]:
    def load() -> Any:
        from .cases import tensor_parallel as cases

        return getattr(cases, name)

    return load


COLUMN_PARALLEL = Operation(
    name="column_parallel",
    summary="x W + b with the columns of W cut over the ranks: one output each.",
    oracle=tensor_parallel.column_parallel,
    answer=lambda case, conventions: spread("out", tensor_parallel.column_parallel(**case.arguments())),
    bound=lambda arithmetic, case, conventions: bounds.column_parallel_bound(arithmetic, **case.arguments()),
    cases=_cases("COLUMN_CASES"),
    laws=laws.COLUMN_LAWS,
    source=_MEGATRON,
)

ROW_PARALLEL = Operation(
    name="row_parallel",
    summary="x W + b with the rows of W cut over the ranks: equal outputs, the bias added once.",
    oracle=tensor_parallel.row_parallel,
    answer=lambda case, conventions: spread("out", tensor_parallel.row_parallel(**case.arguments())),
    bound=lambda arithmetic, case, conventions: bounds.row_parallel_bound(arithmetic, **case.arguments()),
    cases=_cases("ROW_CASES"),
    laws=laws.ROW_LAWS,
    source=_MEGATRON,
)


def _shards(case: Case) -> dict[str, Float64]:
    parts = tensor_parallel.shard_qkv(**case.arguments())
    return {key: a.astype(float) for name, own in zip("qkv", parts) for key, a in spread(name, own).items()}


SHARD_QKV = Operation(
    name="shard_qkv",
    summary="Whole heads for each rank: the columns of its query heads, and of the key/value heads that they read.",
    oracle=tensor_parallel.shard_qkv,
    answer=lambda case, conventions: _shards(case),
    bound=lambda arithmetic, case, conventions: bounds.shard_qkv_bound(arithmetic, tensor_parallel.shard_qkv(**case.arguments())),
    cases=_cases("QKV_CASES"),
    laws=laws.QKV_LAWS,
    source=f"{_MEGATRON}; fewer kv heads than ranks: Pope et al. 2022 (arXiv 2211.05102)",
)

VOCAB_PARALLEL_EMBEDDING = Operation(
    name="vocab_parallel_embedding",
    summary="The rows of the tokens, of a table cut over the ranks: equal outputs.",
    oracle=vocab_parallel.vocab_parallel_embedding,
    answer=lambda case, conventions: spread("out", vocab_parallel.vocab_parallel_embedding(**case.arguments())),
    bound=lambda arithmetic, case, conventions: bounds.vocab_parallel_embedding_bound(arithmetic, **case.arguments()),
    cases=_cases("EMBEDDING_CASES"),
    laws=laws.EMBEDDING_LAWS,
    source=_MEGATRON,
)

VOCAB_PARALLEL_CROSS_ENTROPY_BACKWARD = Operation(
    name="vocab_parallel_cross_entropy_backward",
    summary="The gradient of cross-entropy with the vocabulary cut over the ranks: that of each rank's logits.",
    oracle=vocab_parallel.vocab_parallel_cross_entropy_backward,
    answer=lambda case, conventions: {"dshards": vocab_parallel.vocab_parallel_cross_entropy_backward(**case.arguments())},
    bound=lambda arithmetic, case, conventions: bounds.vocab_parallel_cross_entropy_backward_bound(arithmetic, **case.arguments()),
    cases=_cases("VOCAB_LOSS_CASES"),
    laws=laws.VOCAB_LOSS_LAWS,
    source=_MEGATRON,
)


def _norm_gradients(case: Case) -> dict[str, Float64]:
    dx, dweight = tensor_parallel.norm_backward_sharded(**case.arguments())
    return {**spread("dx", dx), **spread("dweight", dweight)}


NORM_BACKWARD_SHARDED = Operation(
    name="norm_backward_sharded",
    summary="The gradients of an RMS norm of which each rank has some tokens or heads: the weight's summed over the ranks.",
    oracle=tensor_parallel.norm_backward_sharded,
    answer=lambda case, conventions: _norm_gradients(case),
    bound=lambda arithmetic, case, conventions: bounds.norm_backward_sharded_bound(arithmetic, **case.arguments()),
    cases=_cases("NORM_CASES"),
    laws=laws.NORM_LAWS,
    source="Zhang and Sennrich 2019 (arXiv 1910.07467); Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2",
)


def _added(conventions: Mapping[str, str]) -> float:
    """What is added to the norm before the limit is divided by it."""
    return 1e-6 if conventions["clip_denominator"] == "norm_plus_1e-6" else 0.0


def _clipped(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's gradients, one by one, and the norm; scaled once more where the convention divides by a little more."""
    arguments, added = case.arguments(), _added(conventions)
    grads, norm = tensor_parallel.clip_grad_norm_sharded(**arguments)
    limit = arguments["max_norm"]
    if added and norm + added > limit:
        grads = [np.asarray(g, np.float64) * (limit / (float(norm) + added)) for g in arguments["grads"]]
    return {**spread("grads", grads), "norm": norm}


CLIP_GRAD_NORM_SHARDED = Operation(
    name="clip_grad_norm_sharded",
    summary="Gradients cut over ranks or held by all, scaled by one factor so that their norm, copies counted once, is at most max_norm.",
    oracle=tensor_parallel.clip_grad_norm_sharded,
    answer=_clipped,
    bound=lambda arithmetic, case, conventions: bounds.clip_grad_norm_sharded_bound(
        arithmetic, **case.arguments(), added=_added(conventions)),
    cases=_cases("CLIP_CASES"),
    laws=laws.SHARDED_CLIP_LAWS,
    source="Pascanu, Mikolov and Bengio 2013 (arXiv 1211.5063), algorithm 1; NVIDIA-NeMo/RL#3788",
)
