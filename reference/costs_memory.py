"""Training memory: bytes a device holds by a declared layout, ZeRO stage and adapter, activations by formula. Serving is `costs_kv`'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Int64
from .model_config import ModelConfig

Checkpointing = Literal["none", "selective", "full"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Bytes of each parameter, by what they hold. The default is Adam in mixed precision, 16 in all.

    >>> Layout().total
    16

    Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 3.1.
    """

    weights: int = 2
    gradients: int = 2
    masters: int = 4
    first_moment: int = 4
    second_moment: int = 4

    def __post_init__(self) -> None:
        for name in ("weights", "gradients", "masters", "first_moment", "second_moment"):
            arguments.whole_number(name, getattr(self, name), least=0)

    @property
    def optimizer(self) -> int:
        return self.masters + self.first_moment + self.second_moment

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def training_bytes(parameters: ArrayLike, *, stage: int, world: int, weight_bytes: int = 2, gradient_bytes: int = 2,
                   optimizer_bytes: int = 12) -> Int64:
    """Bytes that one of `world` devices holds of the states of models of so many parameters: int64, the shape of parameters.

        stage 0   (w + g + o) N
        stage 1   (w + g) N + o S       S = ceil(N / world), the flat buffer filled up to equal parts
        stage 2   w N + (g + o) S
        stage 3   (w + g + o) S

    w, g, o = weight_bytes, gradient_bytes, optimizer_bytes: masters and moments in float32 make 12; who keeps gradients in
    float32 too says so with 16. Activations, buffers of communication and gathered layers of stage 3 are left out.

    >>> training_bytes([7 * 10**9] * 2, stage=1, world=8) / 2**30
    array([35.85591912, 35.85591912])
    >>> int(training_bytes(10**9, stage=2, world=8)), int(training_bytes(10**9, stage=2, world=8, optimizer_bytes=16))
    (3750000000, 4250000000)

    Raises ValueError for a stage outside 0..3, no device, or a negative number. Exact integers.
    Source: Rajbhandari et al. 2020 (arXiv 1910.02054), sections 3 and 5 and figure 1; stage 2 in an estimator: deepspeedai/DeepSpeed#5099.
    """
    N = arguments.integers("parameters", parameters, least=0, most=2**53)
    stage, world = arguments.whole_number("stage", stage, least=0), arguments.whole_number("world", world, least=1)
    if stage > 3:
        raise ValueError(f"stage: got {stage}; want 0, 1, 2 or 3")
    w, g, o = (arguments.whole_number(name, n, least=0) for name, n in
               (("weight_bytes", weight_bytes), ("gradient_bytes", gradient_bytes), ("optimizer_bytes", optimizer_bytes)))
    S = -(-N // world)
    return np.asarray(w * (S if stage == 3 else N) + g * (S if stage >= 2 else N) + o * (S if stage >= 1 else N))


def training_parts(parameters: int, *, stage: int, world: int, layout: Layout | None = None) -> dict[str, int]:
    """The same bytes by what they hold, in the order of `Layout`.

    >>> parts = training_parts(7 * 10**9, stage=3, world=8)
    >>> parts["masters"], sum(parts.values())
    (3500000000, 14000000000)
    """
    layout = layout or Layout()
    shares = {
        "weights": (layout.weights, 0, 0), "gradients": (0, layout.gradients, 0), "masters": (0, 0, layout.masters),
        "first moment": (0, 0, layout.first_moment), "second moment": (0, 0, layout.second_moment),
    }  # fmt: skip
    return {
        name: int(training_bytes(parameters, stage=stage, world=world, weight_bytes=w, gradient_bytes=g, optimizer_bytes=o))
        for name, (w, g, o) in shares.items()
    }


def lora_bytes(parameters: int, trainable: int, *, frozen_bytes: int = 2, layout: Layout | None = None) -> int:
    """Bytes of the states of frozen weights and of an adapter of so many parameters: frozen_bytes N + layout.total n.

    >>> lora_bytes(7 * 10**9, 35 * 10**6)
    14560000000

    Raises ValueError for a negative number. Activations are left out: they are those of the whole model.
    Source: Hu et al. 2022 (arXiv 2106.09685), section 4.2.
    """
    N, n = arguments.whole_number("parameters", parameters, least=0), arguments.whole_number("trainable", trainable, least=0)
    return arguments.whole_number("frozen_bytes", frozen_bytes, least=0) * N + (layout or Layout()).total * n


def lora_parameters(config: ModelConfig, *, rank: int, targets: tuple[str, ...] = ("q", "v")) -> int:
    """Parameters of adapters of that rank on some of q, k, v, o of every layer: rank (inputs + outputs) each.

    >>> from .model_presets import preset
    >>> lora_parameters(preset("llama-2-7b").config, rank=8)
    4194304

    Raises ValueError for an unknown target and for latent attention, whose projections are others.
    Source: Hu et al. 2022 (arXiv 2106.09685), section 4.1.
    """
    rank = arguments.whole_number("rank", rank, least=1)
    E, queries, keys = config.hidden, config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    outputs = {"q": queries, "k": keys, "v": keys, "o": queries}
    if config.latent is not None:
        raise ValueError("config: got latent attention; want grouped attention, whose q, k, v and o adapters are counted for")
    if any(target not in outputs for target in targets):
        raise ValueError(f"targets: got {', '.join(targets)}; want some of q, k, v, o")
    return config.layers * sum(rank * (E + outputs[target]) for target in targets)


def activation_bytes(config: ModelConfig, *, tokens: int, sequences: int, checkpointing: Checkpointing, tensor_parallel: int = 1,
                     sequence_parallel: bool = False) -> int:
    """Bytes of 16-bit activations kept for the backward pass of one micro-batch, all layers, as counted for the layer of GPT.

        none        s b h (10 + 24 / t + 5 a s / (h t))      nothing is computed twice
        selective   s b h (10 + 24 / t)                      the attention core is: what a fused kernel keeps, too
        full        2 s b h                                  only the input of each layer is kept
        sequence_parallel divides the 10, and the 2, by t

    s = tokens, b = sequences, h = hidden, a = query heads, t = tensor_parallel. The formula is that of a layer with a GELU over
    4 h, dropout, and as many key/value heads as query heads: for gated or grouped layers it is the same size, not the same
    number. Embeddings, the last norm, the logits and the loss are left out. Rounded up to whole bytes.

    >>> gpt3 = ModelConfig(hidden=12288, layers=96, query_heads=96, kv_heads=96, head_dim=128)
    >>> activation_bytes(gpt3, tokens=2048, sequences=1, checkpointing="selective") // (2048 * 12288 * 96)
    34
    >>> 5 * 96 * 2048 // 12288
    80

    Raises ValueError for an unknown kind of checkpointing and numbers below 1.
    Source: Korthikanti et al. 2022 (arXiv 2205.05198), table 2 and equations 1 to 6.
    """
    s, b, t = (arguments.whole_number(name, n, least=1) for name, n in
               (("tokens", tokens), ("sequences", sequences), ("tensor_parallel", tensor_parallel)))
    h, a, split = config.hidden, config.query_heads, t if sequence_parallel else 1
    if checkpointing not in ("none", "selective", "full"):
        raise ValueError(f"checkpointing: got {checkpointing!r}; want none, selective or full")
    # In bytes times t * split, so that every division is the last one.
    if checkpointing == "full":
        times = 2 * s * b * h * t
    else:
        times = s * b * h * (10 * t + 24 * split) + (5 * a * s * s * b * split if checkpointing == "none" else 0)
    return -(-config.layers * times // (t * split))
