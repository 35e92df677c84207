"""Cases of a cache over ranks, read at chosen places, and of a norm before an all-to-all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from hypothesis import strategies as st

from oracles.reference import FloatFormat, cache_place

from .. import regimes, shrinking
from ..array_lists import spread
from ..case import Case
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from .attention import DTYPES
from .attention_arrays import generator
from .layouts import LAYOUTS, laid_out

# Half of the tokens in any order; all; the first of each rank's turn; one; none; half of them with -1 between.
ASKED = ("half", "all", "turns", "one", "none", "gaps")
CACHE_REGIMES = ("normal", "integer_grid", "peaked", "flat", "one_hot", "duplicated_keys", "alternating", "ascending")


@dataclass(frozen=True)
class CacheRecipe:
    """One case of sharded_cache_attention: R ranks, each with `turns` turns of `interleave` tokens."""

    R: int = shrinking.size_field()
    turns: int = shrinking.size_field()
    interleave: int = shrinking.size_field()
    B: int = shrinking.size_field()
    Hkv: int = shrinking.size_field()
    G: int = shrinking.size_field()
    D: int = shrinking.size_field()
    Dv: int = shrinking.size_field()
    asked: str = shrinking.choice_field(ASKED)
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(CACHE_REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


_CACHE_CORNERS = (
    CacheRecipe(seed=1), CacheRecipe(R=2, turns=4, B=2, D=4, Dv=4, asked="all", seed=2), CacheRecipe(R=2, turns=2, interleave=2, D=4, Dv=4,
    seed=3), CacheRecipe(R=4, turns=2, B=2, D=4, Dv=4, asked="one", seed=4), CacheRecipe(R=3, turns=2, D=4, Dv=4, asked="none", seed=5),
    CacheRecipe(R=2, turns=0, D=4, Dv=4, seed=6), CacheRecipe(R=2, turns=3, B=0, D=4, Dv=4, seed=7),
)  # fmt: skip


def covered_cache(recipe: CacheRecipe, coverage: Coverage) -> CacheRecipe:
    """The recipe mapped into the coverage."""
    least = int(not coverage.empty)
    D, Dv = (size if coverage.head_dims is None else min(coverage.head_dims, key=lambda h: (abs(h - size), h))
             for size in (max(recipe.D, 1), max(recipe.Dv, 1)))  # fmt: skip
    return replace(
        recipe, R=max(recipe.R, 1), turns=max(recipe.turns, least), interleave=max(recipe.interleave, 1), B=max(recipe.B, least),
        Hkv=max(recipe.Hkv, 1), G=max(recipe.G, 1) if coverage.grouped else 1, D=D, Dv=Dv if coverage.value_dim else D,
        dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0],
    )  # fmt: skip


@lru_cache(maxsize=8)
def cache_table(coverage: Coverage) -> tuple[CacheRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"R": (2, 4, 1, 3), "interleave": (1, 2, 4), "asked": ASKED, "dtype": coverage.dtypes}
    others = {"regime": CACHE_REGIMES, "strides": LAYOUTS, "turns": (1, 2, 3, 9), "B": (1, 2, 3), "Hkv": (1, 2), "G": (1, 2, 4),
              "D": (8, 1, 16, 64), "Dv": (8, 5, 16)}  # fmt: skip
    rows = balanced_table({**levels, **others}, 30, crossed=tuple(levels))
    return tuple(covered_cache(CacheRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_caches(coverage: Coverage) -> list[CacheRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_cache(corner, coverage) for corner in _CACHE_CORNERS), *cache_table(coverage)]))


def cache_recipes(coverage: Coverage) -> st.SearchStrategy[CacheRecipe]:
    """Random recipes inside a coverage."""
    return st.builds(
        CacheRecipe, R=st.integers(1, 6), turns=st.integers(0, 5), interleave=st.integers(1, 4), B=st.integers(0, 3), Hkv=st.integers(1, 3),
        G=st.integers(1, 3), D=st.integers(1, 20), Dv=st.integers(1, 20), asked=st.sampled_from(ASKED),
        dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(CACHE_REGIMES), strides=st.sampled_from(LAYOUTS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_cache(recipe, coverage))  # fmt: skip


def build_cache(recipe: CacheRecipe) -> Case:
    """One query a sequence, the shards of keys and values, the places that are asked for."""
    S, Hq, g = recipe.turns * recipe.interleave, recipe.G * recipe.Hkv, generator(recipe.seed, "lengths")
    L = recipe.R * S
    q, k, v = regimes.draw_attention(recipe.regime, (recipe.B, Hq, 1, recipe.D), (recipe.B, recipe.Hkv, L, recipe.D),
                                     (recipe.B, recipe.Hkv, L, recipe.Dv), recipe.dtype, generator(recipe.seed, "values"),
                                     scale=recipe.D**-0.5)  # fmt: skip
    rank, place = cache_place(np.arange(L), ranks=recipe.R, interleave=recipe.interleave)
    order = np.lexsort((place, rank)).reshape(recipe.R, S)
    lists = {name: spread(name, [laid_out(np.ascontiguousarray(x[:, :, part]), recipe.strides) for part in order])
             for name, x in (("k_shards", k), ("v_shards", v))}  # fmt: skip
    rows = [_asked(recipe, L, g) for _ in range(max(recipe.B, 1))]
    indices = np.array(rows, dtype=np.int64)[: recipe.B]
    return Case("sharded_cache_attention", {"q": q[:, :, 0], **lists["k_shards"], **lists["v_shards"], "indices": indices},
                {"interleave": recipe.interleave}, origin=str(recipe))  # fmt: skip


def _asked(recipe: CacheRecipe, L: int, g: np.random.Generator) -> np.ndarray:
    some = g.permutation(L)[: (L + 1) // 2]
    gaps = np.where(np.arange(len(some)) % 2 == 0, some, -1)
    return {"half": some, "all": np.arange(L), "turns": np.arange(0, L, recipe.interleave), "one": some[:1], "none": some[:0],
            "gaps": gaps}[recipe.asked]  # fmt: skip


CACHE_CASES = RecipeSource("sharded_cache_attention", build=build_cache, designed=designed_caches, strategy=cache_recipes,
                           covered=covered_cache)  # fmt: skip


# A norm before an all-to-all ---------------------------------------------------------------------------------------------

NORM_REGIMES = ("normal", "integer_grid", "uneven", "outlier_channel", "constant")


@dataclass(frozen=True)
class NormRecipe:
    """One case of exchanged_norm_backward: R ranks with n tokens each, h heads a rank after the exchange."""

    R: int = shrinking.size_field()
    n: int = shrinking.size_field()
    B: int = shrinking.size_field()
    h: int = shrinking.size_field()
    D: int = shrinking.size_field()
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(NORM_REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


_NORM_CORNERS = (NormRecipe(D=4, seed=1), NormRecipe(R=2, n=2, h=1, D=4, seed=2), NormRecipe(R=4, n=1, B=2, h=2, D=8, seed=3),
                 NormRecipe(R=2, n=0, D=4, seed=4), NormRecipe(R=2, n=3, B=0, D=4, seed=5))  # fmt: skip


def covered_norm(recipe: NormRecipe, coverage: Coverage) -> NormRecipe:
    """The recipe mapped into the coverage."""
    least, dtype = int(not coverage.empty), recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0]
    D = max(recipe.D, 1) if coverage.head_dims is None else min(coverage.head_dims, key=lambda d: (abs(d - recipe.D), d))
    return replace(recipe, R=max(recipe.R, 1), n=max(recipe.n, least), B=max(recipe.B, least), h=max(recipe.h, 1), D=D, dtype=dtype)


@lru_cache(maxsize=8)
def norm_table(coverage: Coverage) -> tuple[NormRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"R": (2, 4, 1, 3), "dtype": coverage.dtypes, "regime": NORM_REGIMES, "strides": LAYOUTS}
    rows = balanced_table({**levels, "n": (1, 2, 5), "B": (1, 2), "h": (1, 2), "D": (8, 3, 64, 1)}, 22, crossed=tuple(levels))
    return tuple(covered_norm(NormRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_norms(coverage: Coverage) -> list[NormRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_norm(corner, coverage) for corner in _NORM_CORNERS), *norm_table(coverage)]))


def norm_recipes(coverage: Coverage) -> st.SearchStrategy[NormRecipe]:
    """Random recipes inside a coverage."""
    return st.builds(
        NormRecipe, R=st.integers(1, 5), n=st.integers(0, 5), B=st.integers(0, 3), h=st.integers(1, 3), D=st.integers(1, 20),
        dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(NORM_REGIMES), strides=st.sampled_from(LAYOUTS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_norm(recipe, coverage))  # fmt: skip


def build_norm(recipe: NormRecipe) -> Case:
    """Gradients by heads, keys by tokens, weights around 1."""
    R, H, g, fmt = recipe.R, recipe.R * recipe.h, generator(recipe.seed, "lengths"), FloatFormat(recipe.dtype)
    dy = [regimes.draw("normal", (recipe.B, recipe.h, R * recipe.n, recipe.D), recipe.dtype, g) for _ in range(R)]
    x = regimes.draw(recipe.regime, (recipe.B, H, R * recipe.n, recipe.D), recipe.dtype, generator(recipe.seed, "values"))
    weight = fmt.cast(1.0 + 0.5 * generator(recipe.seed, "bias").standard_normal(recipe.D))
    lists = {name: spread(name, [laid_out(np.ascontiguousarray(one), recipe.strides) for one in shards])
             for name, shards in (("dy_shards", dy), ("x_shards", np.split(x, R, axis=2)))}  # fmt: skip
    return Case("exchanged_norm_backward", {**lists["dy_shards"], **lists["x_shards"], "weight": weight}, {}, origin=str(recipe))


NORM_CASES = RecipeSource("exchanged_norm_backward", build=build_norm, designed=designed_norms, strategy=norm_recipes,
                          covered=covered_norm)  # fmt: skip
