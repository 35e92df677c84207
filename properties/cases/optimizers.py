"""Cases of a step of AdamW: fresh and warm moments, gradients of every size, and the numbers of a schedule."""

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
# Moments of 0 before the first step; moments after some steps; after very many.
STATES = {"fresh": 1, "second": 2, "warm": 10, "late": 5000}
GRADIENTS = ("normal", "zero", "near_eps", "uneven", "some_zero", "grid")
# Beside them, in designed cases of their own: what a clamp of gradients or of their squares would show.
LARGE = "large"
# A matrix, its one row, the one number of that: a kernel that decays nothing but matrices decides for its caller.
ONE: dict[str, Any] = {"matrix": ..., "vector": (0, ...), "scalar": (0, 0, ...)}
LR = {"thousandth": 1e-3, "tenth": 0.1, "zero": 0.0}
BETA1 = {"nine_tenths": 0.9, "half": 0.5, "zero": 0.0}
BETA2 = {"usual": 0.999, "short": 0.95, "half": 0.5}
EPS = {"usual": 1e-8, "thousandth": 1e-3}
DECAY = {"none": 0.0, "hundredth": 0.01, "half": 0.5}


@dataclass(frozen=True)
class AdamRecipe:
    """One case of adamw_step: parameters of shape (A, n), (n,) or ()."""

    A: int = shrinking.size_field()
    n: int = shrinking.size_field()
    state: str = shrinking.choice_field(tuple(STATES))
    axes: str = shrinking.choice_field(tuple(ONE))
    gradient: str = shrinking.choice_field((*GRADIENTS, LARGE))
    lr: str = shrinking.choice_field(tuple(LR))
    beta1: str = shrinking.choice_field(tuple(BETA1))
    beta2: str = shrinking.choice_field(tuple(BETA2))
    eps: str = shrinking.choice_field(tuple(EPS))
    weight_decay: str = shrinking.choice_field(tuple(DECAY))
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    AdamRecipe(n=7, seed=1),
    AdamRecipe(n=7, weight_decay="half", lr="tenth", seed=2),
    AdamRecipe(n=9, gradient="zero", weight_decay="half", lr="tenth", seed=3),
    AdamRecipe(n=9, gradient="near_eps", lr="tenth", seed=4),
    AdamRecipe(A=3, n=33, state="warm", weight_decay="hundredth", seed=5),
    AdamRecipe(A=0, n=5, seed=6),
    AdamRecipe(n=5, axes="vector", weight_decay="half", lr="tenth", seed=7),
    AdamRecipe(axes="scalar", state="warm", weight_decay="half", lr="tenth", seed=8),
    AdamRecipe(n=0, axes="vector", seed=9),
    AdamRecipe(A=2, n=7, gradient=LARGE, state="warm", lr="tenth", seed=10),
    # More elements than a block of 1024 takes, and than the chunk of 2^16 of a kernel for many tensors.
    AdamRecipe(A=3, n=1001, state="warm", lr="tenth", weight_decay="hundredth", seed=11),
    AdamRecipe(n=2**16 + 37, axes="vector", state="warm", lr="tenth", weight_decay="hundredth", seed=12),
)


def covered_adam(recipe: AdamRecipe, coverage: Coverage) -> AdamRecipe:
    """The recipe mapped into the coverage: numbers that are not taken at their usual values, a covered format, no empty sizes."""
    usual = {"lr": "thousandth", "beta1": "nine_tenths", "beta2": "usual", "eps": "usual", "weight_decay": "none"}
    changes: dict[str, Any] = {name: level for name, level in usual.items() if name not in coverage.arguments}
    least = int(not coverage.empty)
    state = recipe.state if "step" in coverage.arguments else "fresh"
    dtype = recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0]
    A, n = (1 if recipe.axes in alone else max(size, least)
            for size, alone in ((recipe.A, ("vector", "scalar")), (recipe.n, ("scalar",))))  # fmt: skip
    return replace(recipe, A=A, n=n, state=state, dtype=dtype, **changes)


@lru_cache(maxsize=8)
def adam_table(coverage: Coverage) -> tuple[AdamRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"state": tuple(STATES), "gradient": GRADIENTS, "lr": tuple(LR), "weight_decay": tuple(DECAY), "dtype": coverage.dtypes}
    rest = {"beta1": tuple(BETA1), "beta2": tuple(BETA2), "eps": tuple(EPS), "strides": LAYOUTS, "A": (1, 2, 3), "n": (1, 2, 7, 33, 300)}
    rows = balanced_table({**levels, **rest}, 36, crossed=tuple(levels))
    return tuple(covered_adam(AdamRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_adam(coverage: Coverage) -> list[AdamRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_adam(corner, coverage) for corner in CORNERS), *adam_table(coverage)]))


def adam_recipes(coverage: Coverage) -> st.SearchStrategy[AdamRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        AdamRecipe, A=st.sampled_from((1, 2, 3) * 6 + (0,)), n=st.integers(0, 70), axes=st.sampled_from(tuple(ONE)),
        state=st.sampled_from(tuple(STATES)), gradient=st.sampled_from((*GRADIENTS, LARGE)),
        lr=st.sampled_from(tuple(LR)), beta1=st.sampled_from(tuple(BETA1)),
        beta2=st.sampled_from(tuple(BETA2)), eps=st.sampled_from(tuple(EPS)), weight_decay=st.sampled_from(tuple(DECAY)),
        dtype=st.sampled_from(coverage.dtypes), strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_adam(recipe, coverage))  # fmt: skip


def build_adam(recipe: AdamRecipe) -> Case:
    """param, grad, m, v of one format and shape, as views in a memory order of their own; v of the size of the gradients' squares."""
    g, shape, fmt = np.random.default_rng(recipe.seed), (1, recipe.A, recipe.n), FloatFormat(recipe.dtype)
    x = g.standard_normal(shape)
    grad = {"normal": x, "zero": 0.0 * x, "near_eps": x * 2.0 * EPS[recipe.eps], "uneven": x * 10.0 ** g.integers(-6, 3, shape),
            LARGE: x * 2.0**20, "some_zero": np.where(g.random(shape) < 0.5, 0.0, x), "grid": np.rint(2.0 * x)}[recipe.gradient]
    fresh = recipe.state == "fresh"
    m = np.where(fresh, 0.0, (grad + g.standard_normal(shape) * np.abs(grad)) / 2.0)
    v = np.where(fresh, 0.0, m * m + grad * grad * g.uniform(0.1, 2.0, shape))
    arrays = {name: laid_out(fmt.cast(np.asarray(a)), recipe.strides)[0][ONE[recipe.axes]]
              for name, a in (("param", g.standard_normal(shape)), ("grad", grad), ("m", m), ("v", v))}  # fmt: skip
    options: dict[str, Option] = {
        "step": STATES[recipe.state], "lr": LR[recipe.lr], "beta1": BETA1[recipe.beta1], "beta2": BETA2[recipe.beta2],
        "eps": EPS[recipe.eps], "weight_decay": DECAY[recipe.weight_decay],
    }  # fmt: skip
    return Case("adamw_step", arrays, options, origin=str(recipe))


ADAM_CASES = RecipeSource("adamw_step", build=build_adam, designed=designed_adam, strategy=adam_recipes, covered=covered_adam)
