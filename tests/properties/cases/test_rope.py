"""Cases of rope: what each level says is there, every pair of levels met, and the oracle takes all of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from oracles.properties.case import Case
from oracles.properties.cases import rope as source
from oracles.properties.cases.rope import ROPE_CASES, RopeRecipe
from oracles.properties.coverage import Coverage
from oracles.reference import rope

OPTIONS = frozenset({"pairing", "base", "rotary_dim", "scaling"})
EVERYTHING = Coverage(arguments=OPTIONS, dtypes=("float32", "float64", "float16", "bfloat16"))
DESIGNED = ROPE_CASES.designed(EVERYTHING)
PLAIN = RopeRecipe(B=2, H=3, T=50, D=8, seed=3)


def positions(recipe: RopeRecipe) -> np.ndarray:
    return ROPE_CASES.build(recipe).arrays["positions"]


@pytest.mark.parametrize(("one", "other"), list(combinations(("scaling", "pairing", "places", "shape", "dtype", "base"), 2)))
def test_every_pair_of_levels_meets(one: str, other: str) -> None:
    table = source.rope_table(EVERYTHING)
    pairs = {(getattr(recipe, one), getattr(recipe, other)) for recipe in table}
    assert len(pairs) == len({pair[0] for pair in pairs}) * len({pair[1] for pair in pairs})


@pytest.mark.parametrize("name", ["scaling", "pairing", "places", "shape", "dtype", "base", "wide_positions"])
def test_every_level_stands_equally_often(name: str) -> None:
    counts = Counter(getattr(recipe, name) for recipe in source.rope_table(EVERYTHING)).values()
    assert max(counts) - min(counts) <= 1


def test_every_kind_of_scaling_and_every_part_that_turns_is_designed() -> None:
    assert {recipe.scaling for recipe in DESIGNED} == set(source.SCALINGS)
    assert {recipe.rotary for recipe in DESIGNED} == set(source.ROTARY)
    assert {len(ROPE_CASES.build(recipe).arrays["x"].shape) for recipe in DESIGNED} == {1, 2, 3, 4}
    assert any(recipe.D == 2 for recipe in DESIGNED)
    assert any(recipe.T == 0 for recipe in DESIGNED)


def test_yarn_comes_with_each_of_its_fields_at_work() -> None:
    yarns = [record for record in source.SCALINGS.values() if record and record["kind"] == "yarn"]
    assert {record["truncate"] for record in yarns} == {True, False}
    assert {record["mscale"] == record["mscale_all_dim"] for record in yarns} == {True, False}


def test_the_oracle_takes_every_case_and_answers_without_nan() -> None:
    for recipe in DESIGNED:
        assert np.isfinite(rope(**ROPE_CASES.build(recipe).arguments())).all()


def test_places_are_where_their_level_says() -> None:
    assert np.array_equal(positions(PLAIN), np.arange(50))
    offset = positions(replace(PLAIN, places="offset"))
    assert (np.diff(offset) == 1).all()
    assert offset[0] > 0
    scattered = positions(replace(PLAIN, places="scattered"))
    assert len(set(np.diff(scattered).tolist())) > 5
    assert positions(replace(PLAIN, places="far")).min() >= 4096
    assert positions(replace(PLAIN, places="far")).max() > 131071
    assert positions(replace(PLAIN, places="negative")).max() < 0
    assert 2**24 + 1 in positions(replace(PLAIN, places="edge"))


@pytest.mark.parametrize(("level", "shape"), [("row", (50,)), ("item", (2, 1, 50)), ("full", (2, 3, 50)), ("one", ())])
def test_positions_have_the_shape_of_their_level(level: str, shape: tuple[int, ...]) -> None:
    assert positions(replace(PLAIN, shape=level, places="scattered")).shape == shape


def test_positions_come_in_both_formats_of_integers() -> None:
    assert {positions(replace(PLAIN, wide_positions=wide)).dtype.name for wide in (True, False)} == {"int64", "int32"}


def test_options_at_their_default_are_left_out() -> None:
    assert ROPE_CASES.build(PLAIN).options == {"pairing": "half"}
    full = ROPE_CASES.build(replace(PLAIN, base="large", rotary="half", scaling="linear")).options
    assert full == {"pairing": "half", "base": 500000.0, "rotary_dim": 4, "scaling": {"kind": "linear", "factor": 2.5}}


def test_a_record_survives_the_file_of_a_case(tmp_path) -> None:
    case = ROPE_CASES.build(replace(PLAIN, scaling="yarn_smooth"))
    case.save(tmp_path / "case.safetensors")
    assert Case.load(tmp_path / "case.safetensors")[0].options == case.options


def test_the_same_recipe_always_builds_the_same_bytes() -> None:
    assert [ROPE_CASES.build(recipe).hash for recipe in DESIGNED] == [ROPE_CASES.build(recipe).hash for recipe in DESIGNED]


def test_nothing_lies_outside_a_narrow_coverage() -> None:
    narrow = Coverage(arguments=frozenset({"scaling"}), dtypes=("float16",), empty=False, head_dims=(2, 64), length_multiple=4,
                      only=(("pairing", ("interleaved",)), ("scaling", ("ntk", "llama3"))))  # fmt: skip

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(ROPE_CASES.strategy(narrow))
    def inside(recipe: RopeRecipe) -> None:
        assert (recipe.dtype, recipe.pairing, recipe.rotary, recipe.base) == ("float16", "interleaved", "all", "default")
        assert recipe.scaling in ("ntk", "llama3", "llama3_short")
        assert recipe.D in ((64,) if recipe.scaling == "ntk" else (2, 64))
        assert min(recipe.B, recipe.H, recipe.T) > 0
        assert recipe.T % 4 == 0
        ROPE_CASES.build(recipe)

    inside()
    assert {recipe.scaling for recipe in ROPE_CASES.designed(narrow)} == {"ntk", "llama3", "llama3_short"}


def test_a_subject_without_scaling_gets_none() -> None:
    assert {recipe.scaling for recipe in ROPE_CASES.designed(Coverage(arguments=frozenset({"pairing"})))} == {"none"}
