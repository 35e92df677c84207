"""The zoo of rope and write_kv: every report has a mutant that dies by a law, no legal variant is accused, the textbook is right."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic, check, subject
from oracles.properties.operations import operation_named
from oracles.properties.subjects import InProcess
from oracles.properties.trial import Trial
from oracles.properties.zoo import keeper, rope, textbook_rope, variants_rope
from oracles.properties.zoo.specimen import Specimen

REPORTS = (
    "rope-freq-table-and-pairing-mismatch", "rope-output-deinterleaved", "rope-pairing-half-vs-interleaved", "phases-in-the-models-format",
    "frequencies-cast-to-the-models-format", "partial-rotary-dim-ignored", "frequencies-counted-over-the-head",
    "yarn-mscale-fields-ignored", "yarn-factor-applied-twice", "quantised-key-shift-skipped", "value-read-from-key-cache",
    "padding-slot-written-to-the-last",
)  # fmt: skip
OURS = [s for s in keeper.inhabitants(("rope", "kv-cache")) if s.operation in ("rope", "write_kv")]
MUTANTS = {s.id: s for s in OURS if s.kind == "mutant"}
VARIANTS = {s.id: s for s in OURS if s.kind == "variant"}
each_mutant = pytest.mark.parametrize("specimen", MUTANTS.values(), ids=list(MUTANTS))
each_variant = pytest.mark.parametrize("specimen", VARIANTS.values(), ids=list(VARIANTS))
FORMATS = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def test_every_report_has_its_mutant() -> None:
    assert sorted(MUTANTS) == sorted(REPORTS)
    assert not [s for s in OURS if s.kind == "control"]


def test_there_are_variants_enough_of_each_operation() -> None:
    operations = [s.operation for s in VARIANTS.values()]
    assert operations.count("rope") >= 10
    assert operations.count("write_kv") >= 5


@each_mutant
def test_sources_are_addresses(specimen: Specimen) -> None:
    assert specimen.source
    assert all(address.startswith("https://github.com/") for address in specimen.source.split())


@pytest.mark.parametrize("specimen", OURS, ids=[s.id for s in OURS])
def test_what_is_wrong_or_peculiar_is_said_in_a_sentence(specimen: Specimen) -> None:
    assert re.fullmatch(r"\S.{15,250}\.", specimen.fault)


@each_mutant
def test_it_differs_on_its_own_trigger(specimen: Specimen) -> None:
    assert keeper.why_invalid(specimen) == ""


@each_mutant
def test_designed_cases_alone_kill_it(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="quick")
    assert fate.status == "killed", fate.reason


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@each_mutant
def test_random_cases_do_not_save_a_mutant(specimen: Specimen, seed: int) -> None:
    assert keeper.fate_of(specimen, budget="default", seed=seed).status == "killed"


@each_variant
def test_no_law_accuses_it_in_its_turn(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="default", turn=list(VARIANTS).index(specimen.id))
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@each_variant
def test_no_law_accuses_it(specimen: Specimen, seed: int) -> None:
    fate = keeper.fate_of(specimen, budget=200, seed=seed)
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


# What single mutants claim of themselves --------------------------------------------------------------------------------


def answer(function: Any, arguments: dict[str, Any]) -> Any:
    return np.asarray(function(**arguments), np.float64)


def test_a_wrong_pairing_of_queries_and_keys_alike_hides_from_their_products() -> None:
    """An attention-only test passes: the products of the deinterleaved mutant are the right ones."""
    arguments = rope.rows([3, 9], D=8, dtype="float64", pairing="interleaved")
    right, wrong = answer(textbook_rope.rope, arguments), answer(rope.interleaved_pairs_come_out_in_halves, arguments)
    assert not np.array_equal(right, wrong)
    assert np.abs(right @ right.T - wrong @ wrong.T).max() <= 16 * 2.0**-53 * (right**2).sum(axis=-1).max()


def test_angles_laid_out_for_the_other_pairing_are_no_rotation() -> None:
    out = answer(rope.angles_laid_out_for_the_other_pairing, rope.rows([3, 7], dtype="float64"))
    assert np.abs((out**2).sum(axis=-1) - 30).min() > 0.1


def test_frequencies_over_the_head_are_right_at_position_zero() -> None:
    arguments = rope.rows([0], D=8, rotary_dim=4)
    assert np.array_equal(answer(rope.exponents_over_the_head, arguments), answer(textbook_rope.rope, arguments))


def test_sixteen_bit_phases_pass_where_they_are_declared() -> None:
    """What is rejected is not the arithmetic but that it is not said."""
    declared = subject("rope", dtypes=["bfloat16"], arithmetic=Arithmetic(phases="bfloat16", elementwise="float32"))
    specimen = MUTANTS["phases-in-the-models-format"]

    @declared
    def honest(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> Any:
        return specimen.function(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim)

    report = check("rope", honest, budget="quick")
    assert {v.law: v.reason for v in report.verdicts if v.status == "failed"} == {}


# The textbook -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["rope", "write_kv"])
def test_the_textbook_keeps_every_law_in_every_format(operation: str) -> None:
    right = {"rope": lambda x, positions, **options: textbook_rope.rope(x, positions, **options),
             "write_kv": lambda k_cache, v_cache, k, v, slots: textbook_rope.write_kv(k_cache, v_cache, k, v, slots)}  # fmt: skip
    report = check(operation, subject(operation, dtypes=FORMATS, promises=["deterministic"])(right[operation]), budget="quick")
    assert report.held
    assert {v.law for v in report.verdicts if v.status != "held"} <= {"buffers_are_fully_written"}


def test_the_textbook_shares_nothing_with_the_oracles() -> None:
    for module in (textbook_rope, variants_rope, rope):
        assert not any(str(getattr(value, "__module__", "")).startswith("oracles.reference") for value in vars(module).values())


def test_a_table_refuses_what_lies_outside() -> None:
    specimen = VARIANTS["rope-gathered-from-a-table"]
    operation = operation_named("rope")
    source = operation.cases()
    outside = [r for r in source.designed(specimen.declaration.coverage) if r.places == "negative" and r.T * r.B]
    trial = Trial(operation, InProcess(specimen.function, specimen.declaration), source.build(outside[0]))
    assert trial.outcome.kind == "refused"
