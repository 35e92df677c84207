"""Model config: the sizes of a language model, read from the keys of a Hugging Face config.json. What they cost is counted elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import arguments

# Keys of one meaning, the first that is there counts. GPT-2 and the Mixtral family name some of them in their own way.
_KEYS = {
    "hidden": ("hidden_size", "n_embd"), "layers": ("num_hidden_layers", "n_layer"), "query_heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",), "head_dim": ("head_dim",), "intermediate": ("intermediate_size", "n_inner"),
    "vocabulary": ("vocab_size",), "context": ("max_position_embeddings", "n_positions"), "experts": ("num_local_experts",
    "n_routed_experts", "num_experts"), "active_experts": ("num_experts_per_tok",), "shared_experts": ("n_shared_experts",),
    "expert_intermediate": ("moe_intermediate_size",), "dense_layers": ("first_k_dense_replace",), "latent": ("kv_lora_rank",),
    "rope_dim": ("qk_rope_head_dim",), "nope_dim": ("qk_nope_head_dim",), "value_dim": ("v_head_dim",), "query_latent": ("q_lora_rank",),
}  # fmt: skip
# What each family adds to the plain Llama layer; a family that is not here is counted as one, and `ModelConfig.assumed` says so.
FAMILIES = ("gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "deepseek_v2", "deepseek_v3")

# Every so-manyth layer sees everything by default: published configs of these families name the window and nothing else, and
# transformers then fills layer_types in: Gemma2Config with "sliding_attention" where (i + 1) % 2, Gemma3TextConfig where (i + 1) %
# sliding_window_pattern, which it takes for 6 (configuration_gemma2.py, configuration_gemma3.py of 5.x; layers i from 0).
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a decoder.

    hidden, layers, query_heads, kv_heads, head_dim, intermediate, vocabulary    E, layers, Hq, Hkv, D, F, V
    experts, active_experts, shared_experts, expert_intermediate                 of a mixture; 0 experts: dense
    dense_layers                        the first so many layers hold one dense feed-forward instead of the mixture
    latent, rope_dim, nope_dim, value_dim, query_latent                          of latent attention, else None
    window, full_every                  keys a windowed layer keeps; every so-manyth layer sees all (0: none does)
    gated, learned_positions, biases, qkv_biases, output_biases, head_norms, norms_per_layer    form of the layer
    router_bias                         the mixture keeps a bias for each expert that only chooses (DeepSeek-V3)
    tied                                the head is the embedding
    family                              model_type, "" where none was given

    >>> ModelConfig.read({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2}).head_dim
    8

    Source: the configuration classes of huggingface/transformers.
    """

    hidden: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int = 0
    vocabulary: int = 0
    context: int = 0
    experts: int = 0
    active_experts: int = 0
    shared_experts: int = 0
    expert_intermediate: int = 0
    dense_layers: int = 0
    latent: int | None = None
    rope_dim: int = 0
    nope_dim: int = 0
    value_dim: int = 0
    query_latent: int | None = None
    window: int | None = None
    full_every: int = 0
    gated: bool = True
    learned_positions: bool = False
    biases: bool = False
    qkv_biases: bool = False
    output_biases: bool = False
    head_norms: bool = False
    norms_per_layer: int = 2
    router_bias: bool = False
    tied: bool = False
    family: str = ""

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "query_heads", "kv_heads", "head_dim"):
            arguments.whole_number(name, getattr(self, name), least=1)
        if self.query_heads % self.kv_heads:
            raise ValueError(f"kv_heads: got {self.kv_heads} for {self.query_heads} query heads; want a divisor of {self.query_heads}")
        if self.experts and not 1 <= self.active_experts <= self.experts:
            raise ValueError(f"active_experts: got {self.active_experts} of {self.experts} experts; want 1..{self.experts}")
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers: got {self.dense_layers} of {self.layers} layers; want at most {self.layers}")

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> ModelConfig:
        """The sizes that the keys of a config.json name.

        num_key_value_heads absent: as many as query heads; head_dim absent: hidden_size / num_attention_heads, which must be whole.
        sliding_window counts unless use_sliding_window is false; sliding_window_pattern n: every n-th layer sees everything (absent: 2
        of gemma2, 6 of gemma3_text, elsewhere none does); layer_types: as it lists. Keys without weight in memory or FLOPs are not read.

        Raises ValueError for sizes that are missing or do not fit, TypeError for what is no whole number.
        """
        found = {name: _whole(config, keys) for name, keys in _KEYS.items()}
        sizes: dict[str, Any] = {name: n for name, n in found.items() if n is not None}
        for name in ("hidden", "layers", "query_heads"):
            if name not in sizes:
                raise ValueError(f"config: got no {' or '.join(_KEYS[name])}; want it")
        family = str(config.get("model_type", ""))
        sizes.setdefault("kv_heads", sizes["query_heads"])
        if "head_dim" not in sizes:
            sizes["head_dim"] = _shared_out(sizes, config)
        if family == "gpt2":
            sizes.setdefault("intermediate", 4 * sizes["hidden"])
        if sizes.get("experts") and "expert_intermediate" not in sizes:
            sizes["expert_intermediate"] = sizes.get("intermediate", 0)
        if "latent" in sizes:
            _require_latent(sizes)
        return cls(**sizes, **_windows(config, sizes["layers"]), **_form(config, family))

    @property
    def assumed(self) -> str:
        """What the count takes for granted about the family, or ""."""
        return "" if self.family in FAMILIES else f"model_type {self.family!r} is not known: counted as a Llama layer"

    @property
    def windowed_layers(self) -> int:
        """Layers that keep at most `window` tokens."""
        if self.window is None:
            return 0
        return self.layers - (self.layers // self.full_every if self.full_every else 0)

    @property
    def score_dim(self) -> int:
        """Head size of queries and keys when attention is computed over expanded heads."""
        return self.head_dim if self.latent is None else self.nope_dim + self.rope_dim

    @property
    def output_dim(self) -> int:
        """Head size of values when attention is computed over expanded heads."""
        return self.head_dim if self.latent is None else self.value_dim


def _whole(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        if config.get(key) is not None:
            return arguments.whole_number(key, config[key], least=0)
    return None


def _shared_out(sizes: Mapping[str, int], config: Mapping[str, Any]) -> int:
    # Only where no head_dim is given: LMCache/LMCache#2248 took it so for a model that names one.
    if "latent" in sizes and "nope_dim" in sizes:
        return sizes["nope_dim"] + sizes.get("rope_dim", 0)
    if sizes["query_heads"] == 0 or sizes["hidden"] % sizes["query_heads"]:
        raise ValueError(f"head_dim: got none, and hidden size {sizes['hidden']} for {sizes['query_heads']} heads; want head_dim, "
                         "or a whole number of coordinates a head")  # fmt: skip
    return sizes["hidden"] // sizes["query_heads"]


def _require_latent(sizes: Mapping[str, int]) -> None:
    missing = [name for name in ("rope_dim", "nope_dim", "value_dim") if name not in sizes]
    if missing:
        raise ValueError(f"kv_lora_rank: got it without {', '.join(_KEYS[name][0] for name in missing)}; want all of them")


def _windows(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    window = config.get("sliding_window")
    if window is None or not config.get("use_sliding_window", True):
        return {}
    window = arguments.whole_number("sliding_window", window, least=1)
    if "layer_types" in config:
        full = sum(kind == "full_attention" for kind in config["layer_types"])
        if full == layers:
            return {}
        if full and layers // (layers // full) != full:                         # 5 of 34 are every sixth
            raise ValueError(f"layer_types: got {full} full of {layers} layers; want full ones at equal distances")
        return {"window": window, "full_every": layers // full if full else 0}
    usual = _FULL_EVERY.get(str(config.get("model_type", "")), 0)
    every = arguments.whole_number("sliding_window_pattern", config.get("sliding_window_pattern", usual), least=0)
    return {"window": window, "full_every": every}


def _form(config: Mapping[str, Any], family: str) -> dict[str, Any]:
    gpt2 = family == "gpt2"
    tied, biased = gpt2 or family.startswith("gemma"), bool(config.get("attention_bias", False))
    return {
        "gated": not gpt2, "learned_positions": gpt2, "biases": gpt2, "head_norms": family == "qwen3",
        "qkv_biases": gpt2 or biased or family == "qwen2", "output_biases": gpt2 or biased,
        "norms_per_layer": 4 if family == "gemma2" else 2,
        "router_bias": family == "deepseek_v3", "tied": bool(config.get("tie_word_embeddings", tied)), "family": family,
    }  # fmt: skip
