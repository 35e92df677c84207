"""The zoo of pipeline and context parallelism: one mutant a report, no legal variant accused, textbooks that keep every law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties.zoo import (
    context_parallel,
    keeper,
    pipeline_parallel,
    textbook_pipeline,
    textbook_shards,
    variants_context,
    variants_pipeline,
)
from oracles.properties.zoo.specimen import Specimen, specimens_in

IDS = {
    "pipeline-parallel": (
        "recompute-draws-new-dropout-mask", "recompute-uses-other-process-group", "schedule-divides-already-normalised-loss",
        "pipeline-scale-applied-every-accumulation-step",
    ),
    "context-parallel": (
        "ring-partials-rounded-each-hop", "lse-not-corrected-after-key-centering", "all-to-all-norm-backward-before-gradient-arrives",
        "balanced-reorder-without-causal", "sparse-global-index-read-through-local-table", "ring-backward-reuses-local-kv",
        "cp-seqlens-by-integer-division",
    ),
}  # fmt: skip
MUTANTS = [s for module in (pipeline_parallel, context_parallel) for s in specimens_in(module)]
VARIANTS = [s for module in (variants_pipeline, variants_context) for s in specimens_in(module)]


@pytest.mark.parametrize("family", IDS)
def test_every_report_of_a_family_has_one_mutant(family: str) -> None:
    assert sorted(s.id for s in MUTANTS if s.family == family) == sorted(IDS[family])


def test_there_are_legal_variants_of_every_operation() -> None:
    assert len(VARIANTS) >= 24
    assert {s.kind for s in VARIANTS} == {"variant"}
    assert {s.operation for s in VARIANTS} >= {s.operation for s in MUTANTS} | {"schedule", "pipeline_loss"}


@pytest.mark.parametrize(("turn", "specimen"), list(enumerate(VARIANTS)), ids=[s.id for s in VARIANTS])
def test_no_law_accuses_it(turn: int, specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="default", turn=turn)
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


@pytest.mark.long
@pytest.mark.parametrize("specimen", VARIANTS, ids=[s.id for s in VARIANTS])
def test_no_law_accuses_it_on_any_case(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="quick")
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


# Every textbook function is a variant, which `test_no_law_accuses_it_on_any_case` holds to all laws.
TEXTBOOKS = {"ring-textbook", "ring-backward-textbook", "cache-textbook", "exchanged-norm-textbook", "schedules-textbook", "loss-textbook",
             "step-textbook"}  # fmt: skip


def test_every_textbook_function_is_a_variant() -> None:
    assert {s.id for s in VARIANTS} >= TEXTBOOKS
    assert len({s.operation for s in VARIANTS if s.id in TEXTBOOKS}) == len(TEXTBOOKS)


@pytest.mark.parametrize("textbook", [textbook_shards, textbook_pipeline])
def test_the_textbooks_share_nothing_with_the_oracles(textbook: Any) -> None:
    assert not any(str(getattr(value, "__module__", "")).startswith("oracles.reference") for value in vars(textbook).values())


# What single mutants claim of themselves ---------------------------------------------------------------------------------


def test_a_ring_that_reads_its_own_keys_backward_is_right_forward_and_on_one_rank() -> None:
    g = np.random.default_rng(0)
    shards = [[g.standard_normal((1, 1, 4, 2))] for _ in range(4)]
    mine = context_parallel.keys_of_the_first_step(*shards, causal="bottom_right")
    wanted = reference.ring_attention_backward(*shards, causal="bottom_right")
    assert all(np.abs(a[0] - b[0]).max() <= 2.0**-48 for a, b in zip(mine, wanted))


def test_halves_are_right_under_a_causal_mask() -> None:
    g = np.random.default_rng(0)
    shards = [[g.standard_normal((1, 1, 4, 2)) for _ in range(3)] for _ in range(3)]
    mine = context_parallel.halves_without_a_causal_mask(*shards, causal="bottom_right", order="zigzag")
    wanted = reference.ring_attention(*shards, causal="bottom_right", order="zigzag")
    assert max(np.abs(a - b).max() for a, b in zip(mine[0], wanted[0])) <= 2.0**-48


def test_lengths_that_divide_are_right_by_division() -> None:
    g = np.random.default_rng(0)
    shards = [[g.standard_normal((1, 1, 4, 2)) for _ in range(2)] for _ in range(3)]
    mine = context_parallel.lengths_divided(*shards, causal=None, order="zigzag", segments=np.zeros((1, 8), dtype=np.int64))
    wanted = reference.ring_attention(*shards, causal=None, order="zigzag")
    assert max(np.abs(a - b).max() for a, b in zip(mine[0], wanted[0])) <= 2.0**-48


def test_the_moving_average_of_torchtitans_report() -> None:
    """Two runs of two micro-batches, every new gradient 1: ((1 / 2) + 1) / 2 = 0.75 where 1 is right."""
    x = np.zeros((4, 1, 1))
    arguments = {"x": x + 1.0, "targets": x - 4.0, "lengths": np.ones(4, dtype=np.int64), "weights": [np.zeros((1, 1))],
                 "kind": "gpipe", "microbatch_size": 1, "accumulation": 2}  # fmt: skip
    right, wrong = reference.pipeline_step(**arguments)[2][0], pipeline_parallel.scaled_at_every_run(**arguments)[2][0]
    assert wrong.item() / right.item() == 0.75


def test_without_dropout_the_new_mask_is_no_fault() -> None:
    given = {name: value for name, value in pipeline_parallel._small().items() if "." not in name}
    weights = [value for name, value in pipeline_parallel._small().items() if "." in name]
    same = [textbook_pipeline.pipeline_step, pipeline_parallel.another_mask]
    assert len({b"".join(w.tobytes() for w in step(**given, weights=weights)[2]) for step in same}) == 1
