"""The zoo of quantization and pruning: its reports have mutants that die by a law, and its legal variants are accused by none."""

from __future__ import annotations

import pytest

from oracles.properties.zoo import keeper
from oracles.properties.zoo.specimen import Specimen

IDS = {
    "quantization": (
        "quantise-mutates-caller-scale-buffer", "symmetric-all-positive-zero-point", "blockwise-large-block-wrong-absmax",
        "clamp-before-adding-zero-point", "zero-point-minus-one-wraps", "int8-wraps-instead-of-saturating",
        "int8-truncates-instead-of-rounding", "zero-scale-block", "kv-scale-dropped-positional-args", "nested-absmax-not-dequantised",
        "unsigned-levels-clamped-in-signed-range",
    ),
    "pruning": ("nm-mask-all-true", "nm-mask-magnitude-with-offset-codes", "progressive-mask-left-at-end",
                "mask-multiplied-over-iterations"),
}  # fmt: skip
ALL = keeper.inhabitants(tuple(IDS))
MUTANTS = [s for s in ALL if s.kind == "mutant"]
VARIANTS = [s for s in ALL if s.kind == "variant"]
SAMPLE = ("quantize-reciprocal", "quantize-zero-point-inside", "quantize-halves-away", "quantize-scale-stored-last", "dequantize-expanded",
          "int8-matmul-split", "blockwise-block-by-block", "prune-by-selection", "prune-nearest-count", "two-four-last-of-equals",
          "masks-from-survivors")  # fmt: skip


@pytest.mark.parametrize("family", IDS)
def test_every_report_of_a_family_has_one_mutant(family: str) -> None:
    assert sorted(s.id for s in MUTANTS if s.family == family) == sorted(IDS[family])


def test_there_are_more_than_ten_legal_variants_and_every_convention_is_followed_by_some() -> None:
    assert len(VARIANTS) > 10
    for name, own in {"code_ties": "even", "symmetric_codes": "narrow", "scale_of_codes": "stored", "pruned_count": "floor",
                      "pruned_ties": "lowest"}.items():
        assert any(s.declaration.conventions[name] != own for s in VARIANTS), name


@pytest.mark.parametrize("name", SAMPLE)
def test_no_law_accuses_it(name: str) -> None:
    fate = keeper.fate_of(next(s for s in VARIANTS if s.id == name), budget="quick")
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")


@pytest.mark.long
@pytest.mark.parametrize("budget", ["quick", "default"])
@pytest.mark.parametrize("specimen", VARIANTS, ids=[s.id for s in VARIANTS])
def test_no_law_accuses_any(specimen: Specimen, budget: str) -> None:
    fate = keeper.fate_of(specimen, budget=budget)
    assert (fate.status, fate.law, fate.reason) == ("lives", "", "")
