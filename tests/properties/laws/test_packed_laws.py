"""The laws of packed attention: the refusal of offsets that do not fit, and calls that are compared bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from oracles import reference
from oracles.properties import Arithmetic, check, subject
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
