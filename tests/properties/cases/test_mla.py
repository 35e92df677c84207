"""Latent cases: balance, poison that nobody sees, scores of the regime, and cases without a rotary part."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from oracles.properties.cases import mla as source
from oracles.properties.cases.mla import LATENT_CASES, LatentRecipe
from oracles.properties.coverage import Coverage
from oracles.reference import mla_attention, mla_attention_absorbed, mla_scale

EVERYTHING = Coverage(arguments=frozenset({"scale", "kv_lengths", "mask"}), dtypes=("float32", "float64", "float16", "bfloat16"),
                      causal=(None, "bottom_right", "top_left"))
NARROW = Coverage(dtypes=("bfloat16",), causal=("bottom_right",), head_dims=(128,), value_dim=False, empty=False)
OPTIONS = ("scale", "kv_lengths", "mask", "causal", "dtype", "strides")
DESIGNED = LATENT_CASES.designed(EVERYTHING)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_level_stands_equally_often_in_the_table(name: str) -> None:
    counts = Counter(getattr(recipe, name) for recipe in source.table(EVERYTHING))
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize(("one", "other"), list(combinations(OPTIONS, 2)))
def test_every_pair_of_levels_meets_in_the_table(one: str, other: str) -> None:
    pairs = {(getattr(recipe, one), getattr(recipe, other)) for recipe in source.table(EVERYTHING)}
    assert len(pairs) == len({pair[0] for pair in pairs}) * len({pair[1] for pair in pairs})


@pytest.mark.parametrize("oracle", [mla_attention, mla_attention_absorbed])
def test_the_oracles_take_every_case_and_poison_changes_nothing(oracle) -> None:
    for recipe in DESIGNED:
        poisoned, clean = (LATENT_CASES.build(replace(recipe, poison=poison)) for poison in (True, False))
        for with_poison, without in zip(oracle(**poisoned.arguments()), oracle(**clean.arguments())):
            assert np.array_equal(with_poison, without), recipe
            assert not np.isnan(with_poison).any()


def test_nan_and_finite_poison_are_both_there() -> None:
    held = Counter(LATENT_CASES.build(recipe).notes["poison"] for recipe in DESIGNED)
    assert held["nan"] >= 8
    assert held["finite"] >= 20


def test_hidden_numbers_leave_every_product_finite() -> None:
    """In the format of the inputs, 16 bits too: a kernel that keeps keys there computes hidden ones like others."""
    for recipe in DESIGNED:
        case = LATENT_CASES.build(replace(recipe, seed=recipe.seed | 1))
        if case.notes["poison"] is None:
            continue
        most = float(np.finfo(np.float32).max) if recipe.dtype != "float16" else 65504.0
        w = max(float(np.abs(case.arrays[name].astype(np.float64)).max()) for name in ("w_uk", "w_uv"))
        latent = np.abs(case.arrays["latent"].astype(np.float64)).max(initial=0.0)
        if recipe.dtype != "float64":
            assert latent * max(w, 1.0) * recipe.Dn < most, recipe


def test_a_fifth_of_the_scales_are_those_of_a_stretched_context() -> None:
    yarn = {"kind": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
            "mscale_all_dim": 0.707, "truncate": True}
    stretched = [recipe for recipe in DESIGNED if recipe.scale == "stretched"]
    assert len(stretched) >= len(DESIGNED) // 6
    for recipe in stretched:
        wanted = mla_scale(recipe.Dn, recipe.Dr, scaling=yarn)
        assert abs(LATENT_CASES.build(recipe).options["scale"] - wanted) <= 16 * np.spacing(wanted)     # two forms of one formula


def test_some_have_no_rotary_part_and_none_where_that_is_not_taken() -> None:
    assert sum(recipe.Dr == 0 for recipe in DESIGNED) >= 8
    assert all(recipe.Dr > 0 for recipe in LATENT_CASES.designed(replace(EVERYTHING, empty=False)))


def test_no_case_lies_outside_a_narrow_coverage() -> None:
    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(LATENT_CASES.strategy(NARROW))
    def inside(recipe: LatentRecipe) -> None:
        assert (recipe.Dn, recipe.Dv, recipe.dtype, recipe.causal) == (128, 128, "bfloat16", "bottom_right")
        assert (recipe.scale, recipe.kv_lengths, recipe.mask) == ("default", "none", "none")
        assert min(recipe.B, recipe.Lq, recipe.Lk, recipe.Dr) > 0
        assert LATENT_CASES.covered(recipe, NARROW) == recipe

    inside()


def test_the_same_recipe_always_builds_the_same_bytes() -> None:
    assert [LATENT_CASES.build(r).hash for r in DESIGNED] == [LATENT_CASES.build(r).hash for r in DESIGNED]
