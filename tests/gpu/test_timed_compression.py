"""What device_timing calls of the compression family on a device, called here: NumPy in CuPy's place, the emulator in the device's."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oracles.gpu import timed_compression
from oracles.gpu.timed_compression import compression_calls

pytestmark = pytest.mark.gpu

PORTS = ("quantize", "quantized_matmul", "prune_2_4", "pack_2_4")
IN_CUPYS_PLACE = SimpleNamespace(
    float32=np.float32, asarray=np.asarray, random=SimpleNamespace(standard_normal=np.random.default_rng(0).standard_normal)
)  # fmt: skip


def test_every_timed_call_answers_in_finite_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PORTS:
        monkeypatch.setattr(timed_compression, name, partial(getattr(timed_compression, name), backend="emulated"))
    calls: list[Any] = compression_calls(IN_CUPYS_PLACE, None, small=True)
    for call in calls:
        results = call.port()
        for result in results if isinstance(results, tuple) else (results,):
            assert np.isfinite(result.astype(np.float64)).all(), call.name
            assert result.astype(np.float64).any() or call.name.startswith("quantize"), call.name     # symmetric zero points are 0
    assert all(call.work > 0 for call in calls)
    assert len({call.name for call in calls}) == len(calls)
