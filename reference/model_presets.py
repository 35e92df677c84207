"""Presets: configs of public models, as their published config.json say, and the figures of public accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .model_config import ModelConfig
from .units import of_unit


@dataclass(frozen=True)
class Preset:
    """A public model: the keys of its published config that weigh, the sizes they say, and where that was published."""

    keys: Mapping[str, Any]
    config: ModelConfig
    source: str


def _llama(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int, context: int,
           **more: Any) -> dict[str, Any]:
    return {"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "intermediate_size": intermediate, "vocab_size": vocabulary,
            "max_position_embeddings": context, **more}  # fmt: skip


def _gpt2(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": 50257, "n_positions": 1024}


def _deepseek(version: str, **sizes: Any) -> dict[str, Any]:
    return {"model_type": version, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 163840, **sizes}  # fmt: skip


_PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("openai-community/gpt2", _gpt2(768, 12, 12)),
    "gpt2-medium": ("openai-community/gpt2-medium", _gpt2(1024, 24, 16)),
    "gpt2-xl": ("openai-community/gpt2-xl", _gpt2(1600, 48, 25)),
    "llama-2-7b": ("meta-llama/Llama-2-7b-hf", _llama(4096, 32, 32, 32, 11008, 32000, 4096)),
    "llama-2-13b": ("meta-llama/Llama-2-13b-hf", _llama(5120, 40, 40, 40, 13824, 32000, 4096)),
    "llama-2-70b": ("meta-llama/Llama-2-70b-hf", _llama(8192, 80, 64, 8, 28672, 32000, 4096)),
    "llama-3-8b": ("meta-llama/Meta-Llama-3-8B", _llama(4096, 32, 32, 8, 14336, 128256, 8192)),
    "llama-3-70b": ("meta-llama/Meta-Llama-3-70B", _llama(8192, 80, 64, 8, 28672, 128256, 8192)),
    "llama-3.1-405b": ("meta-llama/Llama-3.1-405B", _llama(16384, 126, 128, 8, 53248, 128256, 131072)),
    "llama-3.2-1b": ("meta-llama/Llama-3.2-1B", _llama(2048, 16, 32, 8, 8192, 128256, 131072, head_dim=64, tie_word_embeddings=True)),
    "mistral-7b": ("mistralai/Mistral-7B-v0.1",
                   {**_llama(4096, 32, 32, 8, 14336, 32000, 32768, sliding_window=4096), "model_type": "mistral"}),
    "mixtral-8x7b": ("mistralai/Mixtral-8x7B-v0.1",
                     {**_llama(4096, 32, 32, 8, 14336, 32000, 32768, num_local_experts=8, num_experts_per_tok=2), "model_type": "mixtral"}),
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B", {**_llama(3584, 28, 28, 4, 18944, 152064, 131072), "model_type": "qwen2"}),
    "qwen3-8b": ("Qwen/Qwen3-8B", {**_llama(4096, 36, 32, 8, 12288, 151936, 40960, head_dim=128), "model_type": "qwen3"}),
    "gemma-7b": ("google/gemma-7b", {**_llama(3072, 28, 16, 16, 24576, 256000, 8192, head_dim=256), "model_type": "gemma"}),
    "gemma-2-9b": ("google/gemma-2-9b", {**_llama(3584, 42, 16, 8, 14336, 256000, 8192, head_dim=256, sliding_window=4096,
                                                   sliding_window_pattern=2), "model_type": "gemma2"}),
    "deepseek-v2": ("deepseek-ai/DeepSeek-V2", _deepseek(
        "deepseek_v2", hidden_size=5120, num_hidden_layers=60, intermediate_size=12288, vocab_size=102400, n_routed_experts=160,
        n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1536, first_k_dense_replace=1)),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", _deepseek(
        "deepseek_v3", hidden_size=7168, num_hidden_layers=61, intermediate_size=18432, vocab_size=129280, n_routed_experts=256,
        n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3)),
}  # fmt: skip

PRESETS: dict[str, Preset] = {
    name: Preset(config, ModelConfig.read(config), f"https://huggingface.co/{repository}/blob/main/config.json")
    for name, (repository, config) in _PUBLISHED.items()
}


@dataclass(frozen=True)
class Device:
    """One accelerator as its data sheet lists it.

    memory_bytes         of device memory; bytes_per_second: between it and the chip
    flops_per_second     of 16-bit matrix products, without sparsity
    source               where the figures stand
    """

    memory_bytes: int
    bytes_per_second: float
    flops_per_second: float
    source: str


# 16-bit dense. A sheet that lists figures "with sparsity" gives twice the dense ones: 1,979 TFLOPS for H100 and H200 are 989.5.
DEVICES: dict[str, Device] = {
    "v100": Device(of_unit(32, "GB"), 0.9e12, 125e12, "NVIDIA V100 data sheet (SXM2, 32 GB)"),
    "a100-40gb": Device(of_unit(40, "GB"), 1.555e12, 312e12, "NVIDIA A100 data sheet (SXM, 40 GB)"),
    "a100-80gb": Device(of_unit(80, "GB"), 2.039e12, 312e12, "NVIDIA A100 data sheet (SXM, 80 GB)"),
    "h100": Device(of_unit(80, "GB"), 3.35e12, 1979e12 / 2, "NVIDIA H100 data sheet (SXM, 80 GB); listed 1,979 TFLOPS with sparsity"),
    "h200": Device(of_unit(141, "GB"), 4.8e12, 1979e12 / 2, "NVIDIA H200 data sheet (SXM, 141 GB); listed 1,979 TFLOPS with sparsity"),
}


def preset(name: str) -> Preset:
    """The public model of that name.

    >>> preset("llama-3-8b").config.kv_heads
    8

    Raises ValueError that lists the names there are.
    """
    if name not in PRESETS:
        raise ValueError(f"model: got {name!r}; want one of {', '.join(PRESETS)}")
    return PRESETS[name]


def device(name: str) -> Device:
    """The accelerator of that name.

    >>> device("h200").memory_bytes
    141000000000

    Raises ValueError that lists the names there are.
    """
    if name not in DEVICES:
        raise ValueError(f"device: got {name!r}; want one of {', '.join(DEVICES)}")
    return DEVICES[name]
