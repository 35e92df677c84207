"""Error bounds of quantization: what a scale may be off by, which codes a rounding may turn, and products of codes.

A code is a decision: it is right where every legal computation comes to it, and left open (inf) where a rounding may turn it. What a
subject makes of an open one is judged by the laws, under the scale it returned itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import FloatFormat, arguments
from oracles.reference.arguments import Float64
from oracles.reference.quantization import blocks_of, code_range, spread_over
from oracles.reference.quantized_matmul import integer_product

from ..conventions import declared
from .sums import Roundings, checked, compound, roundings

U64 = 2.0**-53
_FAR = 2.0**100                                                                 # a quotient past it is clipped whatever its error


@dataclass(frozen=True)
class Codes:
    """The least and the largest code of each element that a legal computation may come to, and whether nothing is promised."""

    low: Float64
    high: Float64
    lost: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

    def allowed(self) -> Float64:
        """0 where there is one code only, inf where a rounding decides."""
        return np.where((self.low == self.high) & ~self.lost, 0.0, np.inf)


def rounded(t: Float64, zero: Float64, ties: str, *, up: bool = False) -> Float64:
    """Quotients rounded to whole numbers, and the zero point added, as a convention says; `up` takes an open half upwards.

    >>> t = np.array([0.5, 1.5, -0.5])
    >>> [rounded(t, np.array(1.0), ties).tolist() for ties in ("even", "even_with_zero", "away")]
    [[1.0, 3.0, 1.0], [2.0, 2.0, 0.0], [2.0, 3.0, 0.0]]
    """
    if ties == "even_with_zero":
        return np.rint(t + zero)
    if ties == "away":
        return np.trunc(t + np.copysign(0.5, t)) + zero
    if ties == "any":
        return (np.floor(t + 0.5) if up else np.ceil(t - 0.5)) + zero
    return np.rint(t) + zero


def range_of(bits: int, symmetric: bool, conventions: Mapping[str, str]) -> tuple[int, int]:
    """The least and the largest code in the subject's convention.

    >>> range_of(8, True, {"symmetric_codes": "full"})
    (-128, 127)
    """
    low, high = code_range(bits, symmetric)
    return (low - 1 if symmetric and conventions["symmetric_codes"] == "full" else low), high


def code_interval(
    r: Roundings, x: Float64, scale: Float64, relative: Float64 | float, zero: Float64, limits: tuple[int, int], ties: str
) -> Codes:  # fmt: skip
    """The codes a legal computation may come to with a scale that is off by at most `relative` of itself.

        t = x / scale,   |error of t| <= ((1 + relative) (1 + u)^2 - 1) |t| + u (|t| + |zero|)

    Two roundings: the quotient, or the reciprocal and the product; one more where the zero point is added before t is rounded. A scale
    that is a power of two loses none of them, and a sum of a quarter's multiple with the zero point none either where it fits.
    Nothing is promised for a subnormal scale, whose reciprocal may overflow.
    """
    u = r.elementwise.u
    with np.errstate(over="ignore"):
        t = np.clip(x / scale, -_FAR, _FAR)
    power = (np.frexp(scale)[0] == 0.5) & (np.asarray(relative) == 0.0)
    error = np.where(power, 0.0, compound(relative, u, u, U64, U64) * np.abs(t))
    exact_sum = power & (4.0 * t == np.rint(4.0 * t)) & (4.0 * u * (np.abs(t) + np.abs(zero)) <= 1.0)
    error = error + np.where((zero == 0.0) | exact_sum, 0.0, u * (np.abs(t) + np.abs(zero)))
    low = np.clip(rounded(t - error, zero, ties), *limits)
    high = np.clip(rounded(t + error, zero, ties, up=True), *limits)
    lost = np.broadcast_to(scale * (1.0 - relative) < smallest_scale(r), low.shape)
    return Codes(low, high, lost)


def smallest_scale(r: Roundings) -> float:
    """Below it a scale is a subnormal number of a format it passes through, or its reciprocal overflows."""
    formats = [FloatFormat(name) for name in (r.declared.elementwise, r.declared.out)]
    return max(max(f.tiny for f in formats), 1.0 / FloatFormat(r.declared.elementwise).max)


def scale_interval(r: Roundings, blocks: Float64, high: int, symmetric: bool) -> tuple[Float64, Float64]:
    """The exact scale of blocks (..., members), and how far a computed one may be off; inf where it may vanish.

        symmetric   max |x| / high:                  two roundings, a quotient or the reciprocal of `high` and a product
        affine      (max(x, 0) - min(x, 0)) / high:  three

    then one of `out`. A block of zeros has the scale 1, exactly.
    """
    least, most = blocks.min(axis=-1, initial=0.0), blocks.max(axis=-1, initial=0.0)
    with np.errstate(over="ignore"):
        span = np.maximum(most, -least) if symmetric else most - least
    u, eta = r.elementwise.u, r.elementwise.eta
    s = span / high
    relative = compound(u, u) if symmetric else compound(u, u, u)
    ds = r.out.bound(s, relative * s + np.minimum(eta, s))
    ds = np.where((span > r.elementwise.largest) | ((s - ds <= 0.0) & (span > 0.0)), np.inf, ds)
    return np.where(s == 0.0, 1.0, s), np.where(span == 0.0, 0.0, ds)


def quantize_bound(
    arithmetic: ResolvedArithmetic, x: ArrayLike, *, bits: int, axis: int | None = None, group: int | None = None, symmetric: bool = True,
    scale: ArrayLike | None = None, zero: ArrayLike | None = None, conventions: Mapping[str, str] | None = None,
) -> dict[str, Float64]:  # fmt: skip
    """How far codes, scales and zero points may be from the oracle's: {"q", "scale", "zero"}.

        scale   two roundings (three, affine) and that of `out`: `scale_interval`
        zero    0 where -min(x, 0) / scale lies farther from a half than the errors of scale and quotient, else inf
        q       0 where x / scale does, else inf: `code_interval`

    >>> from oracles.properties import Arithmetic
    >>> quantize_bound(Arithmetic().resolve("float32"), [127.0, 1.5, 1.4], bits=8)["q"]
    array([ 0., inf,  0.])

    Source: the margin of a decision as in `filter_probabilities_bound`; the roundings of a quotient: Higham 2002, section 2.2.
    """
    r, chosen = roundings(arithmetic), declared({}, "quantize") if conventions is None else conventions
    x = arguments.widen("x", x)
    limits, form = range_of(bits, symmetric, chosen), {"axis": axis, "group": group}
    blocks = blocks_of(x, axis=axis, group=group)
    if scale is None:
        s, ds = scale_interval(r, blocks, code_range(bits, symmetric)[1], symmetric)
        relative = ds / s
        z = zero_interval(r, blocks, s, relative, bits, symmetric)
    else:
        s = np.asarray(scale, np.float64)
        given = np.zeros(s.shape) if zero is None else np.asarray(zero, np.float64)
        ds, relative, z = r.out.bound(s), np.zeros(s.shape), Codes(given, given, np.zeros(s.shape, bool))
    open_zero = z.allowed()
    known = np.isfinite(ds) & np.isfinite(relative)
    over = [spread_over(a, x.shape, **form) for a in (s, np.where(known, relative, 0.0), z.low, np.where(known, open_zero, np.inf))]
    codes = code_interval(r, x, over[0], over[1], over[2], limits, chosen["code_ties"])
    allowed = {"q": np.where(np.isinf(over[3]), np.inf, codes.allowed()), "scale": ds, "zero": np.where(known, open_zero, np.inf)}
    if scale is None and chosen["zero_scale"] == "any":
        allowed["scale"] = np.where((blocks == 0.0).all(axis=-1) | (s < smallest_scale(r)), np.inf, ds)
    return checked(allowed)


def zero_interval(r: Roundings, blocks: Float64, s: Float64, relative: Float64 | float, bits: int, symmetric: bool) -> Codes:
    """The zero points a legal computation may come to, of blocks (..., members) with scales s off by at most `relative`."""
    least = blocks.min(axis=-1, initial=0.0)
    if symmetric:
        return Codes(np.zeros(s.shape), np.zeros(s.shape), np.zeros(s.shape, bool))
    known = np.where(np.isfinite(relative), relative, 0.0)
    z = code_interval(r, -least, s, known, np.zeros(()), (0, 2**bits - 1), "any")
    return Codes(z.low, z.high, z.lost & (least < 0.0))


def dequantize_bound(
    arithmetic: ResolvedArithmetic, q: ArrayLike, scale: ArrayLike, zero: ArrayLike = 0, *, axis: int | None = None,
    group: int | None = None,
) -> dict[str, Float64]:  # fmt: skip
    """How far numbers made from codes may be from the exact ones: {"out"}, the shape of q.

        |error| <= u |q - zero| s                            zero = 0, or the difference taken in whole numbers
                   u (|q| + |zero| + |q - zero|) s           as q s - zero s

    then the rounding of `out`; exactly 0 where q = zero = 0.

    >>> from oracles.properties import Arithmetic
    >>> dequantize_bound(Arithmetic().resolve("float32"), [0, 1], [1.0])["out"] > 0
    array([False,  True])
    """
    r = roundings(arithmetic)
    codes, s, z = np.asarray(q, np.float64), np.asarray(scale, np.float64), np.asarray(zero, np.float64)
    s = spread_over(s, codes.shape, axis=axis, group=group)
    z = spread_over(z, codes.shape, axis=axis, group=group) if z.size != 1 else z.reshape(())
    size = np.abs(codes - z) * s
    rounds = np.where(z == 0.0, size, (np.abs(codes) + np.abs(z)) * s + size)
    error = r.elementwise.u * rounds + np.minimum(3.0 * r.elementwise.eta, size)
    error = np.where(rounds > r.elementwise.largest, np.inf, error)
    return checked({"out": r.out.bound(size, error)})


def quantized_matmul_bound(
    arithmetic: ResolvedArithmetic, x: ArrayLike, q: ArrayLike, scale: ArrayLike, *, x_scale: ArrayLike, bias: ArrayLike | None = None
) -> dict[str, Float64]:
    """How far a scaled product of codes may be from the exact one: {"out"} (N, M).

        |error| <= ((1 + u)^3 - 1) |x_scale scale (x q)| + eta (|x q| + x_scale + scale + 2) + u (|...| + |bias|),  then `out`

    The sum in int32 is exact; its conversion and two products round, and the sum with the bias. The two products come in any order:
    the first may underflow, or be flushed, before it is multiplied by the third factor. inf where it may overflow, though the
    result does not.

    >>> from oracles.properties import Arithmetic
    >>> float(quantized_matmul_bound(Arithmetic().resolve("float32"), [[0]], [[5]], 0.5, x_scale=1.0)["out"][0, 0])
    0.0
    """
    r = roundings(arithmetic)
    total = integer_product(np.asarray(x, np.int64), np.asarray(q, np.int64)).astype(np.float64)
    of_x, of_q = np.asarray(x_scale, np.float64).reshape(-1, 1), np.asarray(scale, np.float64).reshape(1, -1)
    s, size, scales = of_x * of_q, np.abs(total), np.abs(of_x) + np.abs(of_q)
    product = s * total
    u = r.elementwise.u
    error = compound(u, u, u) * np.abs(product) + np.where(product == 0.0, 0.0, r.elementwise.eta * (size + scales + 2.0))
    most = np.max(np.broadcast_arrays(np.abs(s), np.abs(of_x) * size, np.abs(of_q) * size, np.abs(product), size), axis=0)
    error = np.where(most * (1.0 + 3.0 * u) > r.elementwise.largest, np.inf, error)
    if bias is not None:
        b = np.asarray(bias, np.float64)
        error = error + u * (np.abs(product) + error + np.abs(b)) * (product != 0.0)
        product = product + b
    return checked({"out": r.out.bound(product, error)})


def dequantize_blockwise_bound(
    arithmetic: ResolvedArithmetic, codes: ArrayLike, absmax: ArrayLike, *, block: int, codebook: ArrayLike,
    absmax_scale: ArrayLike | None = None, absmax_offset: float = 0.0,
) -> dict[str, Float64]:  # fmt: skip
    """How far values of a table times a block's maximum may be from the exact ones: {"out"}, the shape of the codes.

        |error| <= |value| da + u |value| (|a| + da),   da = u |absmax_scale absmax| + u |a|  where maxima are quantized themselves, else 0

    then the rounding of `out`.

    >>> from oracles.properties import Arithmetic
    >>> float(dequantize_blockwise_bound(Arithmetic().resolve("float32"), [0], [3.0], block=4, codebook=[0.0])["out"][0])
    0.0
    """
    r = roundings(arithmetic)
    u, index = r.elementwise.u, np.asarray(codes, np.int64)
    a, da = np.asarray(absmax, np.float64), np.zeros(np.shape(absmax))
    if absmax_scale is not None:
        scaled = np.asarray(absmax_scale, np.float64) * a
        a = scaled + absmax_offset
        da = u * np.abs(scaled) + u * (np.abs(a) + u * np.abs(scaled)) + r.elementwise.eta
        da = da + r.elementwise.u * abs(absmax_offset)                          # the offset in the format it is computed in
    a, da = (spread_over(part, index.shape, axis=None, group=block) for part in (a, da))
    value = np.asarray(codebook, np.float64)[index]
    error = np.abs(value) * da + u * np.abs(value) * (np.abs(a) + da) + np.where(value * a == 0.0, 0.0, r.elementwise.eta)
    return checked({"out": r.out.bound(value * a, error)})
