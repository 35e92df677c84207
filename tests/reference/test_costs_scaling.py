"""Laws of scaling, pipelines and traffic: published figures, and schedules gone through by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from oracles.reference import (
    chinchilla_loss,
    chinchilla_split,
    chinchilla_tokens,
    kaplan_ratio,
    pipeline_bubble,
    training_flops,
    words,
    zero_traffic,
)


@pytest.mark.parametrize(("parameters", "tokens"), [(70e9, "1.4e+12"), (175e9, "3.5e+12"), (8e9, "1.6e+11")])
def test_twenty_tokens_for_each_parameter(parameters: float, tokens: str) -> None:
    assert f"{chinchilla_tokens(parameters):.1e}" == tokens


def test_an_8b_model_at_15t_tokens_is_94_times_over() -> None:
    assert f"{15e12 / chinchilla_tokens(8e9):.0f}" == "94"


def test_15t_tokens_are_11_25t_words() -> None:
    assert words(15e12) == 11.25e12


def test_1e25_flops_at_1e15_take_1e10_seconds() -> None:
    assert 1e25 / 1e15 == 1e10


def test_a_split_of_flops_spends_them() -> None:
    N, D = chinchilla_split(6 * 20 * 2.0**60)
    assert (N, D, training_flops(N, D)) == (2.0**30, 20 * 2.0**30, 6 * 20 * 2.0**60)


def test_the_fitted_loss_falls_towards_its_floor() -> None:
    losses = [chinchilla_loss(10.0**i, 10.0**i) for i in (6, 9, 12, 15)]
    assert sorted(losses, reverse=True) == losses
    assert 1.69 < losses[-1] < 1.72
    assert chinchilla_loss(1.0, 1.0) == 1.69 + 406.4 + 410.7


@pytest.mark.parametrize(("variable", "ratio"), [("N", "0.949"), ("D", "0.936"), ("C", "0.966")])
def test_twice_of_one_variable_gains_what_the_exponent_says(variable: str, ratio: str) -> None:
    assert f"{kaplan_ratio(2.0, variable):.3f}" == ratio


def idle_share(stages: int, microbatches: int) -> Fraction:
    """GPipe drawn up slot by slot: micro-batch j is at stage i in slot i + j, forwards first, then backwards, each a slot."""
    busy = {(stage, stage + j) for stage in range(stages) for j in range(microbatches)}
    slots = max(slot for _, slot in busy) + 1
    return 1 - Fraction(len(busy), stages * slots)


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_the_bubble_is_that_of_a_schedule_drawn_up(stages: int, microbatches: int) -> None:
    assert pipeline_bubble(stages, microbatches) == idle_share(stages, microbatches)


def ring_elements(padded: int, world: int, passes: int) -> int:
    """Elements a rank sends in so many reduce-scatters or all-gathers of a ring: world - 1 steps of one part each."""
    return sum(padded // world for _ in range(passes) for _ in range(world - 1))


@pytest.mark.parametrize(("stage", "passes"), [(0, 2), (1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize(("parameters", "world"), [(1000, 1), (1000, 8), (1001, 4)])
def test_traffic_is_that_of_rings(stage: int, passes: int, parameters: int, world: int) -> None:
    padded = parameters + -parameters % world
    assert zero_traffic(parameters, stage=stage, world=world) == ring_elements(padded, world, passes)


@pytest.mark.parametrize(("call", "told"), [
    (lambda: training_flops(0.0, 1.0), "parameters: got 0.0"), (lambda: kaplan_ratio(2.0, "L"), "variable: got 'L'; want N, D or C"),
    (lambda: pipeline_bubble(0, 1), "stages: got 0"), (lambda: zero_traffic(1, stage=4, world=1), "stage: got 4; want 0, 1, 2 or 3"),
    (lambda: chinchilla_split(-1.0), "flops: got -1.0"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(call: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        call()
