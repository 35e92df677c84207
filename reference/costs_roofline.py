"""Roofline: what bandwidth and arithmetic allow, where they meet, and the time of a step of decoding between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import arguments


def ridge_point(flops_per_second: float, bytes_per_second: float) -> float:
    """FLOPs for each byte from which on arithmetic, no longer bandwidth, is the limit.

    >>> ridge_point(989.5e12, 4.8e12)
    206.14583333333334

    Raises ValueError for numbers not above 0. Source: Williams, Waterman and Patterson 2009 (doi 10.1145/1498765.1498785).
    """
    return arguments.real_number("flops_per_second", flops_per_second, positive=True) / arguments.real_number(
        "bytes_per_second", bytes_per_second, positive=True)


def attainable_flops(intensity: float, *, flops_per_second: float, bytes_per_second: float) -> float:
    """FLOP/s that a kernel of that intensity (FLOPs a byte) can reach: min(peak, intensity x bandwidth).

    >>> attainable_flops(1.0, flops_per_second=100.0, bytes_per_second=4.0)
    4.0

    Raises ValueError for numbers not above 0. Source: as `ridge_point`.
    """
    return min(arguments.real_number("flops_per_second", flops_per_second, positive=True),
               arguments.real_number("intensity", intensity, positive=True)
               * arguments.real_number("bytes_per_second", bytes_per_second, positive=True))  # fmt: skip


def matmul_intensity(m: int, n: int, k: int, *, element_bytes: float = 2.0) -> float:
    """FLOPs a byte of (m, k) times (k, n), each matrix moved once: 2 m n k / (element_bytes (m k + k n + m n)).

    >>> round(matmul_intensity(1, 4096, 4096), 3), round(matmul_intensity(4096, 4096, 4096), 1)
    (1.0, 1365.3)

    Raises ValueError for sizes below 1.
    """
    m, n, k = (arguments.whole_number(name, size, least=1) for name, size in (("m", m), ("n", n), ("k", k)))
    return 2 * m * n * k / (arguments.real_number("element_bytes", element_bytes, positive=True) * (m * k + k * n + m * n))


@dataclass(frozen=True)
class DecodeStep:
    """One step of a batch that decodes.

    seconds             of the step; memory_bound: reading takes longer than computing
    user_tokens         per second, of one sequence
    total_tokens        per second, of the batch
    seconds_per_million device-seconds for 10^6 tokens
    intensity           FLOPs a byte, None where no FLOPs were given
    """

    batch: int
    seconds: float
    memory_bound: bool
    intensity: float | None

    @property
    def user_tokens(self) -> float:
        return 1.0 / self.seconds

    @property
    def total_tokens(self) -> float:
        return self.batch / self.seconds

    @property
    def seconds_per_million(self) -> float:
        return 1e6 * self.seconds / self.batch


def decode_steps(batches: Sequence[int], *, weight_bytes: float, kv_bytes: float, bytes_per_second: float,
                 flops_per_token: float = 0.0, flops_per_second: float | None = None) -> list[DecodeStep]:
    """A step for each batch size: the weights are read once, the keys and values of every sequence once.

        seconds = max((weight_bytes + batch kv_bytes) / bytes_per_second, batch flops_per_token / flops_per_second)

    kv_bytes: of one sequence. Without FLOPs reading alone counts. Launches, communication, what is written and the time of a
    sampler are left out.

    >>> step, = decode_steps([8], weight_bytes=16e9, kv_bytes=131072 * 4096, bytes_per_second=2.0e12)
    >>> round(1e3 * step.seconds, 2), round(step.user_tokens, 1), round(step.total_tokens), round(step.seconds_per_million, 1)
    (10.15, 98.5, 788, 1268.4)

    Raises ValueError for a batch below 1 and speeds not above 0. Source: Pope et al. 2022 (arXiv 2211.05102), section 2.
    """
    bandwidth = arguments.real_number("bytes_per_second", bytes_per_second, positive=True)
    weights, kv, flops = (arguments.real_number(name, x) for name, x in
                          (("weight_bytes", weight_bytes), ("kv_bytes", kv_bytes), ("flops_per_token", flops_per_token)))
    if flops and flops_per_second is None:
        raise ValueError("flops_per_second: got None beside flops_per_token; want both or neither")
    peak = arguments.real_number("flops_per_second", flops_per_second or 1.0, positive=True)
    steps = []
    for batch in batches:
        batch = arguments.whole_number("batches", batch, least=1)
        moved = weights + batch * kv
        reading, computing = moved / bandwidth, batch * flops / peak
        steps.append(DecodeStep(batch, max(reading, computing), reading >= computing, batch * flops / moved if flops else None))
    return steps
