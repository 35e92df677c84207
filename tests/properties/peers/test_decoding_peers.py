"""Released decoding held to the laws: what should hold does, and one fault of a tie shows with its exact distance."""

from __future__ import annotations

import re

import pytest

from oracles.properties import check, checker
from oracles.properties.loading import load
from oracles.properties.peers.decoding import PEERS
from oracles.properties.report import FAILED, HELD, Verdict

pytestmark = pytest.mark.peers

FILTERS = ("answers", "probabilities_agrees_with_the_oracle", "kept_tokens_are_the_oracles", "what_is_kept_is_renormalised",
           "kept_probabilities_sum_to_one", "equal_logits_keep_exactly_their_share", "neutral_parameters_filter_nothing")
HOLDING = {
    ("transformers", "filter_probabilities"): FILTERS,
    ("transformers", "apply_penalties"): ("answers", "logits_agrees_with_the_oracle", "the_order_of_the_output_does_not_matter"),
    ("transformers", "mtp_loss"): ("answers", "loss_agrees_with_the_oracle", "the_right_token_costs_nothing",
                                   "positions_that_do_not_count_never_matter", "renaming_tokens_changes_nothing"),
    ("torch_multinomial", "sample"): ("answers", "only_tokens_with_a_probability_are_drawn", "draws_pass_the_test_of_their_law"),
    ("torch_multinomial_16bit", "sample"): ("answers", "a_tail_of_unlikely_tokens_keeps_its_mass"),
    ("torch_categorical", "sample"): ("answers", "draws_pass_the_test_of_their_law"),
}
LAWS = ("the_law_of_tokens_is_the_targets", "the_law_of_their_number_is_the_rules")


@pytest.mark.parametrize(("peer", "operation"), HOLDING)
def test_a_released_library_keeps_the_laws(peer: str, operation: str) -> None:
    for verdict in check(operation, f"peers:{peer}", budget="quick", laws=HOLDING[peer, operation], max_seconds=60.0).verdicts:
        assert verdict.status == HELD, f"{verdict.law}: {verdict.reason} {verdict.case}"
        assert verdict.compared > 0


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_says_which_version_it_is(peer: str) -> None:
    _, declaration = load(f"peers:{peer}", next(iter(PEERS[peer])))
    assert any(character.isdigit() for character in declaration.version)


def speculative(laws: tuple[str, ...], cases: int, monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    """The verdicts on transformers' speculative sampling over the first designed cases; a call of it takes milliseconds a row."""
    from oracles.properties.cases.speculative import VERIFY_CASES

    short = checker.recipes_of
    monkeypatch.setattr(checker, "recipes_of", lambda run, budget, seed: (short(run, "quick", seed)[0][:cases], []))
    monkeypatch.setattr(checker, "SHRINK_SECONDS", 0.0)
    assert VERIFY_CASES.operation == "speculative_verify"
    return list(check("speculative_verify", "peers:transformers", laws=laws, in_process=True).verdicts)


def test_the_exact_distance_of_its_law_from_the_targets_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for verdict in speculative(LAWS, 10, monkeypatch):
        assert verdict.status == HELD, verdict.reason
        assert re.search(r"law of \w+.* \(V = \d, K = \d\): \d+(/\d+)? = \S+ from the target's", verdict.worst_at)


def test_a_uniform_of_0_accepts_a_token_that_the_target_never_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    (verdict,) = speculative(("drafts_the_target_never_gives_are_rejected",), 12, monkeypatch)
    assert verdict.status == FAILED
