"""The page of an operation says all that decides it."""

from __future__ import annotations

import inspect

import pytest

from oracles.properties.conventions import CONVENTIONS
from oracles.properties.operation import Operation
from oracles.properties.operations import OPERATIONS
from oracles.tools.showing import page, page_json

EVERY = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)


@EVERY
def test_the_page_holds_signature_contract_bound_laws_and_source(operation: Operation) -> None:
    data, text = page_json(operation.name), page(operation.name)
    assert f"```\n{data['signature']}" in text
    for name in operation.signature.arguments:
        assert name in data["signature"]
    assert data["contract"] == inspect.getdoc(operation.oracle)
    assert len(data["bound"]) > 100
    for part in (data["contract"], data["bound"], operation.source, *(law.name for law in operation.laws)):
        assert part in text


@EVERY
def test_conventions_are_shown_where_they_matter(operation: Operation) -> None:
    shown = {convention["name"] for convention in page_json(operation.name)["conventions"]}
    assert shown == {name for name, convention in CONVENTIONS.items() if operation.name in convention.operations}
    assert page_json("softmax")["conventions"][0]["name"] == "empty_rows"
    assert "head_map" not in {convention["name"] for convention in page_json("softmax")["conventions"]}


def test_a_signature_has_names_and_defaults_and_no_annotations() -> None:
    assert page_json("softmax")["signature"] == "softmax(x, *, axis=-1)"
    assert page_json("attention")["signature"].startswith("attention(q, k, v, *, causal, window=None, scale=None, softcap=None")
