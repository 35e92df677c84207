"""A limit on cases: evenly out of all there are, and said in the report."""

from __future__ import annotations

import pytest

from oracles.properties import check
from oracles.reference import flash_attention


@pytest.mark.parametrize("most", [1, 7, 100000])
def test_so_many_cases_are_put_and_the_rest_is_named(most: int) -> None:
    everything = check("attention", flash_attention, budget="quick", laws=("answers",)).designed
    report = check("attention", flash_attention, budget="quick", laws=("answers",), max_cases=most)
    assert report.held
    assert report.designed == report.verdicts[0].cases == min(most, everything)
    assert (f"{everything - most} of {everything} cases: max_cases is {most}" in report.not_covered) == (most < everything)


def test_what_is_put_lies_evenly_over_designed_and_random_cases() -> None:
    report = check("attention", flash_attention, budget=20, laws=("answers",), max_cases=15)
    assert report.designed + report.random == 15
    assert report.random >= 1
