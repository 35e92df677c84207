"""Rotary position embedding in ball arithmetic: frequencies as real powers, angles to any precision, however long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .balls import exact
from .certified import Balls, flint


def rope(x: ArrayLike, positions: ArrayLike, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
         scaling: Mapping[str, Any] | None = None) -> dict[str, Balls]:
    """out, the shape of x; at position 0 without a factor, and behind rotary_dim, x itself."""
    x = np.asarray(x)
    R = x.shape[-1] if rotary_dim is None else rotary_dim
    f, m = frequencies(R, base, scaling)
    p = np.broadcast_to(np.asarray(positions), x.shape[:-1])
    given = exact(x)
    out = given.copy()
    for place in np.ndindex(*x.shape[:-1]):
        for i in range(R // 2):
            first, second = (i, i + R // 2) if pairing == "half" else (2 * i, 2 * i + 1)
            t = f[i] * int(p[place])
            a, b, cos, sin = given[(*place, first)], given[(*place, second)], m * t.cos(), m * t.sin()
            out[(*place, first)], out[(*place, second)] = a * cos - b * sin, a * sin + b * cos
    return {"out": out}


def frequencies(R: int, base: float, scaling: Mapping[str, Any] | None) -> tuple[list[Any], Any]:
    """The angle per position of each pair, and the factor on cos and sin, 1 exactly where there is none."""
    arb, kind = flint().arb, None if scaling is None else scaling["kind"]
    s = {} if scaling is None else {name: arb(float(value)) for name, value in scaling.items() if name not in ("kind", "truncate")}
    b = arb(float(base))
    if kind == "ntk":
        b = b * s["factor"] ** (arb(R) / (R - 2))
    f = [arb(1)] + [b ** (arb(-2 * i) / R) for i in range(1, R // 2)]
    if kind == "linear":
        return [one / s["factor"] for one in f], arb(1)
    if kind == "yarn":
        ramp, factor = _yarn_ramp(R, b, s, bool(scaling["truncate"])) if scaling else [], _mscale_ratio(s)
        return [(1 - r) * one + r * one / s["factor"] for r, one in zip(ramp, f)], factor
    if kind == "llama3":
        ramp = [_clipped((s["original_max_position_embeddings"] * one / (2 * arb.pi()) - s["low_freq_factor"])
                         / (s["high_freq_factor"] - s["low_freq_factor"])) for one in f]
        return [(1 - r) * one / s["factor"] + r * one for r, one in zip(ramp, f)], arb(1)
    return f, arb(1)


def _yarn_ramp(R: int, base: Any, s: Mapping[str, Any], truncate: bool) -> list[Any]:
    """0 where a frequency stays, 1 where it is divided. A floor of a ball that holds a whole number stays a wide ball: more bits."""
    arb = flint().arb
    low, high = (R * (s["original_max_position_embeddings"] / (2 * arb.pi() * s[beta])).log() / (2 * base.log())
                 for beta in ("beta_fast", "beta_slow"))
    if truncate:
        low, high = low.floor(), high.ceil()
    low, high = low.max(arb(0)).min(arb(R - 1)), high.min(arb(R - 1)).max(arb(0))
    apart = arb(1) / 1000 if low == high else high - low
    return [_clipped((i - low) / apart) for i in range(R // 2)]


def _clipped(r: Any) -> Any:
    return r.max(flint().arb(0)).min(flint().arb(1))


def _mscale_ratio(s: Mapping[str, Any]) -> Any:
    arb = flint().arb
    if s["mscale"] == s["mscale_all_dim"] or s["factor"] <= 1:
        return arb(1)
    over, under = (1 + s[name] * s["factor"].log() / 10 for name in ("mscale", "mscale_all_dim"))
    return over / under
