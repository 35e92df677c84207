"""Bytes of training and of caches: published figures, and what caches, pages and shards really hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import (
    BlockAllocator,
    KVCache,
    Layout,
    ModelConfig,
    activation_bytes,
    in_unit,
    kv_bytes,
    largest_batch,
    lora_bytes,
    lora_parameters,
    mla_compress,
    of_unit,
    show_bytes,
    training_bytes,
    training_parts,
)
from oracles.reference.model_presets import preset

N7 = 7 * 10**9
GROUPED: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 5}


# Training ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "world", "shown"), [
    (0, 1, "104.3 GiB"), (0, 8, "104.3 GiB"), (1, 8, "35.9 GiB"), (2, 8, "24.4 GiB"), (3, 8, "13.0 GiB"),
])  # fmt: skip
def test_7e9_parameters_take_what_is_published(stage: int, world: int, shown: str) -> None:
    assert show_bytes(int(training_bytes(N7, stage=stage, world=world)), "GiB", digits=1) == shown


def test_zero_2_replicates_the_weights_and_nothing_else() -> None:
    assert int(training_bytes(10**9, stage=2, world=8)) == 2 * 10**9 + 14 * 10**9 // 8


def test_a_float32_copy_of_the_gradients_is_a_layout() -> None:
    assert int(training_bytes(10**9, stage=2, world=8, optimizer_bytes=16)) == 4_250_000_000


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("world", [1, 3, 8])
def test_shards_of_flat_buffers_hold_what_the_formula_says(stage: int, world: int) -> None:
    """Arrays of the declared widths, cut as a flat buffer filled up to equal parts is cut, weighed on every rank."""
    N = 1001
    padded = N + -N % world
    kept = {np.uint16: [1 if stage == 3 else 0, 1 if stage >= 2 else 0], np.float32: [1 if stage >= 1 else 0] * 3}
    for rank in range(world):
        held = 0
        for dtype, cuts in kept.items():
            for cut in cuts:
                buffer = np.zeros(padded if cut else N, dtype)
                held += (np.split(buffer, world)[rank] if cut else buffer).nbytes
        assert held == int(training_bytes(N, stage=stage, world=world))


def test_the_parts_add_up_in_every_layout() -> None:
    layout = Layout(weights=4, gradients=4, masters=0, first_moment=1, second_moment=2)
    parts = training_parts(1003, stage=2, world=4, layout=layout)
    assert sum(parts.values()) == int(training_bytes(1003, stage=2, world=4, weight_bytes=4, gradient_bytes=4, optimizer_bytes=3))
    assert list(parts) == ["weights", "gradients", "masters", "first moment", "second moment"]


def test_lora_on_7e9_takes_14_56_gb_and_full_training_112() -> None:
    assert show_bytes(lora_bytes(N7, N7 // 200), "GB") == "14.56 GB"
    assert show_bytes(int(training_bytes(N7, stage=0, world=1)), "GB", digits=0) == "112 GB"


def test_adapters_are_two_thin_matrices_each() -> None:
    config = ModelConfig.read(GROUPED)
    assert lora_parameters(config, rank=2, targets=("q", "k", "v", "o")) == 3 * 2 * ((24 + 20) + 2 * (24 + 10) + (20 + 24))


@pytest.mark.parametrize(("checkpointing", "per_token"), [("none", 34 + 80), ("selective", 34), ("full", 2)])
def test_activations_of_gpt_3_are_those_of_the_paper(checkpointing: Any, per_token: int) -> None:
    gpt3 = ModelConfig(hidden=12288, layers=96, query_heads=96, kv_heads=96, head_dim=128)
    assert activation_bytes(gpt3, tokens=2048, sequences=1, checkpointing=checkpointing) == 96 * 2048 * 12288 * per_token


@pytest.mark.parametrize(("sequence_parallel", "wanted"), [(False, 10 + 24 / 8 + 80 / 8), (True, (34 + 80) / 8)])
def test_tensor_parallel_layers_share_out_all_but_ten(sequence_parallel: bool, wanted: float) -> None:
    gpt3 = ModelConfig(hidden=12288, layers=96, query_heads=96, kv_heads=96, head_dim=128)
    held = activation_bytes(gpt3, tokens=2048, sequences=1, checkpointing="none", tensor_parallel=8, sequence_parallel=sequence_parallel)
    assert held == 96 * 2048 * 12288 * wanted


# Caches ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 1, 37])
def test_a_cache_of_the_reference_holds_what_the_formula_says(tokens: int) -> None:
    layers = [KVCache() for _ in range(3)]
    for cache in layers:
        cache.append(np.zeros((1, 2, tokens, 5)), np.zeros((1, 2, tokens, 5)))
    held = sum(array.nbytes for cache in layers for array in cache.view())
    assert held == int(kv_bytes(tokens, config=GROUPED, element_bits=64))


@pytest.mark.parametrize("tokens", [1, 4, 5, 37])
def test_windowed_layers_hold_their_window(tokens: int) -> None:
    layers = [KVCache(window=4), KVCache(window=4), KVCache()]
    for cache in layers:
        cache.append(np.zeros((1, 2, tokens, 5)), np.zeros((1, 2, tokens, 5)))
    config = {**GROUPED, "sliding_window": 4, "sliding_window_pattern": 3}
    assert sum(array.nbytes for cache in layers for array in cache.view()) == int(kv_bytes(tokens, config=config, element_bits=64))


def test_a_latent_cache_holds_the_latent_and_one_turned_key() -> None:
    latent, key = mla_compress(np.zeros((1, 7, 24)), np.zeros((24, 6)), np.zeros((24, 2)), np.arange(7), pairing="half")
    config = {**GROUPED, "num_hidden_layers": 1, "kv_lora_rank": 6, "qk_rope_head_dim": 2, "qk_nope_head_dim": 5, "v_head_dim": 5}
    assert latent.nbytes + key.nbytes == int(kv_bytes(7, config=config, element_bits=64))


def test_pages_of_an_allocator_hold_the_cache_and_less_than_one_page_more() -> None:
    allocator, lengths = BlockAllocator(64, 16), (1, 15, 16, 17, 100)
    for index, n in enumerate(lengths):
        allocator.allocate(index, [1000 * index + t for t in range(n)])
    page = int(kv_bytes(16, config=GROUPED))
    for index, n in enumerate(lengths):
        assert 0 <= len(allocator.table(index)) * page - int(kv_bytes(n, config=GROUPED)) < page


@pytest.mark.parametrize(("name", "tokens", "shown"), [
    ("llama-2-7b", 1, "0.50 MiB"), ("llama-2-7b", 32768, "16384.00 MiB"), ("llama-3-8b", 1, "0.12 MiB"),
    ("llama-3-8b", 131072, "16384.00 MiB"),
    ("llama-3-70b", 131072, "40960.00 MiB"),
])  # fmt: skip
def test_public_models_keep_what_is_published(name: str, tokens: int, shown: str) -> None:
    assert show_bytes(int(kv_bytes(tokens, config=preset(name).config)), "MiB").replace(",", "") == shown


def test_a_head_size_that_is_named_is_not_derived() -> None:
    """Hidden 5120, 96 heads of 128, as in LMCache/LMCache#2248."""
    config = {"hidden_size": 5120, "num_hidden_layers": 1, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128}
    assert int(kv_bytes(1, config=config)) == 2 * 8 * 128 * 2


def test_four_bits_take_a_quarter_rounded_up() -> None:
    config = {"hidden_size": 3, "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 1}
    assert [int(kv_bytes(n, config=config, element_bits=4)) for n in (1, 3)] == [1, 3]
    assert int(kv_bytes(1, config=config, element_bits=3)) == 1


@pytest.mark.parametrize(("memory", "batches"), [(80 * 2**30, (260, 65, 16)), (80 * 10**9, (238, 59, 14))])
def test_gigabytes_and_gibibytes_hold_other_batches(memory: int, batches: tuple[int, ...]) -> None:
    assert tuple(largest_batch(memory, 16 * 10**9, 131072 * tokens) for tokens in (2048, 8192, 32768)) == batches


# Units and refusals ------------------------------------------------------------------------------------------------------


def test_a_gibibyte_is_no_gigabyte() -> None:
    assert (of_unit(80, "GiB") - of_unit(80, "GB"), in_unit(2**30, "GB")) == (5_899_345_920, 1.073741824)


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: show_bytes(1, "G"), ValueError, "unit: got 'G'; want one of B, kB, MB, GB"),
    (lambda: of_unit(-1, "GB"), ValueError, "number: got -1.0; want none below 0"),
    (lambda: training_bytes(1, stage=4, world=1), ValueError, "stage: got 4; want 0, 1, 2 or 3"),
    (lambda: training_bytes(1, stage=1, world=0), ValueError, "world: got 0; want a whole number >= 1"),
    (lambda: training_bytes(1.5, stage=1, world=1), TypeError, "parameters: got dtype float64; want integers"),
    (lambda: kv_bytes(-1, config=GROUPED), ValueError, "lengths: got numbers from -1 to -1"),
    (lambda: largest_batch(1, 1, 0), ValueError, "sequence_bytes: got 0"),
    (lambda: Layout(weights=-1), ValueError, "weights: got -1"),
    (lambda: lora_parameters(ModelConfig.read(GROUPED), rank=1, targets=("up",)), ValueError, "targets: got up; want some of q, k, v, o"),
    (lambda: activation_bytes(ModelConfig.read(GROUPED), tokens=1, sequences=1, checkpointing="some"), ValueError,  # type: ignore[arg-type]
     "checkpointing: got 'some'"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
