"""The checker: what stops a run, what is never held, and that a seed gives the same report again."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import UsageError, check, checker, shrinking, subject
from oracles.properties.law import NOTHING, Judgement, law
from oracles.properties.report import Report, Verdict
from oracles.properties.softmax import SOFTMAX
from oracles.properties.trial import Trial

BROKEN = Path(__file__).with_name("broken_subjects.py")


def softmax(x: Any, *, axis: int = -1) -> Any:
    return reference.softmax(x, axis=axis).astype(x.dtype)


def twice_the_softmax(x: Any, *, axis: int = -1) -> Any:
    return 2 * softmax(x, axis=axis)


def verdict(report: Report, name: str) -> Verdict:
    return next(v for v in report.verdicts if v.law == name)


def test_the_oracle_in_the_input_format_holds() -> None:
    report = check("softmax", softmax, budget="quick")
    assert report.held, report.to_json()
    assert verdict(report, "p_agrees_with_the_oracle").compared > 10_000
    assert all(v.status in ("held", "not_covered") for v in report.verdicts)


def test_twice_the_oracle_does_not() -> None:
    report = check("softmax", twice_the_softmax, budget="quick", laws=("p_agrees_with_the_oracle",))
    assert not report.held
    assert report.verdicts[0].status == "failed"


@law()
def a_law_with_a_fault(trial: Trial) -> Judgement:
    """The checker's own fault."""
    raise KeyError("a key of ours")


@law()
def a_law_that_says_nothing(trial: Trial) -> Judgement:
    """It never speaks."""
    return NOTHING


@law()
def a_law_that_holds(trial: Trial) -> Judgement:
    """One element a case."""
    return Judgement(compared=1)


def test_a_law_whose_judge_raises_is_an_error_and_nothing_is_held() -> None:
    report = check(replace(SOFTMAX, laws=(a_law_with_a_fault, a_law_that_holds)), softmax, budget="quick")
    assert not report.held
    assert [v.status for v in report.verdicts] == ["error", "held"]
    assert "the checker itself failed on SoftmaxRecipe" in report.verdicts[0].reason
    assert "KeyError: 'a key of ours'" in report.verdicts[0].reason


def test_a_law_that_says_nothing_is_not_covered_and_alone_it_is_not_held() -> None:
    report = check(replace(SOFTMAX, laws=(a_law_that_says_nothing,)), softmax, budget="quick")
    assert [v.status for v in report.verdicts] == ["not_covered"]
    assert not report.held
    assert check(replace(SOFTMAX, laws=(a_law_that_says_nothing, a_law_that_holds)), softmax, budget="quick").held


def test_what_does_not_answer_twice_alike_is_told() -> None:
    report = check("attention", f"{BROKEN}:differs_every_time", budget="quick", in_process=True, declared={"dtypes": ["float32"]},
                   laws=("what_comes_later_changes_no_earlier_bit",))  # fmt: skip
    (found,) = report.verdicts
    assert (found.status, "does not give the same bits twice" in found.reason) == ("not_covered", True)
    assert not report.held
    report = check("attention", f"{BROKEN}:differs_every_time", budget="quick", in_process=True, laws=("repeats_give_the_same_bits",),
                   declared={"dtypes": ["float32"], "promises": ["deterministic"]})  # fmt: skip
    (found,) = report.verdicts
    assert (found.status, "a second run on the same input gave other bits" in found.reason) == ("failed", True)


def test_what_is_wrong_only_now_and_then_is_said_not_to_be_deterministic() -> None:
    report = check("attention", f"{BROKEN}:is_wrong_now_and_then", budget="quick", in_process=True, declared={"dtypes": ["float32"]},
                   laws=("out_agrees_with_the_oracle",))  # fmt: skip
    (found,) = report.verdicts
    assert found.status == "failed"
    assert "the same input did not fail again, so the subject is not deterministic" in found.reason


def test_max_seconds_stops_the_run_which_then_does_not_hold() -> None:
    def slow(x: Any, *, axis: int = -1) -> Any:
        time.sleep(0.05)
        return softmax(x, axis=axis)

    report = check("softmax", slow, budget="quick", max_seconds=0.2, laws=("p_agrees_with_the_oracle",))
    assert report.stopped.startswith("stopped after 0.2 s, ")
    assert not report.held
    assert verdict(report, "p_agrees_with_the_oracle").status == "held"         # of what was judged


def test_a_run_that_is_stopped_at_once_judges_nothing() -> None:
    report = check("softmax", softmax, budget="quick", max_seconds=0)
    assert not report.held
    assert {v.status for v in report.verdicts if v.compared == 0} <= {"error", "not_covered"}


LIMIT = "shrinking was stopped by its limit of time"


def wrong_in_long_rows(x: Any, *, axis: int = -1) -> Any:
    return softmax(x, axis=axis) * (2 if x.shape[axis] > 4 else 1)


def failing_cases() -> list[str]:
    failed = [v for v in check("softmax", wrong_in_long_rows, budget="quick").verdicts if v.status == "failed"]
    assert len(failed) > 1
    return [v.case for v in failed]


def test_shrinking_that_ends_by_itself_says_nothing_of_time() -> None:
    assert not any(LIMIT in case for case in failing_cases())


def test_shrinking_that_is_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "SHRINK_SECONDS", 0.0)
    assert LIMIT in failing_cases()[0]


def test_laws_share_their_time_and_one_for_which_none_is_left_shows_what_another_has_shrunk_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, shrinking.Deadline]] = []
    ends: list[Any] = []

    def only_the_first(recipe: Any, simpler: Any, fails: Any, *, until: shrinking.Deadline, reseed: int) -> tuple[Any, int]:
        asked.append((recipe, until))
        given = until if len(asked) == 1 else shrinking.Deadline.after(0.0)
        ends.append(shrinking.shrink(recipe, simpler, fails, until=given, reseed=reseed)[0])
        return ends[-1], 1

    monkeypatch.setattr(checker, "SHRINK_SECONDS", 60.0)
    monkeypatch.setattr(checker, "shrink", only_the_first)
    start = time.monotonic()
    failing_cases()
    assert all(until.moment <= start + 60.0 + time.monotonic() - start for _, until in asked)
    assert asked[0][0] != ends[0]
    assert any(recipe == ends[0] for recipe, _ in asked[1:])


def without_seconds(report: Report) -> dict[str, Any]:
    return {key: value for key, value in report.to_json().items() if key != "seconds"}


def test_the_same_seed_gives_the_same_report() -> None:
    first, second = (check("softmax", softmax, budget=30, seed=5) for _ in range(2))
    assert without_seconds(first) == without_seconds(second)


def seen_by(budget: int | str, seed: int) -> list[str]:
    shapes: list[str] = []

    def watching(x: Any, *, axis: int = -1) -> Any:
        shapes.append(f"{x.shape} {x.dtype} {axis} {x.tobytes()[:64]!r}")
        return softmax(x, axis=axis)

    check("softmax", watching, budget=budget, seed=seed, laws=("answers",))
    return shapes


def test_another_seed_draws_other_cases_after_the_same_designed_ones() -> None:
    designed, first, second = seen_by("quick", 0), seen_by(20, 1), seen_by(20, 2)
    assert first[: len(designed)] == second[: len(designed)] == designed
    assert len(first) == len(designed) + 20
    assert first[len(designed) :] != second[len(designed) :]
    assert first == seen_by(20, 1)


@pytest.mark.parametrize(("budget", "random"), [("quick", 0), ("default", 80), (0, 0), (7, 7), ("7", 7)])
def test_a_budget_is_a_name_or_a_number_of_random_cases(budget: int | str, random: int) -> None:
    report = check("softmax", softmax, budget=budget, laws=("answers",))
    assert (report.random, report.designed > 30) == (random, True)


@pytest.mark.parametrize("budget", ["enormous", -1, "-1", 1.5, True, ""])
def test_any_other_budget_is_bad_usage(budget: Any) -> None:
    with pytest.raises(UsageError, match=f"budget: got {budget!r}; want a number of random cases, or one of quick, default, full"):
        check("softmax", softmax, budget=budget)


def test_an_unknown_law_is_bad_usage_that_lists_the_laws() -> None:
    with pytest.raises(UsageError, match="laws: softmax has no is_fast; want some of answers, p_agrees_with_the_oracle"):
        check("softmax", softmax, laws=("answers", "is_fast"))


def test_an_unknown_operation_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="OPERATION: got 'sofmax'; want one of `oracles list`, such as softmax"):
        check("sofmax", softmax)


def test_progress_is_told_case_by_case() -> None:
    told: list[tuple[int, int]] = []
    report = check("softmax", softmax, budget="quick", laws=("answers",), progress=lambda done, total: told.append((done, total)))
    assert told == [(n + 1, report.designed) for n in range(report.designed)]


def test_no_folder_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check("softmax", twice_the_softmax, budget=3, laws=("p_agrees_with_the_oracle",))
    assert list(tmp_path.iterdir()) == []


def test_what_the_subject_does_not_take_is_listed_as_not_covered() -> None:
    @subject("attention", refuses=["grouped", "negative_scale"], head_dims=[8, 16])
    def narrow(q: Any, k: Any, v: Any, *, causal: Any = None) -> Any:
        assert q.shape[1] == k.shape[1]
        assert {q.shape[3], v.shape[3]} <= {8, 16}
        return reference.attention(q, k, v, causal=causal)[0].astype(q.dtype)

    report = check("attention", narrow, budget="quick", laws=("answers",))
    assert report.held
    lines = "\n".join(report.not_covered)
    for told in ("argument window: the subject does not take it", "fewer key/value heads than query heads: declared away",
                 "causal = top_left: not declared", "inputs in bfloat16: not declared", "head sizes other than 8, 16",
                 "a negative scale: declared away"):  # fmt: skip
        assert told in lines


def test_the_report_is_json_without_infinities() -> None:
    def nan(x: Any, *, axis: int = -1) -> Any:
        return np.full_like(x, np.nan)

    report = check("softmax", nan, budget="quick", laws=("answers", "p_agrees_with_the_oracle"))
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    (failed,) = (v for v in data["verdicts"] if v["status"] == "failed")
    assert (failed["worst_ratio"], failed["worst_ratio_infinite"]) == (None, True)
