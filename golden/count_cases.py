"""Trace cases of what is counted: positions in padded rows, targets, right predictions, bytes of caches and of training, FLOPs, places in a
flat buffer."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.reference import FloatFormat

from . import draws
from .traces import Step, Trace

# name: (rows, where a 1 is a token and a 0 is padding; past)
PADDED: dict[str, tuple[tuple[str, ...], int]] = {
    "smallest": (("1",), 0), "no-columns": (("",), 0), "all-there": (("1111", "1111"), 0), "left": (("0011", "0111"), 0),
    "right": (("1100", "1110"), 0), "between": (("1011", "1001"), 0), "nothing-but-padding": (("000",), 0),
    "left-and-right": (("0110", "0100"), 0), "last-column": (("00111", "11111"), 4), "chunk-behind-a-cache": (("001111", "111111"), 3),
    "padding-ends-in-the-chunk": (("000011", "000000"), 3), "nothing-new": (("0111",), 4),
    "first-token-in-the-chunk": (("0001", "0111"), 2),
    "long": (("0" * 57 + "1" * 72, "1" * 129), 100),
}  # fmt: skip

# name: ((B, T), options; prompt_lengths as a tuple, segments as a text a row)
TARGETS: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "smallest": ((1, 1), {}), "no-rows": ((0, 4), {}), "no-tokens": ((2, 0), {}), "next-token": ((2, 5), {}),
    "prompts": ((3, 6), {"prompt_lengths": (0, 1, 4)}), "prompt-of-all": ((2, 4), {"prompt_lengths": (4, 9)}),
    "documents": ((1, 6), {"segments": ("000111",)}), "documents-of-one": ((1, 4), {"segments": ("0123",)}),
    "a-document-comes-back": ((1, 5), {"segments": ("00100",)}),
    "both": ((2, 6), {"segments": ("000111", "011111"), "prompt_lengths": (2, 3)}),
    "ignore-index": ((2, 4), {"ignore_index": -1, "prompt_lengths": (2, 0)}), "ignore-index-zero": ((2, 4), {"ignore_index": 0}),
    "long": ((2, 130), {"prompt_lengths": (60, 128)}),
}  # fmt: skip

# name: (format, (B, T, V), every so many targets ignored, ignore_index, how many different logits there are)
ACCURACIES: dict[str, tuple[str, tuple[int, int, int], int, int, int]] = {
    "smallest": ("float64", (1, 2, 1), 0, -100, 64), "one-token": ("float32", (2, 1, 3), 0, -100, 64),
    "no-rows": ("float32", (0, 3, 3), 0, -100, 64), "two-words": ("float32", (2, 9, 2), 0, -100, 4096),
    "words": ("bfloat16", (2, 9, 5), 0, -100, 256), "float16": ("float16", (2, 9, 5), 0, -100, 1024),
    "ignored": ("float32", (3, 12, 3), 3, -100, 4096), "all-ignored": ("float32", (2, 4, 3), 1, -100, 4096),
    "ignore-index": ("float32", (3, 12, 3), 3, -1, 4096), "ignored-class": ("float32", (3, 12, 3), 0, 1, 4096),
    "equal-logits": ("float32", (3, 12, 3), 0, -100, 2), "vocabulary": ("bfloat16", (2, 5, 129), 0, -100, 256),
}  # fmt: skip

_GROUPED = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
_LLAMA = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
          "vocab_size": 128256}  # fmt: skip
_LATENT = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "kv_lora_rank": 32, "qk_rope_head_dim": 8,
           "qk_nope_head_dim": 16, "v_head_dim": 12}  # fmt: skip
_FEED = {"intermediate_size": 160, "vocab_size": 1000}

# name: (lengths, config, options)
CACHES: dict[str, tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
    "nobody": ((), _GROUPED, {}), "nothing": ((0,), _GROUPED, {}), "grouped": ((1, 7, 100), _GROUPED, {}),
    "every-head-its-own": ((1, 33), {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}, {}),
    "one-head-for-all": ((5, 0), {**_GROUPED, "num_key_value_heads": 1}, {}), "head-dim-named": ((5, 9), {**_GROUPED, "head_dim": 24}, {}),
    "eight-bits": ((3, 100), _GROUPED, {"element_bits": 8}), "three-bits": ((1, 2), {**_GROUPED, "num_hidden_layers": 1, "head_dim": 1,
    "num_key_value_heads": 1}, {"element_bits": 3}), "windowed": ((3, 8, 9, 100), {**_GROUPED, "sliding_window": 8}, {}),
    "one-full-of-two": ((3, 100), {**_GROUPED, "sliding_window": 8, "sliding_window_pattern": 2}, {}),
    "window-not-used": ((100,), {**_GROUPED, "sliding_window": 8, "use_sliding_window": False}, {}),
    "latent": ((1, 100), _LATENT, {}), "latent-eight-bits": ((77,), _LATENT, {"element_bits": 8}),
    "llama-3-8b": ((8192, 131072), _LLAMA, {}),
}  # fmt: skip
FLOPS: dict[str, tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
    "nobody": ((), _GROUPED | _FEED, {"pairs": "causal"}), "one-token": ((1,), _GROUPED | _FEED, {"pairs": "causal"}),
    "causal": ((0, 7, 100), _GROUPED | _FEED, {"pairs": "causal"}), "all-pairs": ((0, 7, 100), _GROUPED | _FEED, {"pairs": "all"}),
    "backward": ((7, 100), _GROUPED | _FEED, {"pairs": "causal", "backward": True}),
    "all-pairs-backward": ((7, 100), _GROUPED | _FEED, {"pairs": "all", "backward": True}),
    "tied": ((7, 100), {**_GROUPED, **_FEED, "tie_word_embeddings": True}, {"pairs": "causal"}),
    "mixture": ((7, 100), {**_GROUPED, **_FEED, "num_local_experts": 4, "num_experts_per_tok": 2}, {"pairs": "causal"}),
    "windowed": ((7, 8, 9, 100), {**_GROUPED, **_FEED, "sliding_window": 8}, {"pairs": "causal"}),
    "one-full-of-two": ((9, 100), {**_GROUPED, **_FEED, "sliding_window": 8, "sliding_window_pattern": 2}, {"pairs": "causal"}),
    "windowed-all-pairs": ((9, 100), {**_GROUPED, **_FEED, "sliding_window": 8}, {"pairs": "all"}),
    "latent": ((7, 100), _LATENT | _FEED, {"pairs": "causal"}),
    "llama-3-8b": ((1, 2048), _LLAMA, {"pairs": "causal"}),
}  # fmt: skip

# name: (parameters, stage, world, bytes that are others than the defaults)
STATES: dict[str, tuple[tuple[int, ...], int, int, dict[str, int]]] = {
    "nobody": ((), 0, 1, {}), "nothing": ((0,), 3, 4, {}), "one-device": ((7, 1000), 0, 1, {}), "stage-0": ((1000, 1001), 0, 8, {}),
    "stage-1": ((1000, 1001), 1, 8, {}), "stage-2": ((1000, 1001), 2, 8, {}), "stage-3": ((1000, 1001), 3, 8, {}),
    "fewer-parameters-than-devices": ((3, 1), 3, 8, {}), "odd-world": ((1000, 999), 2, 7, {}),
    "float32-gradients": ((1000,), 2, 8, {"gradient_bytes": 4}), "eight-bit-optimizer": ((1000,), 1, 8, {"optimizer_bytes": 6}),
    "float32-weights": ((1000,), 3, 3, {"weight_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}),
    "7-billion": ((7 * 10**9,), 1, 64, {}),
}  # fmt: skip

# name: (sizes, alignment, ranks)
LAYOUTS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "nothing": ((), 4, 3), "smallest": ((1,), 1, 1), "nothing-of-one": ((0,), 8, 2), "end-to-end": ((6, 3, 5), 1, 1),
    "aligned": ((6, 3, 5), 4, 1), "shared": ((6, 3, 5), 1, 4), "aligned-and-shared": ((6, 3, 5), 4, 3), "at-the-border": ((8, 16, 4), 4, 7),
    "nothing-between": ((3, 0, 0, 5), 4, 2), "nothing-last": ((3, 4, 0), 4, 2), "fewer-than-ranks": ((1, 1), 1, 8),
    "alignment-of-three": ((1, 2, 3, 4, 5), 3, 5), "many": (tuple(range(1, 40)), 16, 8), "7-billion": ((7 * 10**9, 3, 10**9 + 7), 128, 64),
}  # fmt: skip


def count_traces() -> list[Trace]:
    """The questions of counts: a trace of one call each."""
    return [
        *(_call("padded_positions", name, present=np.asarray([[mark == "1" for mark in row] for row in rows], dtype=bool), past=past)
          for name, (rows, past) in PADDED.items()),
        *(_call("next_token_targets", name, tokens=draws.whole(f"targets {name}", shape, 0, 100), **_as_arrays(options, shape))
          for name, (shape, options) in TARGETS.items()),
        *(_accuracy(name) for name in ACCURACIES),
        *(_call("kv_bytes", name, lengths=_whole(lengths), config=config, **options)
          for name, (lengths, config, options) in CACHES.items()),
        *(_call("model_flops", name, lengths=_whole(lengths), config=config, **options)
          for name, (lengths, config, options) in FLOPS.items()),
        *(_call("training_bytes", name, parameters=_whole(parameters), stage=stage, world=world, **others)
          for name, (parameters, stage, world, others) in STATES.items()),
        *(_call("flat_layout", name, sizes=_whole(sizes), alignment=alignment, world=world)
          for name, (sizes, alignment, world) in LAYOUTS.items()),
    ]  # fmt: skip


def _as_arrays(options: dict[str, Any], shape: tuple[int, int]) -> dict[str, Any]:
    given = dict(options)
    if "prompt_lengths" in given:
        given["prompt_lengths"] = _whole(given["prompt_lengths"])
    if "segments" in given:
        given["segments"] = np.asarray([[int(mark) for mark in row] for row in given["segments"]], dtype=np.int64).reshape(shape)
    return given


def _accuracy(name: str) -> Trace:
    """Logits on a grid; few different ones meet often, and then the first counts."""
    dtype, (B, T, V), every, ignored, levels = ACCURACIES[name]
    key = f"accuracy {name}"
    logits = np.ldexp((draws.whole(f"{key} logits", (B, T, V), 0, levels) - levels // 2).astype(np.float64), -3)
    tokens = draws.whole(f"{key} tokens", (B, T), 0, V)
    if every:
        tokens = np.where(draws.whole(f"{key} ignored", (B, T), 0, every) == 0, ignored, tokens)
    return _call("token_accuracy", name, logits=np.asarray(FloatFormat(dtype).cast(logits)), tokens=tokens, ignore_index=ignored)


def _whole(numbers: tuple[int, ...]) -> Any:
    return np.asarray(numbers, dtype=np.int64)


def _call(operation: str, case: str, **arguments: Any) -> Trace:
    return Trace(operation, case, {}, (Step(operation, arguments),))
