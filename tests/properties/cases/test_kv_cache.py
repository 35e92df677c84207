"""Cases of write_kv: slots as their level says, caches that hold what no number shows, and the oracle takes all of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from oracles.properties.cases import kv_cache as source
from oracles.properties.cases.kv_cache import WRITE_CASES, WriteRecipe
from oracles.properties.coverage import Coverage
from oracles.reference import write_kv

EVERYTHING = Coverage(dtypes=("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"))
DESIGNED = WRITE_CASES.designed(EVERYTHING)
PLAIN = WriteRecipe(S=40, T=20, H=2, D=3, Dv=5, seed=3)


def slots(recipe: WriteRecipe) -> list[int]:
    found: list[int] = WRITE_CASES.build(recipe).arrays["slots"].tolist()
    return found


@pytest.mark.parametrize(("one", "other"), list(combinations(("slots", "held", "dtype", "caches", "tokens"), 2)))
def test_every_pair_of_levels_meets_equally_balanced(one: str, other: str) -> None:
    table = source.write_table(EVERYTHING)
    pairs = {(getattr(recipe, one), getattr(recipe, other)) for recipe in table}
    assert len(pairs) == len({pair[0] for pair in pairs}) * len({pair[1] for pair in pairs})
    for name in (one, other):
        counts = Counter(getattr(recipe, name) for recipe in table).values()
        assert max(counts) - min(counts) <= 1


def test_the_oracle_takes_every_case() -> None:
    for recipe in DESIGNED:
        case = WRITE_CASES.build(recipe)
        k_cache, v_cache = write_kv(**case.arguments())
        assert (k_cache.shape, v_cache.shape) == (case.arrays["k_cache"].shape, case.arrays["v_cache"].shape)


def test_slots_are_as_their_level_says() -> None:
    assert set(np.diff(slots(PLAIN))) == {1}
    scattered = slots(replace(PLAIN, slots="scattered"))
    assert len(set(scattered)) == 20
    assert scattered != sorted(scattered)
    skipped = slots(replace(PLAIN, slots="skips"))
    assert 0 < skipped.count(-1) < 20
    assert max(Counter(slot for slot in skipped if slot >= 0).values()) == 1
    assert max(Counter(slots(replace(PLAIN, slots="doubled"))).values()) > 1
    assert set(slots(replace(PLAIN, slots="all_skipped"))) == {-1}
    assert set(slots(replace(PLAIN, slots="last"))) == {39, -1}


def test_caches_hold_what_their_level_says() -> None:
    held = {level: WRITE_CASES.build(replace(PLAIN, held=level)).arrays["k_cache"] for level in source.HELD}
    assert np.isfinite(held["numbers"]).all()
    assert not held["zeros"].any()
    assert np.isnan(held["nan"]).all()
    assert 0 < np.isnan(held["mixed"]).mean() < 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "stepped", "offset"])
def test_nan_has_many_payloads_whatever_its_place_in_memory(dtype: str, layout: str) -> None:
    cache = WRITE_CASES.build(replace(PLAIN, held="nan", dtype=dtype, caches=layout)).arrays["k_cache"]
    bits = np.ascontiguousarray(cache).view(f"u{cache.itemsize}")
    assert len(np.unique(bits)) > 50
    assert np.isnan(cache.astype(np.float64)).all()


def test_some_tokens_are_negative_zeros() -> None:
    k = WRITE_CASES.build(PLAIN).arrays["k"]
    assert (np.signbit(k) & (k == 0)).any()


def test_keys_and_values_of_one_size_differ() -> None:
    arrays = WRITE_CASES.build(replace(PLAIN, Dv=3)).arrays
    assert not np.array_equal(arrays["k"], arrays["v"])


def test_the_same_recipe_always_builds_the_same_bytes() -> None:
    assert [WRITE_CASES.build(recipe).hash for recipe in DESIGNED] == [WRITE_CASES.build(recipe).hash for recipe in DESIGNED]


def test_nothing_lies_outside_a_narrow_coverage() -> None:
    narrow = Coverage(dtypes=("float16",), empty=False, head_dims=(64,), value_dim=False, length_multiple=8)

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(WRITE_CASES.strategy(narrow))
    def inside(recipe: WriteRecipe) -> None:
        assert (recipe.dtype, recipe.D, recipe.Dv, recipe.S % 8) == ("float16", 64, 64, 0)
        assert min(recipe.S, recipe.T, recipe.H) > 0
        assert max(slots(recipe)) < recipe.S

    inside()
