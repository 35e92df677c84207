"""Cases of the targets of next-token prediction: prompts of every length, packed documents, another number for ignored."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from .. import shrinking
from ..case import Case, Option
from ..case_source import RecipeSource
from ..coverage import Coverage

# No prompt; prompts of some tokens; as long as the row and longer.
PROMPTS = ("none", "some", "long")
# One document a row; several in a row; each token its own.
SEGMENTS = ("none", "packed", "singles")
IGNORE = {"default": -100, "minus_one": -1}
# Every other case: tokens that 16 bits do not hold.
VOCABULARY = 200000


@dataclass(frozen=True)
class TargetsRecipe:
    """One case of next_token_targets: B rows of T tokens."""

    B: int = shrinking.size_field()
    T: int = shrinking.size_field()
    prompts: str = shrinking.choice_field(PROMPTS)
    segments: str = shrinking.choice_field(SEGMENTS)
    ignore_index: str = shrinking.choice_field(tuple(IGNORE))
    seed: int = field(default=0)


def covered_targets(recipe: TargetsRecipe, coverage: Coverage) -> TargetsRecipe:
    """The recipe mapped into the coverage: options not taken at their simplest, no empty sizes."""
    least = int(not coverage.empty)
    simple = {"prompts": ("prompt_lengths", "none"), "segments": ("segments", "none"), "ignore_index": ("ignore_index", "default")}
    changes: dict[str, Any] = {name: level for name, (argument, level) in simple.items() if argument not in coverage.arguments}
    return replace(recipe, B=max(recipe.B, least), T=max(recipe.T, least), **changes)


def designed_targets(coverage: Coverage) -> list[TargetsRecipe]:
    """Every pair of prompts and segments in several sizes, none among them."""
    sizes = ((1, 5), (2, 12), (3, 1), (1, 33), (0, 4), (2, 0))
    rows = [TargetsRecipe(B, T, prompts, segments, ("default", "minus_one")[i % 2], seed=i)
            for i, ((B, T), prompts, segments) in enumerate(itertools.product(sizes, PROMPTS, SEGMENTS))]  # fmt: skip
    return list(dict.fromkeys(covered_targets(row, coverage) for row in rows))


def target_recipes(coverage: Coverage) -> st.SearchStrategy[TargetsRecipe]:
    """Random recipes inside a coverage."""
    return st.builds(
        TargetsRecipe, B=st.integers(0, 3), T=st.integers(0, 24), prompts=st.sampled_from(PROMPTS), segments=st.sampled_from(SEGMENTS),
        ignore_index=st.sampled_from(tuple(IGNORE)), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_targets(recipe, coverage))  # fmt: skip


def build_targets(recipe: TargetsRecipe) -> Case:
    """Tokens from 0 on, and what the levels add; documents are runs of one to five tokens."""
    g, (B, T) = np.random.default_rng(recipe.seed), (recipe.B, recipe.T)
    arrays = {"tokens": g.integers(0, (1000, VOCABULARY)[recipe.seed % 2], (B, T))}
    if recipe.prompts != "none":
        low, high = (0, T + 1) if recipe.prompts == "some" else (max(T - 1, 0), T + 3)
        arrays["prompt_lengths"] = g.integers(low, high, B)
    if recipe.segments != "none":
        runs = [np.repeat(np.arange(T), g.integers(1, 6, T))[:T] for _ in range(B)]
        arrays["segments"] = np.arange(B * T).reshape(B, T) if recipe.segments == "singles" else np.array(runs, np.int64).reshape(B, T)
    options: dict[str, Option] = {} if recipe.ignore_index == "default" else {"ignore_index": IGNORE[recipe.ignore_index]}
    return Case("next_token_targets", arrays, options, origin=str(recipe))


TARGET_CASES = RecipeSource("next_token_targets", build=build_targets, designed=designed_targets, strategy=target_recipes,
                            covered=covered_targets)
