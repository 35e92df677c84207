"""Cases of routing and of the balance loss: tokens, experts, biases that change the choice, padding, and ties."""

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

Array = NDArray[Any]
# N(0, 1); far apart; multiples of 1/2, of which many are equal; all equal; one expert that everybody wants.
LOGITS = ("normal", "peaked", "grid", "equal", "crowded")
BIASES = ("none", "small", "choosing")
CHOSEN = ("one", "two", "three", "all")
NORMALIZE = ("yes", "no")
# All tokens real; every third padding; the last ones; all of them.
MASKS = ("none", "some", "tail", "all")
# Rows of a softmax; all equal; one-hot.
PROBS = ("softmax", "equal", "one_hot")
DLOSS = {"one": 1.0, "odd": -0.0137}


@dataclass(frozen=True)
class RouteRecipe:
    """One case of route: T tokens, E experts."""

    T: int = shrinking.size_field()
    E: int = shrinking.size_field()
    k: str = shrinking.choice_field(CHOSEN)
    normalize: str = shrinking.choice_field(NORMALIZE)
    bias: str = shrinking.choice_field(BIASES)
    logits: str = shrinking.choice_field(LOGITS)
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    RouteRecipe(T=5, E=4, k="two", seed=1),
    RouteRecipe(T=5, E=4, k="two", normalize="no", seed=2),
    RouteRecipe(T=3, E=4, k="one", normalize="no", seed=3),
    RouteRecipe(T=3, E=4, k="one", seed=4),
    RouteRecipe(T=6, E=4, k="two", bias="choosing", normalize="no", seed=5),
    RouteRecipe(T=6, E=5, k="three", logits="grid", seed=6),
    RouteRecipe(T=0, E=3, seed=7),
    RouteRecipe(T=33, E=64, k="three", bias="small", seed=8),
)


def number_chosen(level: str, E: int) -> int:
    """k of a level, at most E."""
    return min({"one": 1, "two": 2, "three": 3, "all": E}[level], E)


def covered_route(recipe: RouteRecipe, coverage: Coverage) -> RouteRecipe:
    """The recipe mapped into the coverage: no bias where none is taken, a covered format and kind of gates, no empty sizes."""
    known = coverage.levels("normalize", NORMALIZE)
    return replace(
        recipe, T=max(recipe.T, int(not coverage.empty)), E=max(recipe.E, 1), bias=recipe.bias if "bias" in coverage.arguments else "none",
        normalize=recipe.normalize if recipe.normalize in known else known[0],
        dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0])


@lru_cache(maxsize=8)
def route_table(coverage: Coverage) -> tuple[RouteRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"k": CHOSEN, "normalize": NORMALIZE, "bias": BIASES, "logits": LOGITS, "dtype": coverage.dtypes}
    rest = {"strides": LAYOUTS, "T": (1, 2, 7, 20), "E": (1, 2, 4, 5, 8, 16)}
    rows = balanced_table({**levels, **rest}, 36, crossed=tuple(levels))
    return tuple(covered_route(RouteRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_route(coverage: Coverage) -> list[RouteRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_route(corner, coverage) for corner in CORNERS), *route_table(coverage)]))


def route_recipes(coverage: Coverage) -> st.SearchStrategy[RouteRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        RouteRecipe, T=st.integers(0, 20), E=st.integers(1, 16), k=st.sampled_from(CHOSEN), normalize=st.sampled_from(NORMALIZE),
        bias=st.sampled_from(BIASES), logits=st.sampled_from(LOGITS), dtype=st.sampled_from(coverage.dtypes),
        strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_route(recipe, coverage))  # fmt: skip


def build_route(recipe: RouteRecipe) -> Case:
    """Logits of a kind, in a memory order; a bias in the format that is computed in."""
    g, (T, E) = np.random.default_rng(recipe.seed), (recipe.T, recipe.E)
    arrays = {"logits": laid_out(drawn_logits(recipe.logits, (1, T, E), recipe.dtype, g), recipe.strides)[0],
              **drawn_bias(recipe.bias, E, recipe.dtype, g)}
    options: dict[str, Option] = {"k": number_chosen(recipe.k, E), "normalize": recipe.normalize == "yes"}
    return Case("route", arrays, options, origin=str(recipe))


def drawn_logits(kind: str, shape: tuple[int, ...], dtype: str, g: np.random.Generator) -> Array:
    """Router logits of a kind in a format."""
    x = g.standard_normal(shape)
    x = {"normal": x, "peaked": 8.0 * x, "grid": np.rint(2.0 * x) / 2.0, "equal": np.zeros(shape),
         "crowded": x + 4.0 * (np.arange(shape[-1]) == 0)}[kind]
    return FloatFormat(dtype).cast(x)


def drawn_bias(kind: str, E: int, dtype: str, g: np.random.Generator) -> dict[str, Array]:
    """Nothing; sixty-fourths; or one so large that it decides: every second expert before every other."""
    if kind == "none":
        return {}
    b = np.rint(g.uniform(-4.0, 4.0, E)) / 64.0 if kind == "small" else 2.0 * (np.arange(E) % 2)
    return {"bias": b.astype(np.float64 if dtype == "float64" else np.float32)}


ROUTE_CASES = RecipeSource("route", build=build_route, designed=designed_route, strategy=route_recipes, covered=covered_route)


@dataclass(frozen=True)
class BalanceRecipe:
    """One case of the balance loss or of its gradient: T tokens, E experts."""

    T: int = shrinking.size_field()
    E: int = shrinking.size_field()
    k: str = shrinking.choice_field(CHOSEN)
    mask: str = shrinking.choice_field(MASKS)
    probs: str = shrinking.choice_field(PROBS)
    logits: str = shrinking.choice_field(LOGITS)
    dloss: str = shrinking.choice_field(tuple(DLOSS))
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


BALANCE_CORNERS = (
    BalanceRecipe(T=4, E=4, k="two", seed=1),
    BalanceRecipe(T=8, E=4, k="two", probs="equal", seed=2),
    BalanceRecipe(T=6, E=4, k="one", mask="some", logits="crowded", seed=3),
    BalanceRecipe(T=6, E=4, k="one", mask="tail", probs="one_hot", seed=4),
    BalanceRecipe(T=5, E=3, k="two", mask="all", seed=5),
    BalanceRecipe(T=0, E=3, seed=6),
    BalanceRecipe(T=33, E=16, k="three", mask="some", dloss="odd", seed=7),
)


def covered_balance(recipe: BalanceRecipe, coverage: Coverage) -> BalanceRecipe:
    """The recipe mapped into the coverage: all tokens real where no mask is taken, a covered format, no empty sizes."""
    return replace(
        recipe, T=max(recipe.T, int(not coverage.empty)), E=max(recipe.E, 1), mask=recipe.mask if "mask" in coverage.arguments else "none",
        dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0])


@lru_cache(maxsize=8)
def balance_table(coverage: Coverage) -> tuple[BalanceRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"k": CHOSEN, "mask": MASKS, "probs": PROBS, "logits": LOGITS, "dloss": tuple(DLOSS), "dtype": coverage.dtypes}
    rest = {"strides": LAYOUTS, "T": (1, 2, 7, 20), "E": (1, 2, 4, 5, 8)}
    rows = balanced_table({**levels, **rest}, 30, crossed=tuple(levels))
    return tuple(covered_balance(BalanceRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_balance(coverage: Coverage) -> list[BalanceRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_balance(corner, coverage) for corner in BALANCE_CORNERS), *balance_table(coverage)]))


def balance_recipes(coverage: Coverage) -> st.SearchStrategy[BalanceRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        BalanceRecipe, T=st.integers(0, 20), E=st.integers(1, 12), k=st.sampled_from(CHOSEN), mask=st.sampled_from(MASKS),
        probs=st.sampled_from(PROBS), logits=st.sampled_from(LOGITS), dloss=st.sampled_from(tuple(DLOSS)),
        dtype=st.sampled_from(coverage.dtypes), strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_balance(recipe, coverage))  # fmt: skip


def build_balance(recipe: BalanceRecipe, *, backward: bool = False) -> Case:
    """Probabilities, the k largest of the logits they came from, and which tokens are real."""
    g, (T, E) = np.random.default_rng(recipe.seed), (recipe.T, recipe.E)
    z = drawn_logits(recipe.logits, (1, T, E), "float64", g) + g.standard_normal((1, T, E)) / 1024.0
    e = np.exp(z)
    p = {"softmax": e / e.sum(axis=-1, keepdims=True), "equal": np.full(z.shape, 1.0 / E),
         "one_hot": (z == z.max(axis=-1, keepdims=True)) * 1.0}[recipe.probs]
    ids = np.argsort(-z[0], axis=-1, kind="stable")[:, : number_chosen(recipe.k, E)]
    arrays: dict[str, Array] = {"probs": laid_out(FloatFormat(recipe.dtype).cast(p), recipe.strides)[0], "ids": ids}
    if recipe.mask != "none":
        t = np.arange(T)
        arrays["mask"] = {"some": t % 3 != 1, "tail": t < (T + 1) // 2, "all": np.zeros(T, np.bool_)}[recipe.mask]
    if backward:
        arrays["dloss"] = np.asarray(FloatFormat(recipe.dtype).cast(np.asarray(DLOSS[recipe.dloss])))
    return Case("balance_loss_backward" if backward else "balance_loss", arrays, {}, origin=str(recipe))


def build_balance_backward(recipe: BalanceRecipe) -> Case:
    """The case of the loss, and dloss."""
    return build_balance(recipe, backward=True)


BALANCE_CASES = RecipeSource("balance_loss", build=build_balance, designed=designed_balance, strategy=balance_recipes,
                             covered=covered_balance)
BALANCE_BACKWARD_CASES = RecipeSource("balance_loss_backward", build=build_balance_backward, designed=designed_balance,
                                      strategy=balance_recipes, covered=covered_balance)
