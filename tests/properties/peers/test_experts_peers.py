"""Released routers held to the laws, and the decoder's gradient to PyTorch's automatic differentiation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic, check
from oracles.properties.bounds.decoder import decoder_with_errors
from oracles.properties.declaration import subject
from oracles.properties.peers.calls.experts import mixtral_balance
from oracles.properties.peers.experts import PEERS
from oracles.properties.report import FAILED, HELD, NOT_COVERED
from oracles.reference import Decoder, decoder_gradients, rope_frequencies

pytestmark = pytest.mark.peers

ALL = [(peer, operation) for peer, operations in PEERS.items() for operation in operations]
SIZES: dict[str, Any] = {"vocabulary": 13, "width": 8, "layers": 3, "heads": 8, "kv_heads": 4, "head_size": 2, "hidden": 8}
DECODERS = {"dense": Decoder(**SIZES), "tied": Decoder(**SIZES, tied=True), "experts": Decoder(**SIZES, experts=4, active=2),
            "gates as they are": Decoder(**SIZES, experts=4, active=2, normalize_gates=False)}  # fmt: skip
BALANCE = 0.125


@pytest.mark.parametrize(("peer", "operation"), ALL)
def test_a_released_router_keeps_the_laws(peer: str, operation: str) -> None:
    report = check(operation, f"peers:{peer}", budget="quick", max_seconds=100.0, call_seconds=100.0)
    for verdict in report.verdicts:
        assert verdict.status in (HELD, NOT_COVERED), f"{verdict.law}: {verdict.reason} {verdict.case}"
    assert sum(verdict.status == HELD for verdict in report.verdicts) >= 6


def test_transformers_balance_costs_as_much_as_each_token_has_experts_and_must_be_declared() -> None:
    """https://github.com/huggingface/transformers/pull/43775"""
    undeclared = subject("balance_loss", framework="torch", dtypes=("float32",), conventions={"all_ignored": "nan"})(mixtral_balance)
    report = check("balance_loss", undeclared, budget="quick")
    assert "loss_agrees_with_the_oracle" in [v.law for v in report.verdicts if v.status == FAILED]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", DECODERS)
def test_loss_and_gradients_are_those_of_automatic_differentiation(name: str, dtype: str) -> None:
    import torch

    decoder, r = DECODERS[name], np.random.default_rng(0)
    weights = {}
    for key, shape in decoder.shapes().items():
        size = 1.0 if key == "embedding" else 0.125 if len(shape) == 1 else 0.25 / np.sqrt(shape[-2])
        weights[key] = np.float64(((len(shape) == 1) + size * r.normal(size=shape)).astype(dtype))
    tokens, targets = r.integers(0, decoder.vocabulary, (2, 4, 8))
    targets[0, :3] = -100
    loss, gradients = decoder_gradients(tokens, targets, weights, decoder, balance=BALANCE)
    own = {key: torch.tensor(w, dtype=getattr(torch, dtype), requires_grad=True) for key, w in weights.items()}
    theirs = _loss(torch.tensor(tokens), torch.tensor(targets), own, decoder)
    theirs.backward()
    bounds = [decoder_with_errors(Arithmetic().resolve(a), tokens, targets, weights, decoder, balance=BALANCE) for a in (dtype, "float64")]
    allowed = {key: sum(bound[key].e for bound in bounds) for key in bounds[0]}
    assert abs(theirs.item() - float(loss)) <= allowed["loss"]
    for key, g in gradients.items():
        assert (np.abs(own[key].grad.double().numpy() - g) <= allowed[key]).all(), key


def _loss(tokens: Any, targets: Any, w: Any, decoder: Decoder) -> Any:
    import torch
    from torch.nn import functional

    def norm(x: Any, weight: Any) -> Any:
        return functional.rms_norm(x, x.shape[-1:], weight, decoder.eps)

    def gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return (functional.silu(x @ gate) * (x @ up)) @ down

    x, unbalance = w["embedding"][tokens], 0.0
    for i in range(decoder.layers):
        l = {key.removeprefix(f"layers.{i}."): value for key, value in w.items() if key.startswith(f"layers.{i}.")}
        x = x + _attention(norm(x, l["norm_attention"]), l, decoder) @ l["w_o"]
        f = norm(x, l["norm_feed_forward"])
        if decoder.experts is None:
            x = x + gated(f, l["w_gate"], l["w_up"], l["w_down"])
            continue
        p = torch.softmax(f @ l["w_router"], dim=-1)
        gates, ids = p.topk(decoder.active, dim=-1)
        gates = gates / gates.sum(dim=-1, keepdim=True) if decoder.normalize_gates else gates
        every = torch.stack([gated(f, l["w_gate"][e], l["w_up"][e], l["w_down"][e]) for e in range(decoder.experts)], dim=-2)
        x = x + (gates[..., None] * torch.gather(every, -2, ids[..., None].expand(*ids.shape, every.shape[-1]))).sum(dim=-2)
        share = torch.bincount(ids.reshape(-1), minlength=decoder.experts).to(p.dtype) / ids.numel()
        unbalance = unbalance + decoder.experts * (share * p.reshape(-1, decoder.experts).mean(dim=0)).sum()
    z = norm(x, w["norm"]) @ (w["embedding"].T if decoder.tied else w["head"])
    return functional.cross_entropy(z.reshape(-1, decoder.vocabulary), targets.reshape(-1), ignore_index=-100) + BALANCE * unbalance


def _attention(x: Any, l: Any, decoder: Decoder) -> Any:
    import torch
    from torch.nn import functional

    B, T, _ = x.shape
    f, _ = rope_frequencies(decoder.head_size, base=decoder.base)
    angle = torch.tensor(np.arange(T)[:, None] * f)
    cos, sin = (turn.to(x.dtype) for turn in (torch.cos(angle), torch.sin(angle)))

    def turned(y: Any) -> Any:
        a, b = y.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    q, k, v = ((x @ l[name]).view(B, T, -1, decoder.head_size).transpose(1, 2) for name in ("w_q", "w_k", "w_v"))
    out = functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(B, T, -1)
