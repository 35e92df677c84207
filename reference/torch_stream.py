"""PyTorch's CPU generator in NumPy: the numbers of torch.manual_seed(seed), torch.rand and torch.randn, bit for bit.

Published tables that were drawn from it can so be reproduced without it. It is the stream of its AVX2 and AVX-512 builds; a build
without vector instructions gives other last bits in a third of the normal numbers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from . import arguments

Float32 = NDArray[np.float32]
f32 = np.float32
BLOCK = 16                                                                      # normal numbers are made 16 at a time

# Polynomials and constants of the Cephes library for float32, as compiled there: Horner's scheme in fused multiply-adds.
LOG = tuple(map(f32, (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
                      2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)))
SIN = tuple(map(f32, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)))
COS = tuple(map(f32, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)))
QUARTER_TURN = tuple(map(f32, (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8)))       # -pi/4 in three parts
LN2_HIGH, LN2_LOW = f32(0.693359375), f32(-2.12194440e-4)


class TorchStream:
    """The stream of torch.Generator("cpu") after manual_seed(seed).

    >>> stream = TorchStream(0)
    >>> stream.randn(2).tolist()
    [1.5409960746765137, -0.293428897857666]

    Source: Matsumoto and Nishimura 1998 (doi 10.1145/272991.272995) for the integers; Box and Muller 1958
    (doi 10.1214/aoms/1177706645) for normal numbers, in the blocks of aten/src/ATen/native/cpu/DistributionTemplates.h.
    """

    def __init__(self, seed: int) -> None:
        key = np.empty(624, np.uint32)
        word = arguments.whole_number("seed", seed, least=0) & 0xFFFFFFFF
        for i in range(624):
            key[i] = word
            word = (1812433253 * (word ^ (word >> 30)) + i + 1) & 0xFFFFFFFF
        self._bits = np.random.MT19937()
        self._bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
        self._second: float | None = None

    def rand(self, *shape: int) -> Float32:
        """Uniform numbers in [0, 1): 24 bits each."""
        return self._uniforms(math.prod(shape)).reshape(shape)

    def randn(self, *shape: int) -> Float32:
        """Normal numbers: one by one in float64 where there are fewer than 16, else in blocks; a rest that fills no block redraws the
        last 16."""
        n = math.prod(shape)
        if n < BLOCK:
            return np.array([self._one() for _ in range(n)], np.float64).astype(f32).reshape(shape)
        u, whole = self._uniforms(n), n // BLOCK * BLOCK
        out = np.empty(n, f32)
        out[:whole] = _box_muller(u[:whole])
        if n > whole:
            out[n - BLOCK :] = _box_muller(self._uniforms(BLOCK))
        return out.reshape(shape)

    def _uniforms(self, n: int) -> Float32:
        words = self._bits.random_raw(n).astype(np.uint32)
        return (words & np.uint32(2**24 - 1)).astype(f32) * f32(2.0**-24)

    def _one(self) -> float:
        """One normal number in float64; they come in pairs, the second is kept."""
        if self._second is not None:
            number, self._second = self._second, None
            return number
        words = [int(word) for word in self._bits.random_raw(4)]
        turn, u = (((high << 32 | low) & (2**53 - 1)) * 2.0**-53 for high, low in (words[:2], words[2:]))
        r, angle = math.sqrt(-2.0 * math.log1p(-u)), 2.0 * math.pi * turn
        self._second = r * math.sin(angle)
        return r * math.cos(angle)


def _box_muller(u: Float32) -> Float32:
    """Blocks of 16 uniforms, 8 for the radius and 8 for the angle, as 8 cosines and 8 sines."""
    halves = u.reshape(-1, 2, BLOCK // 2)
    r = np.sqrt(f32(-2) * _log(f32(1) - halves[:, 0]))
    sine, cosine = _sine_and_cosine(f32(2 * np.pi) * halves[:, 1])
    return np.asarray(np.stack([r * cosine, r * sine], axis=1).reshape(-1) + f32(0))    # its n std + mean turns -0 into 0


def _fma(a: Float32, b: Float32 | f32, c: Float32 | f32) -> Float32:
    """a b + c rounded once. The product is exact in float64; the sum is rounded to odd there, which a second rounding cannot spoil."""
    product, addend = a.astype(np.float64) * np.asarray(b, np.float64), np.asarray(c, np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = np.ascontiguousarray(total).view(np.int64)
    even_and_inexact = (error != 0.0) & (bits & 1 == 0)
    outward = (error > 0.0) == (total > 0.0)
    odd = np.where(even_and_inexact, np.where(outward, bits + 1, bits - 1), bits)
    return odd.view(np.float64).astype(f32)


def _horner(x: Float32, coefficients: tuple[np.float32, ...]) -> Float32:
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = _fma(y, x, c)
    return y


def _log(x: Float32) -> Float32:
    """ln x: x = m 2^e with m in [sqrt(1/2), sqrt(2)), a polynomial in m - 1."""
    bits = np.maximum(x, f32(2.0**-126)).view(np.int32)
    e = ((bits >> 23) - 0x7F).astype(f32) + f32(1)
    m = ((bits & ~np.int32(0x7F800000)) | f32(0.5).view(np.int32)).view(f32)
    low = m < f32(0.707106781186547524)
    e = e - np.where(low, f32(1), f32(0))
    m = (m - f32(1)) + np.where(low, m, f32(0))
    z = m * m
    y = _fma(_horner(m, LOG) * m, z, e * LN2_LOW)
    return _fma(e, LN2_HIGH, m + _fma(-z, f32(0.5), y))


def _sine_and_cosine(x: Float32) -> tuple[Float32, Float32]:
    """Of an angle in [0, 2 pi): the octant is taken off in three parts, then two polynomials."""
    octant = ((x * f32(4 / np.pi)).astype(np.int32) + 1) & ~np.int32(1)
    for part in QUARTER_TURN:
        x = _fma(octant.astype(f32), part, x)
    z = x * x
    cosine = _fma(_horner(z, COS) * z, z, -(z * f32(0.5))) + f32(1)
    sine = _fma(_horner(z, SIN) * z, x, x)
    swapped = octant & 2 != 0
    s, c = np.where(swapped, cosine, sine), np.where(swapped, sine, cosine)
    return np.where(octant & 4 != 0, -s, s), np.where(~(octant - 2) & 4 != 0, -c, c)
