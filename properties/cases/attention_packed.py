"""Packed attention cases: sequences of several lengths, empty ones among them, one after another; and their backward pass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat, visible_keys
from oracles.reference.attention_packed import attention_packed

from .. import regimes, shrinking
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from . import attention_arrays as arrays_of
from .attention import CAUSAL, DTYPES, HEAD_DIMS
from .attention import OPTIONS as ATTENTION_OPTIONS
from .covering import covered_attention, covered_levels
from .layouts import LAYOUTS, laid_out
from .poison import poison

OPTIONS = {name: ATTENTION_OPTIONS[name] for name in ("window", "scale", "softcap")}

# How long the sequences are, of at most Lq queries and Lk keys. Equal Lq and Lk: as many queries as keys in each.
SEQUENCES = ("full", "ragged", "some_empty")
LENGTHS = ((1, 1), (1, 33), (1, 140), (2, 5), (3, 3), (5, 2), (7, 40), (8, 8), (16, 16), (17, 17), (20, 31), (33, 12), (40, 40), (65, 65))
ROWS = 56
WORK = 2**20                              # scores of one case at most, those between sequences counted


@dataclass(frozen=True)
class PackedRecipe:
    """One case of packed attention: B sequences of up to Lq queries and Lk keys; the other letters as in `AttentionRecipe`."""

    B: int = shrinking.size_field()
    Hkv: int = shrinking.size_field()
    G: int = shrinking.size_field()
    Lq: int = shrinking.size_field()
    Lk: int = shrinking.size_field()
    D: int = shrinking.size_field()
    Dv: int = shrinking.size_field()
    lengths: str = shrinking.choice_field(SEQUENCES)
    causal: str = shrinking.choice_field(CAUSAL)
    window: str = shrinking.choice_field(OPTIONS["window"][1])
    scale: str = shrinking.choice_field(OPTIONS["scale"][1])
    softcap: str = shrinking.choice_field(OPTIONS["softcap"][1])
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(regimes.REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    poison: bool = False
    seed: int = field(default=0)


CORNERS = (
    PackedRecipe(B=3, Hkv=2, G=2, Lq=140, Lk=140, D=32, Dv=32, lengths="ragged", causal="bottom_right", seed=1),
    PackedRecipe(B=1, Hkv=1, G=1, Lq=5, Lk=257, D=64, Dv=64, causal="bottom_right", seed=2),
    PackedRecipe(B=5, Hkv=2, G=1, Lq=9, Lk=9, D=16, Dv=16, lengths="some_empty", causal="bottom_right", poison=True, seed=3),
    PackedRecipe(B=5, Hkv=1, G=2, Lq=6, Lk=11, D=16, Dv=8, lengths="some_empty", causal="top_left", window="left", poison=True, seed=4),
    PackedRecipe(B=2, Hkv=1, G=2, Lq=3, Lk=0, D=8, Dv=8, seed=5),
    PackedRecipe(B=0, Hkv=1, G=1, Lq=1, Lk=1, D=8, Dv=8, seed=6),
)


def covered(recipe: PackedRecipe, coverage: Coverage) -> PackedRecipe:
    """The recipe mapped into the coverage, and bounded in its work; lengths that have to be multiples of a number are all full."""
    recipe = covered_attention(recipe, coverage, OPTIONS)
    for name in ("B", "Hkv", "G"):
        if recipe.Hkv * recipe.G * recipe.B**2 * recipe.Lq * recipe.Lk > WORK:
            recipe = replace(recipe, **{name: 1})  # type: ignore[arg-type]
    return replace(recipe, lengths="full") if coverage.length_multiple > 1 else recipe


@lru_cache(maxsize=8)
def table(coverage: Coverage) -> tuple[PackedRecipe, ...]:
    """The balanced part of the designed cases."""
    head_dims = HEAD_DIMS if coverage.head_dims is None else coverage.head_dims
    levels = covered_levels(coverage, OPTIONS)
    levels |= {"sequences": SEQUENCES if coverage.empty else SEQUENCES[:2], "strides": LAYOUTS, "poison": (True, True, True, False)}
    shapes = {"regime": regimes.REGIMES, "B": (1, 2, 3, 5), "Hkv": (1, 2, 3), "G": (1, 2, 4), "pair": LENGTHS, "D": head_dims}
    rows = balanced_table({**levels, **shapes, "Dv": head_dims, "equal": (True, False)}, ROWS, crossed=tuple(levels))
    recipes = []
    for index, row in enumerate(rows):
        (Lq, Lk), equal = row.pop("pair"), row.pop("equal")
        row["Dv"] = row["D"] if equal else row["Dv"]
        recipes.append(covered(PackedRecipe(Lq=Lq, Lk=Lk, lengths=row.pop("sequences"), seed=100 + index, **row), coverage))
    return tuple(recipes)


def designed(coverage: Coverage) -> list[PackedRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered(corner, coverage) for corner in CORNERS), *table(coverage)]))


def recipes(coverage: Coverage) -> st.SearchStrategy[PackedRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    levels = {name: st.sampled_from(levels) for name, (_, levels) in OPTIONS.items()}
    lengths = (*range(1, 20), 31, 32, 33, 40, 48, 63, 64, 65, 80, 128, 129, 0)
    head_dims = coverage.head_dims or HEAD_DIMS
    return st.builds(
        PackedRecipe,
        B=st.sampled_from((1, 2, 3, 4, 5) * 6 + (7, 0)), Hkv=st.sampled_from((1, 2, 3)), G=st.sampled_from((1, 2, 3, 4)),
        Lq=st.sampled_from(lengths), Lk=st.sampled_from((*lengths[:-1], 257, 0)), D=st.sampled_from(head_dims),
        Dv=st.sampled_from(head_dims), lengths=st.sampled_from(SEQUENCES), causal=st.sampled_from(CAUSAL),
        dtype=st.sampled_from(coverage.dtypes),
        regime=st.sampled_from(regimes.REGIMES), strides=st.sampled_from(LAYOUTS), poison=st.sampled_from((False, True, True, True)),
        seed=st.integers(0, 2**32 - 1), **levels,
    ).map(lambda recipe: covered(recipe, coverage))  # fmt: skip


def build(recipe: PackedRecipe, *, backward: bool = False) -> Case:
    """The case of a recipe. Poison is finite here: what no query of a sequence sees lies between keys that others do see."""
    cu_q, cu_k = _starts(recipe)
    (Tq, Tk), (Hq, Hkv) = (int(cu_q[-1]), int(cu_k[-1])), (recipe.Hkv * recipe.G, recipe.Hkv)
    options = _options(recipe)
    scale = arrays_of.scale_of(recipe.scale, recipe.D) or recipe.D**-0.5
    q, k, v = regimes.draw_attention(recipe.regime, (Hq, Tq, recipe.D), (Hkv, Tk, recipe.D), (Hkv, Tk, recipe.Dv), recipe.dtype,
                                     arrays_of.generator(recipe.seed, "values"), scale=scale)
    dout = regimes.draw("normal", (Hq, Tq, recipe.Dv), recipe.dtype, arrays_of.generator(recipe.seed, "dout"))
    held = None
    if recipe.poison:
        k, v, held = poison(q, k, v, dout, visible=_visible(Hq, cu_q, cu_k, options), beyond=np.zeros(Tk, dtype=bool), scale=scale,
                            nonfinite=False, generator=arrays_of.generator(recipe.seed, "poison"))
    q, k, v, dout = (laid_out(x.swapaxes(0, 1), recipe.strides) for x in (q, k, v, dout))         # (T, H, D)
    arrays = {"q": q, "k": k, "v": v, "cu_q": cu_q, "cu_k": cu_k}
    case = Case("attention_packed", arrays, options, origin=str(recipe), notes={"poison": held})
    return completed(replace(case.with_arrays(dout=dout), operation="attention_packed_backward")) if backward else case


def build_backward(recipe: PackedRecipe) -> Case:
    """The case of the backward pass: `build` with out, lse and dout."""
    return build(recipe, backward=True)


def completed(case: Case) -> Case:
    """The case of a backward pass with out and lse of the oracle, rounded to the format of q and to float32 (float64)."""
    fmt = FloatFormat(case.arrays["q"].dtype.name)
    out, lse = attention_packed(**{name: value for name, value in case.arguments().items() if name not in ("out", "lse", "dout")})
    return case.with_arrays(out=fmt.cast(out), lse=FloatFormat("float64" if fmt.name == "float64" else "float32").cast(lse))


def _starts(recipe: PackedRecipe) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """cu_q and cu_k (B + 1,): from the same lengths where Lq = Lk."""
    g = arrays_of.generator(recipe.seed, "lengths")

    def starts(most: int) -> NDArray[np.int64]:
        ragged = g.integers(min(most, 1), most + 1, recipe.B)
        empty = g.integers(0, 2, recipe.B) == 0
        empty[g.integers(0, max(recipe.B, 1)) :][:1] = False                       # not all: that is for Lq = 0 to say
        lengths = {"full": np.full(recipe.B, most), "ragged": ragged, "some_empty": np.where(empty, 0, ragged)}[recipe.lengths]
        return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    cu_q = starts(recipe.Lq)
    return cu_q, cu_q.copy() if recipe.Lq == recipe.Lk else starts(recipe.Lk)


def _options(recipe: PackedRecipe) -> dict[str, Option]:
    options: dict[str, Option] = {
        "window": arrays_of.window_of(recipe.window, recipe.Lk, arrays_of.generator(recipe.seed, "window")),
        "scale": arrays_of.scale_of(recipe.scale, recipe.D),
        "softcap": arrays_of.softcap_of(recipe.softcap),
    }
    return {"causal": None if recipe.causal == "none" else recipe.causal, **{n: o for n, o in options.items() if o is not None}}


def _visible(Hq: int, cu_q: NDArray[np.int64], cu_k: NDArray[np.int64], options: dict[str, Option]) -> NDArray[np.bool_]:
    """(Hq, Tq, Tk): the keys of the query's own sequence that it sees."""
    visible = np.zeros((Hq, cu_q[-1], cu_k[-1]), dtype=bool)
    for start_q, end_q, start_k, end_k in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
        visible[:, start_q:end_q, start_k:end_k] = visible_keys(
            1, Hq, int(end_q - start_q), int(end_k - start_k), causal=options["causal"], window=options.get("window"))[0]  # type: ignore[arg-type]
    return visible


PACKED_CASES = RecipeSource("attention_packed", build=build, designed=designed, strategy=recipes, covered=covered)
PACKED_BACKWARD_CASES = replace(PACKED_CASES, operation="attention_packed_backward", build=build_backward, complete=completed)
