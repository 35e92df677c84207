"""Counts from a config against the models that Hugging Face's library builds of it, without memory behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import ModelConfig, kv_bytes, parameter_count
from oracles.reference.model_presets import PRESETS

pytestmark = pytest.mark.peers


def built(keys: dict[str, Any]) -> Any:
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**keys)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("name", PRESETS)
def test_a_public_model_has_the_parameters_that_are_counted(name: str) -> None:
    keys = {**PRESETS[name].keys, "tie_word_embeddings": PRESETS[name].config.tied}
    model = built(keys)
    held = sum(p.numel() for p in model.parameters())
    held += sum(b.numel() for key, b in model.named_buffers() if key.endswith("e_score_correction_bias"))
    assert held == parameter_count(PRESETS[name].config).total


@pytest.mark.parametrize(("named", "family", "layers"), [
    ("Gemma2Config", "gemma2", 26), ("Gemma2Config", "gemma2", 7), ("Gemma3TextConfig", "gemma3_text", 26),
    ("Gemma3TextConfig", "gemma3_text", 34),
])  # fmt: skip
def test_layers_with_a_window_are_those_of_a_config_that_names_the_window_alone(named: str, family: str, layers: int) -> None:
    import transformers

    kinds = getattr(transformers, named)(num_hidden_layers=layers).layer_types
    sizes = ModelConfig.read({"model_type": family, "hidden_size": 64, "num_hidden_layers": layers, "num_attention_heads": 4,
                              "sliding_window": 8})  # fmt: skip
    assert sizes.windowed_layers == kinds.count("sliding_attention") > 0


def test_a_cache_of_a_small_model_has_the_bytes_that_are_counted() -> None:
    import torch
    import transformers

    keys = {"model_type": "llama", "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 6, "intermediate_size": 7, "vocab_size": 17}  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**keys))
    with torch.no_grad():
        cache = model(torch.as_tensor(np.arange(11)[None]), use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == int(kv_bytes(11, config=ModelConfig.read(keys), element_bits=32))
