"""Cases of context parallelism: sequences over one to eight ranks, in either order, alone, packed or padded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oracles.reference import shard_positions
from oracles.reference.sequence_shards import scattered_sequence

from .. import regimes, shrinking
from ..array_lists import spread
from ..case import Case, Option
from ..case_source import RecipeSource, balanced_table
from ..coverage import Coverage
from ..signatures import SIGNATURES
from .attention import CAUSAL, DTYPES
from .attention_arrays import generator, scale_of
from .layouts import LAYOUTS, laid_out

ORDERS = SIGNATURES["ring_attention"].kinds["order"]
# One sequence; up to three of different lengths, one behind the other; the end padded, another length for each item of the batch;
# both; nothing but the first token and padding, so that whole shards see nothing.
SEGMENTS = ("none", "packed", "padded", "packed_padded", "one_token")
SCALES = ("default", "power_of_two", "odd", "negative")
REGIMES = ("normal", "integer_grid", "uneven", "peaked", "flat", "constant", "one_hot", "duplicated_keys", "outlier_channel", "alternating",
           "ascending", "descending")  # fmt: skip
ROWS = 56
LENGTHS = (1, 2, 3, 4, 6, 8, 16, 17, 33)                                        # tokens of one rank
TOKENS = 72                                                                     # of all ranks together, in the table
LOUD = 16.0                                                                     # how much larger padding is than what counts


@dataclass(frozen=True)
class RingRecipe:
    """One case of ring_attention: R ranks with n tokens each, Hq = G Hkv."""

    R: int = shrinking.size_field()
    n: int = shrinking.size_field()
    B: int = shrinking.size_field()
    Hkv: int = shrinking.size_field()
    G: int = shrinking.size_field()
    D: int = shrinking.size_field()
    Dv: int = shrinking.size_field()
    causal: str = shrinking.choice_field(CAUSAL)
    order: str = shrinking.choice_field(ORDERS)
    segments: str = shrinking.choice_field(SEGMENTS)
    scale: str = shrinking.choice_field(SCALES)
    dtype: str = shrinking.choice_field(DTYPES)
    regime: str = shrinking.choice_field(REGIMES)
    strides: str = shrinking.choice_field(LAYOUTS)
    seed: int = field(default=0)


_SMALL: dict[str, Any] = {"B": 2, "Hkv": 2, "G": 2, "D": 8, "Dv": 8}
CORNERS = (
    RingRecipe(seed=1), RingRecipe(R=2, n=2, **_SMALL, causal="bottom_right", seed=2),
    RingRecipe(R=2, n=4, **_SMALL, order="zigzag", seed=3), RingRecipe(R=4, n=4, **_SMALL, order="zigzag", causal="bottom_right", seed=4),
    RingRecipe(R=2, n=4, B=2, Hkv=2, D=8, Dv=8, order="zigzag", segments="padded", seed=5),
    RingRecipe(R=4, n=4, **_SMALL, causal="bottom_right", segments="packed_padded", seed=6),
    RingRecipe(R=8, n=8, B=1, Hkv=2, D=16, Dv=16, seed=7), RingRecipe(R=3, n=0, **_SMALL, seed=8),
    RingRecipe(R=8, n=1, **_SMALL, causal="bottom_right", seed=9), RingRecipe(R=4, n=2, **_SMALL, segments="one_token", seed=10),
    RingRecipe(R=2, n=4, **_SMALL, regime="one_hot", causal="bottom_right", seed=11), RingRecipe(R=2, n=3, B=0, Hkv=1, D=4, Dv=4, seed=12),
    RingRecipe(R=2, n=130, Hkv=1, D=8, Dv=8, causal="bottom_right", order="zigzag", seed=13),
)  # fmt: skip


def covered_ring(recipe: RingRecipe, coverage: Coverage) -> RingRecipe:
    """The recipe mapped into the coverage; an even number of tokens in zig-zag order."""
    least, alignments = int(not coverage.empty), ["none" if c is None else c for c in coverage.causal]
    orders = coverage.levels("order", ORDERS)
    if "order" not in coverage.arguments and len(orders) > 1:
        orders = ORDERS[:1]
    order = recipe.order if recipe.order in orders else orders[0]
    multiple = int(np.lcm(coverage.length_multiple, 2 if order == "zigzag" else 1))
    D, Dv = (size if coverage.head_dims is None else min(coverage.head_dims, key=lambda h: (abs(h - size), h))
             for size in (max(recipe.D, 1), recipe.Dv))  # fmt: skip
    return replace(
        recipe, R=max(recipe.R, 1), n=-(-max(recipe.n, least) // multiple) * multiple, B=max(recipe.B, least), Hkv=max(recipe.Hkv, 1),
        G=max(recipe.G, 1) if coverage.grouped else 1, D=D, Dv=max(Dv, 1) if coverage.value_dim else D, order=order,
        causal=recipe.causal if recipe.causal in alignments else alignments[-1],
        segments=recipe.segments if "segments" in coverage.arguments else "none", scale=_covered_scale(recipe.scale, coverage),
        dtype=recipe.dtype if recipe.dtype in coverage.dtypes else coverage.dtypes[0],
    )  # fmt: skip


def _covered_scale(scale: str, coverage: Coverage) -> str:
    if "scale" not in coverage.arguments:
        return "default"
    return scale if coverage.negative_scale or scale != "negative" else "odd"


@lru_cache(maxsize=8)
def ring_table(coverage: Coverage) -> tuple[RingRecipe, ...]:
    """The balanced part of the designed cases."""
    levels = {"R": (2, 4, 1, 3, 8), "causal": ("bottom_right", "none", "top_left"), "order": ORDERS, "segments": SEGMENTS,
              "dtype": coverage.dtypes}  # fmt: skip
    others = {"scale": SCALES, "regime": REGIMES, "strides": LAYOUTS, "n": LENGTHS, "B": (1, 2), "Hkv": (1, 2, 3), "G": (1, 2, 3),
              "D": (8, 1, 3, 16, 64), "Dv": (8, 16, 5, 1)}  # fmt: skip
    rows = balanced_table({**levels, **others}, ROWS, crossed=tuple(levels))
    sized = ({**row, "n": min(row["n"], TOKENS // row["R"])} for row in rows)
    return tuple(covered_ring(RingRecipe(seed=100 + index, **row), coverage) for index, row in enumerate(sized))


def designed_rings(coverage: Coverage) -> list[RingRecipe]:
    """The corners, then the table, all inside the coverage."""
    return list(dict.fromkeys([*(covered_ring(corner, coverage) for corner in CORNERS), *ring_table(coverage)]))


def ring_recipes(coverage: Coverage) -> st.SearchStrategy[RingRecipe]:
    """Random recipes inside a coverage: a fixed number of draws, the mapping afterwards."""
    return st.builds(
        RingRecipe, R=st.integers(1, 8), n=st.sampled_from((*range(1, 18), 0)), B=st.sampled_from((1, 2, 1, 2, 3, 0)),
        Hkv=st.integers(1, 3), G=st.integers(1, 3), D=st.integers(1, 20), Dv=st.integers(1, 20), causal=st.sampled_from(CAUSAL),
        order=st.sampled_from(ORDERS), segments=st.sampled_from(SEGMENTS), scale=st.sampled_from(SCALES),
        dtype=st.sampled_from(coverage.dtypes), regime=st.sampled_from(REGIMES), strides=st.sampled_from(LAYOUTS),
        seed=st.integers(0, 2**32 - 1),
    ).map(lambda recipe: covered_ring(recipe, coverage))  # fmt: skip


def build_ring(recipe: RingRecipe, *, backward: bool = False) -> Case:
    """The shards of q, k and v (and dout), each a list; padding holds numbers some 16 times larger than what counts."""
    L, Hq = recipe.R * recipe.n, recipe.G * recipe.Hkv
    q_shape, k_shape, v_shape = ((recipe.B, H, L, width) for H, width in ((Hq, recipe.D), (recipe.Hkv, recipe.D), (recipe.Hkv, recipe.Dv)))
    scale = scale_of(recipe.scale, recipe.D)
    arrays = list(regimes.draw_attention(recipe.regime, q_shape, k_shape, v_shape, recipe.dtype, generator(recipe.seed, "values"),
                                         scale=recipe.D**-0.5 if scale is None else scale))  # fmt: skip
    if backward:
        arrays.append(regimes.draw("normal", (*q_shape[:3], recipe.Dv), recipe.dtype, generator(recipe.seed, "dout")))
    segments = segments_of(recipe.segments, recipe.B, L, generator(recipe.seed, "lengths"))
    arrays = [np.where((segments < 0)[:, None, :, None], x.dtype.type(LOUD) * x, x) for x in arrays]
    positions = shard_positions(recipe.R, recipe.n, order=recipe.order)  # type: ignore[arg-type]
    names = ("q_shards", "k_shards", "v_shards", "dout_shards")
    lists = [spread(name, [laid_out(part, recipe.strides) for part in scattered_sequence(x, positions)]) for name, x in zip(names, arrays)]
    given: dict[str, NDArray[np.int64]] = {} if recipe.segments == "none" else {"segments": segments}
    options: dict[str, Option] = {"causal": None if recipe.causal == "none" else recipe.causal}
    options |= {"order": recipe.order} if recipe.order != "contiguous" else {}
    options |= {"scale": scale} if scale is not None else {}
    return Case("ring_attention_backward" if backward else "ring_attention",
                {**{name: x for one in lists for name, x in one.items()}, **given}, options, origin=str(recipe))  # fmt: skip


def segments_of(level: str, B: int, L: int, g: np.random.Generator) -> NDArray[np.int64]:
    """The segment of each token (B, L), -1 for padding; at least one token counts where there is any."""
    place = np.arange(L)
    packed = np.sort(g.integers(0, 3, (B, L)), axis=1)
    real = g.integers(min(1, L), L + 1, (B, 1))
    inside = place < (np.full((B, 1), 1) if level == "one_token" else real if "padded" in level else np.full((B, 1), L))
    return np.asarray(np.where(inside, packed if "packed" in level else 0, -1), dtype=np.int64)


def build_ring_backward(recipe: RingRecipe) -> Case:
    """The case of the backward pass: `build_ring` with dout."""
    return build_ring(recipe, backward=True)


RING_CASES = RecipeSource("ring_attention", build=build_ring, designed=designed_rings, strategy=ring_recipes, covered=covered_ring)
RING_BACKWARD_CASES = replace(RING_CASES, operation="ring_attention_backward", build=build_ring_backward)
