"""Rotary embedding and writes into a cache of released libraries, held to the laws; where they differ, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties.declaration import UsageError
from oracles.properties.loading import load
from oracles.properties.operations import operation_named
from oracles.properties.run import Tally, begin, judge_one, recipes_of
from oracles.properties.subjects import InProcess

pytestmark = pytest.mark.peers

FEW, MANY = 14, 49                                                              # designed cases: JAX compiles each shape
ROPE = ("answers", "out_agrees_with_the_oracle", "a_coordinate_turns_into_its_partner_alone", "position_zero_is_the_identity",
        "norms_of_pairs_are_kept", "far_positions_keep_their_phases", "positions_broadcast", "products_depend_on_the_distance_alone",
        "turning_twice_adds_the_positions", "strides_are_respected", "inputs_stay_untouched")  # fmt: skip
PARTIAL = (*ROPE, "what_is_not_rotated_stays")
BOTH_PAIRINGS = (*PARTIAL, "one_pairing_is_the_other_permuted")
ONCE = ("answers", "k_cache_agrees_with_the_oracle", "v_cache_agrees_with_the_oracle", "skipped_tokens_write_nothing",
        "other_slots_keep_their_bits", "tokens_are_copied_bit_for_bit", "inputs_stay_untouched")  # fmt: skip
OFTEN = (*ONCE, "the_last_token_of_a_slot_wins")
HOLDING = {
    ("transformers_llama", "rope"): ROPE,
    ("transformers_gpt_neox", "rope"): PARTIAL,
    ("transformers_glm", "rope"): PARTIAL,
    ("transformers_deepseek_v3", "rope"): ROPE,
    ("onnxruntime_rope", "rope"): BOTH_PAIRINGS,
    ("onnxruntime_rope_standard", "rope"): BOTH_PAIRINGS,
    ("onnx_reference_rope", "rope"): BOTH_PAIRINGS,
    ("torch_index_put", "write_kv"): ONCE,
    ("jax_scatter", "write_kv"): OFTEN,
}


def judged(peer: str, operation: str, laws: tuple[str, ...], wanted: Callable[[Any], bool], count: int) -> tuple[Tally, ...]:
    """The tallies of laws over so many of the designed cases that are wanted, spread over all of these."""
    function, declaration = load(f"peers:{peer}", operation)
    run = begin(operation_named(operation), InProcess(function, declaration), laws)
    recipes = [recipe for recipe in recipes_of(run, "quick", 0)[0] if wanted(recipe)]
    for index, recipe in enumerate(recipes[:: max(1, len(recipes) // count)]):
        judge_one(run, index, recipe)
    assert {tally.law.name for tally in run.tallies} == set(laws)
    return tuple(run.tallies)


@pytest.mark.parametrize(("peer", "operation"), HOLDING)
def test_a_released_library_keeps_the_laws(peer: str, operation: str) -> None:
    for tally in judged(peer, operation, HOLDING[peer, operation], lambda recipe: True, FEW if peer.startswith("jax") else MANY):
        assert not tally.broken, tally.broken
        assert tally.failure is None, f"{tally.law.name}: {tally.failure}"
        assert tally.compared > 0, tally.law.name
        assert tally.worst_ratio <= 1


@pytest.mark.parametrize("kind", ["none", "linear", "ntk", "yarn", "llama3"])
def test_every_scaling_of_transformers_is_compared(kind: str) -> None:
    law = ("out_agrees_with_the_oracle",)
    (tally,) = judged("transformers_gpt_neox", "rope", law, lambda recipe: recipe.scaling.startswith(kind) and recipe.B * recipe.T, 4)
    assert tally.failure is None
    assert tally.cases >= 4
    assert tally.compared > 100


@pytest.mark.parametrize("peer", [*{peer for peer, _ in HOLDING}, "jax_scatter_bfloat16"])
def test_a_peer_says_which_version_it_is(peer: str) -> None:
    operation = "write_kv" if (peer, "rope") not in HOLDING else "rope"
    _, declaration = load(f"peers:{peer}", operation)
    assert declaration.name == peer
    assert any(character.isdigit() for character in declaration.version)


def test_a_peer_of_another_operation_says_so() -> None:
    with pytest.raises(UsageError, match="peers:transformers_llama has no write_kv"):
        load("peers:transformers_llama", "write_kv")


# Differences ------------------------------------------------------------------------------------------------------------


def test_jax_changes_the_bits_of_nan_in_bfloat16_slots_that_no_token_names() -> None:
    laws = ("k_cache_agrees_with_the_oracle", "other_slots_keep_their_bits")
    agrees, keeps = judged("jax_scatter_bfloat16", "write_kv", laws, lambda recipe: recipe.held == "nan", 4)
    assert agrees.failure is None                                               # NaN is still NaN
    assert keeps.failure is not None
    assert "holds the bits 7fc0" in keeps.failure.judgement.reason


def test_deepseek_leaves_interleaved_pairs_in_halves() -> None:
    """Undone in the call that is checked: queries and keys alike, so that no score shows it."""
    import torch
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as model

    x = torch.arange(8.0).reshape(1, 1, 1, 8)
    out, _ = model.apply_rotary_pos_emb_interleave(x, x, torch.ones(1, 1, 8), torch.zeros(1, 1, 8))
    assert out.flatten().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_transformers_ignores_mscale_where_mscale_all_dim_is_0() -> None:
    function, _ = load("peers:transformers_llama", "rope")
    record: dict[str, Any] = {"kind": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
                              "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.0, "truncate": True}  # fmt: skip
    import torch

    with pytest.raises(NotImplementedError, match="mscale without mscale_all_dim is ignored"):
        function(torch.ones(1, 4), torch.zeros(1, dtype=torch.int64), scaling=record)


def test_onnxruntime_refuses_a_table_shorter_than_the_sequence() -> None:
    from oracles.properties.peers.calls.rope import _engine

    x, table = np.ones((1, 1, 3, 2), np.float32), np.ones((1, 1), np.float32)
    session = _engine("", "session", "float32", 0, 0)
    with pytest.raises(Exception, match="Updating cos_cache and sin_cache in RotaryEmbedding is not currently supported"):
        session.run(None, {"x": x, "cos": table, "sin": table, "p": np.zeros((1, 3), np.int64)})
