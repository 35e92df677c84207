"""Parameters counted from configs: published totals, and the weights that the reference decoder really has."""

from __future__ import annotations

import math
from typing import Any

import pytest

from oracles.reference import Decoder, ModelConfig, parameter_count
from oracles.reference.model_presets import DEVICES, PRESETS, device, preset

# Sizes of the published checkpoints: the parameters in the index of their safetensors files or on their page, bytes over 2.
PUBLISHED = {
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-xl": 1_557_611_200, "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192, "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400, "mistral-7b": 7_241_732_096, "mixtral-8x7b": 46_702_792_704, "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360, "gemma-7b": 8_537_680_896, "gemma-2-9b": 9_241_705_984, "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
}  # fmt: skip
SIZES: dict[str, Any] = {"vocabulary": 17, "width": 12, "layers": 3, "heads": 4, "kv_heads": 2, "head_size": 5, "hidden": 7}
KEYS: dict[str, Any] = {"vocab_size": 17, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
                        "head_dim": 5, "intermediate_size": 7}


@pytest.mark.parametrize("name", PRESETS)
def test_the_count_is_that_of_the_published_checkpoint(name: str) -> None:
    assert parameter_count(preset(name).config).total == PUBLISHED[name]


def test_a_dozen_public_models_are_known_each_with_its_source() -> None:
    assert len(PRESETS) >= 12
    assert all(found.source.startswith("https://huggingface.co/") and not found.config.assumed for found in PRESETS.values())


@pytest.mark.parametrize(("name", "billions"), [("mixtral-8x7b", "12.9"), ("deepseek-v2", "21.4"), ("deepseek-v3", "37.6")])
def test_active_parameters_are_those_one_token_meets(name: str, billions: str) -> None:
    assert f"{parameter_count(preset(name).config).active / 1e9:.1f}" == billions


@pytest.mark.parametrize("tied", [False, True])
def test_grouped_attention_has_the_weights_of_the_reference_decoder(tied: bool) -> None:
    decoder = Decoder(**SIZES, tied=tied)
    counted = parameter_count(ModelConfig.read({**KEYS, "tie_word_embeddings": tied}))
    assert counted.total == counted.active == sum(math.prod(shape) for shape in decoder.shapes().values())


def test_latent_attention_has_the_weights_of_the_reference_decoder() -> None:
    decoder = Decoder(**SIZES, latent=6, rope_size=2)
    counted = parameter_count(ModelConfig.read({**KEYS, "kv_lora_rank": 6, "qk_rope_head_dim": 2, "qk_nope_head_dim": 5, "v_head_dim": 5}))
    assert counted.total == sum(math.prod(shape) for shape in decoder.shapes().values())


def test_an_input_table_is_multiplied_only_where_it_is_the_head() -> None:
    untied, tied = (parameter_count(ModelConfig.read({**KEYS, "tie_word_embeddings": tied})) for tied in (False, True))
    assert untied.multiplied == tied.multiplied == untied.total - 17 * 12


def test_positions_that_are_learned_are_looked_up() -> None:
    gpt2 = parameter_count(preset("gpt2").config)
    assert gpt2.total - gpt2.multiplied == gpt2.positions == 1024 * 768


@pytest.mark.parametrize(("changed", "error", "words"), [
    ({"hidden_size": None}, ValueError, "config: got no hidden_size or n_embd; want it"),
    ({"num_key_value_heads": 3}, ValueError, "kv_heads: got 3 for 4 query heads; want a divisor of 4"),
    ({"head_dim": None, "hidden_size": 13}, ValueError, "head_dim: got none, and hidden size 13 for 4 heads"),
    ({"num_hidden_layers": 0}, ValueError, "layers: got 0; want a whole number >= 1"),
    ({"num_hidden_layers": 2.5}, TypeError, "num_hidden_layers: got 2.5"),
    ({"kv_lora_rank": 6}, ValueError, "kv_lora_rank: got it without qk_rope_head_dim, qk_nope_head_dim, v_head_dim"),
    ({"num_local_experts": 4, "num_experts_per_tok": 5}, ValueError, r"active_experts: got 5 of 4 experts; want 1\.\.4"),
    ({"sliding_window": 4, "layer_types": ["full_attention", "full_attention", "sliding_attention"]}, ValueError,
     "layer_types: got 2 full"),
])  # fmt: skip
def test_configs_that_do_not_fit_are_refused_by_name(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ModelConfig.read({**KEYS, **changed})


@pytest.mark.parametrize(("keys", "windowed"), [
    ({}, 0), ({"sliding_window": 4}, 3), ({"sliding_window": 4, "use_sliding_window": False}, 0),
    ({"sliding_window": 4, "sliding_window_pattern": 3}, 2),
    ({"sliding_window": 4, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}, 2),
    ({"sliding_window": 4, "model_type": "gemma2", "num_hidden_layers": 42}, 21),
    ({"sliding_window": 4, "model_type": "gemma3_text", "num_hidden_layers": 34}, 29),
    ({"sliding_window": 4, "num_hidden_layers": 34, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5
      + ["sliding_attention"] * 4}, 29),
    ({"sliding_window": 4, "layer_types": ["full_attention"] * 3}, 0), ({"sliding_window": 4, "layer_types": ["sliding_attention"] * 3}, 3),
])  # fmt: skip
def test_windowed_layers_are_those_the_config_names(keys: dict[str, Any], windowed: int) -> None:
    assert ModelConfig.read({**KEYS, **keys}).windowed_layers == windowed


def test_an_unknown_family_is_said_to_be_counted_as_llama() -> None:
    assert ModelConfig.read({**KEYS, "model_type": "other"}).assumed == "model_type 'other' is not known: counted as a Llama layer"


def test_listed_peaks_with_sparsity_are_halved() -> None:
    assert DEVICES["h100"].flops_per_second == DEVICES["h200"].flops_per_second == 989.5e12


def test_unknown_names_are_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="model: got 'llama'; want one of gpt2, gpt2-medium"):
        preset("llama")
    with pytest.raises(ValueError, match="device: got 'tpu'; want one of v100"):
        device("tpu")
