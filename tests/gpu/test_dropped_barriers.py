"""The ports of caches, decoding, compression, training: the same bits in every order of threads, clean in check mode, no barrier too many.

Every barrier is dropped or weakened, in the shared headers too; so is what else keeps two threads apart. All of it is reported.
"""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.gpu import Kernel, KernelFault
from oracles.gpu.adamw import adamw_step, master_weight_step
from oracles.gpu.cross_entropy import cross_entropy_with_gradient
from oracles.gpu.experts import moe_layer
from oracles.gpu.kernel import KERNELS
from oracles.gpu.kv_cache import write_kv
from oracles.gpu.launching import Backend
from oracles.gpu.mla import mla_attention_absorbed
from oracles.gpu.paged_attention import paged_attention
from oracles.gpu.pruning import pack_2_4, prune_2_4
from oracles.gpu.quantization import quantize, quantized_matmul
from oracles.gpu.rope import rope
from oracles.gpu.sampling import filter_probabilities, sample
from oracles.gpu.speculative import speculative_verify
from oracles.tools.race_check import OWN_KERNELS

pytestmark = pytest.mark.gpu

V = 1100                                                                        # long enough for 8 warps


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def distributions(*shape: int, seed: int = 0) -> Any:
    p = np.random.default_rng(seed).random(shape)
    return (p / p.sum(axis=-1, keepdims=True)).astype(np.float32)


# One call of every kernel, small and ragged, with more than one tile, warp or block where that matters.
def run_rope(backend: Backend) -> Any:
    return (rope(draw(3, 5, 70), np.arange(5), pairing="interleaved", rotary_dim=66, backend=backend),)


def run_write(backend: Backend) -> Any:
    slots = np.array([3, 0, -1, 3, 8, 0, 3] * 20)                               # three slots, each given again and again, in two blocks
    return write_kv(draw(9, 2, 3), draw(9, 2, 70), draw(140, 2, 3), draw(140, 2, 70), slots, backend=backend)


def run_paged(backend: Backend) -> Any:
    tables, lengths = np.array([[3, 1, 0, 8, 5, 6, 7, 9, 4], [2, 7, 4, *[-1] * 6]]), np.array([70, 19])
    return paged_attention(draw(2, 6, 3, 5), draw(10, 8, 2, 5), draw(10, 8, 2, 33), tables, lengths, causal="bottom_right",
                           query_lengths=np.array([3, 1]), sinks=draw(6), splits=2, backend=backend)


def run_latent(backend: Backend) -> Any:
    shapes = ((1, 3, 6, 4), (1, 3, 6, 2), (1, 70, 5), (1, 70, 2), (3, 5, 4), (3, 5, 3))
    return mla_attention_absorbed(*(draw(*shape, seed=i) for i, shape in enumerate(shapes)), causal="bottom_right", scale=0.3,
                                  kv_lengths=np.array([67]), splits=2, backend=backend)


def run_filter(backend: Backend) -> Any:
    logits = np.rint(4 * draw(2, V)) / 4                                        # many are equal, at the borders too
    return (filter_probabilities(logits, top_k=600, top_p=0.8, min_p=0.01, temperature=[0.7, 1.5], backend=backend),)


def run_sample(backend: Backend) -> Any:
    return (sample(distributions(3, V), np.array([0.0, 0.4, 0.99]), backend=backend),)


def run_verify(backend: Backend) -> Any:
    """Four rows: a rejection, a bonus, a token that neither model gives anything where nothing is left, a draft of none."""
    q, p = distributions(4, 2, V), distributions(4, 3, V, seed=1)
    p[2, 0, 7] = 0.0
    q[2] = p[2, :2]
    tokens = np.array([[5, 6], [8, V - 1], [7, 1], [-1, 2]])
    u = np.array([[0.999, 0.999], [0.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    return speculative_verify(tokens, q, p, u, np.array([0.3, 0.6, 0.9, 0.1]), backend=backend)


def run_quantize(backend: Backend) -> Any:
    """A tensor in several shares, one number a channel, and runs of which the last is short."""
    forms: tuple[dict[str, Any], ...] = ({}, {"axis": 0, "symmetric": False}, {"group": 40, "bits": 4, "symmetric": False})
    return tuple(part for form in forms for part in quantize(draw(9, 1000), **{"bits": 8, **form}, backend=backend))


def run_int8(backend: Backend) -> Any:
    x, q = (np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8) for shape in ((35, 150), (150, 33)))
    return (quantized_matmul(x, q, abs(draw(33)), x_scale=abs(draw(35)), bias=draw(33), backend=backend),)


def run_two_four(backend: Backend) -> Any:
    w = draw(5, 300)
    mask = prune_2_4(w, axis=-1, backend=backend)
    return (mask, prune_2_4(w, axis=0, backend=backend), *pack_2_4(w, mask, backend=backend))


def run_loss(backend: Backend) -> Any:
    """A mean with weights, a smoothed label and an ignored row, of 8 warps; and rows of one warp."""
    loss = cross_entropy_with_gradient(draw(3, V), np.array([5, -100, V - 1]), 0.5, weights=abs(draw(V)), label_smoothing=0.1, z_loss=0.1,
                                       reduction="mean", backend=backend)
    return *loss, *cross_entropy_with_gradient(draw(5, 37), np.arange(5), draw(5), reduction="none", backend=backend)


def run_adamw(backend: Backend) -> Any:
    numbers = {"step": 3, "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "backend": backend}
    g, p, m, v = draw(4, 700)
    stepped = master_weight_step(g, p, m, abs(v), loss_scale=8.0, max_norm=1.0, fmt="bfloat16", **numbers)
    return *stepped, *adamw_step(p, g, m, abs(v), **numbers)


def run_experts(backend: Backend) -> Any:
    """Two blocks of tokens, some dropped; products of two tiles in every direction."""
    return moe_layer(draw(45, 19), draw(45, 3), draw(3, 19, 20), k=2, normalize=True, bias=draw(3), capacity=25, backend=backend)


CALLS: dict[str, Callable[[Backend], Any]] = {
    "rope": run_rope, "write_kv": run_write, "paged_decode": run_paged, "mla_decode": run_latent, "filter": run_filter,
    "sample": run_sample, "speculative_verify": run_verify, "quantize": run_quantize, "matmul_int8": run_int8,
    "prune_2_4": run_two_four, "cross_entropy": run_loss, "adamw": run_adamw, "experts": run_experts,
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_every_schedule_gives_the_same_bits(call: str) -> None:
    once, *others = (CALLS[call](Backend("emulated", schedule=schedule)) for schedule in ("in_order", "reversed", 1, 2))
    for other in others:
        for one, two in zip(once, other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("call", CALLS)
def test_the_checked_run_finds_nothing(call: str) -> None:
    CALLS[call](Backend("emulated", check=True))


# Where barriers stand, and the calls that need them.
FILES = {"decode.cuh": ("paged_decode", "mla_decode"), "paged_decode.cu": ("paged_decode",), "mla_decode.cu": ("mla_decode",),
         "masses.cuh": ("filter", "speculative_verify"), "sampling.cu": ("filter",),
         "matmul_int8.cu": ("matmul_int8",), "cross_entropy.cu": ("cross_entropy",), "adamw.cu": ("adamw",),
         "experts.cu": ("experts",)}
WEAKER = {"__syncthreads();": ("", "__syncwarp();"), "__syncwarp();": ("",)}
# (file, which of its barriers, call): why nothing there tells that it is gone.
EQUIVALENT = {
    ("masses.cuh", 0, "speculative_verify"): "it takes no maximum",
    ("masses.cuh", 1, "filter"): "a barrier of border_of or first_past stands between every two calls of sums_of",
}


@dataclass(frozen=True)
class Mutant:
    """A text of a kernel file and what it becomes, and the call that runs it. index: which barrier of the file it is."""

    file: str
    start: int
    was: str
    becomes: str
    call: str
    index: int

    def __str__(self) -> str:
        line = (KERNELS / self.file).read_text().count("\n", 0, self.start) + 1
        return f"{self.file}:{line} {self.was} -> {self.becomes or 'nothing'}, {self.call}"

    def run(self, folder: Path, *, check: bool) -> Any:
        for source in KERNELS.iterdir():
            shutil.copy(source, folder)
        text = (KERNELS / self.file).read_text()
        (folder / self.file).write_text(text[: self.start] + self.becomes + text[self.start + len(self.was) :])
        return CALLS[self.call](Backend("emulated", check=check, kernels=folder))


def barriers() -> list[Mutant]:
    """Every barrier of the files, dropped and weakened, in every call that needs it."""
    pattern = re.compile("|".join(re.escape(barrier) for barrier in WEAKER))
    return [
        Mutant(file, found.start(), found[0], weaker, call, index)
        for file, calls in FILES.items()
        for index, found in enumerate(pattern.finditer((KERNELS / file).read_text()))
        for weaker in WEAKER[found[0]]
        for call in calls
    ]


def needed(mutant: Mutant) -> bool:
    return (mutant.file, mutant.index, mutant.call) not in EQUIVALENT


def planted(file: str, was: str, becomes: str, call: str) -> Mutant:
    start = (KERNELS / file).read_text().index(was)
    return Mutant(file, start, was, becomes, call, -1)


# What else keeps threads apart.
RACES = [
    planted("write_kv.cu", "atomicMax(&owner[slots[t]], t)", "owner[slots[t]] = max(owner[slots[t]], t)", "write_kv"),
    planted("write_kv.cu", " || owner[slot] != t", "", "write_kv"),
    planted("sampling.cu", "atomicAdd(&bins[own >> low & 255], w)", "bins[own >> low & 255] += w", "filter"),
    planted("quantize.cu", "atomicMax(&sizes[2ll * blockIdx.x], most)", "sizes[2ll * blockIdx.x] = max(sizes[2ll * blockIdx.x], most)",
            "quantize"),
]


def test_every_kernel_of_ours_is_known_to_the_race_check() -> None:
    assert {path.name for path in KERNELS.glob("*.cu")} == set(OWN_KERNELS)


def test_there_are_barriers_to_drop() -> None:
    assert len(barriers()) >= 25


@pytest.mark.parametrize("mutant", [m for m in barriers() if needed(m)], ids=str)
def test_a_dropped_barrier_is_reported(mutant: Mutant, tmp_path: Path) -> None:
    with pytest.raises(KernelFault) as fault:
        mutant.run(tmp_path, check=True)
    assert fault.value.findings[0].kind in ("race", "uninitialised")


@pytest.mark.parametrize("mutant", [m for m in barriers() if not needed(m)], ids=str)
def test_a_barrier_that_another_call_needs_is_not_missed_here(mutant: Mutant, tmp_path: Path) -> None:
    mutant.run(tmp_path, check=True)


def test_every_barrier_is_needed_by_some_call() -> None:
    every = {(mutant.file, mutant.index) for mutant in barriers()}
    assert every == {(mutant.file, mutant.index) for mutant in barriers() if needed(mutant)}


@pytest.mark.parametrize("mutant", RACES, ids=str)
def test_threads_that_meet_without_an_atomic_are_reported(mutant: Mutant, tmp_path: Path) -> None:
    with pytest.raises(KernelFault) as fault:
        mutant.run(tmp_path, check=True)
    assert fault.value.findings[0].kind == "race"


def test_a_division_by_zero_ends_the_kernel_not_the_process(tmp_path: Path) -> None:
    """On x86-64, whose processors trap it; elsewhere the quotient is just a number, as on a device."""
    source, y = tmp_path / "divides.cu", np.zeros(1, np.int32)
    source.write_text('extern "C" __global__ void divides(int* y, int n) { y[0] = 7 / n; }')
    traps = platform.machine() == "x86_64"
    with pytest.raises(KernelFault, match="divided by zero") if traps else contextlib.nullcontext():
        Kernel(source, "divides")((1,), (1,), (y, 0), backend="emulated")
