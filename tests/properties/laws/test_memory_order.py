"""Two calls that are compared bit by bit have their arrays in one memory order: in another a library may choose another kernel."""

from __future__ import annotations

from typing import Any

import pytest

from oracles import reference
from oracles.properties.cases.attention import AttentionRecipe, build
from oracles.properties.declaration import declaration_of, subject
from oracles.properties.law import Law
from oracles.properties.laws.attention import what_comes_later_changes_no_earlier_bit
from oracles.properties.laws.attention_probes import four_times_q_and_a_quarter_of_the_scale_change_no_bit
from oracles.properties.operations import operation_named
from oracles.properties.strides import in_elements
from oracles.properties.subjects import InProcess
from oracles.properties.trial import Trial

SHAPES = ({"Hkv": 2, "Lq": 3, "Lk": 3, "D": 1, "Dv": 1}, {"B": 2, "Hkv": 3, "Lq": 5, "Lk": 5, "D": 4, "Dv": 4})


@pytest.mark.parametrize("law", [what_comes_later_changes_no_earlier_bit, four_times_q_and_a_quarter_of_the_scale_change_no_bit],
                         ids=lambda law: law.name)  # fmt: skip
@pytest.mark.parametrize("shape", SHAPES, ids=["a head size of 1", "several of everything"])
def test_both_calls_have_the_same_memory_order(law: Law, shape: dict[str, int]) -> None:
    orders = []

    @subject("attention")
    def remembers(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> Any:
        orders.append([in_elements(x) for x in (q, k, v)])
        out, lse = reference.attention(q, k, v, causal=causal, scale=scale)
        return out.astype(q.dtype), lse.astype(q.dtype)

    case = law.prepare(build(AttentionRecipe(causal="bottom_right", regime="integer_grid", strides="transposed", seed=1, **shape)))
    assert case is not None
    assert law.judge(Trial(operation_named("attention"), InProcess(remembers, declaration_of(remembers, "attention")), case)).compared > 0
    first, *others = orders
    assert others
    assert all(order == first for order in others)
