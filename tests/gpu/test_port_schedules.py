"""The CUDA ports of softmax, attention and the tensor-core product: the same bits in every order of threads, no barrier too many.

By the emulator alone, whose findings these tests look at.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles import reference
from oracles.gpu import KernelFault
from oracles.gpu.flash_attention import flash_attention
from oracles.gpu.flash_attention_backward import flash_attention_backward
from oracles.gpu.kernel import KERNELS
from oracles.gpu.launching import Backend
from oracles.gpu.matmul_bf16 import matmul_bf16
from oracles.gpu.merge_attention import merge_attention
from oracles.gpu.softmax import log_sum_exp, softmax

pytestmark = pytest.mark.gpu


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# One call of every kernel, small and ragged, with more than one tile and, where it matters, a group of heads.
def run_softmax(backend: Backend) -> Any:
    return softmax(draw(2, 1100), backend=backend), log_sum_exp(draw(3, 40), backend=backend)


def run_merge(backend: Backend) -> Any:
    return merge_attention(draw(5, 33), draw(5), draw(5, 33), draw(5, seed=1), backend=backend)


def run_forward(backend: Backend) -> Any:
    q, k, v = draw(1, 2, 18, 5), draw(1, 1, 70, 5, seed=1), draw(1, 1, 70, 33, seed=2)
    return flash_attention(q, k, v, causal="bottom_right", sinks=draw(2), backend=backend)


def run_split(backend: Backend) -> Any:
    return flash_attention(draw(1, 2, 3, 5), draw(1, 1, 70, 5, seed=1), draw(1, 1, 70, 5, seed=2), causal=None, splits=2, backend=backend)


def run_backward(backend: Backend) -> Any:
    q, k, v = draw(1, 2, 18, 5), draw(1, 1, 70, 5, seed=1), draw(1, 1, 70, 33, seed=2)
    options: dict[str, Any] = {"causal": None, "sinks": draw(2, seed=3), "bias": draw(2, 1, 70, seed=5)}
    out, lse = (x.astype(np.float32) for x in reference.attention(q, k, v, **options))
    return tuple(flash_attention_backward(q, k, v, out, lse, draw(1, 2, 18, 33, seed=4), **options, backend=backend).values())


def run_matmul(backend: Backend) -> Any:
    a, b = draw(20, 72).astype(ml_dtypes.bfloat16), draw(9, 72, seed=1).astype(ml_dtypes.bfloat16)
    return (matmul_bf16(a, b, backend=backend),)


CALLS: dict[str, Callable[[Backend], Any]] = {
    "softmax.cu": run_softmax, "merge_attention.cu": run_merge, "flash_forward.cu": run_forward, "flash_backward.cu": run_backward,
    "matmul_bf16.cu": run_matmul,
}  # fmt: skip


@pytest.mark.parametrize("call", [*CALLS.values(), run_split])
def test_every_schedule_gives_the_same_bits(call: Callable[[Backend], Any]) -> None:
    once, *others = (call(Backend("emulated", schedule=schedule)) for schedule in ("in_order", "reversed", 1, 2))
    for other in others:
        for one, two in zip(once, other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("call", [*CALLS.values(), run_split])
def test_the_checked_run_finds_nothing(call: Callable[[Backend], Any]) -> None:
    call(Backend("emulated", check=True))


# What is taken away: a barrier, or half of it.
WEAKER = {"__syncthreads();": ("", "__syncwarp();"), "__syncwarp();": ("",), "ptx::cp_async_wait<1>();": ("", "ptx::cp_async_wait<2>();"),
          "ptx::cp_async_wait<0>();": ("", "ptx::cp_async_wait<1>();")}  # fmt: skip


def mutants() -> list[tuple[str, int, int, str, str]]:
    """(file, start, end, what stands there, what it becomes) of every barrier and wait in the kernels."""
    pattern = re.compile("|".join(re.escape(barrier) for barrier in WEAKER))
    found = [(name, barrier) for name in CALLS for barrier in pattern.finditer((KERNELS / name).read_text())]
    return [(name, barrier.start(), barrier.end(), barrier[0], weaker) for name, barrier in found for weaker in WEAKER[barrier[0]]]


def title(mutant: tuple[str, int, int, str, str]) -> str:
    name, start, _, barrier, weaker = mutant
    return f"{name}:{(KERNELS / name).read_text().count(chr(10), 0, start) + 1} {barrier} -> {weaker or 'nothing'}"


def test_there_are_barriers_to_drop() -> None:
    assert len(mutants()) >= 25


def run_mutant(mutant: tuple[str, int, int, str, str], folder: Path, *, check: bool) -> Any:
    name, start, end, _, weaker = mutant
    for source in KERNELS.iterdir():
        shutil.copy(source, folder)
    text = (KERNELS / name).read_text()
    (folder / name).write_text(text[:start] + weaker + text[end:])
    return CALLS[name](Backend("emulated", check=check, kernels=folder))


@pytest.mark.parametrize("mutant", mutants(), ids=title)
def test_a_dropped_barrier_is_reported(mutant: tuple[str, int, int, str, str], tmp_path: Path) -> None:
    with pytest.raises(KernelFault) as fault:
        run_mutant(mutant, tmp_path, check=True)
    assert fault.value.findings[0].kind in ("race", "uninitialised", "async_copy")


@pytest.mark.parametrize("mutant", [m for m in mutants() if "wait" in m[3]], ids=title)
def test_a_dropped_wait_shows_without_check_mode_too(mutant: tuple[str, int, int, str, str], tmp_path: Path) -> None:
    """A copy arrives as late as it may, and leaves NaN until then."""
    assert np.isnan(run_mutant(mutant, tmp_path, check=False)[0]).any()
