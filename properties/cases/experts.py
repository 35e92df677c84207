"""Cases of layers of experts: how many, who is chosen, how many places there are, and over how many ranks."""

from __future__ import annotations

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
from .attention import DTYPES
from .layouts import LAYOUTS, laid_out
from .routing import BIASES, CHOSEN, LOGITS, NORMALIZE, drawn_bias, drawn_logits, number_chosen

Array = NDArray[Any]
# Places of each expert: as many as needed; one; half of an equal share; twice of it.
CAPACITIES = ("none", "one", "half", "twice")
VALUES = ("normal", "integers", "uneven")
RANKS = (1, 2, 3)


@dataclass(frozen=True)
class MoeRecipe:
    """One case of a layer: T tokens and E experts, of each rank where there are R of them; x of size D, out of size F."""

    T: int = shrinking.size_field()
    E: int = shrinking.size_field()
    D: int = shrinking.size_field()
    F: int = shrinking.size_field()
    R: int = shrinking.size_field()
    k: str = shrinking.choice_field(CHOSEN)
    normalize: str = shrinking.choice_field(NORMALIZE)
    bias: str = shrinking.choice_field(BIASES)
    capacity: str = shrinking.choice_field(CAPACITIES)
    logits: str = shrinking.choice_field(LOGITS)
    values: str = shrinking.choice_field(VALUES)
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    MoeRecipe(T=5, E=4, D=3, F=2, R=1, k="two", seed=1),
    MoeRecipe(T=6, E=4, D=3, F=2, R=2, k="two", seed=2),
    MoeRecipe(T=6, E=3, D=2, F=2, R=1, k="three", capacity="one", seed=3),
    MoeRecipe(T=8, E=4, D=2, F=3, R=2, k="two", capacity="half", logits="crowded", seed=4),
    MoeRecipe(T=5, E=4, D=3, F=2, R=2, k="one", normalize="no", seed=5),
    MoeRecipe(T=7, E=4, D=3, F=2, R=1, k="two", bias="choosing", normalize="no", seed=6),
    MoeRecipe(T=9, E=5, D=3, F=3, R=1, k="three", logits="grid", values="integers", seed=7),
    MoeRecipe(T=0, E=2, D=3, F=2, R=2, seed=8),
    MoeRecipe(T=40, E=8, D=33, F=17, R=3, k="two", seed=9),
    MoeRecipe(T=300, E=3, D=3, F=2, R=1, k="two", seed=10),                     # more tokens an expert than a tile of 128 takes
)


def covered_moe(recipe: MoeRecipe, coverage: Coverage) -> MoeRecipe:
    """The recipe mapped into the coverage: what is not taken at its simplest, a covered format, no empty sizes."""
    known = coverage.levels("normalize", NORMALIZE)
    changes = {name: "none" for name in ("bias", "capacity") if name not in coverage.arguments}
    least: dict[str, Any] = {name: max(getattr(recipe, name), 1) for name in ("E", "D", "F", "R")}
    return replace(
        recipe, **{**least, "T": max(recipe.T, int(not coverage.empty)), **changes},
        normalize=recipe.normalize if recipe.normalize in known else known[0],
        dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0])


@lru_cache(maxsize=8)
def moe_table(coverage: Coverage) -> tuple[MoeRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"k": CHOSEN, "normalize": NORMALIZE, "bias": BIASES, "capacity": CAPACITIES, "logits": LOGITS, "values": VALUES,
              "dtype": coverage.dtypes}
    rest = {"strides": LAYOUTS, "T": (1, 2, 5, 12), "E": (1, 2, 4, 5), "D": (1, 2, 5, 16), "F": (1, 3, 8), "R": RANKS}
    rows = balanced_table({**levels, **rest}, 36, crossed=tuple(levels))
    return tuple(covered_moe(MoeRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_moe(coverage: Coverage) -> list[MoeRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_moe(corner, coverage) for corner in CORNERS), *moe_table(coverage)]))


def moe_recipes(coverage: Coverage) -> st.SearchStrategy[MoeRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        MoeRecipe, T=st.integers(0, 12), E=st.integers(1, 6), D=st.integers(1, 8), F=st.integers(1, 6), R=st.sampled_from(RANKS),
        k=st.sampled_from(CHOSEN), normalize=st.sampled_from(NORMALIZE), bias=st.sampled_from(BIASES), capacity=st.sampled_from(CAPACITIES),
        logits=st.sampled_from(LOGITS), values=st.sampled_from(VALUES), dtype=st.sampled_from(coverage.dtypes),
        strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_moe(recipe, coverage))  # fmt: skip


def build_moe(recipe: MoeRecipe) -> Case:
    """Tokens, logits and the matrices of E experts, on one rank."""
    arrays, options = _drawn(replace(recipe, R=1), backward=False)
    return Case("moe_layer", {name: a if name == "bias" else a[0] for name, a in arrays.items()}, options, origin=str(recipe))


def build_expert_backward(recipe: MoeRecipe) -> Case:
    """T tokens and E experts on each of R ranks, and dout."""
    arrays, options = _drawn(recipe, backward=True)
    return Case("expert_parallel_backward", arrays, options, origin=str(recipe))


def _drawn(recipe: MoeRecipe, *, backward: bool) -> tuple[dict[str, Array], dict[str, Option]]:
    g, (T, E, D, F, R) = np.random.default_rng(recipe.seed), (recipe.T, recipe.E, recipe.D, recipe.F, recipe.R)

    def values(*shape: int) -> Array:
        x = g.standard_normal(shape)
        x = {"normal": x, "integers": np.rint(2.0 * x), "uneven": x * 4.0 ** g.integers(-2, 3, shape)}[recipe.values]
        return laid_out(FloatFormat(recipe.dtype).cast(x), recipe.strides)

    logits = drawn_logits(recipe.logits, (R, T, R * E), recipe.dtype, g)
    arrays = {"x": values(R, T, D), "logits": laid_out(logits, recipe.strides), "weights": values(R, E, D, F)}
    arrays |= {"dout": values(R, T, F)} if backward else {}
    k = number_chosen(recipe.k, R * E)
    share = -(-T * k // E)
    places: dict[str, Option] = {"none": None, "one": 1, "half": -(-share // 2), "twice": 2 * share}
    options: dict[str, Option] = {"k": k, "normalize": recipe.normalize == "yes"}
    options |= {} if recipe.capacity == "none" else {"capacity": places[recipe.capacity]}
    return {**arrays, **drawn_bias(recipe.bias, R * E, recipe.dtype, g)}, options


MOE_CASES = RecipeSource("moe_layer", build=build_moe, designed=designed_moe, strategy=moe_recipes, covered=covered_moe)
EXPERT_BACKWARD_CASES = RecipeSource("expert_parallel_backward", build=build_expert_backward, designed=designed_moe,
                                     strategy=moe_recipes, covered=covered_moe)
