"""Roofline, decoding and queues: the published table, limits that are known, and a queue simulated customer by customer."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from oracles.reference import (
    attainable_flops,
    bootstrap_interval,
    decode_steps,
    latency,
    matmul_intensity,
    queue_wait,
    ridge_point,
    steady_batch,
)

# batch, step in ms, tok/s of a user, tok/s in all, device-seconds for 10^6 tokens: weights 16e9 bytes, KV 131072 x 4096, 2.0e12 bytes/s.
PUBLISHED = (
    (1, "8.27", "120.9", "121", "8268.4"), (2, "8.54", "117.1", "234", "4268.4"), (4, "9.07", "110.2", "441", "2268.4"),
    (8, "10.15", "98.5", "788", "1268.4"), (16, "12.29", "81.3", "1301", "768.4"), (32, "16.59", "60.3", "1929", "518.4"),
    (64, "25.18", "39.7", "2542", "393.4"), (128, "42.36", "23.6", "3022", "330.9"), (256, "76.72", "13.0", "3337", "299.7"),
)  # fmt: skip


@pytest.mark.parametrize(("batch", "ms", "user", "total", "per_million"), PUBLISHED)
def test_the_table_of_batched_decode(batch: int, ms: str, user: str, total: str, per_million: str) -> None:
    step, = decode_steps([batch], weight_bytes=16e9, kv_bytes=131072 * 4096, bytes_per_second=2.0e12)
    shown = (f"{1e3 * step.seconds:.2f}", f"{step.user_tokens:.1f}", f"{step.total_tokens:.0f}", f"{step.seconds_per_million:.1f}")
    assert shown == (ms, user, total, per_million)
    assert step.memory_bound
    assert step.intensity is None


@pytest.mark.parametrize(("tokens", "batch", "total"), [(2048, 260, "6061"), (8192, 65, "1515"), (32768, 16, "378")])
def test_throughput_at_the_largest_batch(tokens: int, batch: int, total: str) -> None:
    step, = decode_steps([batch], weight_bytes=16e9, kv_bytes=131072 * tokens, bytes_per_second=2.0e12)
    assert f"{step.total_tokens:.0f}" == total


def test_throughput_stays_below_the_bandwidth_over_one_cache() -> None:
    most = 2.0e12 / (131072 * 4096)
    steps = decode_steps([1, 2**10, 2**20], weight_bytes=16e9, kv_bytes=131072 * 4096, bytes_per_second=2.0e12)
    totals = [step.total_tokens for step in steps]
    assert sorted(totals) == totals
    assert totals[-1] < most


def test_arithmetic_takes_over_where_intensity_passes_the_ridge() -> None:
    """2 FLOPs a weight of 2 bytes and no cache: a batch of b has intensity b, and the ridge is at 16."""
    steps = decode_steps([15, 16, 17], weight_bytes=2.0**30, kv_bytes=0.0, bytes_per_second=1.0, flops_per_token=2.0**30,
                         flops_per_second=16.0)
    assert [step.intensity for step in steps] == [15.0, 16.0, 17.0]
    assert [step.memory_bound for step in steps] == [True, True, False]
    assert [step.seconds for step in steps] == [2.0**30, 2.0**30, 2.0**30 * 17 / 16]


def test_the_roof_has_a_corner_at_the_ridge() -> None:
    ridge = ridge_point(64.0, 4.0)
    roof = [attainable_flops(x * ridge, flops_per_second=64.0, bytes_per_second=4.0) for x in (0.5, 1.0, 2.0)]
    assert (ridge, roof) == (16.0, [32.0, 64.0, 64.0])


def test_square_products_reuse_a_third_of_a_side() -> None:
    assert (matmul_intensity(3, 3, 3), matmul_intensity(12, 12, 12)) == (1.0, 4.0)
    assert matmul_intensity(1, 2**20, 2**20) < 1.0


# Queues ------------------------------------------------------------------------------------------------------------------


def test_exponential_service_waits_as_in_a_queue_of_m_m_1() -> None:
    """W = rho / (mu - lambda), in numbers that divide without rounding."""
    assert queue_wait(1.0, 0.5, service_variance=0.25) == 0.5 / (2.0 - 1.0)


def test_constant_service_waits_half_as_long() -> None:
    assert queue_wait(1.0, 0.5) == queue_wait(1.0, 0.5, service_variance=0.25) / 2


def simulated_waits(g: np.random.Generator, rate: float, services: Any) -> Any:
    """Each customer's wait, by Lindley's recursion: W' = max(0, W + S - A)."""
    waits, wait = np.empty(len(services)), 0.0
    for i, (service, gap) in enumerate(zip(services.tolist(), g.exponential(1 / rate, len(services)).tolist())):
        waits[i] = wait
        wait = max(0.0, wait + service - gap)
    return waits


@pytest.mark.parametrize(("rho", "variance"), [(0.3, 0.0), (0.6, 0.0), (0.6, 1.0)])
def test_the_formula_is_the_mean_of_a_simulated_queue(rho: float, variance: float) -> None:
    """200 runs of 2,000 customers after 500 unwatched: the interval of their means, at 1 - 10^-4, holds the formula."""
    g = np.random.default_rng(7)
    means = []
    for _ in range(200):
        services = np.full(2500, 1.0) if variance == 0.0 else g.exponential(1.0, 2500)
        means.append(simulated_waits(g, rho, services)[500:].mean())
    interval = bootstrap_interval(means, level=1 - 1e-4, resamples=20_000, seed=1)
    assert interval.low <= queue_wait(rho, 1.0, service_variance=variance) <= interval.high
    assert not interval.low <= 1.3 * queue_wait(rho, 1.0, service_variance=variance) <= interval.high


def test_times_of_a_request_add_up() -> None:
    times = latency(queue=1.0, prefill=0.5, first_step=0.25, tpot=0.125, tokens=5)
    assert (times.ttft, times.ttlt) == (1.75, 2.25)
    assert latency(queue=0.0, prefill=1.0, tpot=9.0, tokens=1).ttlt == 1.0


@pytest.mark.parametrize("rate", [0.5, 3.0])
def test_the_steady_batch_is_the_load_times_the_time_it_makes(rate: float) -> None:
    at_once = steady_batch(rate, steps=64, weight_bytes=2.0**30, kv_bytes=2.0**20, bytes_per_second=2.0**40)
    a = Fraction(rate) * 64 / 2**40                                             # all dyadic: the quotient alone is rounded
    assert at_once == float(a * 2**30 / (1 - a * 2**20))


def test_more_than_a_device_can_do_has_no_end() -> None:
    assert queue_wait(1.0, 1.0) == math.inf
    assert latency(queue=math.inf, prefill=1.0, tpot=1.0, tokens=2).ttlt == math.inf
    assert steady_batch(1.0, steps=1, weight_bytes=1.0, kv_bytes=1.0, bytes_per_second=1.0) == math.inf


@pytest.mark.parametrize(("call", "words"), [
    (lambda: ridge_point(0.0, 1.0), "flops_per_second: got 0.0"), (lambda: queue_wait(-1.0, 1.0), "arrivals, service, service_variance"),
    (lambda: decode_steps([0], weight_bytes=1.0, kv_bytes=0.0, bytes_per_second=1.0), "batches: got 0; want a whole number >= 1"),
    (lambda: decode_steps([1], weight_bytes=1.0, kv_bytes=0.0, bytes_per_second=1.0, flops_per_token=1.0), "flops_per_second: got None"),
    (lambda: latency(queue=-1.0, prefill=0.0, tpot=0.0, tokens=1), "queue, prefill, first_step, tpot"),
    (lambda: latency(queue=0.0, prefill=0.0, tpot=0.0, tokens=0), "tokens: got 0"),
    (lambda: steady_batch(1.0, steps=1, weight_bytes=-1.0, kv_bytes=0.0, bytes_per_second=1.0), "arrivals, weight_bytes, kv_bytes"),
    (lambda: matmul_intensity(0, 1, 1), "m: got 0"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
