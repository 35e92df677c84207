"""Cases of quantize: every form of scales, symmetric and affine, scales of their own and given ones, with ties and values out of range."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat
from oracles.reference.quantization import blocks_of, code_range, spread_over

from .. import regimes, shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..regimes import in_format
from .attention import DTYPES
from .attention_arrays import generator
from .layouts import LAYOUTS
from .sampling import rows_laid_out

Array = NDArray[Any]
BITS = ("8", "4", "2")
# One scale for all; one a column (the axis along which scales vary is the last), one a row; runs along the last axis.
FORMS = ("tensor", "columns", "rows", "group")
# None given; a power of two with inputs at quarters of it, ties and far values among them; one that fits nothing exactly.
GIVEN = ("none", "power_of_two", "odd")
VALUES = ("normal", "outlier_channel", "positive", "negative", "zeros", "zero_blocks", "integer_grid", "constant", "tiny", "huge", "uneven")
SYMMETRIC = ("yes", "no")


@dataclass(frozen=True)
class QuantizeRecipe:
    """One case of quantize: R rows of n numbers."""

    R: int = shrinking.size_field()
    n: int = shrinking.size_field()
    group: int = shrinking.size_field()
    form: str = shrinking.choice_field(FORMS)
    bits: str = shrinking.choice_field(BITS)
    symmetric: str = shrinking.choice_field(SYMMETRIC)
    given: str = shrinking.choice_field(GIVEN)
    values: str = shrinking.choice_field(VALUES)
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    QuantizeRecipe(R=2, n=3, seed=1),
    QuantizeRecipe(R=2, n=2048, group=1024, form="group", seed=2),
    QuantizeRecipe(R=3, n=8, values="zeros", symmetric="no", seed=3),
    QuantizeRecipe(R=3, n=8, values="zeros", form="rows", seed=4),
    QuantizeRecipe(R=2, n=33, given="power_of_two", seed=5),
    QuantizeRecipe(R=2, n=33, given="power_of_two", symmetric="no", bits="4", seed=6),
    QuantizeRecipe(R=4, n=16, values="positive", bits="4", form="rows", seed=7),
    QuantizeRecipe(R=4, n=16, values="positive", bits="4", symmetric="no", form="group", group=8, seed=8),
    QuantizeRecipe(R=2, n=7, group=3, form="group", seed=9),
    QuantizeRecipe(R=2, n=32, group=8, form="group", values="outlier_channel", seed=14),
    QuantizeRecipe(R=3, n=12, group=4, form="group", symmetric="no", seed=15),
    QuantizeRecipe(R=2, n=64, group=16, form="group", values="uneven", bits="4", seed=16),
    QuantizeRecipe(R=2, n=64, group=16, form="group", values="positive", symmetric="no", bits="4", seed=17),
    QuantizeRecipe(R=0, n=4, seed=10),
    QuantizeRecipe(R=2, n=0, group=2, form="group", symmetric="no", seed=11),
    QuantizeRecipe(R=3, n=40, form="columns", given="odd", seed=12),
    QuantizeRecipe(R=3, n=40, form="rows", given="power_of_two", symmetric="no", seed=13),
)


def covered_form(form: str, coverage: Coverage) -> str:
    """The form, or one scale for all where the subject does not take its argument."""
    needs = {"tensor": set(), "columns": {"axis"}, "rows": {"axis"}, "group": {"group"}}
    return form if needs[form] <= coverage.arguments else "tensor"


def covered_quantize(recipe: QuantizeRecipe, coverage: Coverage) -> QuantizeRecipe:
    """The recipe mapped into the coverage: forms, bits and given scales that are not taken at their simplest, a covered format."""
    bits, symmetric, least = coverage.levels("bits", BITS), coverage.levels("symmetric", SYMMETRIC), int(not coverage.empty)
    changes: dict[str, Any] = {"R": max(recipe.R, least), "n": max(recipe.n, least), "group": max(recipe.group, 1),
                               "form": covered_form(recipe.form, coverage)}
    if recipe.bits not in bits:
        changes["bits"] = bits[0]
    if "symmetric" not in coverage.arguments:
        changes["symmetric"] = "yes"
    elif recipe.symmetric not in symmetric:
        changes["symmetric"] = symmetric[0]
    taken = {**recipe.__dict__, **changes}
    if "scale" not in coverage.arguments or (taken["symmetric"] == "no" and "zero" not in coverage.arguments):
        changes["given"] = "none"
    if recipe.dtype not in coverage.dtypes:
        changes["dtype"] = coverage.dtypes[0]
    return replace(recipe, **changes)


@lru_cache(maxsize=16)
def quantize_table(coverage: Coverage) -> tuple[QuantizeRecipe, ...]:
    """The balanced part of the designed cases."""
    levels: dict[str, Any] = {"form": FORMS, "bits": coverage.levels("bits", BITS), "symmetric": SYMMETRIC, "given": GIVEN,
                              "values": VALUES, "dtype": coverage.dtypes, "strides": LAYOUTS}  # fmt: skip
    sizes = {"R": (1, 2, 3, 5), "n": (1, 2, 7, 16, 33, 64, 130), "group": (1, 2, 4, 8, 64)}
    rows = balanced_table({**levels, **sizes}, 72, crossed=tuple(levels))
    return tuple(covered_quantize(QuantizeRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_quantize(coverage: Coverage) -> list[QuantizeRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_quantize(corner, coverage) for corner in CORNERS), *quantize_table(coverage)]))


def quantize_recipes(coverage: Coverage) -> st.SearchStrategy[QuantizeRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        QuantizeRecipe, R=st.sampled_from((1, 2, 3, 4, 5, 0)), n=st.integers(0, 140), group=st.sampled_from((1, 2, 3, 4, 8, 16, 32, 64)),
        form=st.sampled_from(FORMS), bits=st.sampled_from(BITS), symmetric=st.sampled_from(SYMMETRIC), given=st.sampled_from(GIVEN),
        values=st.sampled_from(VALUES), dtype=st.sampled_from(coverage.dtypes), strides=st.sampled_from(LAYOUTS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_quantize(recipe, coverage))  # fmt: skip


def form_options(form: str, group: int) -> dict[str, Option]:
    """axis or group of a form, the axis counted from the end for columns and from the front for rows."""
    forms: dict[str, dict[str, Option]] = {"tensor": {}, "columns": {"axis": -1}, "rows": {"axis": 0}, "group": {"group": group}}
    return forms[form]


def build_quantize(recipe: QuantizeRecipe) -> Case:
    """x (R, n) in the format; scale and zero of the form, where they are given."""
    g, fmt = generator(recipe.seed, "values"), FloatFormat(recipe.dtype)
    symmetric, bits = recipe.symmetric == "yes", int(recipe.bits)
    form: Any = form_options(recipe.form, recipe.group)
    options: dict[str, Option] = {"bits": bits, **form}
    if not symmetric:
        options["symmetric"] = False
    x = _values(recipe, g)
    arrays: dict[str, Array] = {}
    if recipe.given != "none":
        low, high = code_range(bits, symmetric)
        blocks = blocks_of(x.astype(np.float64), axis=form.get("axis"), group=form.get("group"))
        zero = np.zeros(blocks.shape[:-1], np.int64) if symmetric else g.integers(0, high + 1, blocks.shape[:-1])
        if recipe.given == "odd":                                               # about a tenth of the numbers are clipped
            scale = in_format(np.maximum(np.abs(blocks).max(axis=-1, initial=0.0) / (0.9 * high), fmt.tiny * 64) * 1.03, fmt)
        else:
            scale = in_format(np.exp2(g.integers(-2, 2, blocks.shape[:-1]).astype(np.float64)), fmt)
            quarters = g.integers(4 * (low - high // 4 - 1), 4 * (high + high // 4 + 1) + 1, x.shape) / 4.0
            x = in_format(quarters * spread_over(scale.astype(np.float64), x.shape, axis=form.get("axis"), group=form.get("group")), fmt)
        arrays["scale"] = scale
        if not symmetric:
            arrays["zero"] = zero
    return Case("quantize", {"x": rows_laid_out(x, recipe.strides), **arrays}, options, origin=str(recipe))


def _values(recipe: QuantizeRecipe, g: np.random.Generator) -> Array:
    shape, fmt = (recipe.R, recipe.n), FloatFormat(recipe.dtype)
    if recipe.values in regimes.REGIMES:
        return regimes.draw(recipe.values, shape, recipe.dtype, g)
    x = regimes.draw("normal", shape, recipe.dtype, g).astype(np.float64)
    if recipe.values == "zeros":
        x = np.zeros(shape)
    elif recipe.values == "zero_blocks":
        x = np.where(g.uniform(size=(recipe.R, 1)) < 0.5, 0.0, x)
        x[:, : recipe.group] = 0.0
    else:
        x = np.abs(x) + 0.25 if recipe.values == "positive" else -np.abs(x) - 0.25
    return in_format(x, fmt)


def positive_scales(case: Case) -> Case:
    """The case with 1 for scales that the minimiser made 0."""
    scale = case.arrays.get("scale")
    return case if scale is None else case.with_arrays(scale=np.where(scale > 0, scale, np.ones_like(scale)))


QUANTIZE_CASES = RecipeSource("quantize", build=build_quantize, designed=designed_quantize, strategy=quantize_recipes,
                              covered=covered_quantize, complete=positive_scales)
