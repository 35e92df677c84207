"""Cases of a step on master weights: scales of the loss, clips on either side of the norm, gradients that overflowed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from oracles.reference import FloatFormat

from .. import shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..signatures import SIGNATURES
from .optimizers import DECAY, LR, STATES, AdamRecipe, build_adam

FORMATS = SIGNATURES["master_weight_step"].choices["fmt"]
WIDE = ("float32", "float64")
SCALES = {"one": 1.0, "usual": 2.0**16, "small": 0.25}
# The limit on the norm: none; far above it; half of it.
CLIPS = ("none", "above", "below")
GRADIENTS = ("normal", "zero", "uneven", "infinite", "nan")


@dataclass(frozen=True)
class MasterRecipe:
    """One case of master_weight_step: n parameters."""

    n: int = shrinking.size_field()
    fmt: str = shrinking.choice_field(FORMATS)
    state: str = shrinking.choice_field(tuple(STATES))
    gradient: str = shrinking.choice_field(GRADIENTS)
    loss_scale: str = shrinking.choice_field(tuple(SCALES))
    max_norm: str = shrinking.choice_field(CLIPS)
    lr: str = shrinking.choice_field(tuple(LR))
    weight_decay: str = shrinking.choice_field(tuple(DECAY))
    dtype: str = shrinking.choice_field(WIDE)
    seed: int = field(default=0)


CORNERS = (
    MasterRecipe(n=7, seed=1),
    MasterRecipe(n=7, gradient="infinite", state="warm", weight_decay="half", lr="tenth", seed=2),
    MasterRecipe(n=7, gradient="nan", state="warm", seed=3),
    MasterRecipe(n=33, max_norm="below", loss_scale="usual", state="warm", seed=4),
    MasterRecipe(n=33, fmt="float16", gradient="zero", weight_decay="hundredth", seed=5),
    MasterRecipe(n=0, seed=6),
)


def covered_master(recipe: MasterRecipe, coverage: Coverage) -> MasterRecipe:
    """The recipe mapped into the coverage: numbers that are not taken at their usual values, a covered format."""
    usual = {"loss_scale": "one", "max_norm": "none", "lr": "thousandth", "weight_decay": "none"}
    changes: dict[str, Any] = {name: level for name, level in usual.items() if name not in coverage.arguments}
    known = coverage.levels("fmt", FORMATS)
    dtypes = [dtype for dtype in coverage.dtypes if dtype in WIDE] or ["float32"]
    return replace(recipe, n=max(recipe.n, int(not coverage.empty)), fmt=recipe.fmt if recipe.fmt in known else known[0],
                   state=recipe.state if "step" in coverage.arguments else "fresh",
                   dtype=recipe.dtype if recipe.dtype in dtypes else dtypes[0], **changes)  # fmt: skip


@lru_cache(maxsize=8)
def master_table(coverage: Coverage) -> tuple[MasterRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"fmt": FORMATS, "state": tuple(STATES), "gradient": GRADIENTS, "loss_scale": tuple(SCALES), "max_norm": CLIPS}
    rest = {"lr": tuple(LR), "weight_decay": tuple(DECAY), "dtype": WIDE, "n": (1, 2, 7, 33, 300)}
    rows = balanced_table({**levels, **rest}, 30, crossed=tuple(levels))
    return tuple(covered_master(MasterRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_masters(coverage: Coverage) -> list[MasterRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_master(corner, coverage) for corner in CORNERS), *master_table(coverage)]))


def master_recipes(coverage: Coverage) -> st.SearchStrategy[MasterRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        MasterRecipe, n=st.integers(0, 70), fmt=st.sampled_from(FORMATS), state=st.sampled_from(tuple(STATES)),
        gradient=st.sampled_from(GRADIENTS), loss_scale=st.sampled_from(tuple(SCALES)), max_norm=st.sampled_from(CLIPS),
        lr=st.sampled_from(tuple(LR)), weight_decay=st.sampled_from(tuple(DECAY)), dtype=st.sampled_from(WIDE),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_master(recipe, coverage))  # fmt: skip


def build_master(recipe: MasterRecipe) -> Case:
    """The arrays of a step of AdamW, its gradient scaled, and a number that is none among them where it overflowed."""
    finite = recipe.gradient if recipe.gradient in ("zero", "uneven") else "normal"
    step = build_adam(AdamRecipe(n=recipe.n, state=recipe.state, gradient=finite, lr=recipe.lr, weight_decay=recipe.weight_decay,
                                 dtype=recipe.dtype, seed=recipe.seed))  # fmt: skip
    grad, master, m, v = (step.arrays[name].reshape(-1) for name in ("grad", "param", "m", "v"))
    norm, scale = float(np.linalg.norm(grad.astype(np.float64))), SCALES[recipe.loss_scale]
    grad = FloatFormat(recipe.dtype).cast(grad.astype(np.float64) * scale)
    if recipe.gradient in ("infinite", "nan") and recipe.n:
        grad[recipe.seed % recipe.n] = np.inf if recipe.gradient == "infinite" else np.nan
    limit = {"none": None, "above": 4.0 * norm + 1.0, "below": norm / 2.0}[recipe.max_norm]
    options: dict[str, Option] = {"loss_scale": scale, "max_norm": limit, **step.options, "fmt": recipe.fmt}
    return Case("master_weight_step", {"grad": grad, "master": master, "m": m, "v": v}, options, origin=str(recipe))


MASTER_CASES = RecipeSource("master_weight_step", build=build_master, designed=designed_masters, strategy=master_recipes,
                            covered=covered_master)
