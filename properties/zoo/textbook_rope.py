"""Textbook: rotary embedding and writes into a cache, made of steps of which a specimen exchanges one. No arithmetic of the oracles.

Rotation is computed in float64 for float64 inputs and in float32 for all others, angles too; the result has the format of x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .textbook import Array, working

Scaling = Mapping[str, Any] | None
Frequencies = Callable[[int, float, Scaling, Any], Array]
PI2 = 2.0 * np.pi


# Frequencies ----------------------------------------------------------------------------------------------------------------


def plain_frequencies(R: int, base: float, wide: Any) -> Array:
    """base^(-2 i / R), (R / 2,)."""
    return np.asarray(wide(1) / wide(base) ** (np.arange(0, R, 2).astype(wide) / wide(R)))


def frequencies(R: int, base: float, scaling: Scaling, wide: Any) -> Array:
    """Angles per position, stretched as the scaling says."""
    if scaling is None:
        return plain_frequencies(R, base, wide)
    factor = scaling["factor"]
    if scaling["kind"] == "ntk":
        return plain_frequencies(R, base * factor ** (R / (R - 2)), wide)
    f = plain_frequencies(R, base, wide)
    if scaling["kind"] == "linear":
        return np.asarray(f / wide(factor))
    kept = yarn_share(R, base, scaling) if scaling["kind"] == "yarn" else llama3_share(f.astype(np.float64), scaling)
    return np.asarray((f / wide(factor)) * (1 - kept).astype(wide) + f * kept.astype(wide))


def yarn_share(R: int, base: float, scaling: Mapping[str, Any]) -> Array:
    """How much of each frequency yarn leaves as it is: 1 for those that turn often, 0 for those that turn less than once."""
    def dimension(turns: float) -> float:
        return float(R * np.log(scaling["original_max_position_embeddings"] / (turns * PI2)) / (2 * np.log(base)))

    low, high = dimension(scaling["beta_fast"]), dimension(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = np.floor(low), np.ceil(high)
    low, high = min(max(low, 0), R - 1), max(min(high, R - 1), 0)
    return np.asarray(1 - np.clip((np.arange(R // 2) - low) / (high - low if high != low else 0.001), 0, 1))


def llama3_share(f: Array, scaling: Mapping[str, Any]) -> Array:
    """How much of each frequency Llama 3.1 leaves as it is, by wavelength."""
    original, low, high = (scaling[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    wavelength = PI2 / f
    smooth = (original / wavelength - low) / (high - low)
    return np.where(wavelength < original / high, 1.0, np.where(wavelength > original / low, 0.0, smooth))


def magnitude(scaling: Scaling) -> float:
    """The factor on sines and cosines: yarn's ratio, else 1."""
    if scaling is None or scaling["kind"] != "yarn" or scaling["factor"] <= 1:
        return 1.0
    log = float(np.log(scaling["factor"]))
    return float((0.1 * scaling["mscale"] * log + 1) / (0.1 * scaling["mscale_all_dim"] * log + 1))


# Rotation -------------------------------------------------------------------------------------------------------------------


def places(R: int, pairing: str) -> tuple[slice, slice]:
    """Where the first and the second of each pair are read."""
    return (slice(0, R // 2), slice(R // 2, R)) if pairing == "half" else (slice(0, R, 2), slice(1, R, 2))


def angles(positions: Array, f: Array, wide: Any) -> Array:
    """Position times frequency, (..., T, R / 2)."""
    return np.asarray(positions.astype(wide)[..., None] * f)


def turned(x: Array, cos: Array, sin: Array, pairing: str) -> Array:
    """x (..., R) with each pair turned, read and written at the same places."""
    first, second = places(x.shape[-1], pairing)
    out = np.empty_like(x)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def rope(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None, scaling: Scaling = None,
         frequencies: Frequencies = frequencies, angles: Callable[[Array, Array, Any], Array] = angles,
         magnitude: Callable[[Scaling], float] = magnitude, turned: Callable[[Array, Array, Array, str], Array] = turned) -> Array:
    """x with the first rotary_dim coordinates of each row turned."""
    wide, R = working(x), x.shape[-1] if rotary_dim is None else rotary_dim
    t = angles(np.asarray(positions), frequencies(R, base, scaling, wide), wide)
    t = np.broadcast_to(t, (*x.shape[:-1], R // 2))
    m = wide(magnitude(scaling))
    with np.errstate(all="ignore"):
        rotated = turned(x[..., :R].astype(wide), np.cos(t) * m, np.sin(t) * m, pairing)
    return np.concatenate([rotated.astype(x.dtype), x[..., R:]], axis=-1)


# Caches ---------------------------------------------------------------------------------------------------------------------


def write_kv(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> tuple[Array, Array]:
    """New caches with token after token put into its slot."""
    k_cache, v_cache = k_cache.copy(), v_cache.copy()
    for token, slot in enumerate(slots.tolist()):
        if slot != -1:
            k_cache[slot], v_cache[slot] = k[token], v[token]
    return k_cache, v_cache
