"""The zoo of decoding: its reports have mutants that die by a law, and its legal variants are accused by none."""

from __future__ import annotations

import pytest

from oracles.properties.zoo import keeper
from oracles.properties.zoo.specimen import Specimen

IDS = {
    "sampling": (
        "top-p-one-picks-argmax", "penalty-history-prompt-output-mixed", "top-p-after-unnormalised-top-k",
        "sampler-out-of-range-id-for-onehot", "top-p-ascending-cumsum", "renorm-mutates-input-used-by-min-p",
        "top-p-renorm-misses-boundary-token", "penalties-misaligned-by-request-order", "seeded-noise-indexed-by-rank",
        "top-p-drops-crossing-token", "seed-ignored-when-a-neighbour-has-none", "float32-exponential-noise-truncates-tail",
        "nucleus-last-included-index-first-slice", "graph-replay-draws-the-same-numbers",
    ),
    "speculative": (
        "bonus-after-all-accepted-from-residual", "equality-acceptance-at-nonzero-temperature", "nan-draft-row-re-emits-rejected-token",
        "block-verification-by-the-rule-of-tokens",
        "proposal-q-not-the-sampled-one", "residual-mutates-target-in-place", "acceptance-inclusive-at-zero",
        "tree-node-position-is-flat-index", "bonus-token-kv-missing-when-k-above-1",
    ),
    "mtp": (
        "mtp-roll-ignores-pack-boundary", "mtp-loss-summed-not-averaged", "mtp-labels-shifted-twice",
        "mtp-chained-depths-reuse-stale-hidden", "mtp-rollback-uses-wrong-logit-row", "mtp-logits-processor-misses-last-token",
    ),
}  # fmt: skip
ALL = keeper.inhabitants(tuple(IDS))
MUTANTS = [s for s in ALL if s.kind == "mutant"]
VARIANTS = [s for s in ALL if s.kind == "variant"]
SAMPLE = ("filter-ascending-sort", "filter-threshold-keeps-ties", "penalties-token-by-token", "sample-by-alias-tables", "sample-gumbel-max",
          "verify-by-quotient", "verify-block-textbook", "verify-block-by-logarithms", "verify-block-own-generator",
          "verify-other-end-of-the-uniforms", "verify-own-generator", "tree-positions-in-order", "mtp-rolled-labels",
          "loop-with-a-cache-by-prefix", "mtp-loop-other-order-of-the-uniforms")
# The textbook of each operation, which mutants are made of.
TEXTBOOKS = {"filter_probabilities": "filter-textbook", "apply_penalties": "penalties-textbook", "sample": "sample-textbook",
             "speculative_verify": "verify-textbook", "tree_positions": "tree-positions-walked", "speculative_loop": "loop-textbook",
             "mtp_loop": "mtp-loop-textbook", "mtp_loss": "mtp-textbook"}  # fmt: skip


@pytest.mark.parametrize("family", IDS)
def test_every_report_of_a_family_has_one_mutant(family: str) -> None:
    assert sorted(s.id for s in MUTANTS if s.family == family) == sorted(IDS[family])


def test_there_are_more_than_twenty_legal_variants_of_every_way_to_use_uniforms() -> None:
    assert len(VARIANTS) >= 20
    for operations in (("sample", "speculative_verify"), ("speculative_loop", "mtp_loop")):
        used = {s.declaration.conventions["uniforms"] for s in VARIANTS if s.operation in operations}
        assert used == {"contract", "other", "own"}


@pytest.mark.parametrize("name", ["top_k_ties", "top_p_ties", "top_p_crossing", "top_p_of", "min_p_order", "argmax_ties"])
def test_every_convention_of_a_filter_is_followed_by_some(name: str) -> None:
    assert any(s.declaration.conventions[name] not in ("lowest", "kept", "top_k_left", "after_top_p") for s in VARIANTS)


@pytest.mark.parametrize("operation", TEXTBOOKS)
def test_the_textbook_keeps_every_law(operation: str) -> None:
    specimen = next(s for s in VARIANTS if s.id == TEXTBOOKS[operation])
    fate = keeper.fate_of(specimen, budget="quick")
    assert (specimen.operation, fate.status, fate.reason) == (operation, "lives", "")


def test_every_operation_of_decoding_has_a_textbook() -> None:
    assert {s.operation for s in ALL} == set(TEXTBOOKS)


@pytest.mark.parametrize("name", SAMPLE)
def test_no_law_accuses_it(name: str) -> None:
    fate = keeper.fate_of(next(s for s in VARIANTS if s.id == name), budget="quick")
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


@pytest.mark.long
@pytest.mark.parametrize("budget", ["quick", "default"])
@pytest.mark.parametrize("specimen", VARIANTS, ids=[s.id for s in VARIANTS])
def test_no_law_accuses_any(specimen: Specimen, budget: str) -> None:
    fate = keeper.fate_of(specimen, budget=budget)
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")
