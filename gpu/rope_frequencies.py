"""The table of frequencies that the rotary kernel turns by: plain, linear, NTK, YaRN and Llama 3, in float64 on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import arguments

_LENGTH = "original_max_position_embeddings"
FIELDS = {
    "linear": ("factor",),
    "ntk": ("factor",),
    "yarn": ("factor", _LENGTH, "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "llama3": ("factor", _LENGTH, "low_freq_factor", "high_freq_factor"),
}


def frequencies(R: int, base: float, scaling: Mapping[str, Any] | None) -> tuple[NDArray[np.float64], float]:
    """(R / 2,) angles per position, and the factor on cosine and sine, 1 but for yarn.

        f_i = base^(-2 i / R);   linear f_i / factor;   ntk: with base factor^(R / (R - 2)) for base
        yarn, llama3: f_i (kept_i + (1 - kept_i) / factor), kept_i falling linearly from 1 to 0: yarn's over the pairs i between those
        that make beta_fast and beta_slow turns in the original context, llama3's over the number of turns itself

    >>> frequencies(4, 100.0, {"kind": "linear", "factor": 2.0})
    (array([0.5 , 0.05]), 1.0)

    Raises ValueError or TypeError that names the field, what came and what is wanted.
    Source: Su et al. 2021 (arXiv 2104.09864); Chen et al. 2023 (arXiv 2306.15595); Peng et al. 2023 (arXiv 2309.00071), section 3;
    Grattafiori et al. 2024 (arXiv 2407.21783).
    """
    given = _fields(scaling)
    i = np.arange(R // 2, dtype=np.float64)
    kind = "none" if scaling is None else scaling["kind"]
    if kind == "ntk":
        if R == 2:
            raise ValueError("rotary_dim: got 2 for ntk, whose exponent R / (R - 2) has no value there; want at least 4")
        base *= given["factor"] ** (R / (R - 2))
    f = base ** (-2.0 * i / R)                                                  # (R / 2,)
    if kind == "linear":
        return f / given["factor"], 1.0
    if kind == "yarn":
        kept = _kept_by_yarn(i, R, base, given)
        grown = [_mscale(given["factor"], given[name]) for name in ("mscale", "mscale_all_dim")]
        return f * kept + f / given["factor"] * (1.0 - kept), grown[0] / grown[1]
    if kind == "llama3":
        low, high = given["low_freq_factor"], given["high_freq_factor"]
        if high <= low:
            raise ValueError(f"scaling: got high_freq_factor {high} beside low_freq_factor {low}; want a larger one")
        kept = np.clip((given[_LENGTH] * f / (2.0 * math.pi) - low) / (high - low), 0.0, 1.0)
        return f * kept + f / given["factor"] * (1.0 - kept), 1.0
    return f, 1.0


def _kept_by_yarn(i: NDArray[np.float64], R: int, base: float, given: Mapping[str, float]) -> NDArray[np.float64]:
    if base <= 1.0:
        raise ValueError(f"base: got {base} for yarn, which divides by its logarithm; want one above 1")
    fast, slow = given["beta_fast"], given["beta_slow"]
    if fast < slow:
        raise ValueError(f"scaling: got beta_fast {fast} beside beta_slow {slow}; want one at least as large")
    first, last = (R * math.log(given[_LENGTH] / (2.0 * math.pi * beta)) / (2.0 * math.log(base)) for beta in (fast, slow))
    if given["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = min(max(first, 0), R - 1), max(min(last, R - 1), 0)
    width = 0.001 if first == last else last - first
    return np.asarray(1.0 - np.clip((i - first) / width, 0.0, 1.0))


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _fields(scaling: Mapping[str, Any] | None) -> dict[str, float]:
    """The fields of a record, each checked, none missing and none unknown."""
    if scaling is None:
        return {}
    if not isinstance(scaling, Mapping):
        raise TypeError(f"scaling: got {scaling!r}; want None or a mapping with a 'kind' and its fields")
    kind = scaling.get("kind")
    if kind not in FIELDS:
        raise ValueError(f"scaling: got kind {kind!r}; want one of {', '.join(FIELDS)}")
    if set(scaling) != {"kind", *FIELDS[kind]}:
        raise ValueError(f"scaling: got fields {sorted(set(scaling) - {'kind'})} for {kind}; want {sorted(FIELDS[kind])}, each named")
    checked: dict[str, float] = {}
    for name in FIELDS[kind]:
        if name == "truncate":
            if not isinstance(scaling[name], bool | np.bool_):
                raise TypeError(f"truncate: got {scaling[name]!r}; want True or False")
            checked[name] = bool(scaling[name])
        else:
            checked[name] = arguments.real_number(name, scaling[name], positive=not name.startswith("mscale"))
    return checked
