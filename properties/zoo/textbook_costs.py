"""Textbook of costs: the counts once more, by loops over layers, for mutants to break. Shares nothing with the oracles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Config = Mapping[str, Any]


def heads(config: Config) -> tuple[int, int, int]:
    """Query heads, key and value heads, head size."""
    queries: int = config["num_attention_heads"]
    return queries, config.get("num_key_value_heads", queries), config.get("head_dim", config["hidden_size"] // queries)


def windows(config: Config) -> list[int | None]:
    """For each layer the tokens it keeps, None for all."""
    every = config.get("sliding_window_pattern", 0)
    window = config.get("sliding_window")
    return [None if every and (i + 1) % every == 0 else window for i in range(config["num_hidden_layers"])]


def per_token(config: Config, kv_heads: int | None = None, head_dim: int | None = None) -> int:
    """Numbers that one layer keeps of one token; other heads or another head size than the config's where they are given."""
    if "kv_lora_rank" in config:
        return int(config["kv_lora_rank"] + config["qk_rope_head_dim"])
    _, own_heads, own_dim = heads(config)
    return 2 * (own_heads if kv_heads is None else kv_heads) * (own_dim if head_dim is None else head_dim)


def kv_bytes(lengths: Any, *, config: Config, element_bits: int = 16) -> Int64:
    """Layer by layer."""
    return kept(lengths, windows(config), per_token(config), element_bits)


def kept(lengths: Any, limits: list[int | None], numbers: int, element_bits: int) -> Int64:
    """Bytes of so many numbers a token in layers of these limits, rounded up."""
    totals = [sum(n if limit is None else min(n, limit) for limit in limits) for n in lengths.tolist()]
    return np.array([-(-total * numbers * element_bits // 8) for total in totals], dtype=np.int64)


def training_bytes(
    parameters: Any, *, stage: int, world: int, weight_bytes: int = 2, gradient_bytes: int = 2, optimizer_bytes: int = 12
) -> Int64:  # fmt: skip
    """Part by part: what is shared out from which stage on."""
    def of(n: int) -> int:
        part = -(-n // world)
        parts = ((weight_bytes, 3), (gradient_bytes, 2), (optimizer_bytes, 1))
        return sum(width * (part if stage >= first else n) for width, first in parts)

    return np.array([of(n) for n in parameters.tolist()], dtype=np.int64)


def multiplied(config: Config) -> int:
    """Active parameters but those of an input table that is only looked up."""
    return active(config) - (0 if config.get("tie_word_embeddings") else config["vocab_size"] * config["hidden_size"])


def active(config: Config) -> int:
    """Parameters that one token meets, the tables of input and head included."""
    E, F = config["hidden_size"], config["intermediate_size"]
    H, K, D = heads(config)
    if "kv_lora_rank" in config:
        C, R, N, W = (config[name] for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        attention = E * H * (N + R) + E * (C + R) + C + C * H * (N + W) + H * W * E
    else:
        attention = 2 * E * H * D + 2 * E * K * D
    visited = config.get("num_experts_per_tok", 1)
    layer = attention + 3 * E * F * visited + E * config.get("num_local_experts", 0) + 2 * E
    tables = 1 if config.get("tie_word_embeddings") else 2
    return int(tables * config["vocab_size"] * E + config["num_hidden_layers"] * layer + E)


def widths(config: Config) -> tuple[int, int]:
    """Head size of queries and keys, and of values."""
    if "kv_lora_rank" in config:
        return config["qk_nope_head_dim"] + config["qk_rope_head_dim"], config["v_head_dim"]
    return (heads(config)[2],) * 2


def met(n: int, limit: int | None, pairs: str) -> int:
    """Pairs of a query and a key in one layer."""
    if pairs == "all":
        return n * n
    w = n if limit is None else min(n, limit)
    return w * (w + 1) // 2 + (n - w) * w


def model_flops(lengths: Any, *, config: Config, pairs: str, backward: bool = False) -> Int64:
    """Layer by layer."""
    return counted(lengths, config, multiplied(config), widths(config), pairs, backward)


def counted(lengths: Any, config: Config, parameters: int, sizes: tuple[int, int], pairs: str, backward: bool) -> Int64:
    """FLOPs with so many parameters multiplied and heads of these sizes."""
    H, limits, times = config["num_attention_heads"], windows(config), 3 if backward else 1
    return np.array([times * (2 * parameters * n + sum(2 * H * sum(sizes) * met(n, limit, pairs) for limit in limits))
                     for n in lengths.tolist()], dtype=np.int64)  # fmt: skip


def token_accuracy(logits: Any, tokens: Any, *, ignore_index: int = -100) -> tuple[Int64, Int64]:
    """Predictions and targets one position apart."""
    return compared(np.argmax(logits.astype(np.float64), axis=-1)[:, :-1], tokens[:, 1:], ignore_index)


def compared(predicted: Any, targets: Any, ignore_index: int) -> tuple[Int64, Int64]:
    """How many agree where the target counts, and how many count."""
    kept = targets != ignore_index
    return np.asarray((kept & (predicted == targets)).sum(), np.int64), np.asarray(kept.sum(), np.int64)
