"""A subject that verifies by block, and says so, is judged by that rule: the paper's algorithm is accepted, and no slip of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic, bounds, subject
from oracles.properties.conventions import declared
from oracles.properties.zoo import textbook_decoding as textbook

from .rejection import rejects

OPERATION = "speculative_verify"
LAWS = ("tokens_agrees_with_the_oracle", "n_accepted_agrees_with_the_oracle", "every_decision_is_right", "the_law_of_tokens_is_the_targets",
        "the_law_of_their_number_is_the_rules")  # fmt: skip
# A slip of the steps -> the law that tells it.
SLIPS: dict[str, tuple[dict[str, Callable[..., Any]], str]] = {
    "weight_not_capped": ({"ratio": lambda w, q, p: w * (p / q) if q > 0 else w}, "the_law_of_tokens_is_the_targets"),
    "weight_of_the_last_token_alone": ({"ratio": lambda w, q, p: textbook.ratio(w * 0 + 1, q, p)}, "the_law_of_tokens_is_the_targets"),
    "residual_without_the_weight": ({"left_of": lambda w, p, q: textbook.residual(p, q)}, "the_law_of_tokens_is_the_targets"),
    "accepted_below_the_weight": ({"face": lambda w, s: w}, "the_law_of_tokens_is_the_targets"),
    "only_whole_blocks": ({"face": lambda w, s: s * 0}, "the_law_of_their_number_is_the_rules"),
}


def by_block(steps: dict[str, Callable[..., Any]], **conventions: str) -> Callable[..., Any]:
    def verify(draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None) -> Any:
        return textbook.verified_by_block(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths, **steps)

    return subject(OPERATION, conventions=conventions)(verify)


@pytest.mark.parametrize("law", LAWS)
def test_the_papers_algorithm_is_accepted_by_its_rule(law: str) -> None:
    assert rejects(OPERATION, law, by_block({}, rule="block")) == ""


@pytest.mark.parametrize("law", [LAWS[0], LAWS[2], LAWS[4]])
def test_it_is_rejected_where_its_rule_is_not_declared(law: str) -> None:
    assert rejects(OPERATION, law, by_block({}))


@pytest.mark.parametrize("law", [LAWS[0], LAWS[2], LAWS[4]])
def test_token_by_token_is_not_by_block(law: str) -> None:
    @subject(OPERATION, conventions={"rule": "block"}, arithmetic=Arithmetic(accumulate="float64", elementwise="float64"))
    def verify(draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None) -> Any:
        return reference.speculative_verify(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths)

    assert rejects(OPERATION, law, verify)


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_of_a_step_breaks_its_law(slip: str) -> None:
    steps, law = SLIPS[slip]
    assert rejects(OPERATION, law, by_block(steps, rule="block"))


@pytest.mark.parametrize(("u", "open_"), [(0.4999, False), (0.5, True), (0.5001, False)])
def test_a_block_within_rounding_of_its_face_is_open(u: float, open_: bool) -> None:
    """w_1 = 1/2 and s_1 = [1/2 - 0]+ = 1/2: the face is 1/2. The second draft is never accepted."""
    q, p = [[[1.0, 0.0], [0.0, 1.0]]], [[[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]]
    bound = bounds.speculative_verify_bound(Arithmetic().resolve("float32"), [[0, 1]], q, p, [[u, 0.5]], [0.25],
                                            conventions=declared({"rule": "block"}, OPERATION))  # fmt: skip
    assert bool(np.isinf(bound["n_accepted"][0])) == open_
