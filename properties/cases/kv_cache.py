"""Cases of write_kv: tokens for slots in order, scattered, skipped and given twice, in caches that hold numbers or NaN."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat

from .. import regimes, shrinking
from ..case import Case
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from .attention import DTYPES
from .attention_arrays import generator
from .layouts import LAYOUTS, laid_out

# Slots next to each other; anywhere, each once; a third skipped; about half of them given twice; all skipped; the last and -1 alone.
SLOTS = ("ordered", "scattered", "skips", "doubled", "all_skipped", "last")
# What caches hold before: numbers, zeros, NaN of many payloads, numbers and infinities among NaN.
HELD = ("numbers", "zeros", "nan", "mixed")
ROWS = 60


@dataclass(frozen=True)
class WriteRecipe:
    """One case of write_kv: T tokens into S slots."""

    S: int = shrinking.size_field()
    T: int = shrinking.size_field()
    H: int = shrinking.size_field()
    D: int = shrinking.size_field()
    Dv: int = shrinking.size_field()
    slots: str = shrinking.choice_field(SLOTS)
    held: str = shrinking.choice_field(HELD)
    wide_slots: bool = True
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(regimes.REGIMES)
    caches: str = shrinking.choice_field(LAYOUTS)
    tokens: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    WriteRecipe(seed=1),
    WriteRecipe(S=5, T=0, H=2, D=4, Dv=4, seed=2),
    WriteRecipe(S=0, T=0, H=2, D=4, Dv=4, seed=3),
    WriteRecipe(S=4, T=9, H=2, D=3, Dv=5, slots="doubled", held="nan", seed=4),
    WriteRecipe(S=7, T=3, H=1, D=2, Dv=2, slots="last", held="mixed", seed=5),
    WriteRecipe(S=257, T=129, H=2, D=16, Dv=16, slots="scattered", held="nan", seed=6),
)


def covered_write(recipe: WriteRecipe, coverage: Coverage) -> WriteRecipe:
    """The recipe mapped into the coverage; as many slots as tokens that want one of their own."""
    least, multiple = int(not coverage.empty), coverage.length_multiple

    def size(n: int) -> int:
        return n if coverage.head_dims is None else min(coverage.head_dims, key=lambda m: (abs(m - n), m))

    T, S = max(recipe.T, least), -(-max(recipe.S, least) // multiple) * multiple
    if recipe.slots not in ("doubled", "all_skipped", "last"):
        S = max(S, -(-T // multiple) * multiple)
    slots = recipe.slots if S else "all_skipped"
    D = size(recipe.D)
    return replace(recipe, S=S, T=T, H=max(recipe.H, 1), D=D, Dv=size(recipe.Dv) if coverage.value_dim else D, slots=slots,
                   dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0])  # fmt: skip


@lru_cache(maxsize=8)
def write_table(coverage: Coverage) -> tuple[WriteRecipe, ...]:
    """The balanced part of the designed cases."""
    levels: dict[str, Any] = {"slots": SLOTS, "held": HELD, "dtype": coverage.dtypes, "caches": LAYOUTS, "tokens": LAYOUTS}
    dims = coverage.head_dims or (1, 2, 8, 40, 64)
    sizes = {"regime": regimes.REGIMES, "wide_slots": (True, False), "S": (1, 2, 5, 16, 33), "T": (1, 2, 3, 7, 16), "H": (1, 2, 3),
             "D": dims, "Dv": dims}  # fmt: skip
    rows = balanced_table({**levels, **sizes}, ROWS, crossed=tuple(levels))
    return tuple(covered_write(WriteRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_write(coverage: Coverage) -> list[WriteRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_write(corner, coverage) for corner in CORNERS), *write_table(coverage)]))


def write_recipes(coverage: Coverage) -> st.SearchStrategy[WriteRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    dims = st.sampled_from(coverage.head_dims or (1, 2, 3, 8, 16, 40, 64, 128))
    return st.builds(
        WriteRecipe,
        S=st.sampled_from((*range(1, 34), 0)), T=st.sampled_from((*range(1, 34), 0)), H=st.sampled_from((1, 2, 3, 4)), D=dims, Dv=dims,
        slots=st.sampled_from(SLOTS), held=st.sampled_from(HELD), wide_slots=st.booleans(), dtype=st.sampled_from(coverage.dtypes),
        regime=st.sampled_from(regimes.REGIMES), caches=st.sampled_from(LAYOUTS), tokens=st.sampled_from(LAYOUTS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_write(recipe, coverage))  # fmt: skip


def build_write(recipe: WriteRecipe) -> Case:
    """Caches (S, H, D), (S, H, Dv), tokens (T, H, D), (T, H, Dv), slots (T,) in int64 or int32."""
    g, held = generator(recipe.seed, "values"), generator(recipe.seed, "poison")
    arrays: dict[str, Any] = {}
    for name, D in (("k_cache", recipe.D), ("v_cache", recipe.Dv)):
        numbers = regimes.draw("normal", (recipe.S, recipe.H, D), recipe.dtype, held)
        arrays[name] = _laid_out(_held(recipe.held, numbers, held), recipe.caches)
    for name, D in (("k", recipe.D), ("v", recipe.Dv)):
        tokens = regimes.draw(recipe.regime, (recipe.T, recipe.H, D), recipe.dtype, g)
        tokens[g.uniform(size=tokens.shape) < 1 / 16] = -0.0                    # whose sign is a bit too
        arrays[name] = laid_out(tokens, recipe.tokens)
    arrays["slots"] = _slots(recipe).astype(np.int64 if recipe.wide_slots else np.int32)
    return Case("write_kv", arrays, {}, origin=str(recipe))


def _held(level: str, numbers: NDArray[Any], g: np.random.Generator) -> NDArray[Any]:
    fmt = FloatFormat(str(numbers.dtype))
    if level == "zeros":
        return np.zeros_like(numbers)
    if level == "numbers" or not fmt.has_nan:
        return numbers
    nan = numbers.copy()
    nan[...] = np.nan
    unsigned = np.dtype(f"u{nan.itemsize}")
    if fmt.has_infinity:                                                        # formats of one NaN have no payload to keep
        payload = g.integers(0, 2 ** max(fmt.fraction_bits - 1, 0), numbers.shape).astype(unsigned)
        nan.view(unsigned)[...] |= payload
    return nan if level == "nan" else np.where(g.uniform(size=numbers.shape) < 0.5, nan, numbers)


def _laid_out(x: NDArray[Any], layout: str) -> NDArray[Any]:
    """`laid_out` with the bits of every NaN kept."""
    view = laid_out(np.zeros_like(x), layout)
    view[...] = x
    return view


def _slots(recipe: WriteRecipe) -> NDArray[np.int64]:
    g, S, T = generator(recipe.seed, "lengths"), recipe.S, recipe.T
    if recipe.slots == "all_skipped" or not T:
        return np.full(T, -1)
    if recipe.slots == "ordered":
        return g.integers(0, S - T + 1) + np.arange(T)
    if recipe.slots == "doubled":
        return g.integers(0, max(1, min(S, (T + 1) // 2)), T)
    if recipe.slots == "last":
        return np.where(np.arange(T) % 2 == 0, S - 1, -1)
    chosen = g.permutation(S)[:T]
    return np.where(g.uniform(size=T) < 1 / 3, -1, chosen) if recipe.slots == "skips" else chosen


WRITE_CASES = RecipeSource("write_kv", build=build_write, designed=designed_write, strategy=write_recipes, covered=covered_write)
