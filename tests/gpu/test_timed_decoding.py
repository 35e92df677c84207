"""What device_timing calls on a device, called here: NumPy in CuPy's place, the emulator in the device's."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oracles.gpu import timed_decoding
from oracles.gpu.timed_decoding import cache_calls, decoding_calls

pytestmark = pytest.mark.gpu

PORTS = ("rope", "write_kv", "paged_attention", "mla_attention_absorbed", "filter_probabilities", "sample", "speculative_verify")
GENERATOR = np.random.default_rng(0)
IN_CUPYS_PLACE = SimpleNamespace(
    float32=np.float32, arange=np.arange, asarray=np.asarray, ascontiguousarray=np.ascontiguousarray,
    random=SimpleNamespace(standard_normal=GENERATOR.standard_normal, random=GENERATOR.random),
)  # fmt: skip


def test_every_timed_call_answers_in_finite_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PORTS:
        monkeypatch.setattr(timed_decoding, name, partial(getattr(timed_decoding, name), backend="emulated"))
    calls: list[Any] = [*cache_calls(IN_CUPYS_PLACE, None, small=True), *decoding_calls(IN_CUPYS_PLACE, small=True)]
    for call in calls:
        results = call.port()
        for result in results if isinstance(results, tuple) else (results,):
            assert np.isfinite(result.astype(np.float64)).all(), call.name
    assert all(call.work > 0 for call in calls)
