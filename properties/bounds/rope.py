"""Bounds for rotary embedding: the angle loses in proportion to its size, and no care with the product afterwards brings that back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import FloatFormat, arguments, rope_frequencies
from oracles.reference.arguments import Bool, Float64

from .sums import Roundings, checked, compound, g, holds, roundings

Pairing = Literal["half", "interleaved"]
Scaling = Any


def rope_bound(arithmetic: ResolvedArithmetic, x: ArrayLike, positions: ArrayLike, *, pairing: Pairing, base: float = 10000.0,
               rotary_dim: int | None = None, scaling: Scaling = None) -> dict[str, Float64]:
    """How far a legal rotation of x may be from the exact one, element by element: {"out"}, the shape of x.

        |error of t|   = |t| (relative error of f, + u_p for the product, + u_p where the position is no number of `phases`)
        |error of cos| <= min(2, |error of t| (|sin t| + |error of t| / 2)),  of sin with |cos t|
        |error of out| <= m (|a| |error of cos| + |b| |error of sin|) + k m (|a cos t| + |b sin t|),  then one rounding of `out`

    u_p is the roundoff of `phases`, the format in which frequencies, angles, sines and cosines are made, and
    k = (1 + trig_ulps u_p) (1 + u)^n - 1 with u that of `elementwise`: the table is stored there (n = 1), two products and a
    sum follow (n = 3), the factor m of yarn is one more, and one more where `elementwise` does not hold the inputs.

    f = base^(-2 i / R), 1 for i = 0, is off by exp_ulps u_p, a reciprocal, and (3 + log_ulps) |ln f| u_p for the exponent, in base e, 2 or
    the base itself; a division by the scaling's factor costs 2 u_p, ntk's base what its own power does, and the ramp of
    yarn and llama3 as much of |f - f / factor| as its bounds may move. Where one of yarn's bounds may fall on either side
    of a whole number, both truncations are allowed.

    So the bound grows with the angle: with phases of float32 it passes 1e-3 at position 131,071, in bfloat16 an
    angle of 128 is off by 1; `phases="float64"`, for tables made in float64, keeps it flat. At position 0 nothing is allowed (m = 1), nor
    ever for coordinates that are not rotated, if `out` holds the inputs. inf where a product may overflow, or the angle in its
    format, and for pairs that hold an infinity; 0 where the oracle is NaN.

    >>> from oracles.properties import Arithmetic
    >>> near, far = (rope_bound(Arithmetic().resolve("float32"), [0.0, 1.0, 0.0, 0.0], p, pairing="half")["out"][1] for p in (1, 131071))
    >>> bool(near < 1e-6 < 1e-3 < far)
    True

    Source: |cos(t + d) - cos t| = 2 |sin(t + d / 2) sin(d / 2)|; Higham 2002, section 3.1, for the products.
    """
    r = roundings(arithmetic)
    q = _quantities(r, x, positions, pairing, base, rotary_dim, scaling)
    bound = np.zeros(q.x.shape)
    if not holds(FloatFormat(arithmetic.out), FloatFormat(arithmetic.inputs)):
        bound = r.out.bound(q.x)
    with np.errstate(invalid="ignore", over="ignore"):
        for place, first, second, sign in ((q.first, q.a, q.b, -1.0), (q.second, q.b, q.a, 1.0)):
            bound[..., place] = _element(r, q, first, second, sign)
    return checked({"out": bound})


def pair_norm_bound(arithmetic: ResolvedArithmetic, x: ArrayLike, positions: ArrayLike, *, pairing: Pairing, base: float = 10000.0,
                    rotary_dim: int | None = None, scaling: Scaling = None) -> tuple[Float64, Float64]:
    """m |(a, b)| of every pair, and how far the norm of its legal rotation may be from it: each (..., R / 2).

        sqrt(2) k m |(a, b)| + u_out m |(a, b)| (1 + sqrt(2) k) + underflow,   k as in `rope_bound`

    However wrong the angle is, cos^2 + sin^2 = 1: the angle's error does not enter, and far out this is the sharper witness.
    inf where `rope_bound` makes no promise.
    """
    r = roundings(arithmetic)
    q = _quantities(r, x, positions, pairing, base, rotary_dim, scaling)
    with np.errstate(invalid="ignore", over="ignore"):
        norm = q.m * np.hypot(q.a, q.b)
        off = np.sqrt(2.0) * (_growth(r, q) * norm + _lost(r, q, norm > 0.0))
        b = off + r.out.u * (norm + off) + np.sqrt(2.0) * np.minimum(r.out.eta, norm + off)
    promised = np.isfinite(norm) & (np.maximum(norm, off) < min(r.out.largest, r.elementwise.largest) / 2) & np.isfinite(q.dt)
    return np.where(promised, norm, 0.0), np.where(promised, b, np.inf)


@dataclass(frozen=True)
class _Quantities:
    """x; the places and values of the pairs (..., R / 2); exact angles t and how far computed ones may be; factor m, relative error dm.

    turned: the angle is not 0. held: `elementwise` holds the inputs.
    """

    x: Float64
    first: slice
    second: slice
    a: Float64
    b: Float64
    t: Float64
    dt: Float64
    m: float
    dm: float
    turned: Bool
    held: bool


def _quantities(r: Roundings, x: ArrayLike, positions: ArrayLike, pairing: Pairing, base: float, rotary_dim: int | None,
                scaling: Scaling) -> _Quantities:
    x = arguments.widen("x", x)
    R = x.shape[-1] if rotary_dim is None else rotary_dim
    first, second = {"half": (slice(0, R // 2), slice(R // 2, R)), "interleaved": (slice(0, R, 2), slice(1, R, 2))}[pairing]
    f, m = rope_frequencies(R, base=base, scaling=scaling)
    df, dm = frequency_error(r, R, base=base, scaling=scaling)
    p = np.broadcast_to(np.asarray(positions).astype(np.float64), x.shape[:-1])[..., None]      # (..., T, 1)
    t = p * f
    inexact = FloatFormat(r.declared.phases).round(p) != p
    dt = np.abs(p) * (f * compound(df / f, r.phases.u) + r.phases.eta) + np.abs(t) * np.where(inexact, r.phases.u, 0.0) * (1.0 + df / f)
    dt = np.where(p == 0.0, 0.0, np.where((np.abs(t) + dt > r.phases.largest) | (np.abs(p) > r.phases.largest), np.inf, dt))
    held = holds(FloatFormat(r.declared.elementwise), FloatFormat(r.declared.inputs))
    return _Quantities(x, first, second, x[..., first], x[..., second], t, dt, m, dm, np.broadcast_to(p != 0.0, t.shape), held)


def _growth(r: Roundings, q: _Quantities) -> float:
    """k: what the sine or cosine of the computed angle, its product with a coordinate and the sum may be off by, relative."""
    stored = 0.0 if holds(FloatFormat(r.declared.elementwise), FloatFormat(r.declared.phases)) else r.elementwise.u
    factor = (q.dm, max(r.elementwise.u, r.phases.u)) if q.dm else ()
    return float(compound(r.declared.trig_ulps * r.phases.u, stored, *factor, g(2.0 if q.held else 3.0, r.elementwise.u)))


def _lost(r: Roundings, q: _Quantities, there: Bool) -> Float64:
    """What underflow may take from an element: of the two products, their sum, and each table entry times its coordinate."""
    size = q.m * (np.abs(q.a) + np.abs(q.b))
    table = (r.phases.eta + 2.0 * r.elementwise.eta) * size * 1.5               # a lost sine is multiplied afterwards
    return np.where(there, np.minimum(3.0 * r.elementwise.eta, 2.0 * size) + np.where(q.turned, table, 0.0), 0.0)


def _element(r: Roundings, q: _Quantities, own: Float64, other: Float64, sign: float) -> Float64:
    """The bound of own cos t + sign other sin t."""
    cos, sin = np.cos(q.t), np.sin(q.t)
    e_cos, e_sin = (np.minimum(2.0, q.dt * (np.abs(leg) + q.dt / 2.0)) for leg in (sin, cos))
    value = q.m * (own * cos + sign * other * sin)
    size = q.m * (np.abs(own) * np.minimum(1.0, np.abs(cos) + e_cos) + np.abs(other) * np.minimum(1.0, np.abs(sin) + e_sin))
    error = q.m * (np.abs(own) * e_cos + np.abs(other) * e_sin) + _growth(r, q) * size + _lost(r, q, size > 0.0)
    b = r.out.bound(value, error)
    still = ~q.turned & (q.dm == 0.0)                                           # times 1, less 0: only what storing the input loses
    b = np.where(still, _unturned(r, q, own), b)
    b = np.where((size + error > r.elementwise.largest) | np.isinf(q.dt), np.inf, b)
    b = np.where(np.isnan(q.a) | np.isnan(q.b), 0.0, b)
    return np.asarray(np.where(np.isinf(q.a) | np.isinf(q.b), np.inf, b))


def _unturned(r: Roundings, q: _Quantities, own: Float64) -> Float64:
    error = np.zeros_like(own) if q.held else r.elementwise.u * np.abs(own)
    if r.declared.flush_to_zero or not q.held:
        error = error + np.minimum(r.elementwise.eta, np.abs(own))
    exact = q.held and holds(FloatFormat(r.declared.out), FloatFormat(r.declared.inputs))
    return error if exact else r.out.bound(own, error)


# Frequencies ----------------------------------------------------------------------------------------------------------------


def frequency_error(r: Roundings, R: int, *, base: float, scaling: Scaling) -> tuple[Float64, float]:
    """How far frequencies made in `phases` may be from the exact ones, (R / 2,), and the relative error of yarn's factor.

    >>> from oracles.properties import Arithmetic
    >>> error, _ = frequency_error(roundings(Arithmetic().resolve("float32")), 4, base=10000.0, scaling=None)
    >>> (error / [1.0, 0.01] * 2**24).round(1)
    array([ 0. , 37.2])
    """
    kind = "none" if scaling is None else scaling["kind"]
    error: Float64 = _KINDS[kind](r, R, base, scaling or {})
    return error + 6.0 * r.phases.eta, _factor_error(r, scaling) if kind == "yarn" else 0.0


def _power(r: Roundings, L: Float64 | float, more: Float64 | float = 0.0) -> Float64:
    """The relative error of a power whose logarithm is L, through its exponent, a logarithm and the function, and of a reciprocal.

    None where the exponent is 0: the power is 1 in every form.
    """
    u, lost = r.phases.u, np.asarray((3.0 + r.declared.log_ulps) * r.phases.u * np.abs(L) + more)
    return np.asarray(np.where(lost == 0.0, 0.0, compound(r.declared.exp_ulps * u, u, np.expm1(lost))))


def _plain(r: Roundings, R: int, base: float, scaling: Scaling) -> Float64:
    f, _ = rope_frequencies(R, base=base)
    return np.asarray(f * _power(r, np.log(f)))


def _linear(r: Roundings, R: int, base: float, scaling: Scaling) -> Float64:
    f, _ = rope_frequencies(R, base=base)
    return np.asarray(f / scaling["factor"] * compound(_power(r, np.log(f)), g(2.0, r.phases.u)))


def _ntk(r: Roundings, R: int, base: float, scaling: Scaling) -> Float64:
    f, _ = rope_frequencies(R, base=base, scaling=scaling)
    of_base = np.log1p(compound(_power(r, R / (R - 2) * np.log(scaling["factor"])), g(2.0, r.phases.u)))
    return np.asarray(f * _power(r, np.log(f), np.arange(0, R, 2) / R * of_base))


def _yarn(r: Roundings, R: int, base: float, scaling: Scaling) -> Float64:
    u, log_ulps = r.phases.u, r.declared.log_ulps
    edges = []
    for beta, to_whole in ((scaling["beta_fast"], np.floor), (scaling["beta_slow"], np.ceil)):
        turns = np.log(scaling["original_max_position_embeddings"] / (2.0 * np.pi * beta))
        place = R * turns / (2.0 * np.log(base))
        off = R / (2.0 * np.log(base)) * u * (4.0 + log_ulps * np.abs(turns)) + np.abs(place) * u * (4.0 + log_ulps)
        edges.append([to_whole(e) if scaling["truncate"] else e for e in (place - off, place, place + off)])
    i = np.arange(R // 2).astype(np.float64)
    ramps = [_ramp(i, min(max(low, 0.0), R - 1.0), max(min(high, R - 1.0), 0.0)) for low in edges[0] for high in edges[1]]
    exact = _ramp(i, min(max(edges[0][1], 0.0), R - 1.0), max(min(edges[1][1], R - 1.0), 0.0))
    return _mixed(r, R, base, scaling["factor"], 1.0 - exact, np.abs(np.array(ramps) - exact).max(axis=0) + g(3.0, u) * exact)


def _ramp(i: Float64, low: float, high: float) -> Float64:
    return np.clip((i - low) / (high - low if high != low else 0.001), 0.0, 1.0)


def _llama3(r: Roundings, R: int, base: float, scaling: Scaling) -> Float64:
    u, (low, high) = r.phases.u, (scaling["low_freq_factor"], scaling["high_freq_factor"])
    f, _ = rope_frequencies(R, base=base)
    turns = scaling["original_max_position_embeddings"] * f / (2.0 * np.pi)
    off = turns * compound(_power(r, np.log(f)), g(4.0, u)) + u * (turns + low + high)
    exact, *moved = (np.clip((x - low) / (high - low), 0.0, 1.0) for x in (turns, turns - off, turns + off))
    return _mixed(r, R, base, scaling["factor"], exact, np.abs(np.array(moved) - exact).max(axis=0) + g(3.0, u) * exact)


def _mixed(r: Roundings, R: int, base: float, factor: float, kept: Float64, moved: Float64) -> Float64:
    """The error of kept f + (1 - kept) f / factor, when kept may be off by `moved` and is rounded, itself and taken from 1."""
    f, _ = rope_frequencies(R, base=base)
    shift = np.abs(f - f / factor) * (moved + 3.0 * r.phases.u)
    return np.asarray(shift + (kept * f + (1.0 - kept) * f / factor + shift) * compound(_power(r, np.log(f)), g(6.0, r.phases.u)))


_KINDS: dict[str, Callable[[Roundings, int, float, Scaling], Float64]] = {
    "none": _plain, "linear": _linear, "ntk": _ntk, "yarn": _yarn, "llama3": _llama3,
}  # fmt: skip


def _factor_error(r: Roundings, scaling: Scaling) -> float:
    """The relative error of m(factor, mscale) / m(factor, mscale_all_dim); never 0, since it tells that there is a factor."""
    u, log = max(r.elementwise.u, r.phases.u), max(0.0, float(np.log(scaling["factor"])))
    parts = []
    for mscale in (scaling["mscale"], scaling["mscale_all_dim"]):
        m = 1.0 + 0.1 * mscale * log
        parts.append(u * ((r.declared.log_ulps + 4.0) * abs(0.1 * mscale * log) + abs(m)) / abs(m))
    return float(compound(parts[0], parts[1] / (1.0 - min(parts[1], 0.5)), u))
