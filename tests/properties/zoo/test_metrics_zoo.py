"""The zoo of memory estimates and metrics: every report has a mutant that dies by a law, and no legal form is accused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties.checker import check
from oracles.properties.declaration import subject
from oracles.properties.zoo import keeper, metrics, textbook_costs
from oracles.properties.zoo.specimen import Specimen

IDS = (
    "kv-head-count-read-as-group-size", "kv-bytes-use-query-heads", "sliding-window-layers-charged-full-length",
    "kv-head-dim-from-hidden-over-heads", "zero2-estimate-shards-the-weights", "embedding-lookup-counted-as-matmul",
    "attention-flops-not-halved-for-causal", "latent-flops-use-one-head-size", "train-accuracy-against-unshifted-labels",
)  # fmt: skip
ALL = keeper.inhabitants(("metrics",))
MUTANTS = [s for s in ALL if s.kind == "mutant"]
VARIANTS = [s for s in ALL if s.kind == "variant"]


def test_every_report_has_one_mutant() -> None:
    assert sorted(s.id for s in MUTANTS) == sorted(IDS)


def test_every_operation_of_costs_has_legal_forms() -> None:
    assert len(VARIANTS) >= 5
    assert {s.operation for s in VARIANTS} == {"kv_bytes", "training_bytes", "model_flops", "token_accuracy"}


@pytest.mark.parametrize("specimen", VARIANTS, ids=[s.id for s in VARIANTS])
def test_no_legal_form_is_accused(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="quick")
    assert (fate.status, fate.reason) == ("lives", "")


# Figures of the reports: what the mutant says of the trigger, and what is right.
FIGURES: dict[str, tuple[Any, Any]] = {
    "kv-bytes-use-query-heads": (524_288, 131_072), "kv-head-count-read-as-group-size": (2 * 32 * 3 * 128 * 2, 2 * 32 * 8 * 128 * 2),
    "zero2-estimate-shards-the-weights": (6 * 10**9, 3_750_000_000),
    "sliding-window-layers-charged-full-length": (24 * 32768 * 4096, (12 * 32768 + 12 * 128) * 4096),
}  # fmt: skip


@pytest.mark.parametrize("id", FIGURES)
def test_a_mutant_says_what_the_report_says(id: str) -> None:
    specimen = next(s for s in MUTANTS if s.id == id)
    arguments = specimen.trigger() if specimen.trigger else {}
    assert (int(specimen.function(**arguments)[0]), int(getattr(textbook_costs, specimen.operation)(**arguments)[0])) == FIGURES[id]


def test_a_perfect_predictor_scores_nothing_against_labels_that_are_not_shifted() -> None:
    specimen = next(s for s in MUTANTS if s.operation == "token_accuracy")
    arguments = specimen.trigger() if specimen.trigger else {}
    assert [int(n) for n in metrics.labels_unshifted(**arguments)] == [0, 3]
    assert [int(n) for n in textbook_costs.token_accuracy(**arguments)] == [3, 3]


# The textbook -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["kv_bytes", "training_bytes", "model_flops", "token_accuracy"])
def test_the_textbook_keeps_every_law(operation: str) -> None:
    function = getattr(textbook_costs, operation)
    report = check(operation, subject(operation, promises=["deterministic"])(function), budget="quick")
    assert report.held
    assert not any(line.startswith("argument") for line in report.not_covered)


def test_the_textbook_shares_nothing_with_the_oracles() -> None:
    assert not any(str(getattr(value, "__module__", "")).startswith("oracles.reference") for value in vars(textbook_costs).values())
    assert textbook_costs.kv_bytes(np.array([0]), config=metrics.LLAMA).tolist() == [0]
