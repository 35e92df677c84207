"""Cases of padded_positions: rows with padding on the left, on the right, between, everywhere; all columns or those behind a cache."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from .. import shrinking
from ..case import Case
from ..case_source import RecipeSource
from ..coverage import Coverage
from .attention_arrays import generator

# Where padding stands: nowhere, on the left, on the right, on both sides, anywhere, everywhere.
PADDING = ("none", "left", "right", "both", "scattered", "all")
CACHED = ("none", "all_but_one", "half", "all")
SIZES = ((1, 1), (2, 5), (3, 17), (2, 129), (2, 0), (0, 3))


@dataclass(frozen=True)
class PaddingRecipe:
    """One case: B rows of L columns, of which some are in the cache: see `CACHED`."""

    B: int = shrinking.size_field()
    L: int = shrinking.size_field()
    padding: str = shrinking.choice_field(PADDING)
    cached: str = shrinking.choice_field(CACHED)
    strides: str = shrinking.choice_field(("contiguous", "transposed"))
    seed: int = field(default=0)


def covered_padding(recipe: PaddingRecipe, coverage: Coverage) -> PaddingRecipe:
    """The recipe mapped into the coverage: no cache for a subject that takes none, no empty sizes."""
    least = int(not coverage.empty)
    cached = recipe.cached if "past" in coverage.arguments else "none"
    return PaddingRecipe(max(recipe.B, least), max(recipe.L, least), recipe.padding, cached, recipe.strides, recipe.seed)


def designed_padding(coverage: Coverage) -> list[PaddingRecipe]:
    """Every kind of padding with every cut, over sizes and layouts in turn."""
    kinds = itertools.product(PADDING, CACHED)
    rows = [PaddingRecipe(*SIZES[i % len(SIZES)], padding, cached, ("contiguous", "transposed")[i % 2], seed=i)
            for i, (padding, cached) in enumerate(kinds)]  # fmt: skip
    rows += [PaddingRecipe(3, 17, padding, "all_but_one", seed=100 + i) for i, padding in enumerate(PADDING)]
    return list(dict.fromkeys(covered_padding(row, coverage) for row in rows))


def padding_recipes(coverage: Coverage) -> st.SearchStrategy[PaddingRecipe]:
    """Random recipes inside a coverage."""
    return st.builds(
        PaddingRecipe, B=st.integers(0, 4), L=st.integers(0, 40), padding=st.sampled_from(PADDING), cached=st.sampled_from(CACHED),
        strides=st.sampled_from(("contiguous", "transposed")), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_padding(recipe, coverage))  # fmt: skip


def build_padding(recipe: PaddingRecipe) -> Case:
    """present (B, L), and past where it is not 0."""
    g, B, L = generator(recipe.seed, "mask"), recipe.B, recipe.L
    left, right = (g.integers(0, L + 1, (B, 1)) // 2 for _ in range(2))
    at = np.arange(L)
    present = {
        "none": np.ones((B, L), bool), "left": at >= left, "right": at < L - right, "both": (at >= left) & (at < L - right),
        "scattered": g.integers(0, 2, (B, L)) == 1, "all": np.zeros((B, L), bool),
    }[recipe.padding]  # fmt: skip
    past = max(0, {"none": 0, "all_but_one": L - 1, "half": L // 2, "all": L}[recipe.cached])
    array = np.array(np.broadcast_to(present, (B, L)), order="C" if recipe.strides == "contiguous" else "F")
    return Case("padded_positions", {"present": array}, {"past": past} if past else {}, origin=str(recipe))


PADDING_CASES = RecipeSource(
    "padded_positions", build=build_padding, designed=designed_padding, strategy=padding_recipes, covered=covered_padding
)
