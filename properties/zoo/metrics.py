"""Faults of memory estimates and metrics: counts of heads, windows, shards, tables and labels that released tools got wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_costs as textbook
from .specimen import mutant
from .textbook_costs import Config, Int64

FAMILY = "metrics"
GITHUB = "https://github.com"
LLAMA: dict[str, Any] = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                         "head_dim": 128}
SMALL: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
                         "vocab_size": 32000}
LATENT: dict[str, Any] = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}


def _lengths(*lengths: int, **config: Any) -> dict[str, Any]:
    return {"lengths": np.array(lengths), "config": config}


# Caches ------------------------------------------------------------------------------------------------------------------


@mutant("kv_bytes", id="kv-head-count-read-as-group-size", family=FAMILY, source=f"{GITHUB}/rasbt/LLMs-from-scratch/issues/922",
        trigger=lambda: _lengths(1, **{**LLAMA, "num_attention_heads": 24}))
def heads_as_divisor(lengths: Any, *, config: Config, element_bits: int = 16) -> Int64:
    """The number of key and value heads is taken for the number of queries that share one: 24 heads and 8 make 3."""
    queries, kv_heads, _ = textbook.heads(config)
    return textbook.kept(lengths, textbook.windows(config), textbook.per_token(config, kv_heads=queries // kv_heads), element_bits)


@mutant(
    "kv_bytes", id="kv-bytes-use-query-heads", family=FAMILY, trigger=lambda: _lengths(1, **LLAMA),
    source=f"{GITHUB}/jranaraki/vllm-fit/issues/2 {GITHUB}/vllm-project/vllm/pull/29736 "
    f"{GITHUB}/KolosalAI/model-memory-calculator/issues/2",
)  # fmt: skip
def all_heads_cached(lengths: Any, *, config: Config, element_bits: int = 16) -> Int64:
    """Every query head is charged keys and values of its own: four times too much where four share one."""
    kv_heads = textbook.heads(config)[0]
    return textbook.kept(lengths, textbook.windows(config), textbook.per_token(config, kv_heads=kv_heads), element_bits)


@mutant("kv_bytes", id="sliding-window-layers-charged-full-length", family=FAMILY, source=f"{GITHUB}/HenriGrimm/Minnow/pull/854",
        trigger=lambda: _lengths(32768, **{**LLAMA, "num_hidden_layers": 24, "sliding_window": 128, "sliding_window_pattern": 2}))
def windows_forgotten(lengths: Any, *, config: Config, element_bits: int = 16) -> Int64:
    """Windowed layers are charged for the whole context."""
    return textbook.kept(lengths, [None] * config["num_hidden_layers"], textbook.per_token(config), element_bits)


@mutant("kv_bytes", id="kv-head-dim-from-hidden-over-heads", family=FAMILY, source=f"{GITHUB}/LMCache/LMCache/issues/2248",
        trigger=lambda: _lengths(1, **{**LLAMA, "hidden_size": 5120, "num_attention_heads": 96}))
def head_size_derived(lengths: Any, *, config: Config, element_bits: int = 16) -> Int64:
    """The head size is hidden size over heads though the config names another."""
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return textbook.kept(lengths, textbook.windows(config), textbook.per_token(config, head_dim=head_dim), element_bits)


# Training memory ---------------------------------------------------------------------------------------------------------


@mutant("training_bytes", id="zero2-estimate-shards-the-weights", family=FAMILY, source=f"{GITHUB}/deepspeedai/DeepSpeed/pull/5099",
        trigger=lambda: {"parameters": np.array([10**9]), "stage": 2, "world": 8})
def stage_two_miscounted(
    parameters: Any, *, stage: int, world: int, weight_bytes: int = 2, gradient_bytes: int = 2, optimizer_bytes: int = 12
) -> Int64:  # fmt: skip
    """At stage 2 everything is divided by the devices, the weights too, and weights and gradients are charged once more in whole."""
    if stage != 2:
        return textbook.training_bytes(parameters, stage=stage, world=world, weight_bytes=weight_bytes, gradient_bytes=gradient_bytes,
                                       optimizer_bytes=optimizer_bytes)  # fmt: skip
    whole, shared = weight_bytes + gradient_bytes, weight_bytes + gradient_bytes + optimizer_bytes
    return np.asarray(whole * parameters + shared * -(-parameters // world), dtype=np.int64)


# FLOPs -------------------------------------------------------------------------------------------------------------------


@mutant("model_flops", id="embedding-lookup-counted-as-matmul", family=FAMILY, source=f"{GITHUB}/tenstorrent/tt-metal/pull/50114",
        trigger=lambda: {**_lengths(100, **SMALL), "pairs": "causal", "backward": True})
def table_multiplied(lengths: Any, *, config: Config, pairs: str, backward: bool = False) -> Int64:
    """The table of the input, of which a row is read for each token, is charged as a matrix product beside the head."""
    return textbook.counted(lengths, config, textbook.active(config), textbook.widths(config), pairs, backward)


@mutant("model_flops", id="attention-flops-not-halved-for-causal", family=FAMILY, source=f"{GITHUB}/verl-project/verl/pull/4959",
        trigger=lambda: {**_lengths(100, **SMALL), "pairs": "causal"})
def causal_charged_in_full(lengths: Any, *, config: Config, pairs: str, backward: bool = False) -> Int64:
    """Causal attention is charged for all pairs of a query and a key, twice of those there are."""
    return textbook.model_flops(lengths, config=config, pairs="all", backward=backward)


@mutant("model_flops", id="latent-flops-use-one-head-size", family=FAMILY, source=f"{GITHUB}/modular/modular/issues/5557",
        trigger=lambda: {**_lengths(100, **SMALL, **LATENT), "pairs": "causal"})
def values_as_wide_as_keys(lengths: Any, *, config: Config, pairs: str, backward: bool = False) -> Int64:
    """The product with the values is charged the head size of the keys, which latent attention makes wider."""
    size = textbook.widths(config)[0]
    return textbook.counted(lengths, config, textbook.multiplied(config), (size, size), pairs, backward)


# Accuracy ----------------------------------------------------------------------------------------------------------------


@mutant("token_accuracy", id="train-accuracy-against-unshifted-labels", family=FAMILY,
        source=f"{GITHUB}/Open-Superintelligence-Lab/5-dollar-llm/pull/67",
        trigger=lambda: {"logits": np.eye(4, dtype=np.float32)[[[1, 2, 3, 0]]], "tokens": np.array([[0, 1, 2, 3]])})
def labels_unshifted(logits: Any, tokens: Any, *, ignore_index: int = -100) -> tuple[Int64, Int64]:
    """The prediction at a position is held to the token that stands there, not to the next: chance, where the loss is near 0."""
    right, _ = textbook.compared(np.argmax(logits.astype(np.float64), axis=-1), tokens, ignore_index)
    return right, textbook.token_accuracy(logits, tokens, ignore_index=ignore_index)[1]
