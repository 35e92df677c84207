"""The published schemas describe what the commands print, and refuse what they do not."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import numpy as np
import pytest

from oracles.properties import check
from oracles.properties.zoo.keeper import inhabitants
from oracles.tools.zoo_table import Census, visit


def schema(name: str) -> Any:
    return json.loads(resources.files("oracles.tools").joinpath("schemas", f"{name}.schema.json").read_text())


@pytest.fixture(scope="module")
def reports() -> list[Any]:
    """A report that holds, and one with an infinite ratio, as strict JSON."""
    from oracles.reference import softmax

    def right(x: Any, *, axis: int = -1) -> Any:
        return softmax(x, axis=axis).astype(x.dtype)

    def wrong(x: Any, *, axis: int = -1) -> Any:
        return np.full_like(x, np.nan)

    return [json.loads(json.dumps(check("softmax", f, budget=0).to_json(), allow_nan=False)) for f in (right, wrong)]


def test_reports_fit_the_schema_alone_and_in_a_list(reports: list[Any]) -> None:
    assert [report["held"] for report in reports] == [True, False]
    for report in (*reports, reports):
        jsonschema.validate(report, schema("check"))


@pytest.mark.parametrize("key", ["operation", "subject", "held", "arithmetic", "seed", "seconds", "verdicts", "not_covered", "power"])
def test_a_report_without_a_stable_key_is_refused(reports: list[Any], key: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({name: value for name, value in reports[0].items() if name != key}, schema("check"))


def test_a_census_fits_the_schema() -> None:
    fates = tuple(visit(inhabitants(("gqa",))[:1], budget=0))
    census = json.loads(json.dumps(Census(fates, "0", 1.0).to_json(), allow_nan=False))
    jsonschema.validate(census, schema("zoo"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({name: value for name, value in census.items() if name != "missed"}, schema("zoo"))
