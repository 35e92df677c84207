"""Which keys were weighed wrongly is measured, whatever the values of the case are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties.attention import ATTENTION
from oracles.properties.case import Case
from oracles.properties.subjects import open_subject
from oracles.properties.trial import Trial
from oracles.tools.key_weights import key_weight_errors


def case(Dv: int = 8, *, Hq: int = 2, Hkv: int = 1, Lk: int = 40, **options: Any) -> Case:
    r = np.random.default_rng(3)
    arrays = {"q": r.normal(size=(1, Hq, 3, 8)), "k": r.normal(size=(1, Hkv, Lk, 8)), "v": 1 + r.normal(size=(1, Hkv, Lk, Dv))}
    return Case("attention", arrays, {"causal": None, **options})


def hint(change: Any, case: Case) -> str:
    """What is said of a kernel that changes the weights p `(B, Hq, Lq, Lk)`."""
    def kernel(q: Any, k: Any, v: Any, *, causal: Any) -> Any:
        s = reference.attention_scores(q, k, causal=causal)
        visible = reference.visible_keys(*q.shape[:3], k.shape[2], causal=causal)
        p, _ = reference.softmax_over_visible(s, visible, None)
        return change(p.copy()) @ np.repeat(v, q.shape[1] // k.shape[1], axis=1)

    return key_weight_errors(Trial(ATTENTION, open_subject(kernel, "attention"), case))


def times(first: int, last: int, factor: float) -> Any:
    def change(p: Any) -> Any:
        p[..., first : last + 1] *= factor
        return p

    return change


@pytest.mark.parametrize("Dv", [1, 3, 8, 64])
def test_a_run_of_keys_is_named_with_its_factor(Dv: int) -> None:
    assert hint(times(16, 31, 1.5), case(Dv)).endswith("largest errors of weight first: keys 16 to 31: 1.5 of the right weight")


def test_a_single_key_is_named_as_one() -> None:
    assert hint(times(39, 39, 0.25), case()).endswith("first: key 39: 0.25 of the right weight")


def test_keys_too_heavy_and_too_light_are_told_apart() -> None:
    told = hint(lambda p: times(20, 29, 1.25)(times(10, 19, 0.5)(p)), case())
    assert "keys 10 to 19: 0.5 of the right weight" in told
    assert "keys 20 to 29: 1.25 of the right weight" in told


def test_a_key_that_may_not_be_seen_has_no_weight_due() -> None:
    def leak(p: Any) -> Any:
        p[:, :, 0, -1] = 0.125
        return p

    assert hint(leak, case(causal="bottom_right")).endswith("largest errors of weight first: key 39: weight 0.125 where none is due")


def test_a_row_that_reads_another_head_has_no_weight_in_its_own() -> None:
    def kernel(q: Any, k: Any, v: Any, *, causal: Any) -> Any:
        return reference.attention(q, k, v[:, ::-1], causal=causal)[0]

    told = key_weight_errors(Trial(ATTENTION, open_subject(kernel, "attention"), case(Hq=2, Hkv=2)))
    assert "keys 0 to 39: 0 of the right weight" in told


def test_right_weights_and_a_wrong_output_are_told() -> None:
    def kernel(q: Any, k: Any, v: Any, *, causal: Any) -> Any:
        return reference.attention(q, k, np.minimum(v, 1.0), causal=causal)[0]

    assert key_weight_errors(Trial(ATTENTION, open_subject(kernel, "attention"), case())).endswith(
        "weighs every key rightly: the error comes from the values or after them")


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    assert hint(lambda p: p, case()) == ""


def test_nothing_is_said_where_it_would_take_too_many_calls() -> None:
    assert hint(times(0, 9, 2.0), case(1, Lk=400)) == ""
