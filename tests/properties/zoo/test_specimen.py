"""Specimens: what the marks mutant and variant ask for, and what they make of a function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oracles.properties.declaration import UsageError
from oracles.properties.zoo.specimen import mutant, specimens_in, variant


def softmax(x: Any, *, axis: int = -1) -> Any:
    """The sum is
    forgotten."""


def fresh() -> Any:
    """A function that carries no mark yet."""

    def softmax_again(x: Any, *, axis: int = -1) -> Any:
        """The sum is
        forgotten."""

    return softmax_again


def only(function: Any) -> Any:
    (specimen,) = specimens_in(SimpleNamespace(function=function))
    return specimen


def test_a_mutant_carries_what_was_said_of_it() -> None:
    def trigger() -> dict[str, Any]:
        return {}

    function = fresh()
    specimen = only(mutant("softmax", id="sum-forgotten", source="https://example.org/1", family="sums", trigger=trigger)(function))
    assert (specimen.kind, specimen.id, specimen.family, specimen.operation) == ("mutant", "sum-forgotten", "sums", "softmax")
    assert (specimen.source, specimen.fault) == ("https://example.org/1", "The sum is forgotten.")
    assert specimen.function is function
    assert specimen.trigger is trigger


def test_the_family_is_the_operation_unless_given() -> None:
    assert only(mutant("softmax", id="a", source="https://example.org/1")(fresh())).family == "softmax"


def test_an_equivalent_mutant_is_a_control() -> None:
    assert only(mutant("softmax", id="a", source="https://example.org/1", equivalent=True)(fresh())).kind == "control"


def test_a_variant_needs_no_source() -> None:
    specimen = only(variant("softmax", id="two-passes")(fresh()))
    assert (specimen.kind, specimen.source, specimen.trigger) == ("variant", "", None)


def test_what_is_declared_reaches_the_declaration() -> None:
    specimen = only(variant("softmax", id="a", dtypes=["float16"], arithmetic="eager")(fresh()))
    assert specimen.declaration.name == "a"
    assert specimen.declaration.coverage.dtypes == ("float16",)
    assert specimen.declaration.arithmetic.recomputes


def test_a_function_may_be_marked_for_two_operations() -> None:
    function = fresh()
    variant("softmax", id="a")(function)
    variant("log_sum_exp", id="b")(function)
    found = specimens_in(SimpleNamespace(function=function))
    assert [(s.id, s.operation) for s in found] == [("a", "softmax"), ("b", "log_sum_exp")]
    assert [s.declaration.operation for s in found] == ["softmax", "log_sum_exp"]


def test_specimens_come_in_the_order_of_the_text() -> None:
    module = SimpleNamespace(later=variant("softmax", id="z")(fresh()), constant=3, plain=softmax, last=variant("softmax", id="a")(fresh()))
    assert [s.id for s in specimens_in(module)] == ["z", "a"]


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="operation: got 'softmaks'; want one of `oracles list`, such as softmax"):
        mutant("softmaks", id="a", source="https://example.org/1")


def test_a_mutant_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match="source: sum-forgotten has none; want the address of the report"):
        mutant("softmax", id="sum-forgotten", source="")


@pytest.mark.parametrize("mark", [lambda: mutant("softmax", id="a", source="https://example.org/1"), lambda: variant("softmax", id="a")])
def test_a_function_without_a_docstring_is_refused(mark: Any) -> None:
    def silent(x: Any) -> Any: ...

    with pytest.raises(ValueError, match="a: silent has no docstring; want one sentence that says what is wrong or peculiar"):
        mark()(silent)


@pytest.mark.parametrize(("declared", "message"), [
    ({"layout": "lbhd"}, "layout: got 'lbhd'"), ({"arithmetic": "exact"}, "arithmetic: got 'exact'"),
])  # fmt: skip
def test_a_wrong_declaration_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        variant("softmax", id="a", **declared)(fresh())


def test_a_function_that_needs_more_than_the_contract_has_is_refused() -> None:
    def softmax_with_temperature(x: Any, temperature: float) -> Any:
        """Divides by a temperature first."""

    with pytest.raises(UsageError, match="needs temperature, which softmax does not have"):
        variant("softmax", id="a")(softmax_with_temperature)
