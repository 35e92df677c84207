"""The zoo of training: every report of a family has a mutant that dies by a law, and no legal variant is accused."""

from __future__ import annotations

import pytest

from oracles.properties.zoo import (
    distillation,
    keeper,
    loss,
    loss_scaling,
    master_weights,
    mixed_precision,
    optimizer,
    variants_loss_scaling,
    variants_losses,
    variants_master_weights,
    variants_mixed_precision,
    variants_optimizers,
)
from oracles.properties.zoo.specimen import Specimen, specimens_in

IDS = {
    "loss": (
        "vocab-parallel-label-smoothing-local-mean", "ignore-index-used-as-class-index", "gathered-logits-treated-as-shard",
        "loss-mask-off-by-one-first-answer-token", "unshifted-targets", "packed-label-shift-crosses-documents",
    ),
    "distillation": (
        "kd-mixture-weights-swapped", "kd-kl-averaged-over-classes", "kd-log-of-log-or-missing-log", "kd-teacher-compared-with-itself",
        "kd-logarithm-of-a-vanished-mixture", "kd-gradient-without-t-squared", "kd-gradient-averaged-over-classes",
        "kd-teacher-not-detached",
    ),
    "optimizer": ("epsilon-scaled-by-bias-correction", "adam-l2-vs-decoupled-swapped", "decay-applied-to-updated-parameter"),
    "mixed-precision": ("update-lost-in-bf16", "master-rebuilt-from-rounded-weights", "scheduler-advances-on-skipped-step",
                        "update-skipped-when-user-skips-step", "step-before-cast-of-accumulated-grad",
                        "loaded-weights-overwritten-by-stale-master"),
}  # fmt: skip
MUTANTS = [s for module in (loss, distillation, optimizer, mixed_precision, loss_scaling, master_weights) for s in specimens_in(module)]
VARIANTS = [s for module in (variants_losses, variants_optimizers, variants_mixed_precision, variants_loss_scaling,
                               variants_master_weights)
            for s in specimens_in(module)]  # fmt: skip


@pytest.mark.parametrize("family", IDS)
def test_every_report_of_a_family_has_one_mutant(family: str) -> None:
    assert sorted(s.id for s in MUTANTS if s.family == family) == sorted(IDS[family])


def test_there_are_legal_variants_of_every_operation() -> None:
    assert len(VARIANTS) >= 20
    assert {s.kind for s in VARIANTS} == {"variant"}
    assert {s.operation for s in VARIANTS} == {s.operation for s in MUTANTS} | {"cross_entropy_backward", "clip_grad_norm"}


@pytest.mark.parametrize("specimen", VARIANTS, ids=[s.id for s in VARIANTS])
def test_no_law_accuses_it(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="quick")
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")
