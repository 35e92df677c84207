"""Limbs are proven: compared with exact fractions, at ties, at zeros, at the ends of the range. Needs python-flint."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from oracles.golden import ball_experts, ball_optimizers, ball_quantization
from oracles.golden.balls import exact, product
from oracles.golden.certified import PRECISIONS, Unproven, certified, flint
from oracles.golden.sets import SETS

pytestmark = pytest.mark.certify


def rounded(x: Fraction) -> tuple[float, float]:
    """Python's own division of integers is correctly rounded."""
    hi = x.numerator / x.denominator
    rest = x - Fraction(hi)
    return hi, rest.numerator / rest.denominator


def test_limbs_of_quotients_are_those_of_exact_fractions() -> None:
    g = np.random.default_rng(0)
    a, b = g.integers(1, 2**62, 200), g.integers(1, 2**62, 200)
    limbs, _ = certified(lambda: {"x": np.asarray([flint().arb(int(m)) / flint().arb(int(n)) for m, n in zip(a, b)], dtype=object)})
    want = [rounded(Fraction(int(m), int(n))) for m, n in zip(a, b)]
    assert list(zip(limbs["x"].hi.tolist(), limbs["x"].lo.tolist())) == want


@pytest.mark.parametrize(("odd", "exponent"), [(2**53 + 1, 0), (2**53 + 3, 0), (2**53 + 7, 900), (1, -1075), (3, -1075), (5, -1075)])
def test_an_exact_tie_goes_to_even_and_its_rest_is_exact(odd: int, exponent: int) -> None:
    x = Fraction(odd) * Fraction(2) ** exponent
    limbs, bits = certified(lambda: {"x": np.asarray([flint().arb(odd) * flint().arb(2) ** exponent], dtype=object)})
    assert (limbs["x"].hi[0], limbs["x"].lo[0]) == rounded(x)
    assert bits == PRECISIONS[0]


def test_a_sum_that_cancels_to_zero_only_in_the_end_is_an_exact_zero() -> None:
    """Terms 2^700 apart: no exact ball before 720 bits."""
    row = exact(np.asarray([[2.0**350, 2.0**-350, -(2.0**350), -(2.0**-350)]]))
    limbs, bits = certified(lambda: {"x": product(row, exact(np.ones((4, 1))))})
    assert (limbs["x"].hi.item(), limbs["x"].lo.item()) == (0.0, 0.0)
    assert bits > 640


def test_what_never_separates_is_unproven() -> None:
    """(sqrt 2)^2 - 1 + 2^53 lies half way between two numbers, but no ball around it ever is only that point."""
    with pytest.raises(Unproven, match="1 of x: not proven at 10240 bits"):
        certified(lambda: {"x": np.asarray([flint().arb(2).sqrt() ** 2 - 1 + 2**53], dtype=object)})


def test_a_zero_that_no_ball_shows_is_proven_once_all_of_the_ball_rounds_to_zero() -> None:
    limbs, bits = certified(lambda: {"x": np.asarray([flint().arb(2).sqrt() ** 2 - 2], dtype=object)})
    assert (limbs["x"].hi[0], limbs["x"].lo[0], bits) == (0.0, 0.0, 1280)


def test_infinity_and_exact_numbers_pass_through() -> None:
    limbs, _ = certified(lambda: {"x": np.asarray([-np.inf, 0.5], dtype=object)})
    assert limbs["x"].hi.tolist() == [-np.inf, 0.5]
    assert limbs["x"].lo.tolist() == [0.0, 0.0]


def test_balls_take_no_nan() -> None:
    with pytest.raises(ValueError, match="x: got NaN or infinity; want numbers"):
        exact([np.nan])


def test_the_precision_of_others_is_left_alone() -> None:
    before = flint().ctx.prec
    certified(lambda: {"x": exact([1.0])})
    assert flint().ctx.prec == before


def test_codes_at_exact_ties_are_proven_and_go_to_even() -> None:
    limbs, bits = certified(lambda: ball_quantization.quantize([0.5, 1.5, 2.5, -0.5, -1.5, 3.0], bits=8, scale=[1.0]))
    assert (limbs["q"].hi.tolist(), bits) == ([0.0, 2.0, 2.0, 0.0, -2.0, 3.0], PRECISIONS[0])


def test_a_weight_at_an_exact_tie_is_proven_and_goes_to_even() -> None:
    """Nothing but the decay moves it: half of 2 (1 + 2^-8) lies between two numbers of bfloat16."""
    options = {"step": 1, "lr": 0.5, "beta1": 0.5, "beta2": 0.5, "eps": 1.0, "weight_decay": 1.0, "loss_scale": 1.0, "max_norm": None}
    tie = 2.0 * (1.0 + 2.0**-8)
    limbs, _ = certified(lambda: ball_optimizers.master_weight_step([0.0], [tie], [0.0], [0.0], fmt="bfloat16", **options))  # type: ignore[arg-type]
    assert (limbs["master"].hi.tolist(), limbs["weights"].hi.tolist()) == ([tie / 2.0], [1.0])


def test_a_code_and_a_weight_that_balls_leave_open_are_unproven() -> None:
    """(sqrt 2)^2 / 4 is a half that no ball around it shows to be one."""
    for open_value in (lambda half: ball_quantization._whole(half), lambda half: ball_optimizers._rounded(1 + half / 2**7, "bfloat16")):
        with pytest.raises(Unproven, match="1 of x"):
            certified(lambda f=open_value: {"x": np.asarray([f(flint().arb(2).sqrt() ** 2 / 4)], dtype=object)})  # type: ignore[misc]


def test_a_choice_of_experts_that_balls_leave_open_is_unproven_and_equal_logits_are_not() -> None:
    """1/2 by its probability against 0 + 1/2 by its bias: no ball lies above the other. Equal logits go by their index."""
    tie = {"k": 1, "normalize": False, "bias": [0.0, 0.0, 0.5]}
    with pytest.raises(Unproven, match="1 of ids, 1 of gates"):
        certified(lambda: ball_experts.route([[0.0, 0.0, -np.inf]], **tie))  # type: ignore[arg-type]
    limbs, bits = certified(lambda: ball_experts.route([[0.0, 1.0, 1.0]], k=2, normalize=True))
    assert (limbs["ids"].hi.tolist(), limbs["gates"].hi.tolist(), bits) == ([[1.0, 2.0]], [[0.5, 0.5]], PRECISIONS[0])


@pytest.mark.parametrize("one", SETS, ids=lambda one: one.operation)
def test_there_are_a_dozen_cases_and_their_names_are_their_own(one: object) -> None:
    names = [case.origin for case in one.cases()]  # type: ignore[attr-defined]
    assert len(names) == len(set(names)) >= 12
