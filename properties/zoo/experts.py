"""Mutants of the expert-parallel family: gates, places, the balance loss, and gradients that know how many ranks there are."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_experts as textbook
from .specimen import mutant
from .textbook_decoding import working
from .textbook_experts import Array

FAMILY = "expert-parallel"


def _router(T: int = 5, E: int = 4, **options: Any) -> dict[str, Any]:
    """Logits N(0, 1), two experts a token."""
    return {"logits": np.random.default_rng(0).standard_normal((T, E)).astype(np.float32), "k": 2, "normalize": False, **options}


def _layer(T: int = 5, E: int = 4, **options: Any) -> dict[str, Any]:
    g = np.random.default_rng(1)
    x, w = (g.standard_normal(shape).astype(np.float32) for shape in ((T, 3), (E, 3, 2)))
    return {"x": x, "weights": w, **_router(T, E), "normalize": True, **options}


def _ranked(R: int, **options: Any) -> dict[str, Any]:
    """Three tokens and two experts on each of R ranks."""
    g = np.random.default_rng(2)
    shapes = {"x": (R, 3, 2), "logits": (R, 3, 2 * R), "weights": (R, 2, 2, 2), "dout": (R, 3, 2)}
    return {name: g.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} | {"k": 1, "normalize": True, **options}


def _uniform() -> dict[str, Any]:
    """Four experts, two choices, all as busy and as probable as the others."""
    turns = (np.arange(4)[:, None] + np.arange(2)) % 4
    return {"probs": np.full((4, 4), 0.25, np.float32), "ids": turns}


def _padded() -> dict[str, Any]:
    """Two real tokens at expert 0; one dummy token for each of the others, as a buffer filled up to its capacity has."""
    return {"probs": np.eye(4, dtype=np.float32)[[0, 0, 1, 2, 3]], "ids": np.array([[0], [0], [1], [2], [3]]),
            "mask": np.array([True, True, False, False, False])}


@mutant("balance_loss", id="aux-loss-fraction-sums-to-k", family=FAMILY, source="https://github.com/huggingface/transformers/pull/43775",
        trigger=_uniform)
def fractions_of_tokens(probs: Any, ids: Any, *, mask: Any = None) -> Array:
    """f is divided by the tokens and not by their k assignments, so that it sums to k."""
    return np.asarray(ids.shape[1] * working(textbook.balance_loss(probs, ids, mask=mask))).astype(probs.dtype)


@mutant("balance_loss", id="aux-loss-counts-padding", family=FAMILY,
        source="https://github.com/NVIDIA/Megatron-LM/pull/2121 https://github.com/NVIDIA/Megatron-LM/issues/1617", trigger=_padded)
def padding_is_routed_too(probs: Any, ids: Any, *, mask: Any = None) -> Array:
    """f is counted over the padded batch; only the probabilities know the mask."""
    p, real = working(probs), textbook.real_tokens(mask, len(probs))
    P = p[real].sum(axis=0, dtype=p.dtype) / p.dtype.type(max(int(real.sum()), 1))
    f = textbook.shares(ids, p.shape[1], np.ones(len(p), np.bool_), p)
    return np.asarray(p.dtype.type(p.shape[1]) * (f * P).sum(dtype=p.dtype)).astype(probs.dtype)


@mutant("moe_layer", id="gate-weights-not-applied", family=FAMILY, source="https://github.com/edwardcapriolo/deliverance/pull/88",
        trigger=_layer)
def experts_added_up(x: Any, logits: Any, weights: Any, *, k: int, normalize: bool, bias: Any = None,
                     capacity: int | None = None) -> tuple[Array, Array]:
    """The experts' outputs are summed without their gates."""
    def ones(p: Array, bias: Any, ids: Array, normalize: bool) -> Array:
        return np.ones(ids.shape, p.dtype)

    return textbook.moe_layer(x, logits, weights, k=k, normalize=normalize, bias=bias, capacity=capacity, gates=ones)


@mutant("moe_layer", id="capacity-position-offset-lost-after-second-choice", family=FAMILY,
        source="https://github.com/lucidrains/st-moe-pytorch/issues/13", trigger=lambda: _layer(T=6, E=3, k=3))
def offset_of_the_last_choice_alone(x: Any, logits: Any, weights: Any, *, k: int, normalize: bool, bias: Any = None,
                                    capacity: int | None = None) -> tuple[Array, Array]:
    """Places of the n-th choices start behind those of the choice before alone, so that from the third on two share a place."""
    def places(ids: Array, experts: int) -> Array:
        found, start = np.zeros(ids.shape, np.int64), np.zeros(experts, np.int64)
        for j in range(ids.shape[1]):
            own = textbook.places_by_choice(ids[:, j : j + 1], experts)
            found[:, j] = own[:, 0] + start[ids[:, j]]
            start = np.bincount(ids[:, j], minlength=experts)
        return found

    return textbook.moe_layer(x, logits, weights, k=k, normalize=normalize, bias=bias, capacity=capacity, places=places)


@mutant("expert_parallel_backward", id="topk-1-renormalised-router-gets-no-gradient", family=FAMILY,
        source="https://github.com/jingyaogong/minimind/issues/858", trigger=lambda: _ranked(1, normalize=False))
def one_gate_over_itself(x: Any, logits: Any, weights: Any, dout: Any, *, k: int, normalize: bool, bias: Any = None,
                         capacity: int | None = None) -> tuple[Array, Array, Array]:
    """With one choice its gate is divided by itself, and the router gets no gradient."""
    return textbook.expert_parallel_backward(x, logits, weights, dout, k=k, normalize=normalize or k == 1, bias=bias, capacity=capacity)


@mutant("route", id="renormalise-flag-not-forwarded", family=FAMILY, source="https://github.com/flashinfer-ai/flashinfer/pull/2889",
        trigger=_router)
def always_normalised(logits: Any, *, k: int, normalize: bool, bias: Any = None) -> tuple[Array, Array]:
    """Gates are over their sum whatever is asked."""
    return textbook.route(logits, k=k, normalize=True, bias=bias)


@mutant("route", id="routing-bias-leaks-in-weights", family=FAMILY, source="https://github.com/MetaX-MACA/vLLM-metax/issues/270",
        trigger=lambda: _router(bias=np.array([0.0, 1.0, 0.0, 1.0], np.float32)))
def gates_of_biased_scores(logits: Any, *, k: int, normalize: bool, bias: Any = None) -> tuple[Array, Array]:
    """Where the experts come in fours, as one shape of tile wants, the gates are those of the biased scores."""
    def leaking(p: Array, bias: Any, ids: Array, normalize: bool) -> Array:
        leaks = bias is not None and p.shape[1] % 4 == 0
        return textbook.plain_gates(p + working(bias).astype(p.dtype) if leaks else p, bias, ids, normalize)

    return textbook.route(logits, k=k, normalize=normalize, bias=bias, gates=leaking)


def _coefficient() -> dict[str, Any]:
    """A coefficient of 1/64 on a loss over five tokens."""
    p = np.full((5, 4), 0.25, np.float32)
    return {"probs": p, "ids": np.zeros((5, 1), np.int64), "dloss": np.asarray(1 / 64, np.float32)}


_AUX = "https://github.com/NVIDIA-NeMo/Automodel/issues/1408"


@mutant("balance_loss_backward", id="aux-loss-no-gradient", family=FAMILY, source=_AUX, trigger=_coefficient)
def thrown_away(probs: Any, ids: Any, dloss: Any, *, mask: Any = None) -> Array:
    """What carries the gradient of the balance loss is thrown away."""
    return np.zeros_like(np.ascontiguousarray(probs))


@mutant("balance_loss_backward", id="aux-loss-coefficient-as-a-switch", family=FAMILY, source=_AUX, trigger=_coefficient)
def on_or_off(probs: Any, ids: Any, dloss: Any, *, mask: Any = None) -> Array:
    """The coefficient turns the gradient on, and no more: its size is lost."""
    return textbook.balance_loss_backward(probs, ids, np.asarray(float(dloss) != 0.0, probs.dtype), mask=mask)


@mutant("balance_loss_backward", id="aux-loss-times-token-count", family=FAMILY, source=_AUX, trigger=_coefficient)
def of_a_sum(probs: Any, ids: Any, dloss: Any, *, mask: Any = None) -> Array:
    """The gradient of a sum over tokens beside a loss that is a mean: larger by their number."""
    tokens = max(int(textbook.real_tokens(mask, len(probs)).sum()), 1)
    return np.asarray(tokens * working(textbook.balance_loss_backward(probs, ids, dloss, mask=mask))).astype(probs.dtype)


@mutant(
    "expert_parallel_backward", id="expert-grad-too-large-by-ep", family=FAMILY,
    source="https://github.com/NVIDIA/Megatron-LM/pull/5956 https://github.com/databricks/megablocks/pull/20 "
           "https://github.com/deepspeedai/DeepSpeed/pull/6546 https://github.com/pytorch/pytorch/issues/160285",
    trigger=lambda: _ranked(2),
)  # fmt: skip
def averaged_over_its_own_replicas(x: Any, logits: Any, weights: Any, dout: Any, *, k: int, normalize: bool, bias: Any = None,
                                   capacity: int | None = None) -> tuple[Array, Array, Array]:
    """Losses are scaled up by the ranks that gradients are then averaged over; those of experts are averaged over replicas alone."""
    dx, dz, dw = textbook.expert_parallel_backward(x, logits, weights, dout, k=k, normalize=normalize, bias=bias, capacity=capacity)
    return dx, dz, (working(dw) * len(x)).astype(x.dtype)


@mutant("route", id="topk-1-weight-normalised-over-tokens", family=FAMILY, source="https://github.com/databricks/megablocks/pull/87",
        trigger=lambda: _router(T=3, k=1, normalize=True))
def one_gate_over_all_tokens(logits: Any, *, k: int, normalize: bool, bias: Any = None) -> tuple[Array, Array]:
    """With one choice the gates have one axis, and the last one, which they are normalised over, is that of the tokens."""
    def over_tokens(p: Array, bias: Any, ids: Array, normalize: bool) -> Array:
        gates = textbook.plain_gates(p, bias, ids, normalize and ids.shape[1] > 1)
        return np.asarray(gates / gates.sum(dtype=p.dtype)) if normalize and ids.shape[1] == 1 and len(gates) else gates

    return textbook.route(logits, k=k, normalize=normalize, bias=bias, gates=over_tokens)
