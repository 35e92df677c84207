"""Bytes of training beside DeepSpeed's estimates: not the same numbers, and the difference is accounted for to the byte (docs/costs.md)."""

from __future__ import annotations

from typing import Any

import pytest

from oracles.reference import training_bytes

pytestmark = pytest.mark.more_peers

SIZES = (10**9, 7 * 10**9, 70 * 10**9)
DEVICES = (1, 8, 64)
EXACT: dict[str, Any] = {"cpu_offload": False}


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("N", SIZES)
def test_deepspeeds_stage_2_is_ours_with_a_float32_copy_of_the_gradients(N: int, devices: int) -> None:
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    _, theirs = estimate_zero2_model_states_mem_needs(N, num_gpus_per_node=devices, **EXACT)
    assert theirs == int(training_bytes(N, stage=2, world=devices, optimizer_bytes=12 + 4))
    assert theirs - int(training_bytes(N, stage=2, world=devices)) == 4 * N // devices


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("N", SIZES)
def test_deepspeeds_stage_3_has_float32_gradients_alone_and_one_layer_gathered(N: int, devices: int) -> None:
    """2 of weights, 4 of gradients, 12 of masters and moments are its 18; a gathered layer's weights and gradients are 4 bytes each."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

    layer = N // 40
    _, theirs, gathered = estimate_zero3_model_states_mem_needs(N, layer, num_gpus_per_node=devices, cpu_offload_params=False, **EXACT)
    assert gathered == 4 * layer
    assert theirs - gathered == int(training_bytes(N, stage=3, world=devices, gradient_bytes=4))
    assert theirs - gathered - int(training_bytes(N, stage=3, world=devices)) == 2 * N // devices


def test_weights_alone_stay_where_the_optimizer_is_offloaded() -> None:
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    _, theirs = estimate_zero2_model_states_mem_needs(10**9, num_gpus_per_node=8, cpu_offload=True)
    assert theirs == int(training_bytes(10**9, stage=2, world=8, gradient_bytes=0, optimizer_bytes=0))
