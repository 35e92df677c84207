"""A report on the terminal: every verdict and every gap in plain words, nothing swallowed as markup."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console

from oracles.properties.report import ERROR, FAILED, HELD, NOT_COVERED, Report, Verdict
from oracles.tools.rendering import ratio, report_view


def printed(*verdicts: Verdict, **fields: Any) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    report = Report("attention", "my_file.py:attention", {}, {}, fields.pop("seed", 3), 1.25, verdicts, **{"not_covered": (), **fields})
    console.print(report_view(report))
    return console.export_text()


HOLDS = Verdict("a_law_that_holds", HELD, "", 12, 34567, 0, 0.25, "out[0,1,2,3]")


def test_a_law_that_holds_is_one_line_with_its_numbers() -> None:
    (line,) = (line for line in printed(HOLDS).splitlines() if "a_law_that_holds" in line)
    assert line.split() == ["a_law_that_holds", "held", "12", "34,567", "0.25", "out[0,1,2,3]"]


def test_what_holds_says_what_it_saw() -> None:
    assert "holds  5 designed and 7 random cases, 34,567 elements compared, 1.2 s, seed 3" in printed(HOLDS, designed=5, random=7)


@pytest.mark.parametrize(("status", "counted"), [(FAILED, "does not hold: 1 law broken"), (ERROR, "does not hold: 1 could not be judged")])
def test_what_fails_is_told_with_reason_case_and_folder(status: str, counted: str) -> None:
    text = printed(HOLDS, Verdict("a_broken_law", status, "out[0] is [bold]1[/bold]", 1, 2, counterexample="failures/x", case="q 1x1"))
    for words in ("a_broken_law: out[0] is [bold]1[/bold]", "on q 1x1", "again: python failures/x/repro.py, or oracles replay failures/x",
                  counted):  # fmt: skip
        assert words in text


def test_what_is_not_covered_is_listed_and_not_among_what_was_judged() -> None:
    unbound = Verdict("a_law_that_does_not_bind", NOT_COVERED, "the subject takes no scale")
    text = printed(HOLDS, unbound, not_covered=("causal = top_left",))
    assert "a_law_that_does_not_bind: the subject takes no scale" in text
    assert "causal = top_left" in text
    assert text.index("not covered") < text.index("a_law_that_does_not_bind")


def test_a_stopped_run_says_so() -> None:
    text = printed(HOLDS, stopped="stopped after 2 s, 3 of 9 cases")
    assert "stopped after 2 s, 3 of 9 cases" in text
    assert "does not hold  " in text


def test_nothing_judged_does_not_hold() -> None:
    assert "does not hold" in printed(Verdict("a_law", NOT_COVERED, "refused"))


def test_elements_without_a_promise_are_counted() -> None:
    text = printed(Verdict("out_agrees_with_the_oracle", HELD, "", 1, 10, 4, 0.5, "out[0]"))
    assert "4 left out where the declared arithmetic leaves the answer open" in text


def test_a_ratio_without_a_bound_is_said_in_words() -> None:
    assert (ratio(0.123456), ratio(math.inf)) == ("0.123", "no error allowed")
