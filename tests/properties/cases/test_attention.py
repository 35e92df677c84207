"""The designed table is balanced and meets every pair; what is built is deterministic, legal and poisoned only where nobody looks."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from oracles.properties.cases import attention as source
from oracles.properties.cases.attention import ATTENTION_BACKWARD_CASES, ATTENTION_CASES, AttentionRecipe
from oracles.properties.cases.layouts import LAYOUTS
from oracles.properties.coverage import Coverage
from oracles.reference import FloatFormat, attention, visible_keys
from oracles.reference.attention_backward import attention_backward

ARGUMENTS = frozenset({argument for argument, _ in source.OPTIONS.values()} | {"dropout_p"})
EVERYTHING = Coverage(arguments=ARGUMENTS, dtypes=("float32", "float64", "float16", "bfloat16"), causal=(None, "bottom_right", "top_left"))
NARROW = Coverage(arguments=frozenset({"window", "kv_lengths", "scale"}), dtypes=("bfloat16",), causal=("bottom_right",),
                  head_dims=(64, 128), length_multiple=16, grouped=False, value_dim=False, cross_lengths=False, empty=False,
                  negative_scale=False)
COVERAGES = {"everything": EVERYTHING, "the default": Coverage(), "a narrow kernel": NARROW,
             "no causal": Coverage(causal=(None,), arguments=frozenset({"mask", "bias"})),
             "eight bits": replace(EVERYTHING, dtypes=("float8_e4m3fn", "float8_e5m2"))}
OPTIONS = (*source.OPTIONS, "causal", "dtype", "strides", "regime")
DESIGNED = ATTENTION_CASES.designed(EVERYTHING)


def bytes_of(recipe: AttentionRecipe) -> str:
    return ATTENTION_CASES.build(recipe).hash


def is_inside(recipe: AttentionRecipe, coverage: Coverage) -> bool:
    taken = all(getattr(recipe, name) == levels[0] or argument in coverage.arguments for name, (argument, levels) in source.OPTIONS.items())
    return all((
        taken, recipe.dtype in coverage.dtypes, (None if recipe.causal == "none" else recipe.causal) in coverage.causal,
        coverage.head_dims is None or {recipe.D, recipe.Dv} <= set(coverage.head_dims), coverage.grouped or recipe.G == 1,
        coverage.value_dim or recipe.Dv == recipe.D, coverage.cross_lengths or recipe.Lq == recipe.Lk,
        coverage.empty or (min(recipe.B, recipe.Lq, recipe.Lk) > 0 and recipe.kv_lengths != "some_zero"),
        coverage.negative_scale or recipe.scale != "negative",
        recipe.Lq % coverage.length_multiple == recipe.Lk % coverage.length_multiple == 0,
    ))  # fmt: skip


# The designed cases ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", OPTIONS)
def test_every_level_stands_equally_often_in_the_table(name: str) -> None:
    counts = Counter(getattr(recipe, name) for recipe in source.table(EVERYTHING))
    levels = {f.name: f.metadata["levels"] for f in fields(AttentionRecipe) if "levels" in f.metadata} | {"dtype": EVERYTHING.dtypes}
    levels |= {name: of_table for name, (_, of_table) in source.OPTIONS.items()}           # corners know more
    assert set(counts) == set(levels[name])
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize(("one", "other"), list(combinations(OPTIONS, 2)))
def test_every_pair_of_levels_meets_in_the_table(one: str, other: str) -> None:
    table = source.table(EVERYTHING)
    pairs = {(getattr(recipe, one), getattr(recipe, other)) for recipe in table}
    assert len(pairs) == len({pair[0] for pair in pairs}) * len({pair[1] for pair in pairs})


def test_every_pair_of_lengths_stands_twice_in_the_table() -> None:
    assert Counter((recipe.Lq, recipe.Lk) for recipe in source.table(EVERYTHING)) == Counter(source.LENGTHS * 2)


def test_three_quarters_of_the_table_are_poisoned() -> None:
    table = source.table(EVERYTHING)
    assert 4 * sum(recipe.poison for recipe in table) == 3 * len(table)


def test_the_corners_come_first() -> None:
    assert tuple(DESIGNED[: len(source.CORNERS)]) == source.CORNERS


def test_there_are_about_130_designed_cases_and_all_differ() -> None:
    assert 110 <= len(DESIGNED) <= 140
    assert len(set(DESIGNED)) == len(DESIGNED)


def test_the_tile_borders_are_crossed() -> None:
    assert {129, 257, 513} <= {recipe.Lk for recipe in DESIGNED}
    assert max(recipe.Lq for recipe in DESIGNED) == 257
    assert sum(recipe.Lk >= 257 for recipe in DESIGNED) <= 12


def test_the_designed_cases_are_cheap() -> None:
    assert sum(int(np.prod(recipe.scores)) for recipe in DESIGNED) < 4_000_000


def test_each_empty_size_stands_in_about_one_case_of_a_hundred() -> None:
    for name in ("B", "Lq", "Lk"):
        assert sum(getattr(recipe, name) == 0 for recipe in DESIGNED) == 1


def test_most_queries_see_two_keys_or_more() -> None:
    seen = 0
    for recipe in DESIGNED:
        case = ATTENTION_CASES.build(recipe)
        seen += bool((visible(case, recipe).sum(axis=-1) > 1).any())
    assert seen > 0.75 * len(DESIGNED)


# Coverage -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", COVERAGES)
def test_no_designed_case_lies_outside_the_coverage(name: str) -> None:
    assert all(is_inside(recipe, COVERAGES[name]) for recipe in ATTENTION_CASES.designed(COVERAGES[name]))


@pytest.mark.parametrize("name", COVERAGES)
def test_no_random_case_lies_outside_the_coverage(name: str) -> None:
    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(ATTENTION_CASES.strategy(COVERAGES[name]))
    def inside(recipe: AttentionRecipe) -> None:
        assert is_inside(recipe, COVERAGES[name])
        assert np.prod(recipe.scores) <= max(source.WORK, recipe.Lq * recipe.Lk)

    inside()


@pytest.mark.parametrize("name", COVERAGES)
def test_clamping_twice_changes_nothing_more(name: str) -> None:
    for recipe in DESIGNED:
        once = ATTENTION_CASES.covered(recipe, COVERAGES[name])
        assert is_inside(once, COVERAGES[name])
        assert ATTENTION_CASES.covered(once, COVERAGES[name]) == once


def test_what_lies_inside_is_left_alone() -> None:
    assert [ATTENTION_CASES.covered(recipe, EVERYTHING) for recipe in DESIGNED] == DESIGNED


def test_levels_that_are_not_covered_take_no_part_in_the_balance() -> None:
    counts = Counter(recipe.causal for recipe in source.table(Coverage()))
    assert counts == {"none": source.ROWS // 2, "bottom_right": source.ROWS // 2}


def test_empty_sizes_are_rare_among_random_cases() -> None:
    drawn: list[AttentionRecipe] = []

    @settings(max_examples=250, deadline=None, database=None, derandomize=True)
    @given(ATTENTION_CASES.strategy(EVERYTHING))
    def draw(recipe: AttentionRecipe) -> None:
        drawn.append(recipe)

    draw()
    for name in ("B", "Lq", "Lk"):
        assert 0 < sum(getattr(recipe, name) == 0 for recipe in drawn) < 0.06 * len(drawn)


# What is built --------------------------------------------------------------------------------------------------------

def visible(case: Any, recipe: AttentionRecipe) -> Any:
    given = case.arguments()
    hiding = {name: given[name] for name in ("window", "mask", "kv_lengths", "bias") if name in given}
    return visible_keys(*recipe.scores, causal=given["causal"], **hiding)


@pytest.mark.parametrize("recipe", DESIGNED, ids=lambda recipe: str(recipe.seed))
def test_the_oracle_takes_every_case_and_answers_in_finite_numbers(recipe: AttentionRecipe) -> None:
    out, lse = attention(**ATTENTION_CASES.build(recipe).arguments())
    assert np.isfinite(out).all()
    assert not (np.isnan(lse) | np.isposinf(lse)).any()


@pytest.mark.parametrize("recipe", DESIGNED, ids=lambda recipe: str(recipe.seed))
def test_what_is_poisoned_changes_nothing(recipe: AttentionRecipe) -> None:
    poisoned, clean = (ATTENTION_CASES.build(replace(recipe, poison=poison)) for poison in (True, False))
    for with_poison, without in zip(attention(**poisoned.arguments()), attention(**clean.arguments())):
        assert np.array_equal(with_poison, without)


def test_the_same_recipe_always_builds_the_same_bytes() -> None:
    assert [bytes_of(recipe) for recipe in DESIGNED[:60]] == [bytes_of(recipe) for recipe in DESIGNED[:60]]


def test_another_seed_builds_other_bytes() -> None:
    assert bytes_of(AttentionRecipe(D=4)) != bytes_of(AttentionRecipe(D=4, seed=1))


@pytest.mark.parametrize("recipe", DESIGNED[:40], ids=lambda recipe: str(recipe.seed))
def test_taking_an_option_away_leaves_the_other_arguments_as_they_were(recipe: AttentionRecipe) -> None:
    recipe = replace(recipe, poison=False)
    before = ATTENTION_CASES.build(recipe).arrays
    for name in ("bias", "mask", "kv_lengths", "sinks", "dropout"):
        after = ATTENTION_CASES.build(replace(recipe, **{name: "none"})).arrays  # type: ignore[arg-type]
        assert all(array.tobytes() == before[other].tobytes() for other, array in after.items())


def test_only_what_no_query_of_a_key_head_sees_is_poisoned() -> None:
    for recipe in DESIGNED:
        poisoned, clean = (ATTENTION_CASES.build(replace(recipe, poison=poison)) for poison in (True, False))
        B, _, Lq, Lk = recipe.scores
        seen = visible(clean, recipe).reshape(B, recipe.Hkv, recipe.G * Lq, Lk).any(axis=2)
        for name in ("k", "v"):
            changed = (poisoned.arrays[name] != clean.arrays[name]).any(axis=-1)
            assert np.array_equal(changed, ~seen)


def test_poison_keeps_every_sum_of_a_score_finite_in_the_format() -> None:
    for recipe in DESIGNED:
        case = ATTENTION_CASES.build(replace(recipe, poison=True, seed=recipe.seed | 1))
        q, k, v = (np.abs(case.arrays[name].astype(np.float64)) for name in "qkv")
        assert np.isfinite(k).all()
        assert np.isfinite(v).all()
        scale = max(1.0, abs(float(case.options.get("scale", recipe.D**-0.5))))
        fmt = FloatFormat(recipe.dtype)
        hidden = ~visible(case, recipe).reshape(recipe.B, recipe.Hkv, recipe.G * recipe.Lq, recipe.Lk).any(axis=2)
        with np.errstate(over="ignore"):
            assert recipe.D * scale * q.max(initial=0.0) * k[hidden].max(initial=0.0) <= fmt.max / 4


def test_poison_is_large() -> None:
    plain = AttentionRecipe(Lq=3, Lk=9, D=8, Dv=8, kv_lengths="ragged", poison=True, seed=1)
    least = {"float32": 2.0**97, "bfloat16": 2.0**97, "float64": 2.0**990, "float16": 2.0**7}
    for dtype, size in least.items():
        k = ATTENTION_CASES.build(replace(plain, dtype=dtype)).arrays["k"]
        assert np.abs(k.astype(np.float64)).max() > size


def test_nan_stands_only_beyond_kv_lengths_and_in_half_of_the_poisoned_cases() -> None:
    for seed in range(6):
        recipe = AttentionRecipe(B=3, Hkv=2, Lq=3, Lk=9, D=8, Dv=4, kv_lengths="ragged", mask="random", poison=True, seed=seed)
        case = ATTENTION_CASES.build(recipe)
        beyond = np.arange(9) >= case.arrays["kv_lengths"][:, None]
        if seed % 2:
            assert case.notes["poison"] == "finite"
            assert all(np.isfinite(case.arrays[name]).all() for name in "kv")
        elif beyond.any():
            assert case.notes["poison"] == "nan"
            assert np.array_equal(np.isnan(case.arrays["v"]).all(axis=(1, 3)), beyond)
            assert np.array_equal(~np.isfinite(case.arrays["k"]).any(axis=(1, 3)), beyond)


def test_keys_beyond_the_length_hold_nan_and_both_infinities() -> None:
    case = ATTENTION_CASES.build(AttentionRecipe(B=4, Lq=2, Lk=16, D=2, kv_lengths="ragged", poison=True, seed=2))
    k = case.arrays["k"]
    assert all(kind(k).any() for kind in (np.isnan, np.isposinf, np.isneginf))


def test_without_anything_hidden_the_notes_name_no_poison() -> None:
    assert ATTENTION_CASES.build(AttentionRecipe(Lq=2, Lk=3, poison=True)).notes["poison"] is None


def test_causal_is_always_given_and_other_options_only_where_they_differ_from_the_default() -> None:
    assert ATTENTION_CASES.build(AttentionRecipe()).options == {"causal": None}
    assert set(ATTENTION_CASES.build(AttentionRecipe()).arrays) == {"q", "k", "v"}
    full = AttentionRecipe(causal="top_left", window="both", scale="odd", softcap="tight", dropout="half", Lk=4)
    assert set(ATTENTION_CASES.build(full).options) == {"causal", "window", "scale", "softcap", "dropout_p"}


def test_no_option_level_is_dead() -> None:
    plain = AttentionRecipe(B=3, Hkv=2, G=2, Lq=6, Lk=9, D=8, Dv=4, seed=3)
    for name, (_, levels) in source.OPTIONS.items():
        cases = {bytes_of(replace(plain, **{name: level})) for level in levels}  # type: ignore[arg-type]
        assert len(cases) == len(levels), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_change_no_value(layout: str) -> None:
    recipe = AttentionRecipe(B=2, Hkv=2, G=2, Lq=3, Lk=5, D=4, Dv=2, seed=1)
    plain, strided = ATTENTION_CASES.build(recipe), ATTENTION_CASES.build(replace(recipe, strides=layout))
    assert plain.hash == strided.hash
    assert all(strided.arrays[name].flags.c_contiguous == (layout == "contiguous") for name in "qkv")


# The backward pass ----------------------------------------------------------------------------------------------------

def test_a_backward_case_holds_the_rounded_answers_of_the_forward_oracle() -> None:
    for recipe in DESIGNED[::5]:
        case, forward = ATTENTION_BACKWARD_CASES.build(recipe), ATTENTION_CASES.build(recipe)
        out, lse = attention(**forward.arguments())
        assert np.array_equal(case.arrays["out"], FloatFormat(recipe.dtype).cast(out))
        assert case.arrays["lse"].dtype == (np.float64 if recipe.dtype == "float64" else np.float32)
        assert np.array_equal(case.arrays["lse"], lse.astype(case.arrays["lse"].dtype))
        assert case.arrays["dout"].shape == out.shape
        assert set(case.arrays) == {*forward.arrays, "out", "lse", "dout"}


def test_the_backward_oracle_takes_every_case_and_answers_in_finite_numbers() -> None:
    for recipe in DESIGNED:
        gradients = attention_backward(**ATTENTION_BACKWARD_CASES.build(recipe).arguments())
        assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_completing_a_backward_case_computes_out_and_lse_anew() -> None:
    case = ATTENTION_BACKWARD_CASES.build(AttentionRecipe(Lq=2, Lk=3, D=4, Dv=4))
    changed = ATTENTION_BACKWARD_CASES.complete(case.with_arrays(v=case.arrays["v"] * 2))
    assert np.array_equal(changed.arrays["out"], case.arrays["out"] * 2)
    assert ATTENTION_CASES.complete(case) is case
