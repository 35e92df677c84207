"""PyTorch's ring and pipelines on two ranks held to the laws, and what they would break declared otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import check
from oracles.properties.declaration import subject
from oracles.properties.loading import load
from oracles.properties.peers import torch_ranks
from oracles.properties.peers.calls import torch_ranks as calls
from oracles.properties.peers.gloo_ranks import RankError, ranks
from oracles.properties.report import FAILED, HELD

pytestmark = pytest.mark.peers

HOLDING = {
    ("torch_pipelining", "pipeline_step"): ("answers", "loss_agrees_with_the_oracle", "dx_agrees_with_the_oracle",
                                            "dweights_agrees_with_the_oracle", "no_cut_changes_the_step"),
    ("torch_ring", "ring_attention"): ("answers", "out_agrees_with_the_oracle", "lse_agrees_with_the_oracle", "every_shard_has_its_share",
                                       "parts_are_not_rounded_before_they_are_merged"),
    ("torch_ring", "ring_attention_backward"): ("answers", "dq_agrees_with_the_oracle", "dk_agrees_with_the_oracle",
                                                "dv_agrees_with_the_oracle", "key_gradients_sum_to_zero"),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _no_ranks_left() -> Iterator[None]:
    yield
    for world in (1, 2):
        ranks(world).close()


@pytest.mark.parametrize(("peer", "operation"), HOLDING)
def test_a_released_library_keeps_the_laws(peer: str, operation: str) -> None:
    laws = HOLDING[peer, operation]
    report = check(operation, f"peers:{peer}", budget="quick", laws=laws, call_seconds=100.0)
    assert not report.stopped
    for verdict in report.verdicts:
        assert verdict.status == HELD, f"{verdict.law}: {verdict.reason} {verdict.case}"
        assert verdict.compared > 0
        assert verdict.worst_ratio <= 1


@pytest.mark.parametrize(("peer", "operation"), HOLDING)
def test_a_peer_says_which_version_it_is(peer: str, operation: str) -> None:
    _, declaration = load(f"peers:{peer}", operation)
    assert "torch 2" in declaration.version


def _step(P: int = 2) -> dict[str, Any]:
    g = np.random.default_rng(0)
    return {"x": g.standard_normal((4, 2, 3)), "targets": g.standard_normal((4, 2, 3)), "lengths": np.array([2, 1, 2, 0]),
            "weights": [g.standard_normal((3, 3)) for _ in range(P)], "kind": "1f1b", "microbatch_size": 1}  # fmt: skip


def test_ranks_of_one_call_give_the_same_bits_as_ranks_that_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_ranks.subjects("torch_pipelining")
    living = calls.torch_pipeline_step(**_step())
    monkeypatch.setattr(calls, "RANKS", None)
    forked = calls.torch_pipeline_step(**_step())
    assert [x.tobytes() for x in (living[0], living[1], *living[2])] == [x.tobytes() for x in (forked[0], forked[1], *forked[2])]


def test_a_scale_below_zero_under_a_causal_mask_is_nan_and_must_be_refused() -> None:
    torch_ranks.subjects("torch_ring")
    declared = {**torch_ranks._RING, "refuses": ("empty", "value_dim")}
    undeclared = subject("ring_attention", **declared)(calls.torch_ring_attention)  # type: ignore[arg-type]
    (verdict,) = check("ring_attention", undeclared, budget="quick", laws=("out_agrees_with_the_oracle",)).verdicts
    assert verdict.status == FAILED
    assert "is nan" in verdict.reason


def scaled_on_rank(tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """`pipeline_on_rank` with the schedule's own scaling left on, as it is by default."""
    from torch.distributed import pipelining

    class Scaled(pipelining.Schedule1F1B):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **{**named, "scale_grads": True})

    found, pipelining.Schedule1F1B = pipelining.Schedule1F1B, Scaled            # type: ignore[misc]
    try:
        return calls.pipeline_on_rank(tensors, options)
    finally:
        pipelining.Schedule1F1B = found                                         # type: ignore[misc]


def test_a_loss_normalised_over_all_tokens_must_not_be_scaled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's default divides the gradients by the number of micro-batches: four times too small (areal-project/AReaL#1273)."""
    monkeypatch.setattr(calls, "RANKS", None)
    monkeypatch.setitem(vars(calls), "scaled_on_rank", scaled_on_rank)
    monkeypatch.setattr(calls, "on_ranks", lambda name, arrays, options: calls._forked("scaled_on_rank", arrays, options))
    _, _, dweights = calls.torch_pipeline_step(**_step())
    _, _, wanted = reference.pipeline_step(**_step())
    assert all(np.abs(4.0 * got - want).max() <= 2.0**-44 for got, want in zip(dweights, wanted))


def test_a_rank_that_fails_says_what_it_was_doing() -> None:
    arrays: list[Any] = [{"x": np.zeros(1)}, {"x": np.zeros(1)}]
    with pytest.raises(RankError, match=r"rank 0 of 2 in ring_on_rank: KeyError: .zigzag."):
        ranks(2).call(f"{calls.__name__}:ring_on_rank", arrays, {})
