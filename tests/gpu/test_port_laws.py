"""Every CUDA port, run by the emulator, holds the laws of its operation: small ragged shapes, every convention and format it declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracles.properties import check
from oracles.properties.loading import load
from oracles.tools.gpu_ports import FORMATS, GPU_PORTS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("operation", "port"), GPU_PORTS, ids=[port.rpartition(":")[2] for _, port in GPU_PORTS])
def test_a_port_holds_the_laws_of_its_operation(operation: str, port: str, tmp_path: Path) -> None:
    report = check(operation, port, budget="quick", failures=tmp_path)
    assert report.held, [verdict for verdict in report.to_json()["verdicts"] if verdict["status"] in ("failed", "error")]
    formats = load(port, operation)[1].coverage.dtypes
    assert set(report.to_json()["power"]) == set(formats)                       # something was judged in each of them
    assert set(formats) <= set(FORMATS)
