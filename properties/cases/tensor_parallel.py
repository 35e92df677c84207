"""Cases of tensor and vocabulary parallelism: weights cut by columns, rows, heads and classes, gradients cut or copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..array_lists import whole_name
from ..case import Case, Option
from .ranks import RankRecipe, drawn, rank_source

Arrays = dict[str, Any]
Generator = np.random.Generator


def _columns(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """x (T, n), w_r (n, K), b_r (K,)."""
    T, n, N = recipe.T, recipe.n, recipe.K
    return {"x": drawn(recipe, (T, n), g), "w_shards": [drawn(recipe, (n, N), g) for _ in range(recipe.R)],
            "bias_shards": [drawn(recipe, (N,), g) for _ in range(recipe.R)]}  # fmt: skip


def _rows(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """x_r (T, n), w_r (n, K), b (K,)."""
    T, n, N = recipe.T, recipe.n, recipe.K
    return {"x_shards": [drawn(recipe, (T, n), g) for _ in range(recipe.R)],
            "w_shards": [drawn(recipe, (n, N), g) for _ in range(recipe.R)],
            "bias": drawn(recipe, (N,), g)}  # fmt: skip


def _heads(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """w_q (n, H D), w_k, w_v (n, Hkv D), with D = T + 1."""
    D = recipe.T + 1
    heads, kv_heads = options["heads"], options["kv_heads"]
    assert isinstance(heads, int)
    assert isinstance(kv_heads, int)
    return {name: drawn(recipe, (recipe.n, H * D), g) for name, H in (("w_q", heads), ("w_k", kv_heads), ("w_v", kv_heads))}


def _vocabulary(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """A table (n, K), and tokens (T,), its last row among them."""
    tokens = g.integers(0, recipe.n, recipe.T)
    tokens[-1:] = recipe.n - 1
    return {"tokens": tokens.astype(np.int64), "table": drawn(recipe, (recipe.n, recipe.K), g)}


def _classes(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """Logits (R, T, n) of R n classes, targets of which about a fifth are ignored, and dloss."""
    targets = np.where(g.random(recipe.T) < 0.2, -100, g.integers(0, recipe.R * recipe.n, recipe.T))
    dloss = drawn(recipe, (recipe.T,), g) if options["reduction"] == "none" else drawn(recipe, (1,), g).reshape(())
    return {"shards": drawn(recipe, (recipe.R, recipe.T, recipe.n), g), "targets": targets.astype(np.int64), "dloss": dloss}


def _vectors(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """x_r, dy_r (T, K, n), weight (n,)."""
    shape = (recipe.T, recipe.K, recipe.n)
    return {"x_shards": [drawn(recipe, shape, g) for _ in range(recipe.R)], "weight": drawn(recipe, shape[2:], g),
            "dout_shards": [drawn(recipe, shape, g) for _ in range(recipe.R)]}  # fmt: skip


def _gradients(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """K + 1 gradients (R, n + k), sharded and replicated in turn."""
    placement = (np.arange(recipe.K + 1) + recipe.T) % 2
    grads = [drawn(recipe, (recipe.R, recipe.n + k), g) for k in range(recipe.K + 1)]
    return {"grads": [a if kind else np.repeat(a[:1], recipe.R, axis=0) for a, kind in zip(grads, placement)],
            "placement": placement.astype(np.int64)}  # fmt: skip


def copies_made_equal(case: Case) -> Case:
    """Every rank's copy of a replicated gradient is that of rank 0."""
    kinds = case.arrays["placement"]
    grads = {name: a for name, a in case.arrays.items() if whole_name(name) == "grads"}
    same = {name: np.repeat(a[:1], len(a), axis=0) for (name, a), kind in zip(grads.items(), kinds) if not kind}
    return case.with_arrays(**same)


_LOSSES: tuple[Mapping[str, Option], ...] = (
    {"reduction": "mean"}, {"reduction": "sum"}, {"reduction": "none"}, {"reduction": "mean", "label_smoothing": 0.25},
    {"reduction": "sum", "z_loss": 0.125}, {"reduction": "none", "label_smoothing": 0.1, "z_loss": 0.5},
)  # fmt: skip
_QKV: tuple[Mapping[str, Option], ...] = tuple(
    {"heads": heads, "kv_heads": kv_heads, "world": world}
    for heads, kv_heads, world in ((2, 2, 2), (4, 2, 2), (4, 4, 4), (4, 2, 4), (6, 1, 3), (6, 3, 3), (8, 2, 8), (3, 1, 1))
)

COLUMN_CASES = rank_source("column_parallel", _columns, ({},))
ROW_CASES = rank_source("row_parallel", _rows, ({},))
QKV_CASES = rank_source("shard_qkv", _heads, _QKV)
EMBEDDING_CASES = rank_source("vocab_parallel_embedding", _vocabulary, ({"world": "R"},), least_columns=1)
VOCAB_LOSS_CASES = rank_source("vocab_parallel_cross_entropy_backward", _classes, _LOSSES, least_columns=1)
NORM_CASES = rank_source("norm_backward_sharded", _vectors, tuple({"sharded": word, "eps": eps} for eps in (1e-6, 1e-2)
                                                                  for word in ("tokens", "heads")), least_columns=1)  # fmt: skip
CLIP_CASES = rank_source("clip_grad_norm_sharded", _gradients, tuple({"max_norm": x} for x in (1.0, 0.0, 1e-3, 2.0**30, 4.0)),
                         complete=copies_made_equal)  # fmt: skip
