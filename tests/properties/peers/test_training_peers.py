"""Released losses and optimizers held to the laws: what should hold does, and what is declared is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oracles.properties import UsageError, check
from oracles.properties.loading import load
from oracles.properties.peers import optax as optax_peers
from oracles.properties.peers.training import PEERS as TORCH
from oracles.properties.report import FAILED, HELD, NOT_COVERED
from oracles.properties.stateful.checker import check_object
from oracles.properties.stateful.scaler_laws import SCALER_LAWS

pytestmark = pytest.mark.peers

PEERS = {**TORCH, **optax_peers.PEERS}
ALL = [(peer, operation) for peer, operations in PEERS.items() for operation in operations]


@pytest.mark.parametrize(("peer", "operation"), ALL)
def test_a_released_library_keeps_the_laws(peer: str, operation: str) -> None:
    report = check(operation, f"peers:{peer}", budget="quick", max_seconds=100.0, call_seconds=100.0)
    for verdict in report.verdicts:
        assert verdict.status in (HELD, NOT_COVERED), f"{verdict.law}: {verdict.reason} {verdict.case}"
    assert sum(verdict.status == HELD for verdict in report.verdicts) >= 6
    assert all(verdict.compared > 0 for verdict in report.verdicts if verdict.status == HELD)


@pytest.mark.parametrize(("peer", "operation"), [(peer, next(iter(operations))) for peer, operations in PEERS.items() if operations])
def test_a_peer_says_which_version_it_is(peer: str, operation: str) -> None:
    _, declaration = load(f"peers:{peer}", operation)
    assert any(character.isdigit() for character in declaration.version)


def test_a_mean_of_no_target_is_nan_in_pytorch_and_must_be_declared() -> None:
    from oracles.properties.declaration import subject
    from oracles.properties.peers.calls.training import torch_cross_entropy

    undeclared = subject("cross_entropy", framework="torch")(torch_cross_entropy)
    (verdict,) = check("cross_entropy", undeclared, budget="quick", laws=("nothing_to_score_is_no_loss",)).verdicts
    assert verdict.status == FAILED
    assert "is nan, wanted 0" in verdict.reason


def test_nan_of_nothing_over_nothing_must_be_declared() -> None:
    from oracles.properties.declaration import subject
    from oracles.properties.peers.calls.training import torch_adamw

    undeclared = subject("adamw_step", framework="torch")(torch_adamw)
    (verdict,) = check("adamw_step", undeclared, budget="quick", laws=("nothing_over_nothing_moves_nothing",)).verdicts
    assert verdict.status == FAILED
    assert "is nan, wanted" in verdict.reason


def test_eps_inside_the_root_must_be_declared() -> None:
    from oracles.properties.declaration import subject
    from oracles.properties.peers.calls.optax import adamw_eps_root

    undeclared = subject("adamw_step", framework="jax")(adamw_eps_root)
    (verdict,) = check("adamw_step", undeclared, budget="quick", laws=("param_agrees_with_the_oracle",)).verdicts
    assert verdict.status == FAILED


def test_optax_clip_to_0() -> None:
    import jax.numpy as jnp
    import optax

    clip = optax.clip_by_global_norm(0.0)
    assert jnp.isnan(clip.update([jnp.zeros(1)], optax.EmptyState())[0][0]).all()
    assert not jnp.isnan(clip.update([jnp.ones(1)], optax.EmptyState())[0][0]).any()


def test_the_gradient_scaler_of_pytorch_keeps_the_laws() -> None:
    report = check_object("loss_scaler", "peers:torch", budget=20, call_seconds=100.0)
    assert {verdict.law: verdict.status for verdict in report.verdicts} == {law.name: HELD for law in SCALER_LAWS}
    assert report.version.startswith("torch 2")
    assert len(report.not_covered) == 1
    assert "the scale would leave the normal numbers" in report.not_covered[0] or "an empty list of parameters" in report.not_covered[0]


def test_the_other_forms_have_no_scaler() -> None:
    with pytest.raises(UsageError, match="peers:torch_fused has no loss_scaler"):
        check_object("loss_scaler", "peers:torch_fused", in_process=True)


def test_torch_scale_of_0(tmp_path: Path) -> None:
    """docs/findings.md, torch-scale-of-0: both of its lines, and the laws that see them."""
    import torch

    scaler, parameter = torch.amp.GradScaler("cpu", init_scale=2.0**-126, backoff_factor=2.0**-24), torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler.scale(torch.zeros(()))
    parameter.grad = torch.tensor([8.0])
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert parameter.item() == -torch.inf
    scaler.update(2.0**-126)
    parameter.grad = torch.tensor([torch.inf])
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 0.0
    laws = ("the_scale_stays_finite_and_positive", "found_inf_tells_of_nan_and_inf")
    report = check_object("loss_scaler", "peers:torch_scaler_any_size", budget="quick", call_seconds=100.0, laws=laws, failures=tmp_path)
    assert {verdict.law: verdict.status for verdict in report.verdicts} == dict.fromkeys(laws, FAILED)
    ended = subprocess.run([sys.executable, f"{report.verdicts[0].counterexample}/repro.py"], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr                                  # the peer's class lies beside it
