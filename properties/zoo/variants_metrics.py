"""Legal forms of costs and metrics: the same whole numbers by other ways."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from . import textbook_costs as textbook
from .specimen import variant
from .textbook_costs import Config, Int64

FAMILY = "metrics"


@variant("kv_bytes", id="kv-layer-by-layer", family=FAMILY)
def kv_by_layers(lengths: Any, *, config: Config, element_bits: int = 16) -> Int64:
    """Each layer is charged for the tokens it keeps."""
    return textbook.kv_bytes(lengths, config=config, element_bits=element_bits)


@variant("kv_bytes", id="kv-keys-and-values-apart", family=FAMILY)
def kv_in_two(lengths: Any, *, config: Config, element_bits: int = 16) -> Int64:
    """Keys, then values, in bits; divided into bytes last."""
    layers = [np.asarray(lengths if limit is None else np.minimum(lengths, limit)) for limit in textbook.windows(config)]
    bits = sum(layers) * textbook.per_token(config) * element_bits
    return np.asarray((bits + 7) // 8, dtype=np.int64)


@variant("kv_bytes", id="kv-token-by-token", family=FAMILY)
def kv_by_tokens(lengths: Any, *, config: Config, element_bits: int = 16) -> Int64:
    """What a first token adds, and what each later one adds, by how many layers still grow."""
    limits, numbers = textbook.windows(config), textbook.per_token(config)
    marks = sorted({limit for limit in limits if limit is not None})

    def of(n: int) -> int:
        edges = [0, *(mark for mark in marks if mark < n), n]
        grown = [(stop - start) * sum(limit is None or limit > start for limit in limits) for start, stop in pairwise(edges)]
        return -(-sum(grown) * numbers * element_bits // 8)

    return np.array([of(n) for n in lengths.tolist()], dtype=np.int64)


@variant("kv_bytes", id="kv-written-into-a-buffer", family=FAMILY, buffers=("bytes",))
def kv_into(lengths: Any, *, config: Config, element_bits: int = 16, bytes: Any) -> None:
    """The counts are written where the caller says."""
    bytes[...] = textbook.kv_bytes(lengths, config=config, element_bits=element_bits)


@variant("training_bytes", id="training-part-by-part", family=FAMILY)
def training_by_parts(
    parameters: Any, *, stage: int, world: int, weight_bytes: int = 2, gradient_bytes: int = 2, optimizer_bytes: int = 12
) -> Int64:  # fmt: skip
    """Weights, gradients and optimizer states, each whole or a part."""
    return textbook.training_bytes(parameters, stage=stage, world=world, weight_bytes=weight_bytes, gradient_bytes=gradient_bytes,
                                   optimizer_bytes=optimizer_bytes)  # fmt: skip


@variant("training_bytes", id="training-of-the-fullest-rank", family=FAMILY)
def training_by_ranks(
    parameters: Any, *, stage: int, world: int, weight_bytes: int = 2, gradient_bytes: int = 2, optimizer_bytes: int = 12
) -> Int64:  # fmt: skip
    """The parts of all ranks without filling up, and of those the largest, the first."""
    share = parameters // world + (parameters % world > 0)
    shared = [(weight_bytes, 3), (gradient_bytes, 2), (optimizer_bytes, 1)]
    return np.asarray(sum(width * (share if stage >= first else parameters) for width, first in shared), dtype=np.int64)


@variant("training_bytes", id="training-usual-layout-only", family=FAMILY)
def training_of_one_layout(parameters: Any, *, stage: int, world: int) -> Int64:
    """16 bytes a parameter, the only layout it knows."""
    part = -(-parameters // world)
    return np.asarray([16 * parameters, 4 * parameters + 12 * part, 2 * parameters + 14 * part, 16 * part][stage], dtype=np.int64)


@variant("model_flops", id="flops-layer-by-layer", family=FAMILY)
def flops_by_layers(lengths: Any, *, config: Config, pairs: str, backward: bool = False) -> Int64:
    """Parameters once, then the pairs of every layer."""
    return textbook.model_flops(lengths, config=config, pairs=pairs, backward=backward)


@variant("model_flops", id="flops-query-by-query", family=FAMILY)
def flops_by_queries(lengths: Any, *, config: Config, pairs: str, backward: bool = False) -> Int64:
    """The keys that each query meets, added up."""
    H, sizes, parameters = config["num_attention_heads"], sum(textbook.widths(config)), textbook.multiplied(config)

    def of(n: int) -> int:
        i = np.arange(1, n + 1)
        limits = textbook.windows(config)
        met = [int((i if limit is None else np.minimum(i, limit)).sum()) if pairs == "causal" else n * n for limit in limits]
        return int((6 if backward else 2) * (parameters * n + H * sizes * sum(met)))

    return np.array([of(n) for n in lengths.tolist()], dtype=np.int64)


@variant("model_flops", id="flops-of-all-pairs", family=FAMILY, source="https://github.com/NVIDIA/Megatron-LM", only={"pairs": ["all"]})
def flops_of_all_pairs(lengths: Any, *, config: Config, backward: bool = False) -> Int64:
    """It charges all pairs of a query and a key, and says so."""
    return textbook.model_flops(lengths, config=config, pairs="all", backward=backward)


@variant("token_accuracy", id="accuracy-shifted-labels", family=FAMILY, dtypes=("float32", "float64", "float16", "bfloat16"))
def accuracy_shifted(logits: Any, tokens: Any, *, ignore_index: int = -100) -> tuple[Int64, Int64]:
    """Labels move one to the left, the last one is ignored, and all positions are compared."""
    moved = np.concatenate([tokens[:, 1:], np.full_like(tokens[:, :1], ignore_index)], axis=1)
    return textbook.compared(np.argmax(logits.astype(np.float64), axis=-1), moved, ignore_index)


@variant("token_accuracy", id="accuracy-by-rank", family=FAMILY)
def accuracy_by_rank(logits: Any, tokens: Any, *, ignore_index: int = -100) -> tuple[Int64, Int64]:
    """A prediction is right where no logit lies above that of the target."""
    targets = tokens[:, 1:]
    kept = targets != ignore_index
    own = np.take_along_axis(logits[:, :-1], np.where(kept, targets, 0)[..., None], axis=2)
    first = (logits[:, :-1] > own).sum(axis=2) == 0
    return np.asarray((kept & first).sum(), np.int64), np.asarray(kept.sum(), np.int64)


@variant("token_accuracy", id="accuracy-of-log-probabilities", family=FAMILY)
def accuracy_of_logs(logits: Any, tokens: Any, *, ignore_index: int = -100) -> tuple[Int64, Int64]:
    """The largest log-probability instead of the largest logit: the same place, since logits are whole numbers apart."""
    x = logits.astype(np.float64)
    logs = x - np.log(np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf)).sum(axis=-1, keepdims=True))
    return textbook.compared(np.argmax(logs, axis=-1)[:, :-1], tokens[:, 1:], ignore_index)
