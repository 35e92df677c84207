"""FLOPs by formula against the products that the reference decoder really computes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from oracles.reference import (
    Decoder,
    ModelConfig,
    arguments,
    attention_pairs,
    memory_traffic,
    model_flops,
    parameter_count,
    transformer_forward,
    utilisation,
)
from oracles.reference.model_presets import preset

SIZES: dict[str, Any] = {"vocabulary": 17, "width": 12, "layers": 3, "heads": 4, "kv_heads": 2, "head_size": 6, "hidden": 7}
KEYS: dict[str, Any] = {"vocab_size": 17, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
                        "head_dim": 6, "intermediate_size": 7}
LATENT: dict[str, Any] = {"kv_lora_rank": 5, "qk_rope_head_dim": 2, "qk_nope_head_dim": 6, "v_head_dim": 6}


class Counted(np.ndarray):
    """An array that adds up two FLOPs for every multiply-add of the matrix products and contractions it is part of."""

    flops = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        plain = [np.asarray(x) if isinstance(x, Counted) else x for x in inputs]
        if out is not None:
            options["out"] = tuple(np.asarray(x) if isinstance(x, Counted) else x for x in out)
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc is np.matmul:
            Counted.flops += 2 * result.size * plain[0].shape[-1]
        return result.view(Counted) if isinstance(result, np.ndarray) else result

    def __array_function__(self, function: Any, types: Any, given: Any, options: Any) -> Any:
        assert function is not np.einsum, "einsum: its products would not be counted"
        result = super().__array_function__(function, types, given, options)
        return result.view(Counted) if isinstance(result, np.ndarray) else result


def products(monkeypatch: pytest.MonkeyPatch, decoder: Decoder, tokens: int) -> int:
    """FLOPs of the matrix products of one forward pass."""
    plain = arguments.float_array

    def counting(*given: Any, **options: Any) -> Any:
        return plain(*given, **options).view(Counted)

    g = np.random.default_rng(0)
    weights = {name: g.standard_normal(shape) for name, shape in decoder.shapes().items()}
    with monkeypatch.context() as patch:
        patch.setattr(arguments, "float_array", counting)
        Counted.flops = 0
        transformer_forward(np.arange(tokens)[None] % 17, weights, decoder)
    return Counted.flops


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_grouped_attention_computes_what_the_formula_says(monkeypatch: pytest.MonkeyPatch, tokens: int, tied: bool) -> None:
    """The decoder computes all scores and hides some: all pairs. Norms are 2 a parameter in the formula and no product."""
    config = {**KEYS, "tie_word_embeddings": tied}
    norms = 2 * parameter_count(ModelConfig.read(config)).norms * tokens
    assert products(monkeypatch, Decoder(**SIZES, tied=tied), tokens) == int(model_flops(tokens, config=config, pairs="all")) - norms


@pytest.mark.parametrize("tokens", [1, 33])
def test_latent_attention_computes_what_the_formula_says(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    norms = 2 * (parameter_count(ModelConfig.read({**KEYS, **LATENT})).norms + 3 * 5) * tokens         # and that of each latent
    counted = products(monkeypatch, Decoder(**SIZES, latent=5, rope_size=2), tokens)
    assert counted == int(model_flops(tokens, config={**KEYS, **LATENT}, pairs="all")) - norms


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_pairs_are_those_of_a_mask(n: int, window: int | None) -> None:
    i, j = np.indices((n, n))
    seen = (j <= i) & (i - j < (n if window is None else window))
    assert attention_pairs(n, causal=True, window=window) == int(seen.sum())


def test_attention_alone_is_what_memory_traffic_counts() -> None:
    """One layer of GPT-2 medium's heads over 64 sequences of 1,024: 4 B H N^2 D forward."""
    config = {"hidden_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 16, "head_dim": 64}
    one = int(model_flops(1024, config=config, pairs="all")) - 2 * parameter_count(ModelConfig.read(config)).multiplied * 1024
    assert 64 * one == memory_traffic(64, 16, 1024, 64, sram_bytes=192 * 1024, element_bytes=2).standard_forward_flops


@pytest.mark.parametrize("pairs", ["causal", "all"])
def test_a_backward_pass_doubles_what_came_before(pairs: Any) -> None:
    assert int(model_flops(100, config=KEYS, pairs=pairs, backward=True)) == 3 * int(model_flops(100, config=KEYS, pairs=pairs))


def test_short_sequences_of_large_models_cost_six_n_d() -> None:
    """Attention's part at one token is 12 layers Hq D, whose share of the whole is told exactly."""
    config = preset("llama-3-8b").config
    N = parameter_count(config).multiplied
    assert int(model_flops(1, config=config, pairs="causal", backward=True)) == 6 * N + 12 * 32 * 32 * 128


def test_an_input_table_that_is_charged_shows() -> None:
    """tenstorrent/tt-metal#50114: V = 32000, d = 64, untied."""
    keys = {**KEYS, "vocab_size": 32000, "hidden_size": 64}
    count = parameter_count(ModelConfig.read(keys))
    linear = int(model_flops(1, config=keys, pairs="causal", backward=True)) - 12 * 3 * 4 * 6
    assert (linear, linear - 6 * count.total) == (6 * (count.total - 32000 * 64), -6 * 32000 * 64)


def test_windowed_layers_meet_fewer_keys() -> None:
    windowed, full = ({**KEYS, "sliding_window": 4}, KEYS)
    less = int(model_flops(33, config=full, pairs="causal")) - int(model_flops(33, config=windowed, pairs="causal"))
    assert less == 3 * 4 * 4 * 6 * (33 * 34 // 2 - (10 + 29 * 4))


def test_utilisation_is_a_share_of_the_peak() -> None:
    assert utilisation(1.0, 2.0**40, peak_flops_per_second=2.0**41) == 0.5


@pytest.mark.parametrize(("call", "words"), [
    (lambda: model_flops(1, config=KEYS, pairs="half"), "pairs: got 'half'; want 'causal' or 'all'"),  # type: ignore[arg-type]
    (lambda: attention_pairs(3, causal=True, window=0), "window: got 0; want a whole number >= 1"),
    (lambda: utilisation(0.0, 1.0, peak_flops_per_second=1.0), "tokens_per_second: got 0.0; want a finite number > 0"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_more_flops_than_fit_are_no_small_number() -> None:
    with pytest.raises(OverflowError):
        model_flops(2**38, config=preset("llama-3.1-405b").config, pairs="all")


def test_the_counter_counts() -> None:
    Counted.flops = 0
    _ = np.ones((5, 2, 3)).view(Counted) @ np.ones((3, 4))
    assert Counted.flops == 2 * math.prod((5, 2, 3, 4))
