"""Cases of what is done with codes: made numbers again, multiplied with each other, looked up in a table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import NF4, FloatFormat
from oracles.reference.quantization import blocks_of, code_range

from .. import shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..regimes import in_format
from .attention import DTYPES
from .attention_arrays import generator
from .quantization import BITS, FORMS, SYMMETRIC, covered_form, form_options

Array = NDArray[Any]
SCALES = ("normal", "powers", "small")
INTEGERS = {"int32": np.int32, "int8": np.int8, "int64": np.int64}


@dataclass(frozen=True)
class DequantizeRecipe:
    """One case of dequantize: codes (R, n)."""

    R: int = shrinking.size_field()
    n: int = shrinking.size_field()
    group: int = shrinking.size_field()
    form: str = shrinking.choice_field(FORMS)
    bits: str = shrinking.choice_field(BITS)
    symmetric: str = shrinking.choice_field(SYMMETRIC)
    scales: str = shrinking.choice_field(SCALES)
    dtype: str = shrinking.choice_field(DTYPES)
    seed: int = field(default=0)


def covered_dequantize(recipe: DequantizeRecipe, coverage: Coverage) -> DequantizeRecipe:
    """The recipe mapped into the coverage."""
    least = int(not coverage.empty)
    return replace(recipe, R=max(recipe.R, least), n=max(recipe.n, least), group=max(recipe.group, 1),
                   form=covered_form(recipe.form, coverage),
                   dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0])  # fmt: skip


@lru_cache(maxsize=16)
def dequantize_table(coverage: Coverage) -> tuple[DequantizeRecipe, ...]:
    """A corner of every kind, then the balanced part."""
    corners = (DequantizeRecipe(R=2, n=3, seed=1), DequantizeRecipe(R=0, n=3, seed=2),
               DequantizeRecipe(R=2, n=7, group=3, form="group", seed=3),
               DequantizeRecipe(R=2, n=40, symmetric="no", scales="powers", form="rows", seed=4))  # fmt: skip
    levels: dict[str, Any] = {"form": FORMS, "bits": BITS, "symmetric": SYMMETRIC, "scales": SCALES, "dtype": coverage.dtypes}
    sizes = {"R": (1, 2, 3, 5), "n": (1, 2, 7, 33, 130), "group": (1, 2, 8, 64)}
    rows = balanced_table({**levels, **sizes}, 36, crossed=tuple(levels))
    recipes = [*corners, *(DequantizeRecipe(seed=100 + index, **row) for index, row in enumerate(rows))]
    return tuple(dict.fromkeys(covered_dequantize(recipe, coverage) for recipe in recipes))


def dequantize_recipes(coverage: Coverage) -> st.SearchStrategy[DequantizeRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        DequantizeRecipe, R=st.sampled_from((1, 2, 3, 0)), n=st.integers(0, 100), group=st.sampled_from((1, 2, 3, 8, 16)),
        form=st.sampled_from(FORMS), bits=st.sampled_from(BITS), symmetric=st.sampled_from(SYMMETRIC), scales=st.sampled_from(SCALES),
        dtype=st.sampled_from(coverage.dtypes), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_dequantize(recipe, coverage))  # fmt: skip


def build_dequantize(recipe: DequantizeRecipe) -> Case:
    """Codes (R, n) in int32, scales of the form in the format, zero points in int64: zeros where symmetric, any code else, 0 among them."""
    g, symmetric = generator(recipe.seed, "values"), recipe.symmetric == "yes"
    low, high = code_range(int(recipe.bits), symmetric)
    q = g.integers(low, high + 1, (recipe.R, recipe.n)).astype(np.int32)
    form: Any = form_options(recipe.form, recipe.group)
    shape = blocks_of(q, axis=form.get("axis"), group=form.get("group")).shape[:-1]
    zero = np.zeros(shape, np.int64) if symmetric else g.choice([0, high, *g.integers(0, high + 1, 3)], shape).astype(np.int64)
    return Case("dequantize", {"q": q, "scale": scales_of(recipe.scales, shape, recipe.dtype, g), "zero": zero}, form, origin=str(recipe))


def scales_of(level: str, shape: tuple[int, ...], dtype: str, g: np.random.Generator) -> Array:
    """Scales > 0 in the format: around 1/16, powers of two, or small ones."""
    fmt = FloatFormat(dtype)
    if level == "powers":
        return in_format(np.exp2(g.integers(-3, 3, shape).astype(np.float64)), fmt)
    middle = 1 / 16 if level == "normal" else max(64 * fmt.tiny, 2.0**-20)
    return in_format(np.exp(g.uniform(-1.0, 1.0, shape)) * middle, fmt)


DEQUANTIZE_CASES = RecipeSource("dequantize", build=build_dequantize, designed=lambda coverage: list(dequantize_table(coverage)),
                                strategy=dequantize_recipes, covered=covered_dequantize)  # fmt: skip

PER = ("one", "each")
BIAS = ("none", "normal", "large")
CODES = ("any", "extreme", "small")


@dataclass(frozen=True)
class MatmulRecipe:
    """One case of quantized_matmul: x (N, C), q (C, M)."""

    N: int = shrinking.size_field()
    C: int = shrinking.size_field()
    M: int = shrinking.size_field()
    scale: str = shrinking.choice_field(PER)
    x_scale: str = shrinking.choice_field(PER)
    scales: str = shrinking.choice_field(SCALES)
    bias: str = shrinking.choice_field(BIAS)
    codes: str = shrinking.choice_field(CODES)
    dtype: str = shrinking.choice_field(DTYPES)
    seed: int = field(default=0)


def covered_matmul(recipe: MatmulRecipe, coverage: Coverage) -> MatmulRecipe:
    """The recipe mapped into the coverage."""
    least, multiple = int(not coverage.empty), coverage.length_multiple
    sizes = {name: -(-max(getattr(recipe, name), least) // multiple) * multiple for name in ("N", "C", "M")}
    return replace(recipe, **sizes, bias=recipe.bias if "bias" in coverage.arguments else "none",
                   dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0])  # fmt: skip


@lru_cache(maxsize=16)
def matmul_table(coverage: Coverage) -> tuple[MatmulRecipe, ...]:
    """A corner of every kind, then the balanced part."""
    corners = (MatmulRecipe(N=2, C=3, M=2, seed=1), MatmulRecipe(N=2, C=0, M=3, bias="normal", seed=2), MatmulRecipe(N=0, C=3, M=2, seed=3),
               MatmulRecipe(N=2, C=1100, M=3, codes="extreme", seed=4))  # fmt: skip
    levels: dict[str, Any] = {"scale": PER, "x_scale": PER, "scales": SCALES, "bias": BIAS, "codes": CODES, "dtype": coverage.dtypes}
    sizes = {"N": (1, 2, 5, 17), "C": (1, 2, 16, 33, 130, 300), "M": (1, 2, 7, 16)}
    rows = balanced_table({**levels, **sizes}, 36, crossed=tuple(levels))
    recipes = [*corners, *(MatmulRecipe(seed=100 + index, **row) for index, row in enumerate(rows))]
    return tuple(dict.fromkeys(covered_matmul(recipe, coverage) for recipe in recipes))


def matmul_recipes(coverage: Coverage) -> st.SearchStrategy[MatmulRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        MatmulRecipe, N=st.sampled_from((1, 2, 3, 5, 0)), C=st.integers(0, 200), M=st.sampled_from((1, 2, 3, 8, 17)),
        scale=st.sampled_from(PER), x_scale=st.sampled_from(PER), scales=st.sampled_from(SCALES), bias=st.sampled_from(BIAS),
        codes=st.sampled_from(CODES), dtype=st.sampled_from(coverage.dtypes), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_matmul(recipe, coverage))  # fmt: skip


def build_matmul(recipe: MatmulRecipe) -> Case:
    """int8 codes, -128 among them, whose magnitude no int8 holds; scales () or (M,), x_scale () as a 0-d array or (N,); a bias (M,), small
    or far larger than the product."""
    g = generator(recipe.seed, "values")
    low, high = (-3, 3) if recipe.codes == "small" else (-128, 127)

    def codes(*shape: int) -> Array:
        drawn = g.integers(low, high + 1, shape)
        return (np.where(drawn < 0, low, high) if recipe.codes == "extreme" else drawn).astype(np.int8)

    arrays = {"x": codes(recipe.N, recipe.C), "q": codes(recipe.C, recipe.M)}
    arrays["scale"] = scales_of(recipe.scales, (recipe.M,) if recipe.scale == "each" else (), recipe.dtype, g)
    arrays["x_scale"] = scales_of(recipe.scales, (recipe.N,) if recipe.x_scale == "each" else (), recipe.dtype, g)
    if recipe.bias != "none":
        size = {"normal": 1.0, "large": 64.0}[recipe.bias]
        arrays["bias"] = in_format(size * g.standard_normal(recipe.M), FloatFormat(recipe.dtype))
    return Case("quantized_matmul", arrays, {}, origin=str(recipe))


MATMUL_CASES = RecipeSource("quantized_matmul", build=build_matmul, designed=lambda coverage: list(matmul_table(coverage)),
                            strategy=matmul_recipes, covered=covered_matmul)  # fmt: skip

TABLES = ("nf4", "ramp", "two")
NESTED = ("no", "yes")


@dataclass(frozen=True)
class BlockwiseRecipe:
    """One case of dequantize_blockwise: codes (R, n)."""

    R: int = shrinking.size_field()
    n: int = shrinking.size_field()
    block: int = shrinking.size_field()
    table: str = shrinking.choice_field(TABLES)
    nested: str = shrinking.choice_field(NESTED)
    dtype: str = shrinking.choice_field(DTYPES)
    seed: int = field(default=0)


def covered_blockwise(recipe: BlockwiseRecipe, coverage: Coverage) -> BlockwiseRecipe:
    """The recipe mapped into the coverage."""
    least = int(not coverage.empty)
    nested = {"absmax_scale", "absmax_offset"} <= coverage.arguments
    return replace(recipe, R=max(recipe.R, least), n=max(recipe.n, least), block=max(recipe.block, 1),
                   nested=recipe.nested if nested else "no",
                   dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0])  # fmt: skip


@lru_cache(maxsize=16)
def blockwise_table(coverage: Coverage) -> tuple[BlockwiseRecipe, ...]:
    """A corner of every kind, then the balanced part."""
    corners = (BlockwiseRecipe(R=2, n=5, block=2, seed=1), BlockwiseRecipe(R=2, n=64, block=16, seed=5),
               BlockwiseRecipe(R=2, n=64, block=16, nested="yes", seed=6), BlockwiseRecipe(R=2, n=8, block=4, nested="yes", seed=2),
               BlockwiseRecipe(R=1, n=2048, block=1024, seed=3), BlockwiseRecipe(R=0, n=4, block=2, seed=4))  # fmt: skip
    levels: dict[str, Any] = {"table": TABLES, "nested": NESTED, "dtype": coverage.dtypes}
    rows = balanced_table({**levels, "R": (1, 2, 3), "n": (1, 7, 64, 130, 300), "block": (1, 4, 32, 64)}, 24, crossed=tuple(levels))
    recipes = [*corners, *(BlockwiseRecipe(seed=100 + index, **row) for index, row in enumerate(rows))]
    return tuple(dict.fromkeys(covered_blockwise(recipe, coverage) for recipe in recipes))


def blockwise_recipes(coverage: Coverage) -> st.SearchStrategy[BlockwiseRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        BlockwiseRecipe, R=st.sampled_from((1, 2, 3, 0)), n=st.integers(0, 150), block=st.sampled_from((1, 2, 3, 8, 32, 64)),
        table=st.sampled_from(TABLES), nested=st.sampled_from(NESTED), dtype=st.sampled_from(coverage.dtypes),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_blockwise(recipe, coverage))  # fmt: skip


def build_blockwise(recipe: BlockwiseRecipe) -> Case:
    """Codes (R, n) in int64, block maxima in the format, or their codes with a scale and an offset."""
    g, fmt = generator(recipe.seed, "values"), FloatFormat(recipe.dtype)
    table = {"nf4": NF4, "ramp": np.linspace(-1.0, 1.0, 16), "two": np.array([0.0, 1.0])}[recipe.table]
    codes = g.integers(0, len(table), (recipe.R, recipe.n))
    blocks = (recipe.R, -(-recipe.n // recipe.block))
    options: dict[str, Option] = {"block": recipe.block}
    arrays = {"codes": codes, "absmax": in_format(np.exp(g.standard_normal(blocks)), fmt), "codebook": in_format(table, fmt)}
    if recipe.nested == "yes":
        arrays["absmax"] = in_format(g.integers(-8, 9, blocks).astype(np.float64), fmt)
        arrays["absmax_scale"] = in_format(np.asarray(0.0625 * np.exp(g.uniform(-0.5, 0.5))), fmt)
        options["absmax_offset"] = 1.5
    return Case("dequantize_blockwise", arrays, options, origin=str(recipe))


BLOCKWISE_CASES = RecipeSource("dequantize_blockwise", build=build_blockwise, designed=lambda coverage: list(blockwise_table(coverage)),
                               strategy=blockwise_recipes, covered=covered_blockwise)  # fmt: skip
