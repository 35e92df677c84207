"""The operations of the attention family: forward and backward, batched and packed, each with its oracle, bound and laws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .arithmetic import ResolvedArithmetic
from .bounds.attention import batch, sequences
from .bounds.sums import compound, g, underflow_unit
from .case import Case
from .comparison import Float64
from .conventions import CONVENTIONS
from .laws.attention import ATTENTION_LAWS
from .laws.attention_backward import ATTENTION_BACKWARD_LAWS
from .laws.attention_packed import PACKED_BACKWARD_LAWS, PACKED_LAWS
from .laws.attention_terms import visible
from .operation import Operation, as_float64

# Arrays with an axis of query heads, and where it is.
_HEAD_AXIS = {"q": 1, "out": 1, "lse": 1, "dout": 1, "bias": 1, "mask": 1, "dropout_mask": 1, "sinks": 0, "alibi_slopes": 0,
              "dq": 1, "dbias": 1, "dsinks": 0}  # fmt: skip


def _forward(arguments: Mapping[str, Any]) -> dict[str, Float64]:
    out, lse = reference.attention(**arguments)
    return {"out": out, "lse": lse}


def _backward(arguments: Mapping[str, Any]) -> dict[str, Float64]:
    return reference.attention_backward(**arguments)


def _in_head_map(case: Case, conventions: Mapping[str, str]) -> tuple[dict[str, Any], np.ndarray | None]:
    """The arguments with query heads ordered so that head h // G reads what h % Hkv reads in an interleaved subject."""
    arguments = case.arguments()
    Hq, Hkv = arguments["q"].shape[1], arguments["k"].shape[1]
    if conventions["head_map"] == "contiguous" or Hkv in (1, Hq):
        return arguments, None
    order = np.argsort(np.arange(Hq) % Hkv, kind="stable")
    return {name: _reorder(name, value, order) for name, value in arguments.items()}, np.argsort(order)


def _reorder(name: str, value: Any, order: np.ndarray | None) -> Any:
    if order is None or name not in _HEAD_AXIS or not isinstance(value, np.ndarray):
        return value
    axis = _HEAD_AXIS[name] if name in ("sinks", "alibi_slopes", "dsinks") else value.ndim - 3 if name != "lse" else 1
    return value if axis < 0 or value.shape[axis] == 1 else np.take(value, order, axis=axis)


def attention_answer(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's out and lse in a subject's conventions (head map, rows that see nothing)."""
    arguments, back = _in_head_map(case, conventions)
    results = {name: _reorder(name, value, back) for name, value in _forward(arguments).items()}
    if _other_empty_rows(case, conventions):
        empty = _sees_nothing(case)[..., None]
        fill = np.nan if conventions["empty_rows"] == "nan" else _mean_values(case, conventions)
        results["out"] = np.where(empty, fill, results["out"])
    return results


def attention_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The bound of out and lse, reordered like the answer; no promise where a declared convention leaves the value open."""
    arguments, back = _in_head_map(case, conventions)
    allowed = {name: _reorder(name, value, back) for name, value in bounds.attention_bound(arithmetic, **arguments).items()}
    if _other_order_of_softcap(arguments, conventions):
        return {name: np.full(value.shape, np.inf) for name, value in allowed.items()}
    empty = _sees_nothing(case)
    if conventions["empty_rows"] == "mean_v" and _other_empty_rows(case, conventions):
        allowed["out"] = np.where(empty[..., None], _mean_allowed(arithmetic, case, conventions), allowed["out"])
    if conventions["empty_lse"] == "any":
        allowed["lse"] = np.where(empty, np.inf, allowed["lse"])
    return allowed


def _other_order_of_softcap(arguments: Mapping[str, Any], conventions: Mapping[str, str]) -> bool:
    """Whether the scores are others than the oracle's: by declaration, where there are both a softcap and a bias."""
    return conventions["bias_before_softcap"] == "yes" and {"bias", "softcap"} <= set(arguments)


def _other_empty_rows(case: Case, conventions: Mapping[str, str]) -> bool:
    """Whether a row that sees nothing comes out otherwise than 0: by declaration, where there are keys, and no sink takes the weight."""
    return conventions["empty_rows"] != "zero" and case.arrays["v"].shape[2] > 0 and "sinks" not in case.arrays


def _mean_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> Float64:
    """How far a softmax over n equal scores, and its sum of values, may be from the mean of the values: (B, Hq, 1, Dv).

    n products and sums, n additions of the row sum, exp and division of each weight, two roundings of P, one of out.
    """
    names = ("accumulate", "elementwise", "probabilities", "out")
    u = {name: reference.FloatFormat(getattr(arithmetic, name)).unit_roundoff for name in names}
    n = case.arrays["v"].shape[2]
    sums, weights = g(2 * n, u["accumulate"]), g(n + arithmetic.exp_ulps + 4, u["elementwise"])
    growth = compound(sums, weights, u["probabilities"], u["probabilities"], u["out"])
    return np.asarray(growth * _mean_values(case, conventions, absolute=True) + underflow_unit(arithmetic.out, arithmetic.flush_to_zero))


def _sees_nothing(case: Case) -> np.ndarray:
    return np.asarray(~visible(case).any(axis=-1))


def _mean_values(case: Case, conventions: Mapping[str, str], *, absolute: bool = False) -> Float64:
    """The mean of all values of the head each query head reads: (B, Hq, 1, Dv)."""
    v = case.arrays["v"].astype(np.float64)
    v = np.where(np.isfinite(v), v, 0.0) if absolute else v                     # a NaN among them is wanted in the mean
    mean = (np.abs(v) if absolute else v).mean(axis=2, keepdims=True)
    heads, Hkv = np.arange(case.arrays["q"].shape[1]), v.shape[1]
    read = heads % Hkv if conventions["head_map"] == "interleaved" else heads // max(1, len(heads) // Hkv)
    return np.asarray(mean[:, read])


def _backward_answer(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    arguments, back = _in_head_map(case, conventions)
    return {name: _reorder(name, value, back) for name, value in as_float64(_backward(arguments)).items()}


def _backward_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The bound; no promise for sequences with a row that sees nothing, where such rows are not zero and have gradients of their own."""
    arguments, back = _in_head_map(case, conventions)
    allowed = {name: _reorder(name, value, back) for name, value in bounds.attention_backward_bound(arithmetic, **arguments).items()}
    if _other_order_of_softcap(arguments, conventions):
        return {name: np.full(value.shape, np.inf) for name, value in allowed.items()}
    if conventions["empty_rows"] != "zero":
        blind = np.asarray(_sees_nothing(case).any(axis=(1, 2)))                # (B,)
        allowed = {name: np.where(blind[:, None, None, None] if name in ("dq", "dk", "dv") else blind.any(), np.inf, value)
                   for name, value in allowed.items()}  # fmt: skip
    return allowed


def _packed_answer(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    if _as_the_oracle(conventions):
        out, lse = reference.attention_packed(**case.arguments())
        return {"out": out, "lse": lse}
    return _sequence_by_sequence(case, "attention", lambda one: attention_answer(one, conventions))


def _packed_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    if _as_the_oracle(conventions):
        return bounds.attention_packed_bound(arithmetic, **case.arguments())
    return _sequence_by_sequence(case, "attention", lambda one: attention_allowed(arithmetic, one, conventions))


def _packed_backward_answer(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    if _as_the_oracle(conventions):
        return as_float64(reference.attention_packed_backward(**case.arguments()))
    return _sequence_by_sequence(case, "attention_backward", lambda one: _backward_answer(one, conventions))


def _packed_backward_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    if _as_the_oracle(conventions):
        return bounds.attention_packed_backward_bound(arithmetic, **case.arguments())
    return _sequence_by_sequence(case, "attention_backward", lambda one: _backward_allowed(arithmetic, one, conventions))


def _as_the_oracle(conventions: Mapping[str, str]) -> bool:
    """Whether nothing is declared that makes an answer of packed attention another one."""
    return all(conventions[name] == CONVENTIONS[name].values[0] for name in ("head_map", "empty_rows", "empty_lse"))


def _sequence_by_sequence(case: Case, operation: str, results: Callable[[Case], Mapping[str, Float64]]) -> dict[str, Float64]:
    """What `results` gives for each sequence as a batch of one, put together as the results of the packed operation."""
    arrays = {name: array for name, array in case.arrays.items() if name not in ("cu_q", "cu_k")}
    q, k, v = (arrays[name] for name in "qkv")
    whole = {"out": np.zeros((*q.shape[:2], v.shape[-1])), "lse": np.zeros((q.shape[1], len(q)))}
    if operation == "attention_backward":
        whole = {"dq": np.zeros(q.shape), "dk": np.zeros(k.shape), "dv": np.zeros(v.shape)}
    for rows, keys in sequences(q, k, case.arrays["cu_q"], case.arrays["cu_k"]):
        place = {name: keys if name in ("k", "v", "dk", "dv") else rows for name in (*arrays, *whole)}
        one = {name: x[None, :, place[name]] if name == "lse" else batch(x[place[name]]) for name, x in arrays.items()}
        for name, result in results(Case(operation, one, case.options)).items():
            if name == "lse":
                whole[name][:, place[name]] = result[0]
            else:
                whole[name][place[name]] = result[0].swapaxes(0, 1)
    return whole


def _attention_cases() -> Any:
    from .cases.attention import ATTENTION_CASES

    return ATTENTION_CASES


def _attention_backward_cases() -> Any:
    from .cases.attention import ATTENTION_BACKWARD_CASES

    return ATTENTION_BACKWARD_CASES


def _packed_cases() -> Any:
    from .cases.attention_packed import PACKED_CASES

    return PACKED_CASES


def _packed_backward_cases() -> Any:
    from .cases.attention_packed import PACKED_BACKWARD_CASES

    return PACKED_BACKWARD_CASES


ATTENTION = Operation(
    name="attention",
    summary="Scaled dot-product attention with masks, windows, caps, biases, sinks, dropout and grouped heads; output and log-sum-exp.",
    oracle=reference.attention,
    answer=attention_answer,
    bound=attention_allowed,
    cases=_attention_cases,
    laws=ATTENTION_LAWS,
    source="Vaswani et al. 2017 (arXiv 1706.03762), equation 1; Dao 2023 (arXiv 2307.08691) for the log-sum-exp",
)

ATTENTION_BACKWARD = Operation(
    name="attention_backward",
    summary="Gradients of attention with respect to q, k, v, bias and sinks, given the forward pass's out and lse.",
    oracle=reference.attention_backward,
    answer=_backward_answer,
    bound=_backward_allowed,
    cases=_attention_backward_cases,
    laws=ATTENTION_BACKWARD_LAWS,
    source="Dao et al. 2022 (arXiv 2205.14135), appendix B.2",
)

ATTENTION_PACKED = Operation(
    name="attention_packed",
    summary="Attention over sequences of different lengths laid end to end, given by their cumulative lengths.",
    oracle=reference.attention_packed,
    answer=_packed_answer,
    bound=_packed_allowed,
    cases=_packed_cases,
    laws=PACKED_LAWS,
    source="Dao 2023 (arXiv 2307.08691); the variable-length interface of FlashAttention",
)

ATTENTION_PACKED_BACKWARD = Operation(
    name="attention_packed_backward",
    summary="Gradients of packed attention with respect to q, k, v.",
    oracle=reference.attention_packed_backward,
    answer=_packed_backward_answer,
    bound=_packed_backward_allowed,
    cases=_packed_backward_cases,
    laws=PACKED_BACKWARD_LAWS,
    source="Dao et al. 2022 (arXiv 2205.14135), appendix B.2, one sequence at a time",
)
