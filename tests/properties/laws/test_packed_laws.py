"""The laws of packed attention: the refusal of offsets that do not fit, and calls that are compared bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic, check, subject
from oracles.properties.conventions import CONVENTIONS
from oracles.properties.operations import operation_named
from oracles.properties.zoo import textbook

EXACT = Arithmetic(out="float64", accumulate="float64", elementwise="float64", lse="float64")


@subject("attention_packed", promises=["validates_input"], arithmetic=EXACT)
def packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any) -> Any:
    return reference.attention_packed(q, k, v, cu_q, cu_k, causal=causal)


@subject("attention_packed_backward", promises=["validates_input"], arithmetic=EXACT)
def packed_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any, *, causal: Any) -> Any:
    return reference.attention_packed_backward(q, k, v, out, lse, dout, cu_q, cu_k, causal=causal)


@pytest.mark.parametrize(("operation", "oracle"), [("attention_packed", packed), ("attention_packed_backward", packed_backward)])
def test_the_oracle_keeps_the_law_of_refused_offsets(operation: str, oracle: Any) -> None:
    assert check(operation, oracle, budget="quick", laws=("bad_offsets_are_refused",)).held


@pytest.mark.parametrize(("what", "accepts"), [
    ("cu_q with a token less than there are", lambda cu_q, cu_k, Tq, Tk: cu_q[-1] < Tq),
    ("cu_q that does not start at 0", lambda cu_q, cu_k, Tq, Tk: cu_q[0] > 0),
    ("cu_q that falls", lambda cu_q, cu_k, Tq, Tk: len(cu_q) > 2 and cu_q[-2] < cu_q[-3]),
    ("cu_k with a token more than there are", lambda cu_q, cu_k, Tq, Tk: cu_k[-1] == Tk + 1 < 2 * Tk),
    ("cu_k with twice the tokens there are", lambda cu_q, cu_k, Tq, Tk: cu_k[-1] == 2 * Tk),
    ("cu_k with a sequence more than cu_q", lambda cu_q, cu_k, Tq, Tk: len(cu_k) > len(cu_q)),
])  # fmt: skip
def test_each_kind_of_bad_offsets_is_tried(what: str, accepts: Any) -> None:
    @subject("attention_packed", promises=["validates_input"], arithmetic=EXACT)
    def too_kind(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any) -> Any:
        if accepts(cu_q, cu_k, len(q), len(k)):
            return q
        return reference.attention_packed(q, k, v, cu_q, cu_k, causal=causal)

    (verdict,) = check("attention_packed", too_kind, budget="quick", laws=("bad_offsets_are_refused",)).verdicts
    assert (verdict.status, verdict.reason) == ("failed", f"{what}: returned; want an exception")


def test_calls_that_are_compared_bitwise_have_the_same_strides() -> None:
    """Another memory order is another order of sums, and would accuse a legal kernel."""
    strides: list[tuple[int, ...]] = []

    @subject("attention_packed")
    def recorded(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any) -> Any:
        strides.append((*k.strides, *v.strides))
        return textbook.attention_packed(q, k, v, cu_q, cu_k, causal=causal)

    assert check("attention_packed", recorded, budget="quick", laws=("sequences_do_not_see_each_other",)).held
    assert strides[::2] == strides[1::2]
    assert len(set(strides)) > 1


def interleaved(x: Any, k: Any, *, axis: int, back: bool = False) -> Any:
    """Query heads in the order in which contiguous groups read what h % Hkv reads, or back in their own."""
    order = np.argsort(np.arange(x.shape[axis]) % k.shape[1], kind="stable")
    return np.take(x, np.argsort(order) if back else order, axis=axis)


def reads_interleaved(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any) -> Any:
    out, lse = reference.attention_packed(interleaved(q, k, axis=1), k, v, cu_q, cu_k, causal=causal)
    return interleaved(out, k, axis=1, back=True), interleaved(lse, k, axis=0, back=True)


def backward_reads_interleaved(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any, *, causal: Any) -> Any:
    q, out, dout = (interleaved(x, k, axis=1) for x in (q, out, dout))
    results = reference.attention_packed_backward(q, k, v, out, lse, dout, cu_q, cu_k, causal=causal)
    return {**results, "dq": interleaved(results["dq"], k, axis=1, back=True)}


def blind(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, causal: Any) -> Any:
    """(Tq,): queries that see none of the keys there are."""
    lse = reference.attention_packed(q, k, v, cu_q, cu_k, causal=causal)[1]
    return np.isneginf(lse).any(axis=0) & np.repeat(np.diff(cu_k) > 0, np.diff(cu_q))


def blind_rows_are_nan(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any) -> Any:
    out, lse = reference.attention_packed(q, k, v, cu_q, cu_k, causal=causal)
    return np.where(blind(q, k, v, cu_q, cu_k, causal)[:, None, None], np.nan, out), lse


def blind_rows_are_means(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any) -> Any:
    out, lse = reference.attention_packed(q, k, v, cu_q, cu_k, causal=causal)
    rows, means = blind(q, k, v, cu_q, cu_k, causal), np.zeros_like(out)
    for i in range(len(cu_k) - 1):
        if cu_k[i] < cu_k[i + 1]:
            mean = v[cu_k[i] : cu_k[i + 1]].astype(np.float64).mean(axis=0)     # (Hkv, Dv)
            means[cu_q[i] : cu_q[i + 1]] = np.repeat(mean, q.shape[1] // k.shape[1], axis=0)
    return np.where(rows[:, None, None], means, out), lse


def blind_rows_have_an_lse(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any) -> Any:
    out, lse = reference.attention_packed(q, k, v, cu_q, cu_k, causal=causal)
    return out, np.where(np.isneginf(lse), -1e30, lse)


def backward_of_nan(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any, *, causal: Any) -> Any:
    results = reference.attention_packed_backward(q, k, v, out, lse, dout, cu_q, cu_k, causal=causal)
    return {**results, "dq": np.where(blind(q, k, v, cu_q, cu_k, causal)[:, None, None], np.nan, results["dq"])}


def counts_the_current_key(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, window: Any = None) -> Any:
    window = window and (None if window[0] is None else window[0] - 1, window[1])
    return reference.attention_packed(q, k, v, cu_q, cu_k, causal=causal, window=window)


def backward_counts_the_current_key(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any, *, causal: Any,
                                    window: Any = None) -> Any:
    window = window and (None if window[0] is None else window[0] - 1, window[1])
    return reference.attention_packed_backward(q, k, v, out, lse, dout, cu_q, cu_k, causal=causal, window=window)


# operation, convention, what is declared: who does so.
FOLLOWED: dict[tuple[str, str, str], Any] = {
    ("attention_packed", "head_map", "interleaved"): reads_interleaved,
    ("attention_packed", "empty_rows", "nan"): blind_rows_are_nan,
    ("attention_packed", "empty_rows", "mean_v"): blind_rows_are_means,
    ("attention_packed", "empty_lse", "any"): blind_rows_have_an_lse,
    ("attention_packed", "window_counts_current", "yes"): counts_the_current_key,
    ("attention_packed_backward", "head_map", "interleaved"): backward_reads_interleaved,
    ("attention_packed_backward", "empty_rows", "nan"): backward_of_nan,
    ("attention_packed_backward", "empty_rows", "mean_v"): backward_of_nan,     # what such rows give is left open
    ("attention_packed_backward", "window_counts_current", "yes"): backward_counts_the_current_key,
}


@pytest.mark.parametrize(("operation", "convention", "value"), FOLLOWED, ids=str)
def test_a_convention_is_honoured_where_it_is_declared_and_nowhere_else(operation: str, convention: str, value: str) -> None:
    function = FOLLOWED[operation, convention, value]
    agreeing = tuple(law.name for law in operation_named(operation).laws if law.name.endswith("agrees_with_the_oracle"))
    declared = subject(operation, arithmetic=EXACT, conventions={convention: value})(function)
    report = check(operation, declared, budget="0", laws=agreeing)
    assert report.held, [(v.law, v.reason) for v in report.verdicts if v.status == "failed"]
    assert not check(operation, subject(operation, arithmetic=EXACT)(function), budget="0", laws=agreeing).held


@pytest.mark.parametrize("operation", ["attention_packed", "attention_packed_backward"])
def test_every_convention_that_is_listed_is_followed_by_one(operation: str) -> None:
    listed = {(operation, name, value) for name, c in CONVENTIONS.items() if operation in c.operations for value in c.values[1:]}
    of_the_cases = {(operation, "nonfinite_behind_mask", value) for value in ("ignored", "spread")}             # see Run.finished
    assert listed - of_the_cases == {key for key in FOLLOWED if key[0] == operation}
