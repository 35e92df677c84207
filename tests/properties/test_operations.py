"""The operations: every one has what the contract says of it, and its bounds fit its answers."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from oracles.properties import UsageError
from oracles.properties.arithmetic import Arithmetic
from oracles.properties.array_lists import whole_name
from oracles.properties.coverage import Coverage
from oracles.properties.declaration import of_function
from oracles.properties.operation import Operation
from oracles.properties.operations import OPERATIONS, operation_named
from oracles.properties.signatures import SIGNATURES

EVERY = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)


def test_every_signature_has_an_operation() -> None:
    assert [operation.name for operation in OPERATIONS] == list(SIGNATURES)


@EVERY
def test_the_oracle_takes_the_arguments_of_the_contract_in_its_order(operation: Operation) -> None:
    parameters = inspect.signature(operation.oracle).parameters
    assert tuple(parameters) == operation.signature.arguments
    assert tuple(n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY) == operation.signature.optional


@EVERY
def test_laws_have_names_of_their_own_and_statements(operation: Operation) -> None:
    names = [law.name for law in operation.laws]
    assert names[0] == "answers"
    assert len(set(names)) == len(names)
    assert all(law.statement for law in operation.laws)
    assert len({name[:24].rstrip("_") for name in names}) == len(names)         # folders of counterexamples are named so


@EVERY
def test_answers_and_bounds_of_the_first_designed_cases_have_the_same_names_and_shapes(operation: Operation) -> None:
    conventions = of_function(operation.oracle, operation.name).conventions
    source = operation.cases()
    for recipe in source.designed(Coverage(arguments=frozenset(operation.signature.optional)))[:8]:
        case = source.build(recipe)
        wanted = operation.answer(case, conventions)
        allowed = operation.allowed(Arithmetic().resolve(operation.input_format(case)), case, conventions)
        assert {n: w.shape for n, w in wanted.items()} == {n: a.shape for n, a in allowed.items()}
        assert {whole_name(name) for name in wanted} <= set(operation.signature.results)
        assert not any(np.isnan(a).any() or (a < 0).any() for a in allowed.values())


def test_an_unknown_operation_is_refused_with_the_names_that_are_near() -> None:
    with pytest.raises(UsageError, match="OPERATION: got 'atention'; want one of `oracles list`, such as attention"):
        operation_named("atention")
