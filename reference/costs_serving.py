"""Serving: time to first, for each further and to last token, with the wait in a queue; and the batch that a load makes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import arguments


def queue_wait(arrivals: float, service: float, *, service_variance: float = 0.0) -> float:
    """Mean seconds in the queue of one server under Poisson arrivals: M/G/1, with no variance M/D/1; inf where the load is 1 or more.

        W = arrivals (service^2 + variance) / (2 (1 - rho)),   rho = arrivals x service

    arrivals a second, service seconds of one request on average.

    >>> queue_wait(0.5, 1.0), queue_wait(0.5, 1.0, service_variance=1.0), queue_wait(2.0, 1.0)
    (0.5, 1.0, inf)

    Raises ValueError for negative numbers. Source: Pollaczek 1930, Khinchine 1932; Kleinrock 1975, Queueing Systems, section 5.7.
    """
    rate, s, variance = (arguments.real_number(name, x) for name, x in (
        ("arrivals", arrivals), ("service", service), ("service_variance", service_variance)))
    if min(rate, s, variance) < 0.0:
        raise ValueError(f"arrivals, service, service_variance: got {rate}, {s}, {variance}; want none below 0")
    rho = rate * s
    return math.inf if rho >= 1.0 else rate * (s * s + variance) / (2.0 * (1.0 - rho))


@dataclass(frozen=True)
class Latency:
    """Seconds of one request.

    ttft   time to the first token: queue + prefill + first step;  tpot: mean time of each later one
    ttlt   time to the last: ttft + (tokens - 1) tpot
    """

    queue: float
    prefill: float
    first_step: float
    tpot: float
    tokens: int

    @property
    def ttft(self) -> float:
        return self.queue + self.prefill + self.first_step

    @property
    def ttlt(self) -> float:
        return self.ttft + (self.tokens - 1) * self.tpot


def latency(*, queue: float, prefill: float, tpot: float, tokens: int, first_step: float = 0.0) -> Latency:
    """The times of a request that generates so many tokens.

    first_step: 0 where the prefill's own last logits give the first token, as they do; else the time of a step.

    >>> times = latency(queue=0.5, prefill=0.25, tpot=0.125, tokens=9)
    >>> times.ttft, times.ttlt
    (0.75, 1.75)

    Raises ValueError for no token and negative times.
    """
    given = {"queue": queue, "prefill": prefill, "first_step": first_step, "tpot": tpot}
    times = [arguments.real_number(name, x) for name, x in given.items() if x != math.inf]
    if min(times, default=0.0) < 0.0:
        raise ValueError(f"queue, prefill, first_step, tpot: got {queue}, {prefill}, {first_step}, {tpot}; want none below 0")
    return Latency(queue, prefill, first_step, tpot, arguments.whole_number("tokens", tokens, least=1))


def steady_batch(arrivals: float, *, steps: int, weight_bytes: float, kv_bytes: float, bytes_per_second: float) -> float:
    """Sequences that decode at once under a load, by Little's law; inf where no batch keeps up.

        b = arrivals x steps x (weight_bytes + b kv_bytes) / bytes_per_second
        b = a w / (1 - a k),   a = arrivals steps / bytes_per_second

    steps: of one request; a step is memory bound, as in `decode_steps`. The mean of the batch, so no whole number.

    >>> steady_batch(1.0, steps=100, weight_bytes=1e9, kv_bytes=0.0, bytes_per_second=1e11)
    1.0
    >>> steady_batch(1.0, steps=100, weight_bytes=1e9, kv_bytes=1e9, bytes_per_second=1e11)
    inf

    Raises ValueError for negative numbers. Source: Little 1961 (doi 10.1287/opre.9.3.383).
    """
    rate, weights, kv = (arguments.real_number(name, x) for name, x in
                         (("arrivals", arrivals), ("weight_bytes", weight_bytes), ("kv_bytes", kv_bytes)))
    if min(rate, weights, kv) < 0.0:
        raise ValueError(f"arrivals, weight_bytes, kv_bytes: got {rate}, {weights}, {kv}; want none below 0")
    a = rate * arguments.whole_number("steps", steps, least=0) / arguments.real_number("bytes_per_second", bytes_per_second, positive=True)
    return math.inf if a * kv >= 1.0 else a * weights / (1.0 - a * kv)
