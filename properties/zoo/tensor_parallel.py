"""Mutants of the tensor-parallel family: heads cut, tokens lost, gradients that are parts of a sum, copies that count too often."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_ranks
from .specimen import mutant
from .textbook_ranks import Array, in_order

FAMILY = "tensor-parallel"


@mutant("vocab_parallel_cross_entropy_backward", id="tp-target-logprob-gather-without-backward", family=FAMILY,
        source="https://github.com/modelscope/ms-swift/pull/9947", trigger=lambda: {
            "shards": np.zeros((2, 1, 2), np.float32), "targets": np.array([3]), "dloss": np.ones((), np.float32), "reduction": "mean"})
def only_the_owner_has_a_gradient(shards: Any, targets: Any, dloss: Any, **options: Any) -> Array:
    """The ranks that do not hold a row's target have no gradient of it, for what they sent was not differentiated."""
    dz = textbook_ranks.vocab_parallel_cross_entropy_backward(shards, targets, dloss, **options)
    here = targets // shards.shape[-1] == np.arange(len(shards))[:, None]
    return np.where(here[..., None], dz, dz.dtype.type(0))


def _norm(sharded: str) -> dict[str, Any]:
    """Four vectors on two ranks."""
    x = np.arange(1, 9, dtype=np.float32).reshape(2, 2, 2, 1)
    x = np.concatenate([x, 3 - x], axis=-1)
    arrays = {f"{name}.{r}": x[r] + i for i, name in enumerate(("x_shards", "dout_shards")) for r in range(2)}
    return {**arrays, "weight": np.ones(2, np.float32), "sharded": sharded, "eps": 1e-6}


_SEQUENCE = ("https://github.com/NVIDIA/Megatron-LM/issues/1446 https://github.com/NVIDIA/TransformerEngine/pull/1528 "
             "https://github.com/EleutherAI/gpt-neox/pull/1259")


@mutant("norm_backward_sharded", id="sequence-parallel-norm-grad-not-reduced", family=FAMILY, source=_SEQUENCE,
        trigger=lambda: _norm("tokens"))
def weight_gradient_of_own_tokens(x_shards: Any, weight: Any, dout_shards: Any, *, eps: float = 1e-6, sharded: str) -> Any:
    """Where the tokens are cut, each rank keeps the gradient of the weight that its own tokens gave."""
    dx, parts = textbook_ranks.norm_parts(x_shards, weight, dout_shards, eps)
    whole = textbook_ranks.everywhere(in_order(parts), len(parts), weight.dtype)
    return dx, [part.astype(weight.dtype) for part in parts] if sharded == "tokens" else whole


@mutant("norm_backward_sharded", id="sequence-parallel-norm-grad-averaged", family=FAMILY, source=_SEQUENCE,
        trigger=lambda: _norm("tokens"))
def weight_gradient_averaged(x_shards: Any, weight: Any, dout_shards: Any, *, eps: float = 1e-6, sharded: str) -> Any:
    """The gradients of the weight of all ranks are averaged, as those of data parallel ranks are, where they are parts of a sum."""
    dx, parts = textbook_ranks.norm_parts(x_shards, weight, dout_shards, eps)
    return dx, textbook_ranks.everywhere(in_order(parts, "mean"), len(parts), weight.dtype)


@mutant("norm_backward_sharded", id="replicated-norm-partial-grad-only-synced-under-sp", family=FAMILY,
        source="https://github.com/NVIDIA/Megatron-LM/issues/7452", trigger=lambda: _norm("heads"))
def reduced_for_tokens_only(x_shards: Any, weight: Any, dout_shards: Any, *, eps: float = 1e-6, sharded: str) -> Any:
    """The gradient of a weight that every rank uses on its own heads is reduced under sequence parallelism only."""
    dx, parts = textbook_ranks.norm_parts(x_shards, weight, dout_shards, eps)
    whole = textbook_ranks.everywhere(in_order(parts), len(parts), weight.dtype)
    return dx, whole if sharded == "tokens" else [part.astype(weight.dtype) for part in parts]


@mutant("shard_qkv", id="fused-qkv-split-contiguously", family=FAMILY, source="https://github.com/deepspeedai/DeepSpeed/pull/3844",
        trigger=lambda: {**{name: np.arange(i, i + 4, dtype=np.float32)[None] for i, name in ((1, "w_q"), (11, "w_k"), (21, "w_v"))},
                         "heads": 2, "kv_heads": 2, "world": 2})
def equal_slices_of_the_fused_weight(w_q: Any, w_k: Any, w_v: Any, *, heads: int, kv_heads: int, world: int) -> Any:
    """[Q K V] side by side is cut into equal slices, of which each rank takes its first part for queries, and so on."""
    own = [parts[0].shape[1] for parts in textbook_ranks.shard_qkv(w_q, w_k, w_v, heads=heads, kv_heads=kv_heads, world=world)]
    fused = np.concatenate([w_q, w_k, w_v], axis=1)
    fused = np.tile(fused, (1, -(-world * sum(own) // fused.shape[1])))         # kv heads that several ranks hold
    slices = [fused[:, r * sum(own) : (r + 1) * sum(own)] for r in range(world)]
    return tuple([np.split(part, np.cumsum(own)[:-1], axis=1)[i].copy() for part in slices] for i in range(3))


@mutant("vocab_parallel_embedding", id="vocab-floor-division-loses-tail", family=FAMILY,
        source="https://github.com/huggingface/text-generation-inference/pull/1463", trigger=lambda: {
            "tokens": np.array([9, 0]), "table": np.arange(1, 11, dtype=np.float32)[:, None], "world": 4})
def whole_parts_only(tokens: Any, table: Any, *, world: int) -> list[Array]:
    """V // R rows a rank: the last V mod R tokens are found on none."""
    return textbook_ranks.vocab_parallel_embedding(tokens, table, world=world, rows=len(table) // world)


@mutant(
    "clip_grad_norm_sharded", id="replicated-weight-in-norm-tp-times", family=FAMILY,
    source="https://github.com/ROCm/TransformerEngine/pull/715 https://github.com/NVIDIA-NeMo/RL/pull/3788",
    trigger=lambda: {"grads.0": np.full((4, 1), 1.5, np.float32), "grads.1": np.full((4, 1), 4, np.float32), "placement": np.array([1, 0]),
                     "max_norm": 5.0},
)  # fmt: skip
def copies_counted_once_a_rank(grads: Any, placement: Any, *, max_norm: float) -> Any:
    """The squares of everything a rank holds are added over the ranks: what is replicated counts R times, 8.544 in place of 5."""
    return textbook_ranks.clip_grad_norm_sharded(grads, placement, max_norm=max_norm, weigh=float)

