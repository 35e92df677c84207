"""Cases of cross-entropy, its gradient and its form over a sharded vocabulary; of distillation; and of the targets themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat

from .. import regimes, shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..signatures import SIGNATURES
from .attention import DTYPES
from .layouts import LAYOUTS, laid_out

Array = NDArray[Any]
REDUCTIONS = SIGNATURES["cross_entropy"].choices["reduction"]
DIVERGENCES = SIGNATURES["distillation_loss"].choices["divergence"]
# No target ignored; some; all of them.
IGNORED = ("none", "some", "all")
# Which number means ignored: the default, -1, or a class.
IGNORE = {"default": -100, "minus_one": -1, "class": 0}
SMOOTHING = {"none": 0.0, "tenth": 0.1, "half": 0.5}
Z_LOSS = {"none": 0.0, "small": 1e-3, "quarter": 0.25}
WEIGHTS = ("none", "uneven", "some_zero")
# What stands in the rows that are ignored: numbers as elsewhere, or NaN.
UNSCORED = ("numbers", "nan")
REGIMES = ("normal", "peaked", "constant", "integer_grid", "flat", "outlier_channel", "ascending")
# So many classes that hardly a target would stand in the last tile, were it not put there.
FEW = 1024
SIZES = {"B": (1, 2, 3), "L": (1, 2, 5, 12), "V": (2, 3, 5, 33, 200)}


@dataclass(frozen=True)
class LossRecipe:
    """One case of a loss: B x L rows of V classes, in R shards where the vocabulary is cut."""

    B: int = shrinking.size_field()
    L: int = shrinking.size_field()
    V: int = shrinking.size_field()
    R: int = shrinking.size_field()
    reduction: str = shrinking.choice_field(REDUCTIONS)
    weights: str = shrinking.choice_field(WEIGHTS)
    label_smoothing: str = shrinking.choice_field(tuple(SMOOTHING))
    z_loss: str = shrinking.choice_field(tuple(Z_LOSS))
    ignored: str = shrinking.choice_field(IGNORED)
    ignore_index: str = shrinking.choice_field(tuple(IGNORE))
    unscored: str = shrinking.choice_field(UNSCORED)
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    LossRecipe(B=1, L=3, V=5, R=2, seed=1),
    LossRecipe(B=2, L=4, V=6, R=2, reduction="none", ignored="some", unscored="nan", seed=2),
    LossRecipe(B=2, L=4, V=6, R=2, ignored="some", ignore_index="minus_one", weights="uneven", seed=3),
    LossRecipe(B=1, L=3, V=4, ignored="all", seed=4),
    LossRecipe(B=1, L=3, V=4, R=4, label_smoothing="tenth", seed=5),
    LossRecipe(B=1, L=3, V=4, R=2, z_loss="quarter", reduction="sum", seed=6),
    LossRecipe(B=0, L=3, V=4, seed=7),
    LossRecipe(B=2, L=3, V=1, seed=8),
    LossRecipe(B=2, L=9, V=257, R=3, reduction="sum", ignored="some", unscored="nan", seed=9),
    # More rows than a block takes, and more classes than tiles of 1024 and 2048 do; of 2^16 an identity matrix would fill the memory.
    LossRecipe(B=3, L=100, V=3, reduction="none", seed=10),
    LossRecipe(B=1, L=4, V=2085, R=1, label_smoothing="tenth", reduction="none", seed=11),
)


def covered_loss(recipe: LossRecipe, coverage: Coverage) -> LossRecipe:
    """The recipe mapped into the coverage: options not taken at their simplest, a covered format and reduction, no empty sizes."""
    least = int(not coverage.empty)
    simple = {"weights": "none", "label_smoothing": "none", "z_loss": "none", "ignore_index": "default"}
    changes: dict[str, Any] = {name: level for name, level in simple.items() if name not in coverage.arguments}
    dtype = recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0]
    reductions = coverage.levels("reduction", REDUCTIONS)
    reduction = recipe.reduction if recipe.reduction in reductions else reductions[0]
    return replace(recipe, B=max(recipe.B, least), L=max(recipe.L, least), V=max(recipe.V, 1), R=max(recipe.R, 1), dtype=dtype,
                   reduction=reduction, **changes)  # fmt: skip


@lru_cache(maxsize=8)
def loss_table(coverage: Coverage) -> tuple[LossRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"reduction": coverage.levels("reduction", REDUCTIONS), "weights": WEIGHTS, "label_smoothing": tuple(SMOOTHING),
              "z_loss": tuple(Z_LOSS), "ignored": IGNORED, "unscored": UNSCORED, "dtype": coverage.dtypes}
    rest = {"ignore_index": tuple(IGNORE), "strides": LAYOUTS, "regime": REGIMES, "R": (1, 2, 3, 4), **SIZES}
    rows = balanced_table({**levels, **rest}, 40, crossed=tuple(levels))
    return tuple(covered_loss(LossRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_losses(coverage: Coverage) -> list[LossRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_loss(corner, coverage) for corner in CORNERS), *loss_table(coverage)]))


def loss_recipes(coverage: Coverage) -> st.SearchStrategy[LossRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        LossRecipe, B=st.sampled_from((1, 2, 3) * 6 + (0,)), L=st.sampled_from((*range(1, 13), 0)), V=st.integers(1, 60),
        R=st.integers(1, 4), reduction=st.sampled_from(REDUCTIONS), weights=st.sampled_from(WEIGHTS),
        label_smoothing=st.sampled_from(tuple(SMOOTHING)), z_loss=st.sampled_from(tuple(Z_LOSS)), ignored=st.sampled_from(IGNORED),
        ignore_index=st.sampled_from(tuple(IGNORE)), unscored=st.sampled_from(UNSCORED), dtype=st.sampled_from(coverage.dtypes),
        regime=st.sampled_from(REGIMES), strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_loss(recipe, coverage))  # fmt: skip


def build_loss(recipe: LossRecipe) -> Case:
    """Logits of a regime, targets, and what the levels add."""
    g, shape = np.random.default_rng(recipe.seed), (recipe.B, recipe.L, recipe.V)
    logits = regimes.draw(recipe.regime, shape, recipe.dtype, g)
    targets = _targets(recipe.ignored, IGNORE[recipe.ignore_index], shape, g)
    arrays: dict[str, Array] = {"logits": logits, "targets": targets}
    if recipe.weights != "none":
        some = np.arange(recipe.V) % 2 if recipe.weights == "some_zero" else 1.0
        arrays["weights"] = FloatFormat(recipe.dtype).cast(g.uniform(0.25, 2.0, recipe.V) * some)
    options: dict[str, Option] = {"reduction": recipe.reduction}
    if recipe.ignore_index != "default":
        options["ignore_index"] = IGNORE[recipe.ignore_index]
    if recipe.label_smoothing != "none":
        options["label_smoothing"] = SMOOTHING[recipe.label_smoothing]
    if recipe.z_loss != "none":
        options["z_loss"] = Z_LOSS[recipe.z_loss]
    _hide(recipe.unscored, targets == IGNORE[recipe.ignore_index], logits)
    arrays["logits"] = laid_out(logits, recipe.strides)
    return Case("cross_entropy", arrays, options, origin=str(recipe))


def build_loss_backward(recipe: LossRecipe) -> Case:
    """The case of the loss, and the gradient of what follows: one number, or one a row."""
    case = build_loss(recipe)
    shape = (recipe.B, recipe.L) if recipe.reduction == "none" else ()
    dloss = FloatFormat(recipe.dtype).cast(np.asarray(np.random.default_rng([recipe.seed, 1]).normal(size=shape)))
    arrays = {name: case.arrays[name] for name in ("logits", "targets")}
    return replace(case, operation="cross_entropy_backward", arrays={**arrays, "dloss": np.asarray(dloss), **_rest(case, arrays)})


def build_sharded_loss(recipe: LossRecipe) -> Case:
    """The case of the loss without weights, V classes in each of R shards."""
    case = build_loss(replace(recipe, weights="none", V=recipe.V * recipe.R, strides="contiguous"))
    shards = np.stack(np.split(case.arrays["logits"], recipe.R, axis=-1))       # (R, B, L, V)
    arrays = {"shards": laid_out(shards, recipe.strides), "targets": case.arrays["targets"]}
    return replace(case, operation="vocab_parallel_cross_entropy", arrays=arrays, origin=str(recipe))


def _rest(case: Case, taken: dict[str, Array]) -> dict[str, Array]:
    return {name: array for name, array in case.arrays.items() if name not in taken}


def _targets(ignored: str, ignore_index: int, shape: tuple[int, int, int], g: np.random.Generator) -> Array:
    """Classes, a share of them ignored. Where a class means ignored it may be drawn too. Of very many the last ones, half of the time."""
    y = g.integers(0, shape[2], shape[:2])
    if shape[2] > FEW:
        y[:, 1::2] = shape[2] - 1 - y[:, 1::2] % 32
    share = {"none": 0.0, "some": 1 / 3, "all": 1.0}[ignored]
    return np.where(g.uniform(size=shape[:2]) < share, ignore_index, y)


def _hide(unscored: str, where: Array, *logits: Array) -> None:
    if unscored == "nan":
        for z in logits:
            z[where] = np.nan


CROSS_ENTROPY_CASES = RecipeSource("cross_entropy", build=build_loss, designed=designed_losses, strategy=loss_recipes, covered=covered_loss)
CROSS_ENTROPY_BACKWARD_CASES = replace(CROSS_ENTROPY_CASES, operation="cross_entropy_backward", build=build_loss_backward)
SHARDED_CASES = replace(CROSS_ENTROPY_CASES, operation="vocab_parallel_cross_entropy", build=build_sharded_loss)


TEMPERATURES = {"one": 1.0, "two": 2.0, "half": 0.5, "three": 3.0}
ALPHAS = {"one": 1.0, "zero": 0.0, "half": 0.5, "tenth": 0.1}
BETAS = {"half": 0.5, "tenth": 0.1, "three_quarters": 0.75}
TEACHERS = ("other", "near", "same")


@dataclass(frozen=True)
class DistillationRecipe:
    """One case of distillation_loss: B x L rows of V classes. teacher: logits of its own, near the student's, or the same."""

    B: int = shrinking.size_field()
    L: int = shrinking.size_field()
    V: int = shrinking.size_field()
    divergence: str = shrinking.choice_field(DIVERGENCES)
    temperature: str = shrinking.choice_field(tuple(TEMPERATURES))
    alpha: str = shrinking.choice_field(tuple(ALPHAS))
    beta: str = shrinking.choice_field(tuple(BETAS))
    teacher: str = shrinking.choice_field(TEACHERS)
    ignored: str = shrinking.choice_field(IGNORED)
    ignore_index: str = shrinking.choice_field(tuple(IGNORE))
    unscored: str = shrinking.choice_field(UNSCORED)
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


DISTILLATION_CORNERS = (
    *(DistillationRecipe(B=1, L=3, V=5, divergence=name, seed=1) for name in DIVERGENCES),
    DistillationRecipe(B=1, L=4, V=6, divergence="jsd", beta="tenth", temperature="two", seed=2),
    DistillationRecipe(B=2, L=4, V=6, ignored="some", unscored="nan", alpha="half", seed=3),
    DistillationRecipe(B=1, L=4, V=3, ignored="all", alpha="half", seed=4),
    DistillationRecipe(B=0, L=4, V=3, seed=5),
    DistillationRecipe(B=3, L=100, V=3, alpha="half", seed=6),
    *(DistillationRecipe(B=1, L=2, V=2085, divergence=name, alpha="half", seed=7) for name in DIVERGENCES),
)


def covered_distillation(recipe: DistillationRecipe, coverage: Coverage) -> DistillationRecipe:
    """The recipe mapped into the coverage: options not taken at their simplest, a covered format and divergence."""
    least = int(not coverage.empty)
    simple = {"temperature": "one", "alpha": "one", "beta": "half", "ignore_index": "default"}
    changes: dict[str, Any] = {name: level for name, level in simple.items() if name not in coverage.arguments}
    dtype = recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0]
    known = coverage.levels("divergence", DIVERGENCES)
    divergence = recipe.divergence if recipe.divergence in known else known[0]
    return replace(recipe, B=max(recipe.B, least), L=max(recipe.L, least), V=max(recipe.V, 1), dtype=dtype, divergence=divergence,
                   **changes)  # fmt: skip


@lru_cache(maxsize=8)
def distillation_table(coverage: Coverage) -> tuple[DistillationRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"divergence": coverage.levels("divergence", DIVERGENCES), "temperature": tuple(TEMPERATURES), "alpha": tuple(ALPHAS),
              "beta": tuple(BETAS), "teacher": TEACHERS, "ignored": IGNORED, "dtype": coverage.dtypes}
    rest = {"ignore_index": tuple(IGNORE), "unscored": UNSCORED, "strides": LAYOUTS, "regime": REGIMES, **SIZES}
    rows = balanced_table({**levels, **rest}, 36, crossed=tuple(levels))
    return tuple(covered_distillation(DistillationRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_distillation(coverage: Coverage) -> list[DistillationRecipe]:
    """The corners, then the table, all inside the coverage."""
    corners = [covered_distillation(corner, coverage) for corner in DISTILLATION_CORNERS]
    return list(dict.fromkeys([*corners, *distillation_table(coverage)]))


def distillation_recipes(coverage: Coverage) -> st.SearchStrategy[DistillationRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        DistillationRecipe, B=st.sampled_from((1, 2, 3) * 6 + (0,)), L=st.sampled_from((*range(1, 9), 0)), V=st.integers(1, 60),
        divergence=st.sampled_from(DIVERGENCES), temperature=st.sampled_from(tuple(TEMPERATURES)), alpha=st.sampled_from(tuple(ALPHAS)),
        beta=st.sampled_from(tuple(BETAS)), teacher=st.sampled_from(TEACHERS), ignored=st.sampled_from(IGNORED),
        ignore_index=st.sampled_from(tuple(IGNORE)), unscored=st.sampled_from(UNSCORED), dtype=st.sampled_from(coverage.dtypes),
        regime=st.sampled_from(REGIMES), strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_distillation(recipe, coverage))  # fmt: skip


def build_distillation(recipe: DistillationRecipe) -> Case:
    """Two arrays of logits of a regime, targets, and the options of the levels."""
    g, shape = np.random.default_rng(recipe.seed), (recipe.B, recipe.L, recipe.V)
    student, other = (regimes.draw(recipe.regime, shape, recipe.dtype, g) for _ in range(2))
    near = student.astype(np.float64) + g.normal(size=shape) / 64
    teacher = {"other": other, "near": FloatFormat(recipe.dtype).cast(near), "same": student.copy()}[recipe.teacher]
    ignore = IGNORE[recipe.ignore_index]
    targets = _targets(recipe.ignored, ignore, shape, g)
    _hide(recipe.unscored, targets == ignore, student, teacher)
    arrays = {"student": laid_out(student, recipe.strides), "teacher": laid_out(teacher, recipe.strides), "targets": targets}
    options: dict[str, Option] = {"temperature": TEMPERATURES[recipe.temperature], "alpha": ALPHAS[recipe.alpha],
                                  "divergence": recipe.divergence, "beta": BETAS[recipe.beta]}
    if recipe.ignore_index != "default":
        options["ignore_index"] = ignore
    return Case("distillation_loss", arrays, options, origin=str(recipe))


def build_distillation_backward(recipe: DistillationRecipe) -> Case:
    """The case of the loss, and the gradient of what follows: one number."""
    case = build_distillation(recipe)
    dloss = FloatFormat(recipe.dtype).cast(np.asarray(np.random.default_rng([recipe.seed, 1]).normal()))
    return replace(case, operation="distillation_loss_backward", arrays={**case.arrays, "dloss": np.asarray(dloss)})


DISTILLATION_CASES = RecipeSource("distillation_loss", build=build_distillation, designed=designed_distillation,
                                  strategy=distillation_recipes, covered=covered_distillation)
DISTILLATION_BACKWARD_CASES = replace(DISTILLATION_CASES, operation="distillation_loss_backward", build=build_distillation_backward)
