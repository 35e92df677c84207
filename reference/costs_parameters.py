"""Parameters of a model, counted from its config: total, active for one token, and those that are looked up rather than multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from .model_config import ModelConfig


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters.

    embedding    the input table, V E; positions: learned ones; head: its own matrix V E, 0 where it is the embedding
    attention    projections of all layers; feed_forward: the dense and expert matrices and routers of all layers; norms: the rest
    idle         those of experts that one token does not visit
    """

    embedding: int
    positions: int
    head: int
    attention: int
    feed_forward: int
    norms: int
    idle: int

    @property
    def total(self) -> int:
        return self.embedding + self.positions + self.head + self.attention + self.feed_forward + self.norms

    @property
    def active(self) -> int:
        """What one token meets, all of the embedding's table included, as the published figures count."""
        return self.total - self.idle

    @property
    def looked_up(self) -> int:
        """Those in tables of which one row is read for a token: positions, and the embedding unless it is the head too."""
        return self.positions + (self.embedding if self.head else 0)

    @property
    def multiplied(self) -> int:
        """Active parameters that enter a product for every token: not a table of which one row is read, unless it is the head too."""
        return self.active - self.looked_up


def parameter_count(config: ModelConfig) -> ParameterCount:
    """The parameters of a decoder of this config.

        attention       E Hq D + 2 E Hkv D + Hq D E
        latent          E Hq (Dn + Dr), or E Cq + Cq + Cq Hq (Dn + Dr);  E (C + Dr) + C + C Hq (Dn + Dv) + Hq Dv E
        feed-forward    3 E F gated, 2 E F else;  mixture: E experts + (experts + shared) 3 E Fe
        norms           E each, two a layer and one at the end; twice that with biases

    >>> from .model_presets import PRESETS
    >>> parameter_count(PRESETS["llama-3-8b"].config).total
    8030261248
    >>> mixture = parameter_count(PRESETS["mixtral-8x7b"].config)
    >>> mixture.total, mixture.active
    (46702792704, 12879925248)

    Exact integers. Left out: heads for further tokens, adapters, and whatever a checkpoint keeps beside its weights.
    Source: Vaswani et al. 2017 (arXiv 1706.03762); Shazeer 2020 (arXiv 2002.05202); latent: DeepSeek-AI 2024 (arXiv 2405.04434).
    """
    E, layers = config.hidden, config.layers
    norm = 2 * E if config.biases else E
    dense, mixture, idle = _feed_forward(config)
    return ParameterCount(
        embedding=config.vocabulary * E, positions=config.context * E if config.learned_positions else 0,
        head=0 if config.tied else config.vocabulary * E, attention=layers * _attention(config),
        feed_forward=dense + mixture, norms=(config.norms_per_layer * layers + 1) * norm, idle=idle,
    )  # fmt: skip


def _attention(config: ModelConfig) -> int:
    """One layer, its own norms (of latents, of heads) included."""
    E, H, Hkv, D = config.hidden, config.query_heads, config.kv_heads, config.head_dim
    if config.latent is not None:
        C, Dq, Dv = config.latent, config.score_dim, config.value_dim
        queries = E * H * Dq if config.query_latent is None else E * config.query_latent + config.query_latent * (1 + H * Dq)
        return queries + E * (C + config.rope_dim) + C + C * H * (config.nope_dim + Dv) + H * Dv * E
    count = E * H * D + 2 * E * Hkv * D + H * D * E
    if config.qkv_biases:
        count += (H + 2 * Hkv) * D
    return count + (E if config.output_biases else 0) + (2 * D if config.head_norms else 0)


def _feed_forward(config: ModelConfig) -> tuple[int, int, int]:
    """Dense matrices, those of mixtures, and the part of the latter that one token does not meet, in all layers."""
    E, matrices = config.hidden, 3 if config.gated else 2
    dense_layers = config.dense_layers if config.experts else config.layers
    biases = config.intermediate + E if config.biases else 0
    dense = dense_layers * (matrices * E * config.intermediate + biases)
    if not config.experts:
        return dense, 0, 0
    expert, mixtures = matrices * E * config.expert_intermediate, config.layers - config.dense_layers
    router = E * config.experts + (config.experts if config.router_bias else 0)
    mixture = router + (config.experts + config.shared_experts) * expert
    return dense, mixtures * mixture, mixtures * (config.experts - config.active_experts) * expert
