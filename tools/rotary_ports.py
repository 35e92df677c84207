"""Our own second form of rotary embedding and of writes into a cache: numbers on the unit circle, and one scatter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles.properties import Arithmetic, subject

FORMATS = ("float32", "float64", "float16", "bfloat16")


@subject("rope", dtypes=FORMATS, arithmetic=Arithmetic(elementwise="float64", phases="float64"), promises=["deterministic"])
def rope_on_the_unit_circle(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                            scaling: Mapping[str, Any] | None = None) -> Any:
    """Each pair is one complex number, multiplied by m e^(i t); the pairs are gathered and scattered by index."""
    R = x.shape[-1] if rotary_dim is None else rotary_dim
    first = np.arange(R // 2) if pairing == "half" else 2 * np.arange(R // 2)
    second = first + (R // 2 if pairing == "half" else 1)
    wavelengths, m = _wavelengths(R, base, scaling)
    z = x[..., first].astype(np.float64) + 1j * x[..., second].astype(np.float64)              # (..., T, R / 2)
    z = z * (m * np.exp(2j * np.pi * (np.asarray(positions, np.float64)[..., None] / wavelengths)))
    out = np.array(x)
    with np.errstate(over="ignore"):
        out[..., first], out[..., second] = z.real.astype(x.dtype), z.imag.astype(x.dtype)
    return out


def _wavelengths(R: int, base: float, scaling: Mapping[str, Any] | None) -> tuple[Any, float]:
    """Positions per turn of each pair, (R / 2,), and the factor m."""
    exponent = np.arange(R // 2) * 2.0 / R
    turn = 2.0 * np.pi * np.exp(exponent * np.log(base))
    if scaling is None:
        return turn, 1.0
    kind, factor = scaling["kind"], scaling["factor"]
    if kind == "linear":
        return turn * factor, 1.0
    if kind == "ntk":
        return turn * np.exp(exponent * np.log(factor) * R / (R - 2.0)), 1.0
    original = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        stretched = 1.0 - np.clip((original / turn - low) / (high - low), 0.0, 1.0)
        return turn / (1.0 - stretched + stretched / factor), 1.0
    # The place, counted in pairs, of the wavelength that makes beta turns in the original context.
    ends = [R / 2.0 * np.log(original / beta / (2.0 * np.pi)) / np.log(base) for beta in (scaling["beta_fast"], scaling["beta_slow"])]
    if scaling["truncate"]:
        ends = [np.floor(ends[0]), np.ceil(ends[1])]
    first, last = max(ends[0], 0.0), min(ends[1], R - 1.0)
    first, last = min(first, R - 1.0), max(last, 0.0)
    stretched = np.clip((np.arange(R // 2) - first) / (last - first or 0.001), 0.0, 1.0)
    grown = [1.0 + mscale * np.log(factor) / 10.0 if factor > 1.0 else 1.0 for mscale in (scaling["mscale"], scaling["mscale_all_dim"])]
    return turn / (1.0 - stretched + stretched / factor), float(grown[0] / grown[1])


@subject("write_kv", dtypes=FORMATS, promises=["deterministic"])
def write_kv_by_gathering(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> Any:
    """Every slot looks for the last token that names it, and takes that or what it held: no two writers meet."""
    T = len(slots)
    names = np.asarray(slots)[None, :] == np.arange(len(k_cache))[:, None]                     # (S, T)
    last = np.where(names, np.arange(T), -1).max(axis=1, initial=-1)                           # (S,)
    caches = []
    for cache, tokens in ((k_cache, k), (v_cache, v)):
        new = cache.copy()
        new[last >= 0] = tokens[last[last >= 0]]
        caches.append(new)
    return tuple(caches)
