"""Arithmetic: what is left open follows from the inputs; unknown names and numbers are refused."""

from __future__ import annotations

from typing import Any

import pytest

from oracles.properties import Arithmetic
from oracles.properties.arithmetic import FORMAT_FIELDS, PRESETS


@pytest.mark.parametrize(
    ("dtype", "wide"), [("float64", "float64"), ("float32", "float32"), ("float16", "float32"), ("bfloat16", "float32")]
)
def test_undeclared_arithmetic_works_wide_and_answers_in_the_input_format(dtype: str, wide: str) -> None:
    r = Arithmetic().resolve(dtype)
    assert (r.inputs, r.out) == (dtype, dtype)
    assert {r.accumulate, r.elementwise, r.probabilities, r.scores, r.lse, r.gradient} == {wide}


def test_probabilities_follow_elementwise_and_scores_follow_accumulate() -> None:
    r = Arithmetic(elementwise="bfloat16", accumulate="float64").resolve("float16")
    assert (r.probabilities, r.scores, r.gradient) == ("bfloat16", "float64", "float64")


def test_phases_follow_elementwise_unless_declared() -> None:
    assert Arithmetic(elementwise="bfloat16").resolve("float16").phases == "bfloat16"
    assert Arithmetic(elementwise="bfloat16", phases="float32").resolve("float16").phases == "float32"


def test_moments_have_the_format_of_the_parameters_unless_declared() -> None:
    assert Arithmetic().resolve("bfloat16").moments == "bfloat16"
    assert Arithmetic(moments="float32").resolve("bfloat16").moments == "float32"


@pytest.mark.parametrize("name", FORMAT_FIELDS)
def test_input_stands_for_the_format_of_the_inputs(name: str) -> None:
    assert getattr(Arithmetic(**{name: "input"}).resolve("bfloat16"), name) == "bfloat16"


@pytest.mark.parametrize("name", FORMAT_FIELDS)
def test_an_unknown_format_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: .*'float31'; want one of float64"):
        Arithmetic(**{name: "float31"})


@pytest.mark.parametrize("name", ["exp_ulps", "log_ulps", "tanh_ulps", "trig_ulps", "tile_min", "gradient_blocks"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_number_that_is_not_positive_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: got .*; want a positive number"):
        Arithmetic(**{name: value})


def test_an_unknown_preset_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"arithmetic: got 'fast'; want an Arithmetic or one of default, flash_gpu, eager"):
        Arithmetic.preset("fast")


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_preset_leaves_no_format_open(name: str, dtype: str) -> None:
    resolved = Arithmetic.preset(name).resolve(dtype)
    assert all(getattr(resolved, field) not in (None, "input") for field in FORMAT_FIELDS)


def test_the_oracle_works_in_float64_on_the_same_inputs() -> None:
    widened = Arithmetic(truncating=True, probabilities="bfloat16").resolve("bfloat16").widened()
    assert widened.inputs == "bfloat16"
    assert {getattr(widened, field) for field in FORMAT_FIELDS} == {"float64"}
    assert not widened.truncating
