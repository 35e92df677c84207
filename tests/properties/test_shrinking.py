"""The shrinker ends at the smallest recipe of planted faults, and always ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import pytest

from oracles.properties.cases.attention import ATTENTION_CASES, AttentionRecipe
from oracles.properties.cases.softmax import SoftmaxRecipe
from oracles.properties.coverage import Coverage
from oracles.properties.shrinking import Deadline, shrink, simpler_recipes, size

LARGE = AttentionRecipe(B=3, Hkv=2, G=4, Lq=200, Lk=300, D=80, Dv=64, causal="bottom_right", window="both", scale="odd", softcap="tight",
                        bias="minus_infinity", mask="block", kv_lengths="some_zero", sinks="dominant", alibi="geometric", dropout="tenth",
                        dtype="bfloat16", regime="descending", strides="offset", poison=True, seed=7)
PATIENCE = 60.0

Planted = tuple[Callable[[AttentionRecipe], bool], AttentionRecipe]
PLANTED: dict[str, Planted] = {
    "nothing but the case": (lambda r: True, AttentionRecipe()),
    "a second tile and grouped heads": (lambda r: r.Lk > 64 and r.G > 1, AttentionRecipe(Lk=65, G=2)),
    "a length between two borders": (lambda r: r.Lk > 200, AttentionRecipe(Lk=201)),
    "a length just below a border": (lambda r: r.Lk >= 128, AttentionRecipe(Lk=128)),
    "more queries than keys": (lambda r: r.Lq > r.Lk or r == LARGE, AttentionRecipe(Lq=2)),
    "two options together": (lambda r: r.window != "none" and r.sinks != "none", AttentionRecipe(window="left", sinks="normal")),
    "one level of an option": (lambda r: r.bias == "minus_infinity", AttentionRecipe(bias="minus_infinity")),
    "a format": (lambda r: r.dtype in ("float16", "bfloat16"), AttentionRecipe(dtype="float16")),
    "poison": (lambda r: r.poison and r.mask == "block", AttentionRecipe(mask="block", poison=True)),
    "head sizes of a vector load": (lambda r: r.D % 8 == 0 and r.Dv > 3, AttentionRecipe(D=8, Dv=4)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_shrinks_to_its_smallest_recipe(name: str) -> None:
    fails, smallest = PLANTED[name]
    found, _ = shrink(LARGE, simpler_recipes, fails, until=Deadline.after(PATIENCE), reseed=1)
    assert replace(found, seed=0) == smallest


def test_equal_lengths_shrink_together() -> None:
    start = replace(LARGE, Lq=200, Lk=200)
    found, _ = shrink(start, simpler_recipes, lambda r: r.Lq == r.Lk > 5, until=Deadline.after(PATIENCE), reseed=1)
    assert replace(found, seed=0) == AttentionRecipe(Lq=6, Lk=6)


def test_unequal_lengths_become_equal_where_only_that_fails() -> None:
    found, _ = shrink(LARGE, simpler_recipes, lambda r: r.Lq == r.Lk > 5 or (r.Lq, r.Lk) == (200, 300),
                      until=Deadline.after(PATIENCE), reseed=1)  # fmt: skip
    assert replace(found, seed=0) == AttentionRecipe(Lq=6, Lk=6)


def test_few_trials_are_needed() -> None:
    _, trials = shrink(LARGE, simpler_recipes, lambda r: r.Lk > 64 and r.G > 1, until=Deadline.after(PATIENCE), reseed=1)
    assert trials < 200


def test_a_fault_that_needs_luck_in_its_values_is_followed_through_other_seeds() -> None:
    found, _ = shrink(LARGE, simpler_recipes, lambda r: r.Lk > 4 and (r.seed + r.Lk) % 3 == 0, until=Deadline.after(PATIENCE), reseed=3)
    assert replace(found, seed=0) == AttentionRecipe(Lk=5)


def test_without_reseeding_every_trial_keeps_the_seed() -> None:
    seeds = set()

    def fails(recipe: AttentionRecipe) -> bool:
        seeds.add(recipe.seed)
        return recipe.Lk > 64

    shrink(LARGE, simpler_recipes, fails, until=Deadline.after(PATIENCE), reseed=1)
    assert seeds == {LARGE.seed}


def test_no_recipe_is_tried_twice() -> None:
    tried: list[AttentionRecipe] = []

    def fails(recipe: AttentionRecipe) -> bool:
        tried.append(recipe)
        return recipe.Lk > 64 and recipe.poison

    _, trials = shrink(LARGE, simpler_recipes, fails, until=Deadline.after(PATIENCE))
    assert len(tried) == len(set(tried)) == trials


def test_no_time_leaves_the_recipe_as_it_is() -> None:
    assert shrink(LARGE, simpler_recipes, lambda r: True, until=Deadline.after(0.0)) == (LARGE, 0)


def test_a_deadline_knows_whether_anybody_was_stopped_by_it() -> None:
    early, late = Deadline.after(0.0), Deadline.after(PATIENCE)
    shrink(LARGE, simpler_recipes, lambda r: r.Lk > 64, until=early)
    shrink(LARGE, simpler_recipes, lambda r: r.Lk > 64, until=late, reseed=1)
    assert (early.stopped, late.stopped) == (True, False)


def test_a_share_of_a_deadline_ends_before_it() -> None:
    whole = Deadline.after(PATIENCE)
    assert whole.moment - PATIENCE < whole.share(0.5).moment < whole.moment - PATIENCE / 4
    assert Deadline(0.0).share(0.7).over()


def test_candidates_that_are_no_smaller_are_not_tried() -> None:
    def growing(recipe: AttentionRecipe) -> Iterator[AttentionRecipe]:
        yield replace(recipe, Lk=recipe.Lk + 1)
        yield replace(recipe, seed=recipe.seed + 1)

    assert shrink(LARGE, growing, lambda r: True, until=Deadline.after(PATIENCE)) == (LARGE, 0)


def test_shrinking_inside_a_coverage_stays_inside_it() -> None:
    coverage = Coverage(arguments=frozenset({"window"}), dtypes=("bfloat16",), head_dims=(64, 128), causal=("bottom_right",),
                        cross_lengths=False, value_dim=False, length_multiple=16)

    def simpler(recipe: AttentionRecipe) -> Iterator[AttentionRecipe]:
        return (ATTENTION_CASES.covered(candidate, coverage) for candidate in simpler_recipes(recipe))

    found, _ = shrink(ATTENTION_CASES.covered(LARGE, coverage), simpler, lambda r: r.Lk > 64, until=Deadline.after(PATIENCE), reseed=1)
    assert replace(found, seed=0) == AttentionRecipe(Lq=80, Lk=80, D=64, Dv=64, dtype="bfloat16", causal="bottom_right")


def test_every_candidate_is_strictly_smaller() -> None:
    for recipe in (LARGE, AttentionRecipe(Lk=0), AttentionRecipe(Lq=2, Lk=2), SoftmaxRecipe(A=3, n=40, axis="middle", seed=3)):
        candidates = list(simpler_recipes(recipe))
        assert candidates
        assert all(size(candidate) < size(recipe) for candidate in candidates)
        assert len(set(candidates)) == len(candidates)


def test_the_default_recipe_is_the_simplest() -> None:
    assert list(simpler_recipes(AttentionRecipe())) == []
    assert all(size(AttentionRecipe()) < size(AttentionRecipe(**{name: 0})) for name in ("B", "Lq", "Lk"))  # type: ignore[arg-type]


def test_the_first_candidates_are_the_biggest_reductions() -> None:
    everything, options, sizes = islice(simpler_recipes(LARGE), 3)
    assert everything == AttentionRecipe(seed=LARGE.seed)
    assert options == AttentionRecipe(B=3, Hkv=2, G=4, Lq=200, Lk=300, D=80, Dv=64, seed=LARGE.seed)
    assert (sizes.Lk, sizes.bias) == (1, "minus_infinity")
