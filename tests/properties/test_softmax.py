"""Rows of nothing but -inf: a subject that answers them otherwise holds when it declares so, and fails when it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic, check, checker, subject
from oracles.properties.report import Report


@pytest.fixture(autouse=True)
def without_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "SHRINK_SECONDS", 0.0)


def empty(x: Any, axis: int) -> Any:
    return np.isneginf(x).all(axis=axis, keepdims=True)


def gives_zeros(x: Any, *, axis: int = -1) -> Any:
    return reference.softmax(x, axis=axis).astype(x.dtype)


def gives_nan(x: Any, *, axis: int = -1) -> Any:
    return np.where(empty(x, axis), x.dtype.type(np.nan), gives_zeros(x, axis=axis))


def gives_equal_shares(x: Any, *, axis: int = -1) -> Any:
    return gives_zeros(np.maximum(x, np.finfo(x.dtype).min), axis=axis)


def gives_minus_infinity(x: Any, *, axis: int = -1) -> Any:
    return reference.log_sum_exp(x, axis=axis).astype(x.dtype)


def gives_the_lowest_number(x: Any, *, axis: int = -1) -> Any:
    return np.maximum(gives_minus_infinity(x, axis=axis), np.finfo(x.dtype).min)


def run(operation: str, function: Any, **conventions: str) -> Report:
    def fresh(x: Any, *, axis: int = -1) -> Any:
        return function(x, axis=axis)

    return check(operation, subject(operation, conventions=conventions)(fresh), budget="quick")


ANSWERS = {"zero": gives_zeros, "nan": gives_nan, "mean_v": gives_equal_shares}


@pytest.mark.parametrize("declared", ANSWERS)
@pytest.mark.parametrize("given", ANSWERS)
def test_an_empty_row_of_softmax_is_what_was_declared(given: str, declared: str) -> None:
    report = run("softmax", ANSWERS[given], empty_rows=declared)
    failed = {verdict.law for verdict in report.verdicts if verdict.status == "failed"}
    if given == declared:
        assert report.held
    else:
        assert {"p_agrees_with_the_oracle", "nothing_but_minus_infinity_is_empty"} <= failed


@pytest.mark.parametrize(("function", "declared", "held"), [
    (gives_minus_infinity, "minus_infinity", True), (gives_minus_infinity, "any", True),
    (gives_the_lowest_number, "minus_infinity", False), (gives_the_lowest_number, "any", True),
])  # fmt: skip
def test_the_log_sum_exp_of_an_empty_row_is_minus_infinity_or_left_open(function: Any, declared: str, held: bool) -> None:
    assert run("log_sum_exp", function, empty_lse=declared).held == held


def test_an_open_log_sum_exp_leaves_only_empty_rows_open() -> None:
    def slightly_off(x: Any, *, axis: int = -1) -> Any:
        return gives_minus_infinity(x, axis=axis) * x.dtype.type(1.001)

    assert not run("log_sum_exp", slightly_off, empty_lse="any").held


def exp_of_log_softmax(x: Any) -> Any:
    """e^(x - lse), as `log_softmax(x).exp()`: ln 2^n is rounded."""
    top = x.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        lse = top + np.log(np.exp(x - top).sum(axis=-1, keepdims=True))
        return np.where(np.isneginf(top), x.dtype.type(0), np.exp(x - lse))


@pytest.mark.parametrize(("declared", "status"), [({}, "failed"), ({"arithmetic": Arithmetic(merges_lse=True)}, "not_covered")])
def test_a_softmax_that_is_the_exp_of_its_logarithm_is_declared(declared: dict[str, Any], status: str) -> None:
    declaration = {"dtypes": ["float32", "float64"], **declared}
    report = check("softmax", subject("softmax", **declaration)(exp_of_log_softmax), budget="quick", in_process=True)
    found = {verdict.law: verdict.status for verdict in report.verdicts}
    assert found["equal_entries_share_exactly"] == status
    assert found["p_agrees_with_the_oracle"] == found["one_finite_entry_takes_all"] == "held"
