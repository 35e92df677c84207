"""Conventions: a subject that follows one holds when it declares it, and fails when it does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic, check, checker, subject
from oracles.properties.conventions import CONVENTIONS, declared
from oracles.properties.report import Report
from oracles.properties.signatures import SIGNATURES

LAWS = ("answers", "out_agrees_with_the_oracle", "lse_agrees_with_the_oracle", "rows_that_see_nothing_are_empty",
        "one_hot_values_show_the_weights", "heads_read_their_own_keys", "nan_behind_the_mask_is_ignored")  # fmt: skip


def oracle(q: Any, k: Any, v: Any, **options: Any) -> Any:
    out, lse = reference.attention(q, k, v, **options)
    return out.astype(q.dtype), lse.astype(q.dtype)


def sees_nothing(q: Any, k: Any, causal: Any, kv_lengths: Any) -> Any:
    return ~reference.visible_keys(*q.shape[:3], k.shape[2], causal=causal, kv_lengths=kv_lengths).any(axis=-1)


def gives_nan(q: Any, k: Any, v: Any, *, causal: Any, kv_lengths: Any = None) -> Any:
    out, lse = oracle(q, k, v, causal=causal, kv_lengths=kv_lengths)
    nothing = sees_nothing(q, k, causal, kv_lengths)[..., None] & bool(k.shape[2])   # an empty sum where there are no keys at all
    return np.where(nothing, np.float32(np.nan), out), lse


def gives_the_mean(q: Any, k: Any, v: Any, *, causal: Any) -> Any:
    out, lse = oracle(q, k, v, causal=causal)
    if not v.shape[2]:
        return out, lse
    mean = np.repeat(v.mean(axis=2, keepdims=True, dtype=np.float32), q.shape[1] // k.shape[1], axis=1)
    return np.where(sees_nothing(q, k, causal, None)[..., None], mean, out), lse


def leaves_the_log_sum_exp_at_a_number(q: Any, k: Any, v: Any, *, causal: Any, kv_lengths: Any = None) -> Any:
    out, lse = oracle(q, k, v, causal=causal, kv_lengths=kv_lengths)
    return out, np.where(np.isneginf(lse), np.float32(-1e9), lse)


def reads_heads_in_turn(q: Any, k: Any, v: Any, *, causal: Any, sinks: Any = None) -> Any:
    groups = (1, q.shape[1] // k.shape[1], 1, 1)
    return oracle(q, np.tile(k, groups), np.tile(v, groups), causal=causal, sinks=sinks)


def counts_the_current_key(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None) -> Any:
    if window is not None and window[0] is not None:
        window = (max(window[0] - 1, 0), window[1])
    return oracle(q, k, v, causal=causal, window=window)


def spreads_what_is_hidden(q: Any, k: Any, v: Any, *, causal: Any, kv_lengths: Any = None) -> Any:
    out, lse = oracle(q, k, v, causal=causal, kv_lengths=kv_lengths)
    hidden = np.repeat((v.astype(np.float64) * 0).sum(axis=2, keepdims=True), q.shape[1] // k.shape[1], axis=1)   # 0 x NaN is NaN
    return out + hidden.astype(q.dtype), lse


def caps_after_the_bias(q: Any, k: Any, v: Any, *, causal: Any, bias: Any = None, softcap: Any = None) -> Any:
    if bias is None or softcap is None:
        return oracle(q, k, v, causal=causal, bias=bias, softcap=softcap)
    s = reference.attention_scores(q, k, causal=causal, bias=bias)
    hidden = ~reference.visible_keys(*q.shape[:3], k.shape[2], causal=causal, bias=bias)
    p, lse = reference.softmax_over_visible(softcap * np.tanh(s / softcap), ~hidden, None)
    out = p @ np.nan_to_num(np.repeat(v.astype(np.float64), q.shape[1] // k.shape[1], axis=1))
    return out.astype(q.dtype), lse.astype(q.dtype)


def has_heads_behind_lengths(q: Any, k: Any, v: Any, *, causal: Any) -> Any:
    out, lse = oracle(*(np.swapaxes(x, 1, 2) for x in (q, k, v)), causal=causal)
    return np.ascontiguousarray(np.swapaxes(out, 1, 2)), lse


def starts_at_the_top_left(q: Any, k: Any, v: Any, *, causal: Any) -> Any:
    return oracle(q, k, v, causal=causal and "top_left")


def answers_in_float64(q: Any, k: Any, v: Any, *, causal: Any) -> Any:
    return reference.attention(q, k, v, causal=causal)


# the subject, what it has to declare, the first law it breaks when it does not
FOLLOWERS: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "empty_rows = nan": (gives_nan, {"conventions": {"empty_rows": "nan"}}, "out_agrees_with_the_oracle"),
    "empty_rows = mean_v": (gives_the_mean, {"conventions": {"empty_rows": "mean_v"}}, "out_agrees_with_the_oracle"),
    "empty_lse = any": (leaves_the_log_sum_exp_at_a_number, {"conventions": {"empty_lse": "any"}}, "lse_agrees_with_the_oracle"),
    "head_map = interleaved": (reads_heads_in_turn, {"conventions": {"head_map": "interleaved"}}, "out_agrees_with_the_oracle"),
    "window_counts_current = yes": (
        counts_the_current_key, {"conventions": {"window_counts_current": "yes"}}, "out_agrees_with_the_oracle"),
    "nonfinite_behind_mask = spread": (
        spreads_what_is_hidden, {"conventions": {"nonfinite_behind_mask": "spread"}}, "out_agrees_with_the_oracle"),
    "bias_before_softcap = yes": (caps_after_the_bias, {"conventions": {"bias_before_softcap": "yes"}}, "out_agrees_with_the_oracle"),
    "layout = blhd": (has_heads_behind_lengths, {"layout": "blhd"}, "answers"),
    "causal = top_left": (starts_at_the_top_left, {"causal": [None, "top_left"]}, "out_agrees_with_the_oracle"),
    "out = float64": (answers_in_float64, {"arithmetic": Arithmetic(out="float64", lse="float64")}, "answers"),
}  # fmt: skip
EVERY = pytest.mark.parametrize("convention", FOLLOWERS)


def run(function: Callable[..., Any], **options: Any) -> Report:
    def fresh(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    fresh.__signature__ = inspect.signature(function)             # type: ignore[attr-defined]
    return check("attention", subject("attention", dtypes=["float32"], head_dims=[8], **options)(fresh), budget="quick", laws=LAWS)


@EVERY
def test_declared_it_holds(convention: str) -> None:
    function, options, _ = FOLLOWERS[convention]
    report = run(function, **options)
    assert report.held, [v for v in report.verdicts if v.status in ("failed", "error")]


@EVERY
def test_undeclared_it_fails(convention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "SHRINK_SECONDS", 0.0)
    function, _, law = FOLLOWERS[convention]
    report = run(function)
    assert next((v.law for v in report.verdicts if v.status == "failed"), None) == law


# The others leave open what they speak of.
@pytest.mark.parametrize("convention", ["empty_rows = nan", "empty_rows = mean_v", "head_map = interleaved", "window_counts_current = yes",
                                        "layout = blhd", "out = float64"])  # fmt: skip
def test_the_oracle_itself_fails_where_it_declares_what_it_does_not_do(convention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "SHRINK_SECONDS", 0.0)
    _, options, _ = FOLLOWERS[convention]

    def plain(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, kv_lengths: Any = None) -> Any:
        return oracle(q, k, v, causal=causal, window=window, kv_lengths=kv_lengths)

    assert not run(plain, **options).held


def test_a_kernel_that_ignores_what_is_hidden_is_held_to_it_by_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "SHRINK_SECONDS", 0.0)
    ignored = {"conventions": {"nonfinite_behind_mask": "ignored"}}

    def ignores(q: Any, k: Any, v: Any, *, causal: Any, kv_lengths: Any = None) -> Any:
        return oracle(q, k, v, causal=causal, kv_lengths=kv_lengths)

    report = run(ignores, **ignored)
    assert report.held
    assert next(v.compared for v in report.verdicts if v.law == "nan_behind_the_mask_is_ignored") > 0
    report = run(spreads_what_is_hidden, **ignored)
    assert next(v.status for v in report.verdicts if v.law == "nan_behind_the_mask_is_ignored") == "failed"


def test_undeclared_means_the_oracles_own() -> None:
    assert declared({}, "attention") == {name: convention.values[0] for name, convention in CONVENTIONS.items()}
    assert declared({"head_map": "interleaved"}, "attention")["empty_rows"] == "zero"


def test_a_convention_of_other_operations_is_refused() -> None:
    with pytest.raises(ValueError, match="conventions: 'head_map' does not concern softmax; want some of empty_rows"):
        subject("softmax", conventions={"head_map": "interleaved"})(lambda x, *, axis=-1: x)
    with pytest.raises(ValueError, match="conventions: 'head_map' does not concern write_kv; want none"):
        declared({"head_map": "interleaved"}, "write_kv")


def test_every_convention_concerns_operations_that_there_are() -> None:
    for convention in CONVENTIONS.values():
        assert convention.operations
        assert set(convention.operations) <= set(SIGNATURES)
