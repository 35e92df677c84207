"""Frequencies of rotary embedding, and what stretches them for longer contexts. The rotation itself is left to rope."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import arguments
from .arguments import Float64

Scaling = Mapping[str, Any] | None


def rope_frequencies(rotary_dim: int, *, base: float = 10000.0, scaling: Scaling = None) -> tuple[Float64, float]:
    """The angle per position of each pair, and the factor on cos and sin: float64 (rotary_dim / 2,), and a number.

        f_i = base^(-2 i / R),   R = rotary_dim,   i = 0 .. R/2 - 1,   factor 1

    `scaling` is a mapping with a "kind" and every field of that kind named, none left to a default:

        linear   factor                            f_i / factor
        ntk      factor                            base^(-2 i / R) of the base  base factor^(R / (R - 2))
        yarn     factor, original_max_position_embeddings, beta_fast, beta_slow, mscale, mscale_all_dim, truncate
                 (1 - r_i) f_i + r_i f_i / factor  r_i = clip((i - low) / (high - low), 0, 1)
                 low, high = R ln(original / (2 pi beta)) / (2 ln base) for beta_fast, beta_slow, taken down and up to
                 whole numbers where `truncate`, and kept in 0 .. R - 1; equal ones are set 0.001 apart
                 factor on cos and sin: m(factor, mscale) / m(factor, mscale_all_dim), `yarn_mscale`
        llama3   factor, original_max_position_embeddings, low_freq_factor, high_freq_factor
                 (1 - r_i) f_i / factor + r_i f_i  r_i = clip((original f_i / (2 pi) - low) / (high - low), 0, 1)

    Yarn's factor is a ratio, 1 where both mscales agree (kekzl/imp#880); what `mscale_all_dim` adds to the scores is
    `mla_scale`'s. Where mscale_all_dim is 0 the Hugging Face library takes m(factor, 1) whatever mscale says; here, as
    in DeepSeek's code and vLLM, m(factor, mscale).

    >>> rope_frequencies(4, base=100.0)
    (array([1. , 0.1]), 1.0)
    >>> rope_frequencies(4, base=100.0, scaling={"kind": "linear", "factor": 4.0})[0]
    array([0.25 , 0.025])

    Raises ValueError for an odd or empty rotary_dim, an unknown kind, and a field that is missing, unknown or out of range.
    Error bound: (3 + |ln f_i|) u f_i plain, 4 u f_i more for a division by the factor, 8 (R + |ln f_i|) u f_i more for
    ntk's base; for a ramp 8 (R + |ln f_i|) (1 + high) / (high - low) u f_i more, for factors of at least 1 and a base of
    at least 2. Where a bound of yarn's ramp lies within rounding of a whole number, truncation may take its neighbour.
    Source: Su et al. 2021 (arXiv 2104.09864), section 3.2.2; linear: Chen et al. 2023 (arXiv 2306.15595); ntk and yarn:
    Peng et al. 2023 (arXiv 2309.00071), section 3, as in modeling_rope_utils of huggingface/transformers, where llama3
    stands too (Llama 3.1; Grattafiori et al. 2024, arXiv 2407.21783).
    """
    R = arguments.whole_number("rotary_dim", rotary_dim, least=2)
    if R % 2:
        raise ValueError(f"rotary_dim: got {R}; want an even number")
    base = arguments.real_number("base", base, positive=True)
    if scaling is None:
        return _plain(R, base), 1.0
    if not isinstance(scaling, Mapping):
        raise TypeError(f"scaling: got {scaling!r}; want None or a mapping with a 'kind' and its fields")
    kind = scaling.get("kind")
    if kind not in _KINDS:
        raise ValueError(f"scaling: got kind {kind!r}; want one of {', '.join(_KINDS)}")
    fields, compute = _KINDS[kind]
    if set(scaling) != {"kind", *fields}:
        raise ValueError(f"scaling: got fields {sorted(set(scaling) - {'kind'})} for {kind}; want {sorted(fields)}, each named")
    checked = {name: _field(name, scaling[name]) for name in fields}
    return compute(R, base, **checked)


def yarn_mscale(factor: float, mscale: float) -> float:
    """How much larger yarn makes queries and keys: 1 + 0.1 mscale ln factor, and 1 for a factor of at most 1.

    >>> round(yarn_mscale(40.0, 0.707), 4), yarn_mscale(0.5, 1.0)
    (1.2608, 1.0)

    Error bound: 4 u of its value. Source: Peng et al. 2023 (arXiv 2309.00071), equation 22; the multiple: DeepSeek-V2's
    yarn_get_mscale.
    """
    factor = arguments.real_number("factor", factor, positive=True)
    mscale = arguments.real_number("mscale", mscale)
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _plain(R: int, base: float) -> Float64:
    return np.asarray(base ** (-np.arange(0, R, 2, dtype=np.float64) / R))      # (R / 2,)


def _linear(R: int, base: float, factor: float) -> tuple[Float64, float]:
    return _plain(R, base) / factor, 1.0


def _ntk(R: int, base: float, factor: float) -> tuple[Float64, float]:
    if R == 2:
        raise ValueError("rotary_dim: got 2 for ntk, whose exponent R / (R - 2) has no value there; want at least 4")
    return _plain(R, base * factor ** (R / (R - 2))), 1.0


def _yarn(R: int, base: float, factor: float, original_max_position_embeddings: float, beta_fast: float, beta_slow: float,
          mscale: float, mscale_all_dim: float, truncate: bool) -> tuple[Float64, float]:
    if base <= 1.0:
        raise ValueError(f"base: got {base} for yarn, which divides by its logarithm; want one above 1")
    if beta_fast < beta_slow:
        raise ValueError(f"scaling: got beta_fast {beta_fast} beside beta_slow {beta_slow}; want one at least as large")
    low, high = (R * math.log(original_max_position_embeddings / (2.0 * math.pi * beta)) / (2.0 * math.log(base))
                 for beta in (beta_fast, beta_slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = min(max(low, 0), R - 1), max(min(high, R - 1), 0)               # both, or a ramp that lies outside would run backwards
    if low == high:
        high += 0.001
    f = _plain(R, base)
    r = np.clip((np.arange(R // 2) - low) / (high - low), 0.0, 1.0)             # (R / 2,): 0 fast, left as it is; 1 slow, stretched
    return (1.0 - r) * f + r * (f / factor), yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)


def _llama3(R: int, base: float, factor: float, original_max_position_embeddings: float, low_freq_factor: float,
            high_freq_factor: float) -> tuple[Float64, float]:
    if high_freq_factor <= low_freq_factor:
        raise ValueError(f"scaling: got high_freq_factor {high_freq_factor} beside low_freq_factor {low_freq_factor}; want a larger one")
    f = _plain(R, base)
    turns = original_max_position_embeddings * f / (2.0 * math.pi)              # within the original context
    r = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return (1.0 - r) * (f / factor) + r * f, 1.0


_LENGTH = "original_max_position_embeddings"
# kind: (its fields, what makes frequencies and the factor of them)
_KINDS: dict[str, tuple[tuple[str, ...], Callable[..., tuple[Float64, float]]]] = {
    "linear": (("factor",), _linear),
    "ntk": (("factor",), _ntk),
    "yarn": (("factor", _LENGTH, "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"), _yarn),
    "llama3": (("factor", _LENGTH, "low_freq_factor", "high_freq_factor"), _llama3),
}


def _field(name: str, value: Any) -> float | bool:
    """A field of `scaling`: truncate a boolean, the mscales any number, all others above 0."""
    if name == "truncate":
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"truncate: got {value!r}; want True or False")
        return bool(value)
    return arguments.real_number(name, value, positive=not name.startswith("mscale"))
