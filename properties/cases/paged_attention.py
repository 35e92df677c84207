"""Paged attention cases: sequences of several lengths in pages of one pool, in any order, some shared, some of nobody."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import FloatFormat, visible_keys

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

OPTIONS = {**{name: ATTENTION_OPTIONS[name] for name in ("window", "scale", "softcap", "sinks")},
           "queries": ("query_lengths", ("none", "ragged", "full", "some_zero"))}  # fmt: skip
# kv_lengths: all Lk; from half of it on; at the border of a block, one past it, one before it in turn; ragged with none and one among them.
KEYS = ("full", "ragged", "border", "some_zero")
# Which pages tables lead to: own ones in order, own ones anywhere in a larger pool, those of the first whole blocks shared, all shared.
PAGES = ("in_order", "shuffled", "prefix", "forked")

BLOCK_SIZES = (1, 2, 7, 8, 16, 32)
# (Lq, Lk): decoding over one block and many, chunks of a prompt, whole prompts, more queries than keys.
LENGTHS = ((1, 1), (1, 2), (1, 7), (1, 8), (1, 16), (1, 17), (1, 33), (1, 64), (1, 65), (1, 129), (1, 257), (2, 9), (3, 20), (4, 4),
           (5, 40), (7, 7), (8, 33), (9, 24), (16, 16), (17, 49), (20, 31), (5, 3), (33, 33), (16, 129))  # fmt: skip
ROWS = 96
WORK = 2**18                              # scores of one case at most, those between sequences counted


@dataclass(frozen=True)
class PagedRecipe:
    """One case of paged attention: B sequences of up to Lq queries and Lk keys, in pages of S tokens; letters as in `AttentionRecipe`."""

    B: int = shrinking.size_field()
    Hkv: int = shrinking.size_field()
    G: int = shrinking.size_field()
    Lq: int = shrinking.size_field()
    Lk: int = shrinking.size_field()
    S: int = shrinking.size_field()
    D: int = shrinking.size_field()
    Dv: int = shrinking.size_field()
    kv_lengths: str = shrinking.choice_field(KEYS)
    queries: str = shrinking.choice_field(OPTIONS["queries"][1])
    pages: str = shrinking.choice_field(PAGES)
    causal: str = shrinking.choice_field(CAUSAL)
    window: str = shrinking.choice_field(OPTIONS["window"][1])
    scale: str = shrinking.choice_field(OPTIONS["scale"][1])
    softcap: str = shrinking.choice_field(OPTIONS["softcap"][1])
    sinks: str = shrinking.choice_field(OPTIONS["sinks"][1])
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(regimes.REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    poison: bool = False
    seed: int = field(default=0)


CORNERS = (
    PagedRecipe(B=3, Hkv=2, G=4, Lk=257, S=16, D=64, Dv=64, kv_lengths="ragged", pages="shuffled", causal="bottom_right",
                poison=True, seed=2),
    PagedRecipe(B=3, Hkv=1, G=2, Lk=48, S=16, D=32, Dv=32, kv_lengths="border", pages="shuffled", poison=True, seed=4),
    PagedRecipe(B=4, Hkv=2, G=1, Lk=40, S=8, D=16, Dv=16, kv_lengths="border", pages="prefix", causal="bottom_right", poison=True, seed=6),
    PagedRecipe(B=4, Hkv=2, G=2, Lk=30, S=7, D=16, Dv=16, kv_lengths="ragged", pages="forked", poison=True, seed=8),
    PagedRecipe(B=6, Hkv=1, G=2, Lk=20, S=4, D=16, Dv=8, kv_lengths="some_zero", pages="shuffled", sinks="normal", poison=True, seed=10),
    PagedRecipe(B=6, Hkv=2, G=1, Lk=20, S=4, D=16, Dv=8, kv_lengths="some_zero", pages="shuffled", causal="bottom_right",
                poison=True, seed=12),
    PagedRecipe(B=3, Hkv=2, G=2, Lq=9, Lk=33, S=8, D=16, Dv=16, kv_lengths="ragged", queries="ragged", pages="shuffled",
                causal="bottom_right", poison=True, seed=14),
    PagedRecipe(B=4, Hkv=1, G=2, Lq=5, Lk=40, S=16, D=16, Dv=16, kv_lengths="ragged", queries="some_zero", pages="prefix",
                causal="bottom_right", window="left", poison=True, seed=16),
    PagedRecipe(B=2, Hkv=2, G=1, Lq=40, Lk=40, S=8, D=32, Dv=32, pages="shuffled", causal="bottom_right", window="left",
                poison=True, seed=11),
    PagedRecipe(B=2, Hkv=1, G=3, Lk=129, S=1, D=16, Dv=16, kv_lengths="ragged", pages="shuffled", poison=True, seed=18),
    PagedRecipe(B=2, Hkv=2, G=2, Lq=3, Lk=5, S=32, D=8, Dv=8, kv_lengths="ragged", pages="shuffled", poison=True, seed=20),
    PagedRecipe(B=2, Hkv=1, G=2, Lq=3, Lk=0, S=4, D=8, Dv=8, sinks="normal", seed=22),
    PagedRecipe(B=2, Hkv=1, G=2, Lq=0, Lk=9, S=4, D=8, Dv=8, seed=24),
    PagedRecipe(B=0, Hkv=1, G=2, Lq=2, Lk=9, S=4, D=8, Dv=8, seed=26),
)  # fmt: skip


def covered(recipe: PagedRecipe, coverage: Coverage) -> PagedRecipe:
    """The recipe mapped into the coverage, and bounded in its work; lengths that have to be multiples of a number are all full."""
    recipe = covered_attention(recipe, coverage, OPTIONS)
    for name in ("B", "Hkv", "G"):
        if recipe.Hkv * recipe.G * recipe.B**2 * recipe.Lq * recipe.Lk > WORK:
            recipe = replace(recipe, **{name: 1})  # type: ignore[arg-type]
    if not coverage.empty and recipe.queries == "some_zero":
        recipe = replace(recipe, queries="ragged")
    return replace(recipe, kv_lengths="full", queries="none") if coverage.length_multiple > 1 else recipe


@lru_cache(maxsize=8)
def table(coverage: Coverage) -> tuple[PagedRecipe, ...]:
    """The balanced part of the designed cases: each level equally often, all pairs of levels of the options met."""
    head_dims = HEAD_DIMS if coverage.head_dims is None else coverage.head_dims
    levels = covered_levels(coverage, OPTIONS)
    levels |= {"kv_lengths": KEYS if coverage.empty else KEYS[:3], "pages": PAGES, "S": BLOCK_SIZES, "strides": LAYOUTS,
               "poison": (True, True, True, False)}
    if not coverage.empty and "queries" in levels:
        levels["queries"] = levels["queries"][:3]
    shapes = {"regime": regimes.REGIMES, "B": (1, 2, 3, 4), "Hkv": (1, 2, 3), "G": (1, 2, 4), "pair": LENGTHS, "D": head_dims,
              "Dv": head_dims, "equal": (True, False), "parity": (0, 1)}  # fmt: skip
    rows = balanced_table({**levels, **shapes}, ROWS, crossed=tuple(levels))
    recipes = []
    for index, row in enumerate(rows):
        (Lq, Lk), equal, parity = row.pop("pair"), row.pop("equal"), row.pop("parity")
        row["Dv"] = row["D"] if equal else row["Dv"]
        recipes.append(covered(PagedRecipe(Lq=Lq, Lk=Lk, seed=100 + 2 * index + parity, **row), coverage))
    return tuple(recipes)


def designed(coverage: Coverage) -> list[PagedRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered(corner, coverage) for corner in CORNERS), *table(coverage)]))


def recipes(coverage: Coverage) -> st.SearchStrategy[PagedRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    levels = {name: st.sampled_from(levels) for name, (_, levels) in OPTIONS.items()}
    lengths = (*range(1, 20), 31, 32, 33, 40, 48, 63, 64, 65, 0)
    head_dims = coverage.head_dims or HEAD_DIMS
    return st.builds(
        PagedRecipe,
        B=st.sampled_from((1, 2, 3, 4, 5) * 6 + (7, 0)), Hkv=st.sampled_from((1, 2, 3)), G=st.sampled_from((1, 2, 3, 4)),
        Lq=st.sampled_from((1,) * 20 + lengths), Lk=st.sampled_from((*lengths[:-1], 100, 128, 129, 257, 0)),
        S=st.sampled_from((*BLOCK_SIZES, 3, 4, 5, 64)), D=st.sampled_from(head_dims), Dv=st.sampled_from(head_dims),
        kv_lengths=st.sampled_from(KEYS), pages=st.sampled_from(PAGES), causal=st.sampled_from(CAUSAL),
        dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(regimes.REGIMES), strides=st.sampled_from(LAYOUTS),
        poison=st.sampled_from((False, True, True, True)), seed=st.integers(0, 2**32 - 1), **levels,
    ).map(lambda recipe: covered(recipe, coverage))  # fmt: skip


def build(recipe: PagedRecipe) -> Case:
    """The case of a recipe. Poisoned recipes of even seed hold NaN in slots and pages of nobody, those of odd seed finite numbers."""
    g = arrays_of.generator(recipe.seed, "lengths")
    B, Hkv, Hq, S = recipe.B, recipe.Hkv, recipe.Hkv * recipe.G, recipe.S
    n_k, n_q = _kv_lengths(recipe, g), _query_lengths(recipe, g)
    tables, N = _tables(recipe, n_k, g)
    options = _options(recipe)
    scale = arrays_of.scale_of(recipe.scale, recipe.D) or recipe.D**-0.5
    q, k, v = regimes.draw_attention(recipe.regime, (B, Hq, recipe.Lq, recipe.D), (Hkv, N * S, recipe.D), (Hkv, N * S, recipe.Dv),
                                     recipe.dtype, arrays_of.generator(recipe.seed, "values"), scale=scale)
    k, v = (_along_the_tables(x, tables, S) for x in (k, v))
    held = None
    if recipe.poison:
        visible, beyond = _seen(Hq, recipe.Lq, N * S, tables, S, n_k, n_q, options)
        dout = regimes.draw("normal", (Hq, B * recipe.Lq, recipe.Dv), recipe.dtype, arrays_of.generator(recipe.seed, "dout"))
        k, v, held = poison(q.swapaxes(0, 1).reshape(Hq, B * recipe.Lq, recipe.D), k, v, dout, visible=visible, beyond=beyond, scale=scale,
                            nonfinite=recipe.seed % 2 == 0, generator=arrays_of.generator(recipe.seed, "poison"))
    k_pages, v_pages = (laid_out(x.swapaxes(0, 1).reshape(N, S, Hkv, x.shape[-1]), recipe.strides) for x in (k, v))
    arrays = {"q": laid_out(q, recipe.strides), "k_pages": k_pages, "v_pages": v_pages, "block_tables": tables, "kv_lengths": n_k}
    if recipe.queries != "none":
        arrays["query_lengths"] = n_q
    if recipe.sinks != "none":
        arrays["sinks"] = arrays_of.sinks_of(recipe.sinks, Hq, FloatFormat(recipe.dtype), arrays_of.generator(recipe.seed, "sinks"))
    return Case("paged_attention", arrays, options, origin=str(recipe), notes={"poison": held, "poisoned": ("k_pages", "v_pages")})


def _kv_lengths(recipe: PagedRecipe, g: np.random.Generator) -> NDArray[np.int64]:
    B, Lk, S = recipe.B, recipe.Lk, recipe.S
    if recipe.kv_lengths == "border":
        borders = S * g.integers(1, max(Lk // S, 1) + 1, B) + (np.arange(B) + g.integers(3)) % 3 - 1
        return np.asarray(np.clip(borders, min(Lk, 1), Lk), dtype=np.int64)
    lengths = arrays_of.kv_lengths_of(recipe.kv_lengths, B, Lk, g)
    if recipe.kv_lengths == "some_zero":
        lengths[3::4] = min(Lk, 1)
    return np.asarray(lengths, dtype=np.int64)


def _query_lengths(recipe: PagedRecipe, g: np.random.Generator) -> NDArray[np.int64]:
    level = "full" if recipe.queries == "none" else recipe.queries
    return np.asarray(arrays_of.kv_lengths_of(level, recipe.B, recipe.Lq, g), dtype=np.int64)


def _tables(recipe: PagedRecipe, n_k: NDArray[np.int64], g: np.random.Generator) -> tuple[NDArray[np.int64], int]:
    """Block tables (B, max_blocks) with a column to spare one time in two, and how many pages there are."""
    B, S = recipe.B, recipe.S
    needed = -(-n_k // S)
    own: list[list[int]] = []
    given = 0
    shared = {"prefix": int(g.integers(1, 3)), "forked": int(needed.max(initial=0))}.get(recipe.pages, 0)
    longest = int(np.argmax(needed)) if B else 0
    for b in [longest, *(b for b in range(B) if b != longest)] if B else []:
        same = min(shared, int(needed[b])) if own else 0                        # the longest comes first: it has all that is shared
        own.append([*own[0][:same], *range(given, given + int(needed[b]) - same)] if own else [*range(int(needed[b]))])
        given += int(needed[b]) - same
    spare = 0 if recipe.pages == "in_order" else int(g.integers(1, 4))
    N = max(given + spare, 1)
    places = np.arange(N) if recipe.pages == "in_order" else g.permutation(N)
    tables = np.full((B, int(needed.max(initial=0)) + int(g.integers(2))), -1, dtype=np.int64)
    for b, blocks in zip([longest, *(b for b in range(B) if b != longest)], own):
        tables[b, : len(blocks)] = places[blocks]
    return tables, N


def _along_the_tables(x: NDArray[Any], tables: NDArray[np.int64], S: int) -> NDArray[Any]:
    """Rows (Hkv, N S, ...) put where the tables lead, so that each sequence meets them in the order in which they were drawn."""
    first = list(dict.fromkeys(int(block) for block in tables.ravel() if block >= 0))
    order = np.array([*first, *(n for n in range(x.shape[1] // S) if n not in first)], dtype=np.int64)
    placed = x.reshape(x.shape[0], -1, S, x.shape[-1]).copy()
    placed[:, order] = x.reshape(placed.shape)
    return placed.reshape(x.shape)


def _seen(Hq: int, Lq: int, slots: int, tables: NDArray[np.int64], S: int, n_k: NDArray[np.int64], n_q: NDArray[np.int64],
          options: dict[str, Option]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which slots each query sees, (Hq, B Lq, slots), and which hold no token of any sequence, (slots,)."""
    visible, beyond = np.zeros((Hq, len(tables) * Lq, slots), dtype=bool), np.ones(slots, dtype=bool)
    for b, blocks in enumerate(tables):
        at = (blocks[:, None] * S + np.arange(S)).ravel()[: n_k[b]]
        beyond[at] = False
        seen = visible_keys(1, Hq, int(n_q[b]), len(at), causal=options["causal"], window=options.get("window"))[0]  # type: ignore[arg-type]
        visible[:, b * Lq : b * Lq + int(n_q[b]), at] = seen
    return visible, beyond


def _options(recipe: PagedRecipe) -> dict[str, Option]:
    options: dict[str, Option] = {
        "window": arrays_of.window_of(recipe.window, recipe.Lk, arrays_of.generator(recipe.seed, "window")),
        "scale": arrays_of.scale_of(recipe.scale, recipe.D),
        "softcap": arrays_of.softcap_of(recipe.softcap),
    }
    return {"causal": None if recipe.causal == "none" else recipe.causal, **{n: o for n, o in options.items() if o is not None}}


PAGED_CASES = RecipeSource("paged_attention", build=build, designed=designed, strategy=recipes, covered=covered)
