"""The compile gate: machine code for three architectures, figures against the budget, errors one can read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oracles.gpu import nvrtc
from oracles.gpu.kernel import KERNELS
from oracles.tools.gpu_commands import gpu_app

pytestmark = pytest.mark.gpu

SIMPLE = """// y = x.   budget: {registers} registers, 0 spills
extern "C" __global__ void copy(const float* x, float* y) {{ y[threadIdx.x] = x[threadIdx.x]; }}
"""
# 32 registers for 96 numbers that all live at once.
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(const float* x, float* y, int n) {
  float a[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) a[i] = x[i * n + threadIdx.x];
  for (int pass = 0; pass < n; ++pass) {
#pragma unroll
    for (int i = 0; i < 96; ++i) a[i] = a[i] * a[(i * 7 + 1) % 96] + x[pass + i];
  }
#pragma unroll
  for (int i = 0; i < 96; ++i) y[i * n + threadIdx.x] = a[i];
}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "kernel.cu"
    path.write_text(text)
    return path


def test_a_kernel_compiles_for_three_architectures(tmp_path: Path) -> None:
    found = nvrtc.compile_kernels([written(tmp_path, SIMPLE.format(registers=64))])
    assert [one.architecture for one in found] == ["sm_80", "sm_90", "sm_100"]
    assert all(0 < one.registers <= 64 and one.spills == 0 and one.cubin_bytes > 1000 and not one.over_budget for one in found)


def test_a_kernel_over_its_budget_is_told_by_how_much(tmp_path: Path) -> None:
    (one,) = nvrtc.compile_kernels([written(tmp_path, SIMPLE.format(registers=1))], architectures=["sm_90"])
    assert one.over_budget == f"{one.registers} registers, want at most 1"


def test_a_spill_is_over_budget_without_a_budget(tmp_path: Path) -> None:
    (one,) = nvrtc.compile_kernels([written(tmp_path, SPILLING)], architectures=["sm_90"])
    assert one.spills > 0
    assert "bytes of spills, want at most 0" in one.over_budget


def test_static_shared_memory_is_counted(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void k(float* y) { __shared__ float s[100]; s[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[9]; }'
    (one,) = nvrtc.compile_kernels([written(tmp_path, text)], architectures=["sm_90"])
    assert one.shared == 400


# source, what the message has to say
REFUSED = [
    ('extern "C" __global__ void k(float* y) { y[0] = undeclared; }', 'identifier "undeclared" is undefined'),
    ('extern "C" __global__ void k() { asm volatile("mma.sync.aligned.m16n8k17.row.col;"); }', "Unknown modifier '.m16n8k17'"),
    ('#include "no_such.cuh"\nextern "C" __global__ void k() {}', "no_such.cuh"),
]


@pytest.mark.parametrize(("text", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_an_error_says_what_and_where(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(nvrtc.DoesNotCompile, match=r"kernel\.cu for sm_90") as caught:
        nvrtc.compile_kernels([written(tmp_path, text)], architectures=["sm_90"])
    assert says in str(caught.value)


def test_inline_ptx_of_the_wrappers_compiles_for_every_architecture(tmp_path: Path) -> None:
    text = """#include "ptx.cuh"
extern "C" __global__ void k(const float4* x, float* y) {
  __shared__ __align__(16) unsigned char s[2048];
  unsigned a[4], b[2]; float d[4] = {0, 0, 0, 0};
  ptx::cp_async_16(s + 16 * threadIdx.x, x + threadIdx.x, threadIdx.x < 20);
  ptx::cp_async_commit(); ptx::cp_async_wait<0>(); ptx::cp_async_wait_all(); __syncthreads();
  ptx::ldmatrix_x4(a, s + 16 * threadIdx.x); ptx::ldmatrix_x2(b, s + 16 * threadIdx.x);
  ptx::mma_m16n8k16_bf16(d, a, b);
  ptx::ldmatrix_x4_trans(a, s + 16 * threadIdx.x); ptx::ldmatrix_x2_trans(b, s + 16 * threadIdx.x);
  ptx::mma_m16n8k16_f16(d, a, b);
  y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}"""
    assert len(nvrtc.compile_kernels([written(tmp_path, text)])) == 3


INSTANCES = [
    ("// instances: f<float|__half, 64|128>\ntemplate <class T, int D> __global__ void f(T* x) {}",
     ["f<float, 64>", "f<float, 128>", "f<__half, 64>", "f<__half, 128>"]),
    ("// instances: f<1>,\n//   f<2>\n// more\ntemplate <int D> __global__ void f() {}\n__global__ void g() {}", ["f<1>", "f<2>", "g"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), INSTANCES)
def test_the_instances_stand_in_the_header(text: str, expected: list[str]) -> None:
    assert nvrtc.instances_of(text, "a.cu") == expected


def test_a_template_without_instances_is_refused_with_the_line_to_add() -> None:
    with pytest.raises(ValueError, match=r"want a comment line '// instances: f<float, 64\|128>'"):
        nvrtc.instances_of("template <int D> __global__ void f() {}", "a.cu")


@pytest.mark.parametrize(("line", "expected"), [("// grid (1)   budget: 40 registers, 0 spills", nvrtc.Budget(40, 0)), ("// none", None)])
def test_the_budget_stands_in_the_header(line: str, expected: nvrtc.Budget | None) -> None:
    assert nvrtc.budget_of(f"{line}\n") == expected


def test_missing_nvrtc_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc._nvrtc.cache_clear()
    monkeypatch.setattr(nvrtc, "wheel_folders", list)
    with pytest.raises(nvrtc.CannotCompile, match=r"pip install 'oracles\[nvrtc\]'"):
        nvrtc.compile_text("", "a.cu", "sm_90", [])
    nvrtc._nvrtc.cache_clear()


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.cu")), ids=lambda path: path.name)
def test_each_of_our_kernels_is_within_the_budget_of_its_header(path: Path) -> None:
    found = nvrtc.compile_kernels([path])
    assert {one.architecture for one in found} == set(nvrtc.ARCHITECTURES)
    assert [(one.kernel, one.architecture, one.over_budget) for one in found if one.over_budget or one.budget is None] == []


def test_the_command_prints_json_and_exits_1_over_budget(tmp_path: Path) -> None:
    good, bad = (CliRunner().invoke(gpu_app, ["compile", str(written(tmp_path, SIMPLE.format(registers=n))), "--arch", "sm_90", "--json"])
                 for n in (64, 1))  # fmt: skip
    assert (good.exit_code, bad.exit_code) == (0, 1)
    assert json.loads(good.stdout)[0]["kernel"] == "copy"


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    result = CliRunner().invoke(gpu_app, ["compile", str(written(tmp_path, SIMPLE.format(registers=64)))])
    assert result.exit_code == 0
    assert result.stdout.count("within budget") == 3


def test_the_gate_needs_no_cupy() -> None:
    assert "cupy" not in sys.modules
