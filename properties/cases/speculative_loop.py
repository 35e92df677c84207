"""Cases of whole generation loops: tables for draft and target of every kind, prompts, uniforms, the end of the text, forbidden tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat

from .. import shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..regimes import in_format
from .draws import GRID, sixteenths
from .layouts import LAYOUTS, laid_out
from .sampling import with_coverage

Array = NDArray[Any]
DTYPES = ("float32", "float64")                                                 # rows must sum to 1 within V roundings
# What draft and target are in every context: softmaxes; multiples of 1/16; the same with half of each 0; equal; each certain, the
# draft right in half of the contexts; each certain or 1/2 to 1/2, whose law is computed.
MODELS = ("softmax", "sixteenths", "zeros", "equal", "certain", "law")
# Odd multiples of 1/32, which meet no tie of sixteenths; anywhere; the least and the largest there are.
UNIFORMS = ("odd", "anywhere", "ends")
EOS = ("none", "some", "never")
FORBIDDEN = ("none", "repeats", "random")
OPTIONS = {"eos": "none", "forbidden": "none"}
# The argument that holds the drafts, of each operation.
DRAFTS = {"speculative_loop": "draft", "mtp_loop": "heads"}
# (V, k, N) of loops whose law is computed; those of own heads draft nothing in their first pass.
EXHAUSTED = {"speculative_loop": ((2, 1, 2), (3, 1, 2), (2, 1, 3), (3, 0, 4), (2, 2, 2)), "mtp_loop": ((2, 1, 3), (3, 1, 2), (2, 2, 3))}


@dataclass(frozen=True)
class LoopRecipe:
    """One case of a loop: B prompts of P tokens over V, k drafts a pass, N tokens wanted."""

    B: int = shrinking.size_field()
    P: int = shrinking.size_field()
    N: int = shrinking.size_field()
    k: int = shrinking.size_field()
    V: int = shrinking.size_field()
    models: str = shrinking.choice_field(MODELS)
    uniforms: str = shrinking.choice_field(UNIFORMS)
    eos: str = shrinking.choice_field(EOS)
    forbidden: str = shrinking.choice_field(FORBIDDEN)
    dtype: str = shrinking.choice_field(DTYPES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


CORNERS = (
    LoopRecipe(B=2, P=2, N=6, k=2, V=3, models="sixteenths", seed=1),
    LoopRecipe(B=3, P=1, N=8, k=3, V=4, models="equal", seed=2),
    LoopRecipe(B=2, P=3, N=9, k=2, V=4, models="certain", seed=3),
    LoopRecipe(B=2, P=1, N=7, k=2, V=4, models="sixteenths", forbidden="repeats", seed=4),
    LoopRecipe(B=4, P=2, N=8, k=2, V=3, models="sixteenths", eos="some", seed=5),
    LoopRecipe(B=2, P=2, N=5, k=0, V=4, models="sixteenths", seed=6),
    LoopRecipe(B=2, P=1, N=0, k=2, V=3, seed=7),
    LoopRecipe(B=0, P=2, N=3, k=1, V=3, seed=8),
    LoopRecipe(B=1, P=1, N=3, k=1, V=1, seed=9),
)


def covered_loop(recipe: LoopRecipe, coverage: Coverage) -> LoopRecipe:
    """The recipe mapped into the coverage: options not taken at their simplest, a covered format, no empty sizes."""
    least = int(not coverage.empty)
    recipe = replace(recipe, V=max(recipe.V, 1), P=max(recipe.P, 1), N=max(recipe.N, least), k=max(recipe.k, least))
    if recipe.models == "law":
        V = min(max(recipe.V, 2), 3)
        k = min(recipe.k, 2 if V == 2 else 1)
        N = min(max(recipe.N, 1), 3 if k <= 1 else 2)
        recipe = replace(recipe, B=1, V=V, k=k, N=N, eos="none", strides="contiguous", uniforms="odd")
    return with_coverage(recipe, coverage, OPTIONS)


@lru_cache(maxsize=8)
def loop_table(coverage: Coverage) -> tuple[LoopRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"models": MODELS[:5], "uniforms": UNIFORMS, "eos": EOS, "forbidden": FORBIDDEN,
              "dtype": tuple(d for d in DTYPES if d in coverage.dtypes), "strides": LAYOUTS}  # fmt: skip
    rows = balanced_table({**levels, "B": (1, 2, 4), "P": (1, 2, 5), "N": (1, 3, 7, 12), "k": (1, 2, 3, 5, 0), "V": (2, 3, 5, 12)}, 36,
                          crossed=tuple(levels))  # fmt: skip
    return tuple(covered_loop(LoopRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(rows))


def designed_loops(operation: str, coverage: Coverage) -> list[LoopRecipe]:
    """The corners, the loops whose law is computed, then the table, all inside the coverage."""
    laws = [LoopRecipe(P=1 + i % 2, N=N, k=k, V=V, models="law", forbidden=FORBIDDEN[i % 2], seed=20 + i)
            for i, (V, k, N) in enumerate(2 * EXHAUSTED[operation])]  # fmt: skip
    corners = [covered_loop(corner, coverage) for corner in CORNERS]
    return list(dict.fromkeys([*corners, *(with_coverage(recipe, coverage, OPTIONS) for recipe in laws), *loop_table(coverage)]))


def loop_recipes(coverage: Coverage) -> st.SearchStrategy[LoopRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        LoopRecipe, B=st.sampled_from((1, 2, 3, 0)), P=st.integers(1, 6), N=st.integers(0, 14), k=st.sampled_from((1, 2, 3, 4, 0)),
        V=st.integers(1, 9), models=st.sampled_from(MODELS[:5]), uniforms=st.sampled_from(UNIFORMS), eos=st.sampled_from(EOS),
        forbidden=st.sampled_from(FORBIDDEN), dtype=st.sampled_from(tuple(d for d in DTYPES if d in coverage.dtypes)),
        strides=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_loop(recipe, coverage))  # fmt: skip


def build_loop(operation: str, recipe: LoopRecipe) -> Case:
    """Tables in the format, prompts, and uniforms: multiples of 2^-24."""
    g, fmt = np.random.default_rng(recipe.seed), FloatFormat(recipe.dtype)
    B, P, N, k, V = recipe.B, recipe.P, recipe.N, recipe.k, recipe.V
    p = table(recipe.models, V, g)
    q = [beside(recipe.models, p, g) for _ in range(k if operation == "mtp_loop" else 1)]
    u = _uniforms(recipe.uniforms, (B, N, 2 * k + 1), g)
    drafts = np.array(q).reshape(k, V, V, V) if operation == "mtp_loop" else q[0]
    arrays: dict[str, Array] = {
        "target": laid_out(in_format(p, fmt), recipe.strides), DRAFTS[operation]: laid_out(in_format(drafts, fmt), recipe.strides),
        "prompt": g.integers(0, V, (B, P)), "uniforms": u.astype(fmt.dtype),
    }  # fmt: skip
    if recipe.forbidden != "none":
        arrays["forbidden"] = np.eye(V, dtype=bool) if recipe.forbidden == "repeats" else g.uniform(size=(V, V)) < 0.25
    options: dict[str, Option] = {} if recipe.eos == "none" else {"eos": int(g.integers(0, V)) if recipe.eos == "some" else V}
    return Case(operation, arrays, options, origin=str(recipe), notes={"law": True} if recipe.models == "law" else {})


def table(models: str, V: int, g: np.random.Generator) -> Array:
    """A law for every pair of last tokens: (V, V, V)."""
    row: dict[str, Callable[[], Array]] = {
        "softmax": lambda: _softmax(V, g), "zeros": lambda: sixteenths(V, g, zeros=True),
        "certain": lambda: np.eye(V)[g.integers(0, V)], "law": lambda: (np.eye(V)[g.integers(0, V)] + np.eye(V)[g.integers(0, V)]) / 2,
    }  # fmt: skip
    of_model = row.get(models, lambda: sixteenths(V, g))
    return np.array([of_model() for _ in range(V * V)]).reshape(V, V, V)


def beside(models: str, p: Array, g: np.random.Generator) -> Array:
    """The table of a draft for that of a target: the same, right in half of the contexts, or any."""
    q = p.copy() if models == "equal" else table(models, len(p), g)
    return np.where(g.uniform(size=(*p.shape[:2], 1)) < 0.5, p, q) if models == "certain" else q


def _softmax(V: int, g: np.random.Generator) -> Array:
    w = np.exp(1.5 * g.standard_normal(V))
    return np.asarray(w / w.sum())


def _uniforms(level: str, shape: tuple[int, ...], g: np.random.Generator) -> Array:
    if level == "odd":
        return np.asarray((2 * g.integers(0, 16, shape) + 1) / 32)
    if level == "ends":
        return np.asarray(np.where(g.uniform(size=shape) < 0.5, 0.0, 1.0 - 1.0 / GRID))
    return np.asarray(g.integers(0, GRID, shape) / GRID)


SPECULATIVE_LOOP_CASES, MTP_LOOP_CASES = (
    RecipeSource(operation, build=partial(build_loop, operation), designed=partial(designed_loops, operation), strategy=loop_recipes,
                 covered=covered_loop) for operation in DRAFTS
)  # fmt: skip
