"""The zoo of experts: every report has a mutant that dies by a law, no legal variant is accused, and the textbook is right."""

from __future__ import annotations

import pytest

from oracles.properties import check
from oracles.properties.zoo import experts, keeper, variants_experts
from oracles.properties.zoo.specimen import Specimen, specimens_in

IDS = (
    "aux-loss-fraction-sums-to-k", "aux-loss-counts-padding", "gate-weights-not-applied",
    "capacity-position-offset-lost-after-second-choice", "topk-1-renormalised-router-gets-no-gradient", "renormalise-flag-not-forwarded",
    "routing-bias-leaks-in-weights", "aux-loss-no-gradient", "expert-grad-too-large-by-ep", "topk-1-weight-normalised-over-tokens",
)  # fmt: skip
# Further faults of one of those reports.
FURTHER = ("aux-loss-coefficient-as-a-switch", "aux-loss-times-token-count")
MUTANTS, VARIANTS = specimens_in(experts), specimens_in(variants_experts)
OPERATIONS = ("route", "balance_loss", "balance_loss_backward", "moe_layer", "expert_parallel_backward")
TEXTBOOKS = [s for s in VARIANTS if s.id.endswith("textbook")]


def test_every_report_of_the_family_has_a_mutant() -> None:
    assert sorted(s.id for s in MUTANTS) == sorted((*IDS, *FURTHER))
    assert {s.family for s in (*MUTANTS, *VARIANTS)} == {"expert-parallel"}


def test_there_are_legal_variants_of_every_operation() -> None:
    assert len(VARIANTS) >= 6
    assert {s.operation for s in VARIANTS} == {s.operation for s in MUTANTS} == set(OPERATIONS)


@pytest.mark.parametrize("specimen", VARIANTS, ids=[s.id for s in VARIANTS])
def test_no_law_accuses_it(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="quick")
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


@pytest.mark.parametrize("specimen", TEXTBOOKS, ids=[s.operation for s in TEXTBOOKS])
def test_the_textbook_takes_every_argument_and_keeps_every_law(specimen: Specimen) -> None:
    report = check(specimen.operation, specimen.function, budget="quick")
    assert report.held
    assert not any(line.startswith("argument") for line in report.not_covered)


def test_every_operation_has_a_textbook() -> None:
    assert {s.operation for s in TEXTBOOKS} == set(OPERATIONS)
