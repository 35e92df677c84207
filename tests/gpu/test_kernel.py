"""Kernel: sources found, back ends chosen by argument alone, a missing device said plainly."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oracles.gpu import Kernel, KernelFault
from oracles.gpu.emulator.faults import Finding
from oracles.gpu.kernel import KERNELS, find_source

COPY = 'extern "C" __global__ void copy(const float* x, float* y, int n, float scale) {}'


def copy(folder: Path, **options: Any) -> Kernel:
    source = folder / "copy.cu"
    source.write_text(COPY)
    return Kernel(source, "copy", **options)


def arguments() -> list[Any]:
    return [np.ones(4, np.float32), np.zeros(4, np.float32), 4, 0.5]


def test_our_kernels_are_found_by_name() -> None:
    assert find_source("softmax") == find_source("softmax.cu") == (KERNELS / "softmax.cu").resolve()


def test_a_missing_source_lists_ours() -> None:
    with pytest.raises(ValueError, match=r"no file missing.cu; want a .cu file, or one of ours: .*softmax.cu"):
        find_source("missing.cu")


def test_an_unknown_backend_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="backend: got 'opencl'; want one of cuda, emulated"):
        copy(tmp_path)((1,), (1,), arguments(), backend="opencl")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy_the_error_says_how_to_emulate(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"needs CuPy.*backend='emulated' and NumPy arrays"):
        copy(tmp_path)((1,), (1,), arguments())


def test_without_a_device_the_error_says_how_to_emulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    with pytest.raises(RuntimeError, match=r"needs a CUDA device, and there is none here.*backend='emulated' and NumPy arrays"):
        copy(tmp_path)((1,), (1,), arguments())


def test_on_a_device_the_arguments_are_those_of_the_packer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for CuPy: what reaches RawKernel, since a device would take a Python float for a double."""
    seen: dict[str, Any] = {}

    class Function:
        def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int) -> None:
            seen.update(grid=grid, block=block, args=args, shared_mem=shared_mem)

    class Module:
        def __init__(self, **given: Any) -> None:
            seen.update(given)

        def get_function(self, name: str) -> Function:
            seen["function"] = Function()
            return seen["function"]

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True), RawModule=Module))
    copy(tmp_path, options=["-DX=1"], max_shared_mem=100_000)([2], [32, 2], [None, *arguments()[1:]], shared_mem=60_000)
    assert (seen["grid"], seen["block"], seen["shared_mem"]) == ((2,), (32, 2), 60_000)
    assert seen["args"][0] == 0
    assert [a.dtype for a in seen["args"][2:]] == [np.int32, np.float32]
    assert seen["name_expressions"] == ("copy",)
    assert {"-std=c++17", "-DX=1"} <= set(seen["options"])
    assert seen["function"].max_dynamic_shared_size_bytes == 100_000


@pytest.mark.gpu
@pytest.mark.parametrize(("option", "value", "says"), [
    ("schedule", "sideways", "schedule: got 'sideways'; want 'in_order', 'reversed'"),
    ("outputs", ("z",), "outputs: got 'z'; want names of pointers: x, y"),
])  # fmt: skip
def test_an_option_of_the_emulator_is_refused_by_name(tmp_path: Path, option: str, value: Any, says: str) -> None:
    with pytest.raises(ValueError, match="^" + says.split(";")[0]) as caught:
        copy(tmp_path)((1,), (1,), arguments(), backend="emulated", **{option: value})
    assert says in str(caught.value)


@pytest.mark.gpu
def test_an_option_only_one_compiler_understands_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="options: got '--use_fast_math'"):
        copy(tmp_path, options=["--use_fast_math"])((1,), (1,), arguments(), backend="emulated")


def test_a_fault_carries_its_first_finding_as_fields() -> None:
    finding = Finding("race", "race on 's'", ("a.cu:1", "a.cu:2"), (0, 33), (1, 0, 0), "s", 8)
    fault = KernelFault("k", (finding, Finding("misaligned", "later")))
    assert (fault.kind, fault.array, fault.offset, fault.block) == ("race", "s", 8, (1, 0, 0))
    assert (fault.places, fault.threads) == (("a.cu:1", "a.cu:2"), (0, 33))
    assert str(fault) == "k: race on 's' [a.cu:1 and a.cu:2]\nlater"
