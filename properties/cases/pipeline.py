"""Cases of pipelines: schedules of every kind and size, losses of ragged sequences, and steps of small models cut in every way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from oracles.reference import FloatFormat

from .. import regimes, shrinking
from ..array_lists import spread
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..signatures import SIGNATURES
from .attention import DTYPES
from .attention_arrays import generator
from .layouts import LAYOUTS, laid_out

KINDS = SIGNATURES["schedule"].choices["kind"]


@dataclass(frozen=True)
class ScheduleRecipe:
    """One case of schedule: p stages, m micro-batches (p times as many where they are interleaved), v chunks on each stage."""

    p: int = shrinking.size_field()
    m: int = shrinking.size_field()
    v: int = shrinking.size_field()
    kind: str = shrinking.choice_field(KINDS)
    seed: int = field(default=0)


def covered_schedule(recipe: ScheduleRecipe, coverage: Coverage) -> ScheduleRecipe:
    """A kind it takes; chunks where they are interleaved and the subject takes them."""
    kinds = coverage.levels("kind", KINDS)
    kind = recipe.kind if recipe.kind in kinds else kinds[0]
    v = max(recipe.v, 1) if kind == "interleaved" and "chunks" in coverage.arguments else 1
    return replace(recipe, p=max(recipe.p, 1), m=max(recipe.m, int(not coverage.empty)), v=v, kind=kind)


def designed_schedules(coverage: Coverage) -> list[ScheduleRecipe]:
    """Each kind with as many micro-batches as stages, fewer, one more, many; one stage; nothing to do."""
    sizes = ((1, 1), (1, 4), (2, 1), (2, 2), (2, 5), (3, 2), (4, 2), (4, 4), (4, 5), (4, 8), (5, 12), (8, 3), (8, 16), (3, 0))
    rows = [ScheduleRecipe(p=p, m=m, v=1 + (p + m) % 3, kind=kind) for kind in KINDS for p, m in sizes]
    return list(dict.fromkeys(covered_schedule(recipe, coverage) for recipe in rows))


def schedule_recipes(coverage: Coverage) -> st.SearchStrategy[ScheduleRecipe]:
    """Random recipes inside a coverage."""
    return st.builds(
        ScheduleRecipe, p=st.integers(1, 12), m=st.integers(0, 20), v=st.integers(1, 4), kind=st.sampled_from(KINDS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_schedule(recipe, coverage))  # fmt: skip


def build_schedule(recipe: ScheduleRecipe) -> Case:
    """No arrays: a kind and sizes."""
    m = recipe.m * recipe.p if recipe.kind == "interleaved" else recipe.m
    options: dict[str, Option] = {"kind": recipe.kind, "stages": recipe.p, "microbatches": m}
    return Case("schedule", {}, options | ({"chunks": recipe.v} if recipe.v != 1 else {}), origin=str(recipe))


SCHEDULE_CASES = RecipeSource("schedule", build=build_schedule, designed=designed_schedules, strategy=schedule_recipes,
                              covered=covered_schedule)  # fmt: skip


# Ragged sequences --------------------------------------------------------------------------------------------------------

# Of up to T tokens each; one sequence with all of them and the others with one; all full; none has a token.
LENGTHS = ("ragged", "one_long", "full", "empty")


def lengths_of(level: str, B: int, T: int, g: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The number of tokens of each sequence, (B,)."""
    one_long = np.where(np.arange(B) == g.integers(0, max(B, 1)), T, min(T, 1))
    full, empty = np.full(B, T), np.zeros(B)
    return np.asarray({"ragged": g.integers(0, T + 1, B), "one_long": one_long, "full": full, "empty": empty}[level], dtype=np.int64)


@dataclass(frozen=True)
class LossRecipe:
    """One case of pipeline_loss: B sequences of up to T tokens, in micro-batches of `size`."""

    B: int = shrinking.size_field()
    T: int = shrinking.size_field()
    size: int = shrinking.size_field()
    lengths: str = shrinking.choice_field(LENGTHS)
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(("normal", "integer_grid", "constant", "uneven", "outlier_channel"))
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


_LOSS_CORNERS = (
    LossRecipe(B=2, T=3, lengths="one_long", seed=1), LossRecipe(B=4, T=5, size=2, seed=2), LossRecipe(B=3, T=0, seed=3),
    LossRecipe(B=3, T=4, lengths="empty", seed=4), LossRecipe(B=0, T=4, seed=5), LossRecipe(B=5, T=7, size=9, seed=6),
)  # fmt: skip


def covered_loss(recipe: LossRecipe, coverage: Coverage) -> LossRecipe:
    """The recipe mapped into the coverage."""
    least = int(not coverage.empty)
    dtype = recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0]
    return replace(recipe, B=max(recipe.B, least), T=max(recipe.T, least), size=max(recipe.size, 1), dtype=dtype)


@lru_cache(maxsize=8)
def loss_table(coverage: Coverage) -> tuple[LossRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"lengths": LENGTHS[:3], "dtype": coverage.dtypes, "size": (1, 2, 3, 8), "strides": LAYOUTS}
    others = {"B": (2, 1, 3, 4, 8), "T": (1, 2, 5, 16, 33), "regime": ("normal", "integer_grid", "constant", "uneven", "outlier_channel")}
    rows = balanced_table({**levels, **others}, 30, crossed=tuple(levels))
    return tuple(covered_loss(LossRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_losses(coverage: Coverage) -> list[LossRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_loss(corner, coverage) for corner in _LOSS_CORNERS), *loss_table(coverage)]))


def loss_recipes(coverage: Coverage) -> st.SearchStrategy[LossRecipe]:
    """Random recipes inside a coverage."""
    return st.builds(
        LossRecipe, B=st.integers(0, 9), T=st.integers(0, 20), size=st.integers(1, 9), lengths=st.sampled_from(LENGTHS),
        dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(("normal", "integer_grid", "uneven")),
        strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_loss(recipe, coverage))  # fmt: skip


def build_loss(recipe: LossRecipe) -> Case:
    """Losses of every token, also of those behind a length, where they are larger."""
    lengths = lengths_of(recipe.lengths, recipe.B, recipe.T, generator(recipe.seed, "lengths"))
    losses = regimes.draw(recipe.regime, (recipe.B, recipe.T), recipe.dtype, generator(recipe.seed, "values"))
    behind = np.arange(recipe.T) >= lengths[:, None]
    losses = laid_out(np.where(behind, losses.dtype.type(7), losses)[None], recipe.strides)[0]
    return Case("pipeline_loss", {"token_losses": losses, "lengths": lengths}, {"microbatch_size": recipe.size}, origin=str(recipe))


LOSS_CASES = RecipeSource("pipeline_loss", build=build_loss, designed=designed_losses, strategy=loss_recipes, covered=covered_loss)


# Steps -------------------------------------------------------------------------------------------------------------------

DROPOUT = {"none": 0.0, "half": 0.5, "tenth": 0.1}
WEIGHTS = ("normal", "small", "integer_grid")


@dataclass(frozen=True)
class StepRecipe:
    """One case of pipeline_step: P pieces of width D, B sequences of up to T tokens in micro-batches of `size`."""

    B: int = shrinking.size_field()
    T: int = shrinking.size_field()
    D: int = shrinking.size_field()
    P: int = shrinking.size_field()
    size: int = shrinking.size_field()
    accumulation: int = shrinking.size_field()
    kind: str = shrinking.choice_field(KINDS)
    lengths: str = shrinking.choice_field(LENGTHS)
    dropout: str = shrinking.choice_field(tuple(DROPOUT))
    weights: str = shrinking.choice_field(WEIGHTS)
    dtype: str = shrinking.choice_field(DTYPES)
    seed: int = field(default=0)


_STEP_CORNERS = (
    StepRecipe(B=4, T=2, D=3, P=2, seed=1), StepRecipe(B=4, T=3, D=4, P=2, accumulation=2, kind="1f1b", seed=2),
    StepRecipe(B=4, T=2, D=4, P=4, kind="interleaved", seed=3), StepRecipe(B=6, T=3, D=4, P=3, size=2, dropout="half", seed=4),
    StepRecipe(B=2, T=3, D=2, P=2, lengths="empty", seed=5), StepRecipe(B=0, T=3, D=2, P=2, seed=6),
    StepRecipe(B=8, T=2, D=4, P=2, accumulation=2, lengths="one_long", kind="zero_bubble", seed=7),
)  # fmt: skip


def covered_step(recipe: StepRecipe, coverage: Coverage) -> StepRecipe:
    """The recipe mapped into the coverage; interleaved with two chunks where pieces and micro-batches allow, else 1f1b or what it takes."""
    least, kinds, takes = int(not coverage.empty), coverage.levels("kind", KINDS), coverage.arguments
    size, P, B = max(recipe.size, 1), max(recipe.P, 1), max(recipe.B, least)
    runs = max(recipe.accumulation, 1) if "accumulation" in takes else 1
    fits = runs == 1 and P % 2 == 0 and -(-B // size) % (P // 2) == 0 and "chunks" in takes
    plain = [kind for kind in kinds if kind != "interleaved"]
    kind = recipe.kind if recipe.kind in kinds and (recipe.kind != "interleaved" or fits or not plain) else (plain or list(kinds))[-1]
    if kind == "interleaved" and not fits:
        P, size, runs = 2, size, 1                                              # one stage of two chunks takes any number of micro-batches
    return replace(
        recipe, B=B, T=max(recipe.T, least), D=max(recipe.D, 1), P=P, size=size, accumulation=runs, kind=kind,
        dropout=recipe.dropout if "dropout_mask" in takes else "none",
        dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0],
    )  # fmt: skip


@lru_cache(maxsize=8)
def step_table(coverage: Coverage) -> tuple[StepRecipe, ...]:
    """The balanced part of the designed cases."""
    levels: dict[str, tuple[Any, ...]] = {"kind": KINDS, "accumulation": (1, 2, 3), "size": (1, 2, 4), "dropout": tuple(DROPOUT),
                                          "dtype": coverage.dtypes}  # fmt: skip
    others = {"B": (4, 8, 3, 6), "T": (2, 1, 5), "D": (4, 1, 7, 16), "P": (2, 4, 1, 3), "lengths": LENGTHS[:3], "weights": WEIGHTS}
    rows = balanced_table({**levels, **others}, 40, crossed=tuple(levels))
    return tuple(covered_step(StepRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_steps(coverage: Coverage) -> list[StepRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_step(corner, coverage) for corner in _STEP_CORNERS), *step_table(coverage)]))


def step_recipes(coverage: Coverage) -> st.SearchStrategy[StepRecipe]:
    """Random recipes inside a coverage."""
    return st.builds(
        StepRecipe, B=st.integers(0, 9), T=st.integers(0, 5), D=st.integers(1, 9), P=st.integers(1, 5), size=st.integers(1, 4),
        accumulation=st.integers(1, 4), kind=st.sampled_from(KINDS), lengths=st.sampled_from(LENGTHS),
        dropout=st.sampled_from(tuple(DROPOUT)), weights=st.sampled_from(WEIGHTS), dtype=st.sampled_from(coverage.dtypes),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_step(recipe, coverage))  # fmt: skip


def build_step(recipe: StepRecipe) -> Case:
    """x and targets N(0, 1), also behind the lengths; weights of a size at which tanh neither saturates nor is a line."""
    shape, fmt = (recipe.B, recipe.T, recipe.D), FloatFormat(recipe.dtype)
    g = generator(recipe.seed, "values")
    x, targets = (fmt.cast(one) for one in g.standard_normal((2, *shape)))
    drawn = g.standard_normal((recipe.P, recipe.D, recipe.D))
    spreads = {"normal": drawn / recipe.D**0.5, "small": drawn / 16.0, "integer_grid": np.clip(np.rint(drawn), -1, 1)}
    lengths = lengths_of(recipe.lengths, recipe.B, recipe.T, generator(recipe.seed, "lengths"))
    arrays = {"x": x, "targets": targets, "lengths": lengths, **spread("weights", list(fmt.cast(spreads[recipe.weights])))}
    options: dict[str, Option] = {"kind": recipe.kind, "microbatch_size": recipe.size}
    options |= {"chunks": 2} if recipe.kind == "interleaved" and recipe.P % 2 == 0 else {}
    options |= {"accumulation": recipe.accumulation} if recipe.accumulation != 1 else {}
    if recipe.dropout != "none":
        p = DROPOUT[recipe.dropout]
        arrays["dropout_mask"] = generator(recipe.seed, "dropout").uniform(size=(recipe.P, *shape)) >= p
        options["dropout_p"] = p
    return Case("pipeline_step", arrays, options, origin=str(recipe))


STEP_CASES = RecipeSource("pipeline_step", build=build_step, designed=designed_steps, strategy=step_recipes, covered=covered_step)
