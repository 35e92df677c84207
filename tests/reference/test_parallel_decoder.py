"""The decoder over ranks: exact where nothing rounds, one rank's numbers bit for bit where nothing is spread, and named refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds import cross_entropy_backward_bound, cross_entropy_bound
from oracles.properties.bounds.decoder import decoder_with_errors
from oracles.reference import Decoder, cross_entropy, cross_entropy_backward, decoder_gradients
from oracles.reference.parallel_decoder import ParallelDecoder
from oracles.reference.parallel_layout import ParallelLayout
from oracles.reference.parallel_pieces import vocabulary_loss

SIZES: dict[str, Any] = {"vocabulary": 5, "width": 4, "layers": 2, "heads": 2, "kv_heads": 2, "head_size": 2, "hidden": 4}
DECODERS = {"dense": Decoder(**SIZES), "experts": Decoder(**SIZES, experts=2, active=1), "window": Decoder(**SIZES, window=1)}
ADAM: dict[str, Any] = {"lr": 0.125, "beta1": 0.5, "beta2": 0.75, "eps": 0.0, "weight_decay": 0.5}


def problem(decoder: Decoder) -> tuple[Any, Any, dict[str, Any]]:
    r = np.random.default_rng(0)
    weights = {name: (len(shape) == 1) + r.standard_normal(shape) / 4 for name, shape in decoder.shapes().items()}
    tokens, targets = r.integers(0, 5, (2, 4, 4))
    targets[0] = -100
    return tokens, targets, weights


def test_each_rank_of_a_mesh_holds_its_part_of_the_weights_and_no_more() -> None:
    decoder = DECODERS["experts"]
    model = ParallelDecoder(decoder, ParallelLayout.read("ep2.tp2"))
    names = ("layers.0.w_q", "layers.0.w_gate", "layers.0.w_o", "norm", "layers.0.w_router")
    assert [str(model.placements(name)["tp"]) for name in names] == [
        "sharded on axis 1", "sharded on axis 2", "sharded on axis 0", "replicated", "replicated"]
    assert str(model.placements("layers.0.w_gate")["ep"]) == "sharded on axis 0"
    assert str(model.placements("layers.0.w_router")["ep"]) == "replicated"


@pytest.mark.parametrize("layout", ["dp2", "tp2", "pp2.mb2", "dp2.tp2.pp2.mb2"])
def test_the_window_of_a_decoder_is_kept(layout: str) -> None:
    given = problem(DECODERS["window"])
    _, gradients = ParallelDecoder(DECODERS["window"], ParallelLayout.read(layout)).gradients(*given)
    wanted = decoder_with_errors(Arithmetic().resolve("float64"), *given, DECODERS["window"])
    assert all((np.abs(g - wanted[name].x) <= 2.0 * wanted[name].e).all() for name, g in gradients.items())


def test_nothing_to_score_is_no_loss_and_no_gradient() -> None:
    tokens, targets, weights = problem(DECODERS["dense"])
    model = ParallelDecoder(DECODERS["dense"], ParallelLayout.read("dp2.tp2"))
    loss, gradients = model.gradients(tokens, np.full_like(targets, -100), weights)
    assert loss == 0.0
    assert not any(g.any() for g in gradients.values())


def test_ranks_without_a_target_count_nothing() -> None:
    """The first half of the batch is ignored: dp rank 0 has no token, and the mean is over those of rank 1."""
    decoder = DECODERS["dense"]
    tokens, targets, weights = problem(decoder)
    targets[:2] = -100
    loss, _ = ParallelDecoder(decoder, ParallelLayout.read("dp2")).gradients(tokens, targets, weights)
    assert loss == decoder_gradients(tokens[2:], targets[2:], weights, decoder)[0]


def test_the_traffic_of_a_tensor_parallel_layer_is_two_all_reduces_forward_and_two_back() -> None:
    """And those of embedding and head: 4 a layer and 2; of four numbers a token, half of them twice."""
    decoder = DECODERS["dense"]
    model = ParallelDecoder(decoder, ParallelLayout.read("tp2"))
    model.gradients(*problem(decoder))
    of_layers = [entry for entry in model.setting.ledger.entries if entry[2] == "tp" and entry[0] != "gradients"]
    assert len(of_layers) == 4 * decoder.layers + 2
    assert {entry[3].sent for entry in of_layers} == {(16 * 4 * 8, 16 * 4 * 8)}


def test_every_stage_of_zero_takes_the_same_step_bit_for_bit() -> None:
    tokens, targets, weights = problem(DECODERS["dense"])
    zeros = {name: np.zeros_like(w) for name, w in weights.items()}
    models = [ParallelDecoder(DECODERS["dense"], ParallelLayout.read(f"dp2.zero{stage}")) for stage in range(4)]
    steps = [model.step(tokens, targets, weights, zeros, zeros, step=1, **ADAM) for model in models]
    assert all((step.weights[name] == steps[0].weights[name]).all() for step in steps for name in weights)


@pytest.mark.parametrize(("layout", "name"), [("dp2.tp2.pp2.mb2.zero2", "dense"), ("tp2.sp.zero3", "dense"), ("ep2.tp2", "experts"),
                                              ("pp2.mb2", "tied")])  # fmt: skip
def test_a_clip_scales_by_the_norm_of_all_ranks_and_stages(layout: str, name: str) -> None:
    """Allowed: a sum of n squares and its root in any order, (n + 8) u, and the factor on each element."""
    decoder = {**DECODERS, "tied": Decoder(**SIZES, tied=True)}[name]
    tokens, targets, weights = problem(decoder)
    zeros = {name: np.zeros_like(w) for name, w in weights.items()}
    free, wide, clipped = (ParallelDecoder(decoder, ParallelLayout.read(layout)).step(
        tokens, targets, weights, zeros, zeros, step=1, **ADAM, max_norm=limit) for limit in (None, 1e9, 2.0**-10))  # fmt: skip
    assert all((wide.gradients[key] == free.gradients[key]).all() for key in weights)
    norm = np.sqrt(sum((g * g).sum() for g in free.gradients.values()))
    n = sum(g.size for g in weights.values())
    assert abs(clipped.norm - norm) <= (n + 8) * 2.0**-53 * norm
    for key, g in free.gradients.items():
        assert (np.abs(clipped.gradients[key] - g * (2.0**-10 / norm)) <= (n + 16) * 2.0**-53 * np.abs(g) * (2.0**-10 / norm)).all()


def test_the_parts_of_a_vocabulary_need_not_be_equal() -> None:
    z, y = np.random.default_rng(1).standard_normal((6, 5)), np.array([0, 4, 2, -100, 3, 1])
    arithmetic = Arithmetic().resolve("float64")
    of_loss = cross_entropy_bound(arithmetic, z, y, reduction="sum")["loss"]
    of_gradient = cross_entropy_backward_bound(arithmetic, z, y, 1.0, reduction="sum")["dlogits"]
    for cut in (1, 2, 4):
        loss, parts = vocabulary_loss([z[:, :cut], z[:, cut:]], [0, cut], y, -100)
        assert abs(loss - float(cross_entropy(z, y, reduction="sum"))) <= 2.0 * of_loss
        difference = np.abs(np.concatenate(parts, axis=-1) - cross_entropy_backward(z, y, 1.0, reduction="sum"))
        assert (difference <= 2.0 * of_gradient).all()


def test_logits_far_apart_on_two_ranks_do_not_overflow() -> None:
    """The maximum is that of all ranks: with its own each would make e^1000 of the other's."""
    loss, (dz, other) = vocabulary_loss([np.zeros((1, 1)), np.full((1, 1), 1000.0)], [0, 1], np.array([0]), -100)
    assert loss == 1000.0
    assert (dz.item(), other.item()) == (-1.0, 1.0)


@pytest.mark.parametrize(("tokens", "targets", "message"), [
    (np.zeros(4, np.int64), np.zeros(4, np.int64), r"tokens: got shape \(4,\); want 2 axes"),
    (np.full((4, 4), 9), np.zeros((4, 4), np.int64), r"tokens: got numbers from 9 to 9; want 0\.\.4"),
    (np.zeros((4, 4), np.int64), np.zeros((4, 3), np.int64), r"targets: got shape \(4, 3\); want \(4, 4\)"),
    (np.zeros((3, 4), np.int64), np.zeros((3, 4), np.int64), "dp, ep, mb: got 3 sequences for 2 x 1 ranks"),
])  # fmt: skip
def test_what_is_wrong_is_named(tokens: Any, targets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ParallelDecoder(DECODERS["dense"], ParallelLayout.read("dp2")).gradients(tokens, targets, problem(DECODERS["dense"])[2])
