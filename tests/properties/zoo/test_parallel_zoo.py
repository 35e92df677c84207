"""The zoo of data, ZeRO and tensor parallelism: every report has a mutant that dies by a law, and no legal variant is accused."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from oracles.properties import subject
from oracles.properties.checker import check
from oracles.properties.declaration import declaration_of
from oracles.properties.operations import operation_named
from oracles.properties.stateful.operations import stateful_named
from oracles.properties.zoo import (
    data_parallel,
    keeper,
    tensor_parallel,
    textbook_ranks,
    textbook_zero,
    variants_ranks,
    variants_zero,
    zero,
)
from oracles.properties.zoo.specimen import Specimen, specimens_in

# The reports of each family; behind the hyphen of some, a second form of the same report.
IDS = {
    "data-parallel": (
        "sync-on-first-instead-of-last-microbatch", "token-mean-not-weighted-across-ranks", "token-mean-of-each-rank",
        "accumulate-mean-of-means", "two-shot-allgather-wrong-offset", "two-shot-tail-left-out",
    ),
    "tensor-parallel": (
        "tp-target-logprob-gather-without-backward", "sequence-parallel-norm-grad-not-reduced", "sequence-parallel-norm-grad-averaged",
        "replicated-norm-partial-grad-only-synced-under-sp", "fused-qkv-split-contiguously", "vocab-floor-division-loses-tail",
        "replicated-weight-in-norm-tp-times",
    ),
    "zero": (
        "sharded-norm-not-reduced", "padding-not-stripped-on-consolidation", "last-microbatch-skips-reduction", "double-buffer-index-reset",
        "partial-reduction-before-cross-stage-sum", "padding-offset-from-placeholder-size",
    ),
}  # fmt: skip
MUTANTS = [s for module in (data_parallel, tensor_parallel, zero) for s in specimens_in(module)]
VARIANTS = [s for module in (variants_ranks, variants_zero) for s in specimens_in(module)]
each_variant = pytest.mark.parametrize("specimen", VARIANTS, ids=[s.id for s in VARIANTS])
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "bucketed_all_reduce", "accumulate_gradients", "tied_gradients", "flat_layout",
              "column_parallel", "row_parallel", "shard_qkv", "vocab_parallel_embedding", "vocab_parallel_cross_entropy_backward",
              "norm_backward_sharded", "clip_grad_norm_sharded")  # fmt: skip


@pytest.mark.parametrize("family", IDS)
def test_every_report_of_a_family_has_its_mutants(family: str) -> None:
    assert sorted(s.id for s in MUTANTS if s.family == family) == sorted(IDS[family])


def test_there_are_legal_variants_of_every_operation() -> None:
    assert {s.operation for s in VARIANTS} == {*OPERATIONS, "zero"}
    assert min(sum(s.family == family for s in VARIANTS) for family in IDS) >= 10


@each_variant
def test_no_law_accuses_it(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="quick")
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_textbook_agrees_with_the_oracle(operation: str) -> None:
    function = getattr(textbook_ranks, operation)

    @functools.wraps(function)
    def textbook(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    declared = subject(operation, promises=["deterministic"])(textbook)
    report = check(operation, declared, budget="quick")
    assert report.held
    assert {verdict.status for verdict in report.verdicts} == {"held"}
    assert declaration_of(declared, operation).coverage.arguments >= set(operation_named(operation).signature.optional)


@pytest.mark.parametrize("textbook", [textbook_ranks, textbook_zero])
def test_the_textbook_shares_nothing_with_the_oracles(textbook: Any) -> None:
    assert not any(str(getattr(value, "__module__", "")).startswith("oracles.reference") for value in vars(textbook).values())


def test_the_published_triggers_give_the_published_numbers() -> None:
    """7 and 9.5 where every copy should have 7.5; sqrt(73) where the norm is 5; 2.5 where the mean is 3.25."""
    tied = zero.scattered_before_the_copies_are_added(np.array([[[1.0], [2.0]], [[4.0], [8.0]]]))
    assert sorted({float(x) for x in tied.ravel()}) == [7.0, 9.5]
    _, norm = tensor_parallel.copies_counted_once_a_rank([np.full((4, 1), 1.5), np.full((4, 1), 4.0)], [1, 0], max_norm=5.0)
    assert float(norm) == float(np.sqrt(73.0))
    assert data_parallel.mean_of_means(np.array([[[1.0], [12.0]]]), np.array([[1, 3]])).tolist() == [[2.5]]


def test_the_object_of_the_family_is_the_stateful_operation() -> None:
    assert {s.operation for s in MUTANTS if s.family == "zero"} >= {stateful_named("zero").name}
