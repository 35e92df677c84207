"""`oracles prove`: every lemma proven, every broken variant refuted in numbers that enumeration bears out, and what is printed of it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from fractions import Fraction
from importlib import resources
from typing import Any

import jsonschema
import pytest

from oracles.properties.declaration import UsageError
from oracles.tools.prove import prove

WANTED = {"residual_not_renormalised", "ratio_swapped", "resampled_from_p", "residual_of_absolute_differences", "bonus_from_q",
          "sampled_at_another_temperature", "ratio_and_residual_of_different_filters", "typical_acceptance",
          "missing_bonus_keeps_the_length_law"}


def test_without_z3_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(UsageError, match=r"z3 is not installed; want it: pip install 'oracles\[proofs\]'"):
        prove("speculative", as_json=True)


def test_an_unknown_proof_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="NAME: got 'attention'; want one of speculative"):
        prove("attention", as_json=False)


def proven(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert prove("speculative", as_json=True) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["lemmas"]
    return found


@pytest.mark.proofs
def test_every_lemma_comes_out_as_expected_within_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    lemmas = proven(capsys)
    assert {lemma["name"]: lemma["result"] for lemma in lemmas} == {lemma["name"]: lemma["expected"] for lemma in lemmas}
    assert {lemma["name"] for lemma in lemmas if lemma["result"] == "refuted"} >= WANTED
    assert sum(lemma["result"] == "proven" for lemma in lemmas) >= 12
    assert sum(lemma["seconds"] for lemma in lemmas) < 60


@pytest.mark.proofs
def test_the_json_fits_its_schema_and_the_schema_refuses_what_lacks_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(resources.files("oracles.tools").joinpath("schemas", "prove.schema.json").read_text())
    lemmas = proven(capsys)
    jsonschema.validate({"lemmas": lemmas}, schema)
    assert all((lemma["countermodel"] is None) == (lemma["result"] == "proven") for lemma in lemmas)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"lemmas": [{key: lemmas[0][key] for key in lemmas[0] if key != "countermodel"}]}, schema)


@pytest.mark.proofs
def test_a_countermodel_is_a_draft_and_a_target_and_what_comes_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    for lemma in proven(capsys):
        if lemma["countermodel"] is not None:
            numbers = {name: [Fraction(x) for x in values] for name, values in lemma["countermodel"].items()}
            assert sum(numbers["p"]) == sum(numbers["q"]) == 1
            assert numbers["emitted"] != numbers["wanted"]


@pytest.mark.proofs
def test_the_screen_shows_words_formulas_numbers_and_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert prove(None, as_json=False) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "q(x) a(x) + (1 − A) r(x) = p(x)" in text
    assert "proven one_step_returns_the_target" in text
    assert "emitted = (" in text
    assert " ms " in text


@pytest.mark.proofs
def test_a_lemma_that_does_not_hold_is_told_and_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from oracles.tools import lemmas_speculative

    false = replace(lemmas_speculative.REFUTED[1], enumerated=None)             # expected proven now
    monkeypatch.setattr(lemmas_speculative, "LEMMAS", (false,))
    assert prove("speculative", as_json=False) == 1
    assert "refuted, expected proven" in capsys.readouterr().out


@pytest.mark.proofs
def test_hypotheses_that_contradict_each_other_prove_nothing() -> None:
    from oracles.tools import lemmas_speculative
    from oracles.tools.prove import settle

    (query,) = lemmas_speculative.PROVEN[1].queries()
    from_nothing = replace(query, hypotheses=[*query.hypotheses, lemmas_speculative.p > 1])
    with pytest.raises(ValueError, match="contradict each other"):
        settle(replace(lemmas_speculative.PROVEN[1], queries=lambda: [from_nothing]))


@pytest.mark.proofs
def test_a_countermodel_that_enumeration_does_not_bear_out_is_an_error() -> None:
    from oracles.tools import lemmas_speculative
    from oracles.tools.prove import settle

    swapped, resampled = lemmas_speculative.REFUTED[1:3]
    with pytest.raises(ValueError, match="enumerated, emits"):
        settle(replace(swapped, enumerated=resampled.enumerated))


@pytest.mark.proofs
@pytest.mark.parametrize("dropped", ["R >= If(p - q > 0, p - q, 0)", "A + R == 1", "Implies(q > 0, a*q == If(p <= q, p, q))"])
def test_one_step_needs_each_of_its_hypotheses(dropped: str) -> None:
    from oracles.tools import lemmas_speculative
    from oracles.tools.prove import settle

    lemma = lemmas_speculative.PROVEN[1]
    (query,) = lemma.queries()
    weaker = [h for h in query.hypotheses if str(h) != dropped]
    assert len(weaker) == len(query.hypotheses) - 1
    assert settle(replace(lemma, queries=lambda: [replace(query, hypotheses=weaker)])).result == "refuted"
