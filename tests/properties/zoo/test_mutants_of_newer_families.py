"""What holds of every mutant of decoding, compression, costs and training: it differs on its own trigger, and designed cases kill it."""

from __future__ import annotations

import pytest

from oracles.properties.zoo import keeper
from oracles.properties.zoo.specimen import Specimen

FAMILIES = ("sampling", "speculative", "mtp", "quantization", "pruning", "loss", "distillation", "optimizer", "mixed-precision",
            "pipeline-parallel", "context-parallel", "expert-parallel", "data-parallel", "zero", "tensor-parallel",
            "metrics")  # fmt: skip
MUTANTS = [s for s in keeper.inhabitants(FAMILIES) if s.kind == "mutant"]
each_mutant = pytest.mark.parametrize("specimen", MUTANTS, ids=[s.id for s in MUTANTS])


@each_mutant
def test_it_differs_on_its_own_trigger(specimen: Specimen) -> None:
    assert keeper.why_invalid(specimen) == ""
    assert specimen.fault.endswith(".")
    assert all(address.startswith("https://github.com/") for address in specimen.source.split())


@each_mutant
def test_designed_cases_alone_kill_it(specimen: Specimen) -> None:
    fate = keeper.fate_of(specimen, budget="quick")
    assert (fate.status, fate.reason if fate.status != "killed" else "") == ("killed", "")
