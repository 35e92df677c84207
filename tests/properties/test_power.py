"""The power of a pass: what would have been seen is measured, and grows when the arithmetic is finer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic, check
from oracles.properties.power import describe
from oracles.reference import attention


def right(q: Any, k: Any, v: Any, *, causal: Any = None) -> Any:
    out, lse = attention(q, k, v, causal=causal)
    return out.astype(q.dtype), lse.astype(q.dtype)


@pytest.fixture(scope="module")
def power() -> Any:
    report = check("attention", right, budget="quick")
    assert report.held
    return report.power


def test_there_is_one_entry_a_format(power: Any) -> None:
    assert set(power) == {"float32", "float64"}


def test_a_finer_format_sees_smaller_faults(power: Any) -> None:
    assert power["float64"]["score_scale"] < power["float32"]["score_scale"] < 2.0**-10
    assert power["float64"]["relative_error"]["out"] < power["float32"]["relative_error"]["out"]


def test_the_smallest_scale_is_above_what_rounding_does(power: Any) -> None:
    assert power["float32"]["score_scale"] >= 2.0**-24
    assert power["float64"]["score_scale"] >= 2.0**-53


def test_a_dropped_key_shows_in_nearly_all_cases(power: Any) -> None:
    seen, tried = power["float32"]["dropped_key"]
    assert 0 < tried <= power["float32"]["cases"]
    assert seen >= tried - 1


@pytest.mark.parametrize("fault", ["wrong_row", "wrong_head"])
def test_misplaced_results_show(power: Any, fault: str) -> None:
    seen, tried = power["float32"][fault]
    assert tried > 0
    assert 2 * seen > tried


def test_a_coarser_arithmetic_sees_less() -> None:
    coarse = Arithmetic(probabilities="float8_e4m3fn", scores="bfloat16", elementwise="bfloat16", accumulate="bfloat16", lse="bfloat16")
    declared = {"arithmetic": coarse, "dtypes": ["bfloat16"], "name": "coarse"}
    from oracles.properties.declaration import subject

    def rough(q: Any, k: Any, v: Any, *, causal: Any = None) -> Any:
        out, lse = attention(q, k, v, causal=causal)
        return out.astype(q.dtype), lse.astype(q.dtype)

    report = check("attention", subject("attention", **declared)(rough), budget="quick")
    assert report.held
    assert report.power["bfloat16"]["score_scale"] > 2.0**-10


def test_a_failed_run_claims_no_power() -> None:
    report = check("attention", lambda q, k, v, *, causal=None: np.zeros(q.shape[:3] + v.shape[-1:], q.dtype), budget=0)
    assert not report.held
    assert report.power == {}


def test_the_lines_say_each_fault_once(power: Any) -> None:
    lines = describe(power)
    assert len(lines) == 2
    for words in ("all scores times", "a dropped key", "a row in place of its neighbour", "a head in place of another", "out off by"):
        assert lines[0].count(words) == 1


def test_other_operations_say_what_their_elements_would_show() -> None:
    report = check("softmax", lambda x, *, axis=-1: _softmax(x, axis), budget="quick")
    assert report.held
    assert set(report.power["float32"]) == {"cases", "relative_error"}


def _softmax(x: Any, axis: int) -> Any:
    from oracles.reference import softmax

    return softmax(x, axis=axis).astype(x.dtype)


def test_exact_results_show_any_change() -> None:
    found = check("write_kv", "oracles.reference:write_kv", budget="quick", laws=("k_cache_agrees_with_the_oracle",), in_process=True).power
    assert found["float64"]["relative_error"] == {"k_cache": 0.0}
    assert "in float64 it would have seen: any change of k_cache" in describe(found)
