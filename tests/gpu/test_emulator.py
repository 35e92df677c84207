"""The emulator computes what CUDA defines: collectives, conversions, tensor-core layouts, schedules, the time limit, errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.gpu import Kernel, KernelFault
from oracles.gpu.emulator import building
from oracles.gpu.emulator.launching import EmulatedKernel
from oracles.gpu.kernel import KERNELS

pytestmark = pytest.mark.gpu

MATERIAL = Path(__file__).parent / "material"
SCHEDULES = ["in_order", "reversed", 3]
LANES = np.arange(64)
BALLOTS = [sum(1 << lane for lane in range(32) if (lane + first) % 3 == 0) for first in (0, 32)]


def body(folder: Path, text: str, signature: str = "const int* x, int* y") -> Kernel:
    source = folder / "body.cu"
    source.write_text(f'#include "ptx.cuh"\nextern "C" __global__ void k({signature}) {{ int t = threadIdx.x;\n{text}\n}}\n')
    return Kernel(source, "k")


# expression of the value x[t] of each thread, and what the 64 threads of the block have to get
COLLECTIVES: list[tuple[str, Any]] = [
    ("__shfl_sync(~0u, x[t], 3)", LANES // 32 * 32 + 3),
    ("__shfl_sync(~0u, x[t], 3, 8)", LANES // 8 * 8 + 3),
    ("__shfl_xor_sync(~0u, x[t], 5)", LANES ^ 5),
    ("__shfl_up_sync(~0u, x[t], 2)", np.where(LANES % 32 < 2, LANES, LANES - 2)),
    ("__shfl_down_sync(~0u, x[t], 2, 16)", np.where(LANES % 16 > 13, LANES, LANES + 2)),
    ("(int)__ballot_sync(~0u, x[t] % 3 == 0)", [BALLOTS[i // 32] for i in range(64)]),
    ("__any_sync(~0u, x[t] == 40)", LANES // 32),
    ("__all_sync(~0u, x[t] < 40)", 1 - LANES // 32),
    ("(int)__match_any_sync(~0u, x[t] % 16)", (1 << LANES % 16) * 65537),
    ("__reduce_add_sync(~0u, x[t])", np.where(LANES < 32, 496, 1520)),
    ("__reduce_max_sync(~0u, x[t])", LANES // 32 * 32 + 31),
    ("__syncthreads_count(x[t] < 10)", np.full(64, 10)),
    ("__syncthreads_or(x[t] == 63)", np.full(64, 1)),
    ("__syncthreads_and(x[t] < 63)", np.full(64, 0)),
    ("atomicAdd(y + 64, 0) * 0 + __popc(x[t])", [bin(i).count("1") for i in range(64)]),
    ("__clz(x[t])", [32 - i.bit_length() for i in range(64)]),
    ("(int)__brev(x[t])", [int(f"{i:032b}"[::-1], 2) for i in range(64)]),
    ("__float2int_rn(x[t] * 0.5f)", np.rint(LANES * 0.5)),
    ("__dp4a(0x01ff0203, 0x01010101 * x[t], 1)", LANES * (1 - 1 + 2 + 3) + 1),
]


@pytest.mark.parametrize(("expression", "expected"), COLLECTIVES, ids=[expression for expression, _ in COLLECTIVES])
def test_a_collective_gives_what_cuda_defines(tmp_path: Path, expression: str, expected: Any) -> None:
    y = np.zeros(65, np.int32)
    body(tmp_path, f"y[t] = {expression};")((1,), (64,), (LANES.astype(np.int32), y), backend="emulated", schedule=5)
    np.testing.assert_array_equal(y[:64], np.asarray(expected, np.int64).astype(np.uint32).view(np.int32))


ATOMICS = [("atomicAdd", 10, 10 + sum(range(64))), ("atomicSub", 10, 10 - sum(range(64))), ("atomicMax", 10, 63), ("atomicMin", 10, 0),
           ("atomicOr", 64, 127), ("atomicXor", 10, 10), ("atomicAnd", 63, 0)]  # fmt: skip


@pytest.mark.parametrize(("name", "start", "expected"), ATOMICS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_atomics_of_many_threads_add_up(tmp_path: Path, name: str, start: int, expected: int, schedule: Any) -> None:
    y = np.array([start], np.int32)
    body(tmp_path, f"{name}(y, x[t]);")((1,), (64,), (LANES.astype(np.int32), y), backend="emulated", schedule=schedule, check=True)
    assert y[0] == expected


def all_halves() -> np.ndarray[Any, Any]:
    return np.arange(2**16, dtype=np.uint16)


@pytest.mark.parametrize(("name", "dtype"), [("half", np.dtype(np.float16)), ("bfloat16", np.dtype(ml_dtypes.bfloat16))], ids=str)
def test_conversions_agree_with_ml_dtypes_bit_by_bit(name: str, dtype: Any) -> None:
    """All 65,536 values widened; narrowed: each of them, its neighbours in float32, and the ties between two of them."""
    narrow = all_halves().view(dtype)
    wide = np.zeros(2**16, np.float32)
    Kernel(MATERIAL / "conversions.cu", f"from_{name}")((512,), (128,), (narrow, wide, 2**16), backend="emulated")
    np.testing.assert_array_equal(wide, narrow.astype(np.float32))
    finite = np.sort(wide[np.isfinite(wide)])
    ties = (finite[1:].astype(np.float64) + finite[:-1]) / 2
    above, below = np.nextafter(finite, np.float32(np.inf)), np.nextafter(finite, np.float32(-np.inf))
    x = np.concatenate([finite, above, below, ties.astype(np.float32), np.float32([np.inf, -np.inf, 3e38, -3e38, 1e-45])])
    y = np.zeros(len(x), dtype)
    Kernel(MATERIAL / "conversions.cu", f"to_{name}")((len(x) // 128 + 1,), (128,), (x, y, len(x)), backend="emulated")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y.view(np.uint16), x.astype(dtype).view(np.uint16))


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_rows_are_quantised_as_numpy_does(check: bool, schedule: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 500)).astype(np.float16)
    q, scale = np.zeros((3, 500), np.int8), np.zeros(3, np.float32)
    kernel = Kernel(MATERIAL / "reductions.cu", "quantize_rows<128>")
    kernel((3,), (128,), (x, q, scale, 500), backend="emulated", check=check, schedule=schedule, outputs=("q", "scale"))
    expected = np.abs(x.astype(np.float32)).max(1) / np.float32(127)
    np.testing.assert_array_equal(scale, expected)
    np.testing.assert_array_equal(q, np.rint(x.astype(np.float32) / expected[:, None]))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_histogram_by_atomics_counts_all(schedule: Any) -> None:
    x, counts = np.random.default_rng(0).integers(0, 100, 1000).astype(np.int32), np.zeros(16, np.int32)
    Kernel(MATERIAL / "reductions.cu", "histogram")((3,), (96,), (x, 1000, counts), backend="emulated", check=True, schedule=schedule)
    np.testing.assert_array_equal(counts, np.bincount(x % 16, minlength=16))


def test_a_ballot_finds_the_first(tmp_path: Path) -> None:
    u, limit = np.random.default_rng(0).random((2, 4, 7)).astype(np.float32)
    first = np.zeros(4, np.int32)
    Kernel(MATERIAL / "reductions.cu", "first_above")((4,), (32,), (u, limit, first, 7), backend="emulated", check=True)
    np.testing.assert_array_equal(first, [int(row.argmax()) if row.any() else 7 for row in u > limit])


@pytest.mark.parametrize("check", [False, True])
def test_wmma_multiplies_exactly_on_small_integers(check: bool) -> None:
    a, b = np.random.default_rng(0).integers(-4, 5, (2, 16, 16)).astype(np.float16)
    c = np.zeros((16, 16), np.float32)
    Kernel(MATERIAL / "wmma_product.cu", "wmma_product")((1,), (32,), (a, b, c), backend="emulated", check=check, outputs=("c",))
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


PTX_PRODUCT = """
__shared__ __align__(16) unsigned short a[16 * 16], b[16 * 8];
for (int i = t; i < 32; i += 32) ptx::cp_async_16(a + 8 * i, x + 4 * i);
if (t < 16) ptx::cp_async_16(b + 8 * t, x + 128 + 4 * t);
ptx::cp_async_commit();
{wait}
__syncwarp();
unsigned ra[4], rb[2];
ptx::ldmatrix_x4(ra, a + (t % 16) * 16 + t / 16 * 8);
ptx::ldmatrix_x2_trans(rb, b + (t % 16) * 8);
float d[4] = {{0, 0, 0, 0}};
ptx::mma_m16n8k16_{format}(d, ra, rb);
for (int i = 0; i < 4; ++i) y[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
"""


def ptx_product(folder: Path, name: str, wait: str = "ptx::cp_async_wait<0>();") -> tuple[Any, Any]:
    dtype = np.float16 if name == "f16" else ml_dtypes.bfloat16
    g = np.random.default_rng(1)
    a, b = g.integers(-4, 5, (16, 16)).astype(dtype), g.integers(-4, 5, (16, 8)).astype(dtype)
    x = np.concatenate([a.ravel(), b.ravel()]).view(np.int32)
    y = np.zeros((16, 8), np.float32)
    kernel = body(folder, PTX_PRODUCT.format(format=name, wait=wait), "const int* x, float* y")
    kernel((1,), (32,), (x, y), backend="emulated", check=True, outputs=("y",))
    return y, a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_async_copies_ldmatrix_and_mma_multiply_exactly_on_small_integers(tmp_path: Path, name: str) -> None:
    got, expected = ptx_product(tmp_path, name)
    np.testing.assert_array_equal(got, expected)


def test_inline_ptx_stands_in_one_file_and_each_wrapper_has_a_twin() -> None:
    assert [path.name for path in KERNELS.iterdir() if "asm" in path.read_text()] == ["ptx.cuh"]
    wrappers = (KERNELS / "ptx.cuh").read_text()
    named = set(re.findall(r"forceinline__ void (?!NAME)(\w+)\(", wrappers)) | set(re.findall(r"^PTX_\w+\((\w+),", wrappers, re.MULTILINE))
    twins = set(re.findall(r"(?:inline|EMU_INLINE) void (\w+)\(", (Path(building.__file__).parent / "include" / "ptx_twins.h").read_text()))
    assert len(named) == 10
    assert named <= twins


def test_an_async_copy_never_waited_for_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KernelFault) as caught:
        ptx_product(tmp_path, "f16", wait="")
    assert "async_copy" in {finding.kind for finding in caught.value.findings}


SPINS = [
    ("a loop that does nothing", "volatile int i = 0; while (true) i = i + 1;"),
    ("a wait for another block", "while (atomicAdd(y, 0) == 0) {}"),
    ("a wait for a volatile", "while (*(volatile int*)y == 0) {}"),
    ("barriers without end", "while (true) __syncthreads();"),
]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(("title", "text"), SPINS, ids=[title for title, _ in SPINS])
def test_a_kernel_that_spins_meets_the_time_limit(tmp_path: Path, title: str, text: str, check: bool) -> None:
    kernel = body(tmp_path, text)
    with pytest.raises(KernelFault, match="time limit") as caught:
        kernel((1,), (64,), (np.zeros(4, np.int32), np.zeros(4, np.int32)), backend="emulated", check=check, seconds=0.3)
    assert caught.value.findings[0].places == ("body.cu:3",)


def test_a_launch_after_a_fault_is_unharmed(tmp_path: Path) -> None:
    kernel = body(tmp_path, "y[t] = x[t]; if (x[0]) y[1 << 20] = 0;")
    y = np.zeros(64, np.int32)
    with pytest.raises(KernelFault):
        kernel((1,), (64,), (LANES.astype(np.int32) + 1, y), backend="emulated", check=True)
    kernel((1,), (64,), (LANES.astype(np.int32), y), backend="emulated", check=True)
    np.testing.assert_array_equal(y, LANES)


def test_the_blocks_and_threads_are_numbered_as_on_a_device(tmp_path: Path) -> None:
    text = ("int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);\n"
            "int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);\n"
            "y[block * 24 + thread] = block * 24 + thread;")  # fmt: skip
    y = np.zeros(6 * 24, np.int32)
    body(tmp_path, text)((1, 2, 3), (2, 3, 4), (y[:0].copy(), y), backend="emulated", check=True)
    np.testing.assert_array_equal(y, np.arange(6 * 24))


def test_an_output_holds_nan_before_the_launch(tmp_path: Path) -> None:
    y = np.zeros(64, np.float32)
    body(tmp_path, "if (t < 3) y[t] = 1;", "float* y")((1,), (64,), (y,), backend="emulated", outputs=("y",))
    assert np.isnan(y[3:]).all()
    assert (y[:3] == 1).all()


@pytest.mark.parametrize("shared", ["extern __shared__ float s[];", "__shared__ float s[64];"], ids=["dynamic", "static"])
def test_shared_memory_holds_nan_until_it_is_written(tmp_path: Path, shared: str) -> None:
    y = np.zeros(64, np.float32)
    kernel = body(tmp_path, f"{shared} if (t < 3) s[t] = 1; __syncthreads(); y[t] = s[t];", "float* y")
    kernel((2,), (64,), (y,), shared_mem=256, backend="emulated")
    assert np.isnan(y[3:]).all()
    assert (y[:3] == 1).all()


def test_arrays_that_overlap_stay_overlapping(tmp_path: Path) -> None:
    both = LANES.astype(np.int32)
    body(tmp_path, "y[t] = x[t + 8];")((1,), (32,), (both, both[:32]), backend="emulated")
    np.testing.assert_array_equal(both[:32], LANES[8:40])


def test_random_schedules_show_a_missing_barrier_by_the_result(tmp_path: Path) -> None:
    """Fast mode finds no race, but the result depends on the order."""
    kernel = body(tmp_path, "__shared__ int s[64]; s[t] = x[t]; __syncwarp(); y[t] = s[63 - t];")
    results = set()
    for schedule in [*SCHEDULES, 4, 5]:
        y = np.zeros(64, np.int32)
        kernel((1,), (64,), (LANES.astype(np.int32), y), backend="emulated", schedule=schedule)
        results.add(y.tobytes())
    assert len(results) > 1


def test_the_portable_switch_of_fibers_gives_the_same(tmp_path: Path) -> None:
    kernel = body(tmp_path, "__shared__ int s[64]; s[t] = x[t]; __syncthreads(); y[t] = s[63 - t] + __shfl_xor_sync(~0u, t, 1);")
    library = building.build(kernel.source, "body.cu", "k", (), check=False, folders=kernel.folders, ucontext=True)
    y = np.zeros(64, np.int32)
    EmulatedKernel(library, "k", kernel.parameters, check=False).launch(
        (1,), (64,), (LANES.astype(np.int32), y), shared_mem=0, max_shared_mem=0, schedule=3, outputs=(), seconds=10)  # fmt: skip
    np.testing.assert_array_equal(y, LANES[::-1] + (LANES ^ 1))


def test_a_source_that_does_not_compile_is_shown_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(building.DoesNotCompile, match=r"body.cu:3:.*undeclared_name"):
        body(tmp_path, "y[t] = undeclared_name;")((1,), (64,), (None, None), backend="emulated")


def test_parameters_that_are_not_those_compiled_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text('extern "C" __global__ void k(float* x, int n) {}')
    with pytest.raises(ValueError, match="is not what g\\+\\+ compiled"):
        Kernel(source, "k", parameters="float* x, float n")((1,), (1,), (None, 1.0), backend="emulated")


def test_a_kernel_that_the_source_has_not_is_named(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text("#define KERNEL(name) extern \"C\" __global__ void name(int* y)\nKERNEL(k) {}")
    with pytest.raises(building.DoesNotCompile, match=r"^k.cu: error in the name of the kernel: .other. was not declared[^\n]*$"):
        Kernel(source, "other", parameters="int* y")((1,), (1,), (None,), backend="emulated")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    building.compiler.cache_clear()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(building.CannotEmulate, match=r"needs g\+\+ with C\+\+17"):
        building.compiler()
    building.compiler.cache_clear()


def test_missing_headers_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    building.cuda_headers.cache_clear()
    monkeypatch.setattr(building, "wheel_folders", list)
    with pytest.raises(building.CannotEmulate, match=r"pip install 'oracles\[emulate\]'"):
        building.cuda_headers()
    building.cuda_headers.cache_clear()


def test_the_cache_lies_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert building.cache_folder() == tmp_path / "oracles" / "emulator"


def test_importing_the_package_needs_neither_cupy_nor_a_compiler() -> None:
    code = "import sys, oracles.gpu; print([m for m in ('cupy', 'nvidia', 'subprocess') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], env={"PATH": ""}, capture_output=True, text=True, check=True).stdout.strip() == "[]"
