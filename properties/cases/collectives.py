"""Cases of collectives and of data parallelism: what each rank holds, in what order it becomes ready, how many tokens it counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Option
from .ranks import Array, RankRecipe, drawn, rank_source

Arrays = dict[str, Any]
Generator = np.random.Generator
_OPS: tuple[Mapping[str, Option], ...] = tuple({"op": op} for op in ("sum", "mean", "max", "min"))
_BOTH: tuple[Mapping[str, Option], ...] = tuple({**op, "algorithm": algorithm} for algorithm in ("ring", "tree") for op in _OPS)


def _per_rank(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """R arrays (T, n)."""
    return {"arrays": [drawn(recipe, (recipe.T, recipe.n), g) for _ in range(recipe.R)]}


def _in_equal_parts(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """R arrays (R T, n)."""
    return {"arrays": [drawn(recipe, (recipe.R * recipe.T, recipe.n), g) for _ in range(recipe.R)]}


def _ragged(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """R arrays of 0 to T rows each; with K odd all have T."""
    rows = [recipe.T if recipe.K % 2 else int(g.integers(0, recipe.T + 1)) for _ in range(recipe.R)]
    return {"arrays": [drawn(recipe, (t, recipe.n), g) for t in rows]}


def _buckets(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """K gradients (R, n + k), and for each rank an order in which they become ready."""
    grads = [drawn(recipe, (recipe.R, recipe.n + k), g) for k in range(recipe.K)]
    return {"grads": grads, "arrival": np.stack([g.permutation(recipe.K) for _ in range(recipe.R)]).astype(np.int64)}


def _micro_batches(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """grads (R, K, n), tokens (R, K), of which some are 0, and of those the gradient."""
    tokens = g.integers(0, 6, (recipe.R, recipe.K)) * (g.random((recipe.R, recipe.K)) < 0.8)
    grads = drawn(recipe, (recipe.R, recipe.K, recipe.n), g)
    return {"grads": np.where(tokens[..., None] > 0, grads, np.zeros_like(grads)), "tokens": tokens.astype(np.int64)}


def _copies(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """grads (K, R, n): K copies."""
    return {"grads": drawn(recipe, (recipe.K, recipe.R, recipe.n), g)}


def _sizes(recipe: RankRecipe, options: Mapping[str, Option], g: Generator) -> Arrays:
    """K sizes, 0 among them."""
    return {"sizes": np.asarray(g.integers(0, recipe.n + 2, recipe.K), np.int64)}


ALL_REDUCE_CASES = rank_source("all_reduce", _per_rank, _BOTH)
REDUCE_SCATTER_CASES = rank_source("reduce_scatter", _in_equal_parts, _OPS)
ALL_GATHER_CASES = rank_source("all_gather", _ragged, ({},))
BUCKETED_CASES = rank_source("bucketed_all_reduce", _buckets, tuple({"bucket_elements": n} for n in (1, 4, 9, 30, 1000)))
ACCUMULATE_CASES = rank_source("accumulate_gradients", _micro_batches, ({},))
TIED_CASES = rank_source("tied_gradients", _copies, ({},))
FLAT_LAYOUT_CASES = rank_source(
    "flat_layout", _sizes, tuple({"alignment": a, "world": world} for world in (1, "R") for a in (1, 4, 3)))

__all__ = ["ACCUMULATE_CASES", "ALL_GATHER_CASES", "ALL_REDUCE_CASES", "BUCKETED_CASES", "FLAT_LAYOUT_CASES", "REDUCE_SCATTER_CASES",
           "TIED_CASES", "Array"]  # fmt: skip
