"""Check mode finds every planted fault, says where and who, and finds nothing in kernels without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.gpu import Kernel, KernelFault
from oracles.gpu.emulator.faults import KINDS

pytestmark = pytest.mark.gpu

SIGNATURE = "const float* x, float* y, int n"
COPY = "__shared__ __align__(16) float s[64]; int t = threadIdx.x; if (t < 16)\nptx::cp_async_16(s + 4 * t, x + 4 * t);\n"


@dataclass(frozen=True)
class Planted:
    """A kernel body (its first line is line 2 of the file), how it is launched, and the fault check mode has to find."""

    title: str
    body: str
    kind: str = ""
    array: str = ""
    lines: tuple[int, ...] = ()
    grid: tuple[int, ...] = (1,)
    block: tuple[int, ...] = (64,)
    shared_mem: int = 0
    n: int = 64
    outputs: tuple[str, ...] = ()
    says: str = ""
    sizes: tuple[int, int] = field(default=(64, 80))


FAULTS = [
    Planted("a missing barrier", "__shared__ float s[64]; int t = threadIdx.x;\ns[t] = x[t];\ny[t] = s[63 - t];", "race", "s", (4, 3)),
    Planted("a missing barrier in dynamic shared memory",
            "extern __shared__ float s[]; int t = threadIdx.x;\ns[t] = x[t];\ny[t] = s[63 - t];",
            "race", "dynamic shared memory", (4, 3), shared_mem=256),
    Planted("a missing barrier before shared memory is used again",
            "__shared__ float s[64]; int t = threadIdx.x; s[t] = x[t]; __syncthreads();\ny[t] = s[63 - t];\ns[t] = 0;",
            "race", "s", (4, 3)),
    Planted("a warp barrier where a block barrier is needed",
            "__shared__ float s[64]; int t = threadIdx.x;\ns[t] = x[t]; __syncwarp();\ny[t] = s[63 - t];", "race", "s", (3, 4)),
    Planted("a warp barrier of half the warp, read across the halves",
            "__shared__ float s[64]; int t = threadIdx.x;\ns[t] = x[t]; __syncwarp(t % 32 < 16 ? 0xffffu : 0xffff0000u);\n"
            "y[t] = s[t ^ 16];",
            "race", "s", (3, 4)),
    Planted("a shuffle taken for a barrier",
            "__shared__ float s[64]; int t = threadIdx.x;\ns[t] = x[t]; __shfl_sync(~0u, 1, 0);\ny[t] = s[t ^ 1];", "race", "s", (3, 4)),
    Planted("two blocks writing one cell", "y[threadIdx.x] = blockIdx.x;", "race", "y", (2, 2), grid=(2,), says="another block"),
    Planted("a block reading what another writes", "if (blockIdx.x == 0)\ny[0] = 1;\nelse y[1] = y[0];",
            "race", "y", (3, 4), grid=(2,), block=(1,), says="another block"),
    Planted("an atomic beside a plain read", "atomicAdd(&y[0], 1.f);\ny[1 + threadIdx.x] = y[0];", "race", "y", (3, 2)),
    Planted("the last block without a fence", "y[1 + blockIdx.x] = x[blockIdx.x];\nif (atomicAdd((int*)y, 1) == (int)gridDim.x - 1) "
            "for (int i = 0; i < gridDim.x; ++i)\ny[40] += y[1 + i];", "race", "y", (2, 4), grid=(4,), block=(1,), says="another block"),
    Planted("one element past the end of an input", "y[threadIdx.x] = x[threadIdx.x + 1];", "out_of_bounds", "x", (2,),
            says="4 bytes past the end of 'x'"),
    Planted("one element before an output",
            "y[(int)threadIdx.x - 1] = x[threadIdx.x];", "out_of_bounds", "y", (2,), says="4 bytes before 'y'"),
    Planted("dynamic shared memory launched too small", "extern __shared__ float s[];\ns[threadIdx.x] = x[threadIdx.x];", "out_of_bounds",
            "dynamic shared memory", (3,), shared_mem=252, says="4 bytes past"),
    Planted("an index past a static shared array", "__shared__ float s[60];\ns[threadIdx.x] = x[threadIdx.x];", "out_of_bounds",
            lines=(3,), says="index 60"),
    Planted("an index past a local array", "float s[4]; for (int i = 0; i <= n - 60; ++i)\ns[i] = x[i];\ny[threadIdx.x] = s[n - 63];",
            "out_of_bounds", lines=(3,), says="index 4"),
    Planted("a misaligned float4",
            "*reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(x + 1);", "misaligned", "x", (2,), block=(1,)),
    Planted("a write through const", "const_cast<float*>(x)[threadIdx.x] = 1.f;", "write_to_const", "x", (2,)),
    Planted("a read of shared memory nobody wrote",
            "__shared__ float s[64];\ny[threadIdx.x] = s[threadIdx.x];", "uninitialised", "s", (3,)),
    Planted("a read of an output nobody wrote", "y[threadIdx.x] += x[threadIdx.x];", "uninitialised", "y", (2,), outputs=("y",)),
    Planted("a shuffle in a branch", "float v = x[threadIdx.x]; if (threadIdx.x % 2)\nv = __shfl_xor_sync(~0u, v, 2);\ny[threadIdx.x] = v;",
            "divergence", lines=(3,), says="exited"),
    Planted("a lane outside its mask",
            "y[threadIdx.x] =\n__shfl_sync(0xffffu, x[threadIdx.x], 0);", "divergence", lines=(3,), says="leaves it out"),
    Planted("a shuffle from a lane outside the mask",
            "if (threadIdx.x % 32 < 16) y[threadIdx.x] =\n__shfl_sync(0xffffu, x[threadIdx.x], 20);",
            "divergence", lines=(3,), says="lane 20"),
    Planted("barriers in two branches", "if (threadIdx.x < 32) {\n__syncthreads();\n} else {\n__syncthreads(); }", "divergence",
            lines=(3,), says="line 5"),
    Planted("an early return before a barrier", "if (threadIdx.x >= n) return;\n__syncthreads();", "divergence", lines=(3,), n=50,
            says="exited"),
    Planted("a shift by 40 bits", "y[0] =\n1 << (n - 24);", "undefined", lines=(3,), block=(1,), says="shift by 40"),
    Planted("an asynchronous copy read behind a barrier but before the wait",
            COPY + "ptx::cp_async_commit(); __syncthreads();\ny[t] = s[63 - t];\nptx::cp_async_wait<0>();",
            "async_copy", "s", (3, 5), says="thread 15 has not waited"),
    Planted("an asynchronous copy read by its own thread before the wait",
            COPY + "ptx::cp_async_commit(); if (t < 16)\ny[t] = s[4 * t];\nptx::cp_async_wait<0>();",
            "async_copy", "s", (3, 5), says="thread 0, and thread 0 has not waited"),
    Planted("an asynchronous copy written over before the wait",
            COPY + "ptx::cp_async_commit(); __syncthreads();\ns[t] = 0;\nptx::cp_async_wait<0>();",
            "async_copy", "s", (3, 5), says="write of 's'"),
    Planted("two asynchronous copies to the same bytes", "__shared__ __align__(16) float s[4]; if (threadIdx.x < 2)\n"
            "ptx::cp_async_16(s, x);\n__syncthreads(); ptx::cp_async_wait_all();", "async_copy", "s", (3, 3), says="write of 's'"),
    Planted("a wait for all groups but the one that is read",
            COPY + "ptx::cp_async_commit(); ptx::cp_async_wait<1>(); __syncthreads();\ny[t] = s[63 - t];\nptx::cp_async_wait<0>();",
            "async_copy", "s", (3, 5)),
    Planted("a wait for copies that no group holds",
            COPY + "ptx::cp_async_wait<0>(); __syncthreads();\ny[t] = s[63 - t];\nptx::cp_async_wait_all();", "async_copy", "s", (3, 5)),
    Planted("an asynchronous copy never waited for", COPY + "ptx::cp_async_commit();", "async_copy", lines=(3,), says="exits with"),
    Planted("an asynchronous copy waited for but behind no barrier",
            COPY + "ptx::cp_async_commit();\nptx::cp_async_wait<0>(); if (t >= 16)\ny[t] = s[63 - t];", "race", "s", (5, 6)),
    Planted("an asynchronous copy to where another thread still reads",
            "__shared__ __align__(16) float s[64]; int t = threadIdx.x; s[t] = 0; __syncthreads(); y[t] =\ns[63 - t];\n"
            "if (t >= 48) ptx::cp_async_16(s + 4 * (t - 48), x);\nptx::cp_async_wait_all();", "race", "s", (3, 4)),
    Planted("an asynchronous copy out of shared memory", "__shared__ __align__(16) float s[8]; s[4 + threadIdx.x] = 0;\n"
            "ptx::cp_async_16(s, s + 4);", "async_copy", lines=(3,), block=(1,), says="want a source in global memory"),
    Planted("an asynchronous copy into global memory", "ptx::cp_async_16(y, x);", "async_copy", lines=(2,), block=(1,),
            says="want a target in shared memory"),
    Planted("an asynchronous copy into a local array", "__align__(16) float a[4];\nptx::cp_async_16(a, x);", "async_copy", lines=(3,),
            block=(1,), says="want a target in shared memory"),
    Planted("an asynchronous copy past the end of its source",
            "__shared__ __align__(16) float s[4];\nptx::cp_async_16(s, x + 64);", "out_of_bounds", "x", (3,), block=(1,)),
    Planted("a misaligned asynchronous copy", "__shared__ __align__(16) float s[8];\nptx::cp_async_16(s + 1, x);", "misaligned",
            lines=(3,), block=(1,)),
    Planted("too many threads", "y[0] = 1;", "launch", block=(2048,), says="1024"),
    Planted("a block too deep", "y[0] = 1;", "launch", block=(1, 1, 65), says="64 along z"),
    Planted("a grid too high", "y[0] = 1;", "launch", grid=(1, 65536), says="65535"),
    Planted("60 KB of shared memory without opting in", "y[0] = 1;", "launch", shared_mem=61440, says="max_shared_mem"),
]  # fmt: skip

CLEAN = [
    Planted("a reversal with its barrier",
            "extern __shared__ float s[]; int t = threadIdx.x; s[t] = x[t]; __syncthreads(); y[t] = s[63 - t];",
            shared_mem=256),
    Planted("an exchange in a warp with its barrier",
            "__shared__ float s[64]; int t = threadIdx.x; s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 1]; __syncwarp(); s[t] = 0;"),
    Planted("atomics of two blocks on one cell", "atomicAdd(&y[0], 1.f);", grid=(2,)),
    Planted("a shuffle in a branch with the mask of the branch",
            "float v = x[threadIdx.x]; if (threadIdx.x % 2) v = __shfl_xor_sync(0xaaaaaaaau, v, 2); y[threadIdx.x] = v;"),
    Planted("the last block with a fence, by one thread", "y[1 + blockIdx.x] = x[blockIdx.x]; __threadfence(); "
            "if (atomicAdd((int*)y, 1) == (int)gridDim.x - 1) for (int i = 0; i < gridDim.x; ++i) y[40] += y[1 + i];",
            grid=(4,), block=(1,)),
    Planted("the last block with a fence, by all threads of it",
            "__shared__ int last; if (threadIdx.x < 8) y[1 + 8 * blockIdx.x + threadIdx.x] = "
            "x[threadIdx.x]; __threadfence(); __syncthreads(); if (threadIdx.x == 0) { __threadfence(); "
            "last = atomicAdd((int*)y, 1) == (int)gridDim.x - 1; } __syncthreads(); "
            "if (last && threadIdx.x < 32) y[40 + threadIdx.x] = y[1 + threadIdx.x];", grid=(4,)),
    Planted("asynchronous copies waited for, then a barrier",
            COPY + "ptx::cp_async_commit(); ptx::cp_async_wait<0>(); __syncthreads(); y[t] = s[63 - t];"),
    Planted("asynchronous copies in no group, all waited for", COPY + "ptx::cp_async_wait_all(); __syncthreads(); y[t] = s[63 - t];"),
    Planted("an asynchronous copy read by its own thread after the wait",
            COPY + "ptx::cp_async_commit(); ptx::cp_async_wait<0>(); if (t < 16) y[t] = s[4 * t];"),
    Planted("an asynchronous copy handed on in its warp",
            COPY + "ptx::cp_async_commit(); ptx::cp_async_wait<0>(); __syncwarp(); if (t < 16) y[t] = s[4 * (15 - t)];"),
    Planted("two stages of asynchronous copies",
            "__shared__ __align__(16) float s[2][64]; int t = threadIdx.x; auto fill = [&](int i) {"
            "if (t < 16) ptx::cp_async_16(s[i % 2] + 4 * t, x + 4 * t, i < 3); ptx::cp_async_commit(); };"
            "fill(0); for (int i = 0; i < 4; ++i) { fill(i + 1); ptx::cp_async_wait<1>(); __syncthreads();"
            "y[t] = s[i % 2][63 - t]; __syncthreads(); } ptx::cp_async_wait<0>();"),
    Planted("early exits in a kernel without barriers", "if (threadIdx.x >= n) return; y[threadIdx.x] = x[threadIdx.x];", n=50),
    Planted("bytes of one word written by four threads", "reinterpret_cast<unsigned char*>(y)[threadIdx.x] = 1;", block=(1,)),
]  # fmt: skip


def run(folder: Path, planted: Planted, *, check: bool = True, schedule: str | int = "in_order") -> tuple[np.ndarray[Any, Any], Kernel]:
    source = folder / "planted.cu"
    source.write_text(f'#include "ptx.cuh"\n#line 1\nextern "C" __global__ void k({SIGNATURE}) {{\n{planted.body}\n}}\n')
    kernel = Kernel(source, "k")
    x, y = (np.arange(size, dtype=np.float32) * scale for size, scale in zip(planted.sizes, (1, 0)))
    kernel(planted.grid, planted.block, (x, y, planted.n), shared_mem=planted.shared_mem, backend="emulated", check=check,
           schedule=schedule, outputs=planted.outputs)  # fmt: skip
    return y, kernel


@pytest.mark.parametrize("planted", FAULTS, ids=lambda p: p.title)
def test_a_planted_fault_is_found(tmp_path: Path, planted: Planted) -> None:
    with pytest.raises(KernelFault) as caught:
        run(tmp_path, planted)
    finding = caught.value.findings[0]
    assert (finding.kind, finding.array) == (planted.kind, planted.array), str(finding)
    assert planted.says in str(caught.value)
    if planted.lines:
        assert finding.places == tuple(f"planted.cu:{line}" for line in planted.lines)


def test_every_kind_of_fault_is_planted() -> None:
    elsewhere = {"memory", "time_limit"}                                        # below, and in test_emulator.py: they need no check mode
    assert {planted.kind for planted in FAULTS} | elsewhere == set(KINDS)


@pytest.mark.parametrize("schedule", ["in_order", "reversed", 7], ids=str)
@pytest.mark.parametrize("planted", CLEAN, ids=lambda p: p.title)
def test_a_kernel_without_a_fault_is_not_accused(tmp_path: Path, planted: Planted, schedule: str | int) -> None:
    run(tmp_path, planted, schedule=schedule)


@pytest.mark.parametrize("schedule", ["in_order", "reversed", 7], ids=str)
def test_a_race_is_found_in_every_schedule(tmp_path: Path, schedule: str | int) -> None:
    with pytest.raises(KernelFault, match="race"):
        run(tmp_path, FAULTS[0], schedule=schedule)


def test_a_race_names_both_threads_and_the_offset(tmp_path: Path) -> None:
    with pytest.raises(KernelFault) as caught:
        run(tmp_path, FAULTS[0])
    finding = caught.value.findings[0]
    reader, writer = finding.threads                                            # in order: the read came first
    assert finding.offset // 4 == writer
    assert reader == 63 - writer


def test_all_findings_are_told_not_only_the_first(tmp_path: Path) -> None:
    both = Planted("two", "__shared__ float s[64]; int t = threadIdx.x; s[t] = x[t];\ny[t] = s[63 - t];\nconst_cast<float*>(x)[t] = 1.f;")
    with pytest.raises(KernelFault) as caught:
        run(tmp_path, both)
    assert {finding.kind for finding in caught.value.findings} == {"race", "uninitialised", "write_to_const"}


def test_a_static_array_overrun_into_its_neighbour_is_found_by_its_index(tmp_path: Path) -> None:
    text = "__shared__ float a[60], b[64]; int t = threadIdx.x; b[t] = 0; __syncthreads();\na[t] = x[t]; y[t] = b[t] + a[0];"
    with pytest.raises(KernelFault, match="index 60"):
        run(tmp_path, Planted("neighbour", text))


OUTSIDE: Sequence[tuple[str, str]] = [("past the end", "y[80 + threadIdx.x] = 1;"), ("before the start", "y[-1 - (int)threadIdx.x] = 1;")]


@pytest.mark.parametrize(("where", "body"), OUTSIDE)
def test_a_write_outside_an_array_is_found_in_fast_mode_too(tmp_path: Path, where: str, body: str) -> None:
    with pytest.raises(KernelFault) as caught:
        run(tmp_path, Planted(where, body), check=False)
    assert caught.value.findings[0].kind == "out_of_bounds"


@pytest.mark.parametrize("check", [False, True])
def test_an_address_far_outside_ends_the_kernel_not_the_process(tmp_path: Path, check: bool) -> None:
    with pytest.raises(KernelFault) as caught:
        run(tmp_path, Planted("far", "y[1ull << 40] = 1;"), check=check)
    assert caught.value.findings[0].kind == ("out_of_bounds" if check else "memory")
    assert caught.value.findings[0].places == ("planted.cu:2",)
