"""Cases of verification: drafts with the distributions they were drawn from, ragged, with anything behind them, or every draft there is."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat

from .. import shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..regimes import in_format
from .draws import GRID, UNIFORMS, sixteenths
from .layouts import LAYOUTS, laid_out
from .sampling import with_coverage

Array = NDArray[Any]
DTYPES = ("float32", "float64")                                                 # rows must sum to 1 within V roundings
# What draft and target are: two softmaxes; multiples of 1/16; the same with half of each 0; no token in common; equal; each certain;
# equal, with a draft token that neither of them gives anything; and every draft over a small vocabulary, whose law is computed.
MODELS = ("softmax", "sixteenths", "zeros", "disjoint", "equal", "certain", "impossible", "law")
# Lengths of the drafts: all K; ended by a token of -1; said row by row; the same, with anything behind them.
LENGTHS = ("full", "ended", "ragged", "anything_behind")
EXHAUSTED = ((2, 1), (3, 1), (2, 2), (3, 2), (2, 3), (4, 1))                    # (V, K)
LAW_KINDS = ("positive", "zeros", "disjoint", "equal", "one against many", "positive")


@dataclass(frozen=True)
class VerifyRecipe:
    """One case of a verification: B drafts of K tokens over V."""

    B: int = shrinking.size_field()
    K: int = shrinking.size_field()
    V: int = shrinking.size_field()
    models: str = shrinking.choice_field(MODELS)
    lengths: str = shrinking.choice_field(LENGTHS)
    uniforms: str = shrinking.choice_field(UNIFORMS)
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    VerifyRecipe(B=3, K=2, V=3, seed=1),
    VerifyRecipe(B=8, K=1, V=3, models="impossible", seed=2),
    VerifyRecipe(B=8, K=3, V=4, models="sixteenths", uniforms="edges", seed=3),
    VerifyRecipe(B=8, K=3, V=4, models="zeros", uniforms="ends", seed=4),
    VerifyRecipe(B=4, K=3, V=5, models="equal", seed=5),
    VerifyRecipe(B=4, K=2, V=5, models="disjoint", lengths="anything_behind", seed=6),
    VerifyRecipe(B=3, K=0, V=4, seed=7),
    VerifyRecipe(B=0, K=2, V=4, seed=8),
    *(VerifyRecipe(K=K, V=V, models="law", seed=9 + i) for i, (V, K) in enumerate(EXHAUSTED)),
    VerifyRecipe(B=6, K=4, V=4, models="certain", lengths="ragged", seed=15),
    VerifyRecipe(B=6, K=4, V=4, models="sixteenths", lengths="ended", uniforms="edges", seed=16),
    VerifyRecipe(B=5, K=5, V=100, lengths="anything_behind", seed=17),
    VerifyRecipe(K=2, V=4, models="law", seed=18),                              # several tokens left behind a block that is not sure
)


def covered_verify(recipe: VerifyRecipe, coverage: Coverage) -> VerifyRecipe:
    """The recipe mapped into the coverage; where draft_lengths are not taken, drafts end by a token of -1."""
    if "draft_lengths" not in coverage.arguments and recipe.lengths in ("ragged", "anything_behind"):
        recipe = replace(recipe, lengths="ended")
    least = int(not coverage.empty)
    recipe = replace(recipe, V=max(recipe.V, 1), K=max(recipe.K, least))
    if recipe.models == "law":
        V = min(max(recipe.V, 2), 4)
        K = min(max(recipe.K, 1), 3 if V == 2 else 2)
        recipe = replace(recipe, B=1, V=V, K=K, lengths="full", uniforms="anywhere", strides="contiguous")
    return with_coverage(recipe, coverage, {})


@lru_cache(maxsize=8)
def verify_table(coverage: Coverage) -> tuple[VerifyRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"models": MODELS[:7], "lengths": LENGTHS, "uniforms": UNIFORMS, "dtype": tuple(d for d in DTYPES if d in coverage.dtypes),
              "strides": LAYOUTS}  # fmt: skip
    rows = balanced_table({**levels, "B": (1, 2, 5, 9), "K": (1, 2, 3, 5), "V": (2, 3, 5, 16, 100)}, 36, crossed=tuple(levels))
    return tuple(covered_verify(VerifyRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_verifications(coverage: Coverage) -> list[VerifyRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_verify(corner, coverage) for corner in CORNERS), *verify_table(coverage)]))


def verify_recipes(coverage: Coverage) -> st.SearchStrategy[VerifyRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        VerifyRecipe, B=st.sampled_from((1, 2, 3, 6, 0)), K=st.sampled_from((1, 2, 3, 4, 0)), V=st.integers(1, 40),
        models=st.sampled_from(MODELS[:7]), lengths=st.sampled_from(LENGTHS), uniforms=st.sampled_from(UNIFORMS),
        dtype=st.sampled_from(tuple(d for d in DTYPES if d in coverage.dtypes)), strides=st.sampled_from(LAYOUTS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_verify(recipe, coverage))  # fmt: skip


def build_verify(recipe: VerifyRecipe) -> Case:
    """Drafts drawn from their distributions, both in the format, and uniforms: multiples of 2^-24."""
    g = np.random.default_rng(recipe.seed)
    if recipe.models == "law":
        return _every_draft(recipe)
    B, K, V, fmt = recipe.B, recipe.K, recipe.V, FloatFormat(recipe.dtype)
    q, p = _models(recipe.models, B, K, V, g)
    x = (g.uniform(size=(B, K, 1)) * q.sum(-1, keepdims=True) >= np.cumsum(q, axis=-1)).sum(axis=-1)
    x = np.minimum(x, V - 1).astype(np.int64)
    if recipe.models == "impossible" and V > 1:
        x = _given_nothing(x, q, p, g)
    n = np.where(np.arange(B) % 3 == 1, 0, g.integers(0, K + 1, B))
    behind = np.arange(K) >= n[:, None]                                         # (B, K)
    arrays: dict[str, Array] = {"draft_probs": in_format(q, fmt), "target_probs": in_format(p, fmt)}
    u, last = _uniforms(recipe.uniforms, x, q, p, g)
    if recipe.lengths == "ended":
        x = np.where(np.arange(K) == n[:, None], -1, x)
    if recipe.lengths in ("ragged", "anything_behind"):
        arrays["draft_lengths"] = n
    if recipe.lengths == "anything_behind":
        arrays["draft_probs"][behind] = np.nan
        arrays["target_probs"][:, 1:][behind] = np.where(g.uniform(size=(int(behind.sum()), 1)) < 0.5, np.nan, 7.0)
        x = np.where(behind, g.integers(-1, V, (B, K)), x)
    arrays = {name: laid_out(array, recipe.strides) for name, array in arrays.items() if array.ndim == 3} | {
        name: array for name, array in arrays.items() if array.ndim != 3}
    return Case("speculative_verify", {
        "draft_tokens": x, "draft_probs": arrays.pop("draft_probs"), "target_probs": arrays.pop("target_probs"),
        "accept_u": u.astype(fmt.dtype), "sample_u": last.astype(fmt.dtype), **arrays,
    }, {}, origin=str(recipe))  # fmt: skip


def _given_nothing(x: Array, q: Array, p: Array, g: np.random.Generator) -> Array:
    """The first draft token of each row is one that neither model gives anything; the models stay equal."""
    if x.shape[1] and len(x):
        for b, i in enumerate(g.integers(0, q.shape[-1], len(x))):
            for row in (q[b, 0], p[b, 0]):
                row[i] = 0.0
                row[(i + 1) % len(row)] += 1.0 - row.sum()
        x[:, 0] = [int(np.flatnonzero(row == 0.0)[0]) for row in q[:, 0]]
    return x


def _models(level: str, B: int, K: int, V: int, g: np.random.Generator) -> tuple[Array, Array]:
    """q (B, K, V), p (B, K + 1, V)."""
    def each(n: int, **kind: Any) -> Array:
        return np.array([sixteenths(V, g, **kind) for _ in range(B * n)]).reshape(B, n, V)

    if level == "softmax":
        q, p = (np.exp(1.5 * g.standard_normal((B, n, V))) for n in (K, K + 1))
        return q / q.sum(-1, keepdims=True), p / p.sum(-1, keepdims=True)
    if level == "certain":
        q, p = (np.eye(V)[g.integers(0, V, (B, n))] for n in (K, K + 1))
        q = np.where(g.uniform(size=(B, K, 1)) < 0.6, p[:, :K], q)
        return q, p
    if level == "disjoint" and V > 1:
        side = np.arange(V) < g.integers(1, V, (B, K + 1, 1))
        q, p = each(K), each(K + 1)
        q, p = np.where(side[:, :K], q, 0.0), np.where(side, 0.0, p)
        q[..., 0] += 1.0 - q.sum(-1)
        p[..., -1] += 1.0 - p.sum(-1)
        return q, p
    p = each(K + 1, zeros=level == "zeros")
    return (p[:, :K].copy() if level in ("equal", "impossible") else each(K, zeros=level == "zeros")), p


def _uniforms(level: str, x: Array, q: Array, p: Array, g: np.random.Generator) -> tuple[Array, Array]:
    """accept_u (B, K), sample_u (B,): anywhere; within one of the ratio, and of an edge of a residual; the ends of [0, 1)."""
    B, K = x.shape
    u: Array = g.integers(0, GRID, (B, K))
    last: Array = np.asarray(g.integers(0, GRID, B))
    if level == "ends":
        u, last = (np.where(g.uniform(size=a.shape) < 0.5, 0, GRID - 1) for a in (u, last))
    if level == "edges" and B and K:
        own, of_target = (np.take_along_axis(a, x[..., None], axis=-1)[..., 0] for a in (q, p[:, :K]))
        ratio = np.minimum(of_target / np.where(own > 0.0, own, 1.0), 1.0)
        near = np.rint(ratio * GRID).astype(np.int64) + g.integers(-1, 2, (B, K))
        u = np.where(g.uniform(size=(B, K)) < 0.5, near, 0)
        left = np.maximum(p[:, :K] - q, 0.0)[:, 0]
        left = np.where(left.any(-1, keepdims=True), left, p[:, 0])
        c = np.cumsum(left, axis=-1)
        edge = np.take_along_axis(c / c[:, -1:], g.integers(0, q.shape[-1], (B, 1)), axis=-1)[:, 0]
        last = np.rint(edge * GRID).astype(np.int64) + g.integers(-1, 2, B)
    return np.asarray(np.clip(u, 0, GRID - 1) / GRID), np.asarray(np.clip(last, 0, GRID - 1) / GRID)


def _every_draft(recipe: VerifyRecipe) -> Case:
    """All V^K drafts, one a row, with the distributions of two models that know their context: multiples of 1/16."""
    V, K, fmt = recipe.V, recipe.K, FloatFormat(recipe.dtype)
    kind = LAW_KINDS[recipe.seed % len(LAW_KINDS)]
    laws: dict[tuple[int, ...], tuple[Array, Array]] = {}
    for j in range(K + 1):
        for context in itertools.product(range(V), repeat=j):
            laws[context] = _pair(kind, V, np.random.default_rng((recipe.seed, len(laws))))
    drafts = np.array([*itertools.product(range(V), repeat=K)], dtype=np.int64).reshape(-1, K)
    q = np.array([[laws[tuple(x[:j])][0] for j in range(K)] for x in drafts.tolist()]).reshape(-1, K, V)
    p = np.array([[laws[tuple(x[:j])][1] for j in range(K + 1)] for x in drafts.tolist()])
    half = np.full((len(drafts), K), 0.5)
    return Case("speculative_verify", {
        "draft_tokens": drafts, "draft_probs": fmt.cast(q), "target_probs": fmt.cast(p),
        "accept_u": half.astype(fmt.dtype), "sample_u": np.full(len(drafts), 0.25).astype(fmt.dtype),
    }, {}, origin=str(recipe), notes={"law": True})  # fmt: skip


def _pair(kind: str, V: int, g: np.random.Generator) -> tuple[Array, Array]:
    """The draft's and the target's distribution in one context."""
    q, p = sixteenths(V, g, zeros=kind == "zeros"), sixteenths(V, g, zeros=kind == "zeros")
    if kind == "equal":
        return p, p
    if kind == "one against many":
        return np.asarray(np.arange(V) == g.integers(0, V), dtype=np.float64), p
    if kind == "disjoint":
        side = g.permutation(V) < g.integers(1, V)
        q, p = np.where(side, q, 0.0), np.where(side, 0.0, p)
        q[np.flatnonzero(side)[0]] += 1.0 - q.sum()
        p[np.flatnonzero(~side)[0]] += 1.0 - p.sum()
    return q, p


VERIFY_CASES = RecipeSource("speculative_verify", build=build_verify, designed=designed_verifications, strategy=verify_recipes,
                            covered=covered_verify)

# Trees -------------------------------------------------------------------------------------------------------------------

TREES = ("random", "chain", "star", "binary")


@dataclass(frozen=True)
class TreeRecipe:
    """One case of tree_positions: a tree of N nodes behind n_past tokens."""

    N: int = shrinking.size_field()
    n_past: int = shrinking.size_field()
    tree: str = shrinking.choice_field(TREES)
    seed: int = field(default=0)


def covered_tree(recipe: TreeRecipe, coverage: Coverage) -> TreeRecipe:
    return replace(recipe, N=max(recipe.N, int(not coverage.empty)), n_past=recipe.n_past if "n_past" in coverage.arguments else 0)


def designed_trees(coverage: Coverage) -> list[TreeRecipe]:
    """Each kind of tree in several sizes, none among them."""
    sizes = ((1, 0), (2, 5), (4, 10), (7, 1), (31, 1000), (0, 3))
    rows = [TreeRecipe(N, n_past, tree, seed=i) for i, ((N, n_past), tree) in enumerate(itertools.product(sizes, TREES))]
    return list(dict.fromkeys(covered_tree(row, coverage) for row in rows))


def tree_recipes(coverage: Coverage) -> st.SearchStrategy[TreeRecipe]:
    """Random recipes inside a coverage."""
    return st.builds(TreeRecipe, N=st.integers(0, 40), n_past=st.integers(0, 2000), tree=st.sampled_from(TREES),
                     seed=st.integers(0, 2**32 - 1)).map(lambda recipe: covered_tree(recipe, coverage))


def build_tree(recipe: TreeRecipe) -> Case:
    """Parents, each before its node, and n_past."""
    g, i = np.random.default_rng(recipe.seed), np.arange(recipe.N)
    parents = {"chain": i - 1, "star": np.where(i == 0, -1, 0), "binary": (i + 1) // 2 - 1,
               "random": np.array([g.integers(-1, max(k, 0)) if k else -1 for k in range(recipe.N)], dtype=np.int64)}[recipe.tree]
    options: dict[str, Option] = {"n_past": recipe.n_past}
    return Case("tree_positions", {"parents": parents.astype(np.int64)}, options, origin=str(recipe))


TREE_CASES = RecipeSource("tree_positions", build=build_tree, designed=designed_trees, strategy=tree_recipes, covered=covered_tree)
