"""The second route of what is counted: token by token, layer by layer, matrix by matrix, in whole numbers of Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def padded_positions(present: Any, past: int = 0) -> dict[str, Any]:
    B, L = present.shape
    positions = np.zeros((B, L - past), dtype=np.int64)
    for b in range(B):
        seen = 0
        for j in range(L):
            seen += bool(present[b, j])
            if j >= past:
                positions[b, j - past] = seen - 1 if seen else 0
    return {"positions": positions}


def next_token_targets(tokens: Any, prompt_lengths: Any = None, segments: Any = None, ignore_index: int = -100) -> dict[str, Any]:
    targets = []
    for b, row in enumerate(tokens.tolist()):
        for t in range(len(row)):
            answer = t + 1 < len(row) and (prompt_lengths is None or t + 1 >= int(prompt_lengths[b]))
            if answer and segments is not None:
                answer = int(segments[b, t]) == int(segments[b, t + 1])
            targets.append(row[t + 1] if answer else ignore_index)
    return {"targets": np.asarray(targets, dtype=np.int64).reshape(tokens.shape)}


def token_accuracy(logits: Any, tokens: Any, ignore_index: int = -100) -> dict[str, Any]:
    right = counted = 0
    for row, ids in zip(logits.astype(np.float64).tolist(), tokens.tolist()):
        for scores, target in zip(row, ids[1:]):
            if target != ignore_index:
                counted += 1
                right += scores.index(max(scores)) == target
    return {"right": np.asarray(right, dtype=np.int64), "counted": np.asarray(counted, dtype=np.int64)}


def kv_bytes(lengths: Any, config: Mapping[str, Any], element_bits: int = 16) -> dict[str, Any]:
    if "kv_lora_rank" in config:
        numbers = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        numbers = 2 * _kv_heads(config) * _head_dim(config)
    answers = []
    for n in lengths.tolist():
        bits = sum(numbers * element_bits * (n if window is None else min(n, window)) for window in _windows(config))
        answers.append(bits // 8 + (1 if bits % 8 else 0))
    return {"bytes": np.asarray(answers, dtype=np.int64)}


def model_flops(lengths: Any, config: Mapping[str, Any], pairs: str, backward: bool = False) -> dict[str, Any]:
    """A multiply-add is two; a number that a token is scaled by, of a norm, counts as one."""
    E, heads = config["hidden_size"], config["num_attention_heads"]
    latent = "kv_lora_rank" in config
    scored = config["qk_nope_head_dim"] + config["qk_rope_head_dim"] if latent else _head_dim(config)
    summed = config["v_head_dim"] if latent else _head_dim(config)
    weights = E + E * config["vocab_size"]                                      # the last norm, and the head, of its own or not
    for _ in range(config["num_hidden_layers"]):
        weights += 2 * E + sum(rows * columns for rows, columns in _matrices(config, scored, summed))
        weights += config["kv_lora_rank"] if latent else 0                      # the norm of the latent
    answers = []
    for n in lengths.tolist():
        flops = 2 * weights * n
        for window in _windows(config):
            met = n * n if pairs == "all" else sum(min(i + 1, n if window is None else window) for i in range(n))
            flops += 2 * heads * (scored + summed) * met
        answers.append(3 * flops if backward else flops)
    return {"flops": np.asarray(answers, dtype=np.int64)}


def training_bytes(parameters: Any, stage: int, world: int, weight_bytes: int = 2, gradient_bytes: int = 2,
                   optimizer_bytes: int = 12) -> dict[str, Any]:
    answers = []
    for n in parameters.tolist():
        part = n // world + (1 if n % world else 0)
        cut_from = ((3, weight_bytes), (2, gradient_bytes), (1, optimizer_bytes))
        answers.append(sum(each * (part if stage >= first else n) for first, each in cut_from))
    return {"bytes": np.asarray(answers, dtype=np.int64)}


def flat_layout(sizes: Any, alignment: int = 1, world: int = 1) -> dict[str, Any]:
    """The next multiple from where the last one ended: the remainder is what is missing."""
    offsets, end = [], 0
    for size in sizes.tolist():
        start = end if end % alignment == 0 else end + alignment - end % alignment
        offsets.append(start)
        end = start + size
    total = end if end % world == 0 else end + world - end % world
    return {"offsets": np.asarray(offsets, dtype=np.int64), "total": np.asarray(total, dtype=np.int64)}


def _kv_heads(config: Mapping[str, Any]) -> int:
    return int(config.get("num_key_value_heads", config["num_attention_heads"]))


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]))


def _windows(config: Mapping[str, Any]) -> list[int | None]:
    """The window of each layer, None where it sees all: every n-th layer of a pattern n."""
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    every = config.get("sliding_window_pattern", 0)
    return [None if every and (layer + 1) % every == 0 else window for layer in range(config["num_hidden_layers"])]


def _matrices(config: Mapping[str, Any], scored: int, summed: int) -> list[tuple[int, int]]:
    """The matrices of a layer that a token is multiplied with."""
    E, H, F = config["hidden_size"], config["num_attention_heads"], config["intermediate_size"]
    if "kv_lora_rank" in config:
        C, Dr = config["kv_lora_rank"], config["qk_rope_head_dim"]
        attention = [(E, H * scored), (E, C + Dr), (C, H * (scored - Dr)), (C, H * summed), (H * summed, E)]
    else:
        narrow = _kv_heads(config) * scored
        attention = [(E, H * scored), (E, narrow), (E, narrow), (H * summed, E)]
    experts = config.get("num_local_experts", 0)
    router = [(E, experts)] if experts else []
    return [*attention, *router, *[(E, F), (E, F), (F, E)] * (config["num_experts_per_tok"] if experts else 1)]
