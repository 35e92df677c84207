"""Bytes of a cache of keys and values, for grouped, windowed and latent attention; and how many sequences fit beside weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Int64
from .model_config import ModelConfig

Config = ModelConfig | Mapping[str, Any]


def read_config(config: Config) -> ModelConfig:
    """The config itself, or what the keys of a config.json say.

    >>> read_config({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}).kv_heads
    8
    """
    return config if isinstance(config, ModelConfig) else ModelConfig.read(config)


def kv_elements(config: ModelConfig) -> int:
    """Numbers that one layer keeps of one token: 2 Hkv D, or C + Dr of latent attention, whatever its heads.

    >>> from .model_presets import preset
    >>> kv_elements(preset("llama-3-8b").config), kv_elements(preset("deepseek-v2").config)
    (2048, 576)
    """
    return 2 * config.kv_heads * config.head_dim if config.latent is None else config.latent + config.rope_dim


def kv_bytes(lengths: ArrayLike, *, config: Config, element_bits: int = 16) -> Int64:
    """Bytes of the keys and values of sequences of these lengths: int64, the shape of lengths.

        elements x element_bits / 8 x (full layers x n + windowed layers x min(n, window)),  rounded up
        elements = 2 Hkv D, or C + Dr for latent attention

    config: a `ModelConfig`, or the keys of a config.json, of which it reads num_hidden_layers, num_attention_heads, hidden_size,
    num_key_value_heads (absent: num_attention_heads), head_dim (absent: hidden_size / num_attention_heads), sliding_window,
    kv_lora_rank. Pages that are not full, scales of quantized caches and tables of blocks are left out.

    >>> grouped = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    >>> kv_bytes([1, 4096], config=grouped)
    array([   131072, 536870912])

    Raises ValueError for a negative length or a config without those sizes. Exact integers.
    Source: Shazeer 2019 (arXiv 1911.02150); Ainslie et al. 2023 (arXiv 2305.13245); latent: DeepSeek-AI 2024 (arXiv 2405.04434), table 1.
    """
    sizes = read_config(config)
    n = arguments.integers("lengths", lengths, least=0, most=2**40)
    bits = arguments.whole_number("element_bits", element_bits, least=1)
    windowed = sizes.windowed_layers
    tokens = (sizes.layers - windowed) * n + (windowed * np.minimum(n, sizes.window) if sizes.window is not None else 0)
    return np.asarray(-(-kv_elements(sizes) * tokens * bits // 8))


def largest_batch(memory_bytes: int, weight_bytes: int, sequence_bytes: int) -> int:
    """How many sequences fit beside the weights, were there nothing else in memory; 0 where the weights alone do not fit.

    >>> largest_batch(80 * 2**30, 16 * 10**9, 2**30), largest_batch(80 * 2**30, 10**12, 1)
    (65, 0)

    Activations, workspaces, fragments and what the runtime keeps are left out. Raises ValueError for a sequence of 0 bytes.
    """
    memory, weights = (arguments.whole_number(name, n, least=0) for name, n in
                       (("memory_bytes", memory_bytes), ("weight_bytes", weight_bytes)))
    return max(memory - weights, 0) // arguments.whole_number("sequence_bytes", sequence_bytes, least=1)
