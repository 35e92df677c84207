"""PyTorch's stream in plain Python: the second route of torch_stream, and its questions. No NumPy but for what is answered.

Words by the recurrence of the Mersenne twister; each operation on float32 rounded by `struct`, each fused multiply-add by exact
fractions where float64 leaves its rounding open.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from .traces import Step, Trace

# name: (seed, calls in order: method, shape)
STREAMS: dict[str, tuple[int, tuple[tuple[str, tuple[int, ...]], ...]]] = {
    "one-number": (0, (("randn", (1,)),)), "nothing": (0, (("randn", (0,)), ("rand", (0,)), ("randn", (2,)))),
    "a-block": (0, (("randn", (16,)),)), "less-than-a-block": (1, (("randn", (15,)),)),
    "a-block-and-one": (2, (("randn", (17,)),)), "two-blocks-less-one": (3, (("randn", (31,)),)),
    "matrix": (4, (("randn", (5, 7)),)), "uniforms": (5, (("rand", (20,)),)),
    "the-second-of-a-pair-is-kept": (6, (("randn", (1,)), ("rand", (3,)), ("randn", (1,)), ("randn", (3,)))),
    "blocks-leave-a-pair-alone": (7, (("randn", (3,)), ("randn", (16,)), ("randn", (1,)))),
    "words-past-a-refill": (8, (("rand", (620,)), ("randn", (18,)))), "a-seed-of-32-bits": (2**32 + 5, (("randn", (4,)), ("rand", (4,)))),
    "the-largest-word": (2**32 - 1, (("randn", (16,)),)),
    "the-int8-table": (0, (("digest", (256, 256)), ("digest", (256, 64)))),
}  # fmt: skip
FEW = 16                                                                        # numbers of a digest told one by one


def stream_traces() -> list[Trace]:
    """The questions: a generator, and what it is asked for in order."""
    return [Trace("torch_stream", name, {"seed": seed}, tuple(Step(call, {"shape": list(shape)}) for call, shape in calls))
            for name, (seed, calls) in STREAMS.items()]  # fmt: skip


def digest(drawn: Any) -> dict[str, Any]:
    """Of normal numbers too many to write down: SHA-256 of their little-endian bytes in C order, the first and the last of them."""
    flat = np.ascontiguousarray(drawn, "<f4").reshape(-1)
    return {"sha256": hashlib.sha256(flat.tobytes()).digest(), "first": flat[:FEW], "last": flat[-FEW:]}


class Stream:
    """The generator after manual_seed(seed)."""

    def __init__(self, seed: int) -> None:
        self.words = _words(seed)
        self.second: float | None = None

    def answered(self, step: Step) -> Step:
        shape = step.arguments["shape"]
        n = math.prod(shape)
        numbers = [self._uniform() for _ in range(n)] if step.call == "rand" else self._normals(n)
        array = np.asarray(numbers, np.float32).reshape(shape)
        return Step(step.call, step.arguments, digest(array) if step.call == "digest" else array)

    def _uniform(self) -> float:
        return (next(self.words) % 2**24) / 2**24

    def _normals(self, n: int) -> list[float]:
        if n < 16:
            return [self._one() for _ in range(n)]
        u = [self._uniform() for _ in range(n)]
        numbers = [x for start in range(0, n - n % 16, 16) for x in _block(u[start : start + 16])]
        if n % 16:
            numbers = numbers[: n - 16] + _block([self._uniform() for _ in range(16)])
        return numbers

    def _one(self) -> float:
        """One number in float64, of two that are made at a time."""
        if self.second is not None:
            number, self.second = self.second, None
            return number
        turn, u = (((next(self.words) * 2**32 + next(self.words)) % 2**53) / 2**53 for _ in range(2))
        r, angle = math.sqrt(-2 * math.log1p(-u)), 2 * math.pi * turn
        self.second = r * math.sin(angle)
        return r * math.cos(angle)


def _words(seed: int) -> Iterator[int]:
    """The words of the Mersenne twister."""
    state = [seed % 2**32]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) % 2**32)
    while True:
        for i in range(624):
            y = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7FFFFFFF)
            state[i] = state[(i + 397) % 624] ^ y >> 1 ^ (0x9908B0DF if y & 1 else 0)
        for y in list(state):
            y ^= y >> 11
            y ^= y << 7 & 0x9D2C5680
            y ^= y << 15 & 0xEFC60000
            yield y ^ y >> 18


# float32, number by number ------------------------------------------------------------------------------------------------

_AS_FLOAT = struct.Struct("<f")
_AS_WORD = struct.Struct("<I")


def _single(x: float) -> float:
    """x rounded to float32."""
    return float(_AS_FLOAT.unpack(_AS_FLOAT.pack(x))[0])


def _fused(a: float, b: float, c: float) -> float:
    """a b + c rounded once to float32: the product of two float32 is exact, the sum may lie between two float64."""
    product = a * b
    total = product + c
    low, high = _single(math.nextafter(total, -math.inf)), _single(math.nextafter(total, math.inf))
    if low == high:
        return low
    exact = Fraction(product) + Fraction(c)
    below, above = exact - Fraction(low), Fraction(high) - exact
    if below == above:
        return low if _AS_WORD.unpack(_AS_FLOAT.pack(low))[0] % 2 == 0 else high
    return low if below < above else high


def _polynomial(x: float, coefficients: tuple[float, ...]) -> float:
    y = coefficients[0]
    for c in coefficients[1:]:
        y = _fused(y, x, c)
    return y


LOG = tuple(map(_single, (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
                          2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)))
SIN = tuple(map(_single, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)))
COS = tuple(map(_single, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)))
EIGHTHS = tuple(map(_single, (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8)))        # -pi / 4 in three parts


def _logarithm(x: float) -> float:
    half_up, e = math.frexp(x)                                                  # x in [2^-24, 1], half_up in [1/2, 1)
    low = half_up < _single(math.sqrt(0.5))
    m, e = _single(half_up - 1.0 + half_up * low), e - low
    z = _single(m * m)
    y = _fused(_single(_polynomial(m, LOG) * m), z, _single(e * _single(-2.12194440e-4)))
    return _fused(float(e), 0.693359375, _single(m + _fused(-z, 0.5, y)))


def _sine_and_cosine(x: float) -> tuple[float, float]:
    octant = (int(_single(x * _single(4 / math.pi))) + 1) // 2 * 2
    for part in EIGHTHS:
        x = _fused(float(octant), part, x)
    z = _single(x * x)
    cosine = _single(_fused(_single(_polynomial(z, COS) * z), z, -_single(z * 0.5)) + 1.0)
    sine = _fused(_single(_polynomial(z, SIN) * z), x, x)
    quarter = octant // 2 % 4
    return ((sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine))[quarter]


def _block(u: list[float]) -> list[float]:
    """Eight cosines, then eight sines, of Box and Muller."""
    pairs = []
    for of_radius, of_angle in zip(u[:8], u[8:]):
        r = _single(math.sqrt(_single(-2 * _logarithm(_single(1 - of_radius)))))
        s, c = _sine_and_cosine(_single(_single(2 * math.pi) * of_angle))
        pairs.append((_single(r * c) + 0.0, _single(r * s) + 0.0))
    return [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
