"""A training step is its parts in order, and it lowers the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import Decoder, adamw_step, clip_grad_norm, decoder_gradients, decoder_loss, train_step

SIZES: dict[str, Any] = {"vocabulary": 7, "width": 8, "layers": 2, "heads": 2, "kv_heads": 1, "head_size": 4, "hidden": 8}
ADAM: dict[str, Any] = {"lr": 2.0**-6, "beta1": 0.875, "beta2": 0.984375, "eps": 2.0**-20}
DECODERS = {"dense": Decoder(**SIZES), "experts": Decoder(**SIZES, experts=4, active=2)}


def problem(decoder: Decoder) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    r = np.random.default_rng(0)
    weights = {name: (len(shape) == 1) + r.normal(size=shape) / np.sqrt(2.0 * shape[0]) for name, shape in decoder.shapes().items()}
    tokens = np.arange(24).reshape(2, 12) % 7
    return tokens, np.roll(tokens, -1, axis=1), weights, {name: np.zeros(shape) for name, shape in decoder.shapes().items()}


@pytest.mark.parametrize("name", DECODERS)
def test_a_step_is_gradient_clip_and_adamw_and_vectors_do_not_decay(name: str) -> None:
    tokens, targets, weights, zeros = problem(DECODERS[name])
    after = train_step(tokens, targets, weights, zeros, zeros, DECODERS[name], step=1, **ADAM, weight_decay=0.5, max_norm=0.25)
    loss, g = decoder_gradients(tokens, targets, weights, DECODERS[name])
    clipped, norm = clip_grad_norm(list(g.values()), max_norm=0.25)
    assert (after.loss, after.norm) == (loss, norm)
    assert norm > 0.25
    for key, gradient in zip(g, clipped):
        decay = 0.5 if weights[key].ndim > 1 else 0.0
        want = adamw_step(weights[key], gradient, zeros[key], zeros[key], step=1, **ADAM, weight_decay=decay)
        assert all((got[key] == w).all() for got, w in zip((after.weights, after.m, after.v), want))


@pytest.mark.parametrize("name", DECODERS)
def test_fifty_steps_learn_a_sequence_that_repeats(name: str) -> None:
    tokens, targets, weights, m = problem(DECODERS[name])
    v, losses = m, []
    for step in range(1, 51):
        after = train_step(tokens, targets, weights, m, v, DECODERS[name], step=step, **ADAM, weight_decay=0.0, max_norm=1.0, balance=0.01)
        weights, m, v = after.weights, after.m, after.v
        losses.append(float(after.loss))
    assert losses[-1] < losses[0] / 4
    assert float(decoder_loss(tokens, targets, weights, DECODERS[name], balance=0.01)) < losses[-1]


def test_nothing_that_was_given_is_changed() -> None:
    tokens, targets, weights, zeros = problem(DECODERS["experts"])
    before = {name: w.copy() for name, w in weights.items()}
    train_step(tokens, targets, weights, zeros, zeros, DECODERS["experts"], step=1, **ADAM, weight_decay=0.5, max_norm=0.25)
    assert all((weights[name] == before[name]).all() and not zeros[name].any() for name in weights)


def test_balance_pulls_the_router_and_without_experts_nothing() -> None:
    tokens, targets, weights, _ = problem(DECODERS["experts"])
    with_it, without = (decoder_gradients(tokens, targets, weights, DECODERS["experts"], balance=b)[1] for b in (1.0, 0.0))
    assert (with_it["layers.0.w_router"] != without["layers.0.w_router"]).any()
    *given, _ = problem(DECODERS["dense"])
    assert decoder_loss(*given, DECODERS["dense"], balance=1.0) == decoder_loss(*given, DECODERS["dense"])
