"""Scaled frequencies against their formulas in decimal, one pair at a time, and what published settings give."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from oracles.reference import rope_frequencies, yarn_mscale

pytestmark = pytest.mark.filterwarnings("error")
U = 2.0**-53
EXACT = decimal.Context(prec=50)
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863")
YARN = {"kind": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 0.707, "truncate": True}                              # DeepSeek-V2's, but for mscale
LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "none": None, "linear": {"kind": "linear", "factor": 4.0}, "ntk": {"kind": "ntk", "factor": 8.0}, "yarn": YARN,
    "yarn untruncated": {**YARN, "truncate": False}, "yarn one beta": {**YARN, "beta_fast": 1}, "llama3": LLAMA3}


def exact(R: int, base: float, scaling: dict[str, Any] | None) -> tuple[list[Decimal], float]:
    """The frequencies in decimal, and the part of the error bound that the ramp adds."""
    with decimal.localcontext(EXACT):
        s = {name: value if isinstance(value, str | bool) else Decimal(value) for name, value in (scaling or {}).items()}
        kind, factor, b = s.get("kind"), s.get("factor"), Decimal(base)
        if kind == "ntk":
            b = b * (factor.ln() * R / (R - 2)).exp()
        f = [(Decimal(-2 * i) / R * b.ln()).exp() for i in range(R // 2)]
        original = s.get("original_max_position_embeddings")
        if kind == "linear":
            return [x / factor for x in f], 0.0
        if kind == "yarn":
            low, high = (R * (original / (2 * PI * s[beta])).ln() / (2 * b.ln()) for beta in ("beta_fast", "beta_slow"))
            if s["truncate"]:
                low, high = Decimal(math.floor(low)), Decimal(math.ceil(high))
            low, high = max(low, Decimal(0)), min(high, Decimal(R - 1))
            slow = [min(max((i - low) / (high - low), Decimal(0)), Decimal(1)) for i in range(R // 2)]
            return [(1 - r) * x + r * x / factor for r, x in zip(slow, f)], float((1 + high) / (high - low))
        if kind == "llama3":
            low, high = s["low_freq_factor"], s["high_freq_factor"]
            fast = [min(max((original * x / (2 * PI) - low) / (high - low), Decimal(0)), Decimal(1)) for x in f]
            return [(1 - r) * x / factor + r * x for r, x in zip(fast, f)], float((1 + high) / (high - low))
        return f, 0.0


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize(("R", "base"), [(4, 100.0), (64, 10000.0), (128, 500000.0)])
def test_frequencies_are_their_formula_within_the_bound(name: str, R: int, base: float) -> None:
    got, _ = rope_frequencies(R, base=base, scaling=SCALINGS[name])
    want, ramp = exact(R, base, SCALINGS[name])
    f = np.array([float(x) for x in want])
    logs = np.abs(np.log(f)) + np.log(40.0)
    allowed = (3 + logs + 4 + (8 * (R + logs) if name == "ntk" else 0) + 8 * (R + logs) * ramp + 1) * U * f
    if ramp:
        allowed = allowed * SCALINGS[name]["factor"]                            # f here is the stretched one
    assert (np.abs(got - f) <= allowed).all()


def test_yarn_leaves_fast_pairs_and_stretches_slow_ones() -> None:
    plain, yarn = rope_frequencies(64)[0], rope_frequencies(64, scaling=YARN)[0]
    np.testing.assert_array_equal(yarn[:11], plain[:11])
    np.testing.assert_array_equal(yarn[23:], plain[23:] / 40.0)
    assert ((yarn[11:23] < plain[11:23]) & (yarn[11:23] > plain[11:23] / 40.0)).all()


def test_llama3_leaves_short_wavelengths_and_stretches_long_ones() -> None:
    plain, scaled = rope_frequencies(128, base=500000.0)[0], rope_frequencies(128, base=500000.0, scaling=LLAMA3)[0]
    wavelength = 2 * np.pi / plain
    np.testing.assert_array_equal(scaled[wavelength < 8192 / 4], plain[wavelength < 8192 / 4])
    np.testing.assert_array_equal(scaled[wavelength > 8192], plain[wavelength > 8192] / 8.0)
    assert ((wavelength > 8192 / 4) & (wavelength < 8192)).sum() == 6


def test_ntk_leaves_the_fastest_pair_and_divides_the_slowest_by_the_factor() -> None:
    plain, ntk = rope_frequencies(64)[0], rope_frequencies(64, scaling=SCALINGS["ntk"])[0]
    assert ntk[0] == plain[0]
    assert abs(ntk[-1] * 8.0 / plain[-1] - 1) <= 8 * (64 + 12) * U


def test_yarns_factor_is_a_ratio() -> None:
    """kekzl/imp#880: m(factor, mscale_all_dim) itself was taken, 1.2608 where the ratio is 1."""
    assert rope_frequencies(64, scaling={**YARN, "mscale": 0.707})[1] == 1.0
    assert rope_frequencies(64, scaling=YARN)[1] == yarn_mscale(40.0, 1.0) / yarn_mscale(40.0, 0.707)
    assert rope_frequencies(64, scaling={**YARN, "mscale_all_dim": 0.0})[1] == yarn_mscale(40.0, 1.0)


def test_published_mscales() -> None:
    """NVIDIA/Megatron-LM#1429: 1.2608 squared is 1.5896 with the right field, 1.8739 with the wrong one."""
    assert f"{yarn_mscale(40.0, 0.707):.4f}" == "1.2608"
    assert f"{yarn_mscale(40.0, 0.707) ** 2:.4f}" == "1.5896"
    assert f"{yarn_mscale(40.0, 1.0) ** 2:.4f}" == "1.8739"


def test_a_ramp_outside_the_pairs_stretches_all_or_none() -> None:
    plain = rope_frequencies(8, base=2.0)[0]
    np.testing.assert_array_equal(rope_frequencies(8, base=2.0, scaling={**YARN, "original_max_position_embeddings": 10**9})[0], plain)
    np.testing.assert_array_equal(rope_frequencies(8, base=2.0, scaling={**YARN, "original_max_position_embeddings": 1})[0][1:],
                                  plain[1:] / 40.0)


@pytest.mark.parametrize(("R", "base", "scaling", "error", "words"), [
    (7, 10.0, None, ValueError, "rotary_dim: got 7; want an even number"),
    (0, 10.0, None, ValueError, "rotary_dim: got 0; want a whole number >= 2"),
    (8, 10.0, "yarn", TypeError, "scaling: got 'yarn'; want None or a mapping"),
    (8, 10.0, {"kind": "dynamic"}, ValueError, "scaling: got kind 'dynamic'; want one of linear, ntk, yarn, llama3"),
    (8, 10.0, {"factor": 2.0}, ValueError, "scaling: got kind None"),
    (8, 10.0, {"kind": "linear"}, ValueError, r"scaling: got fields \[\] for linear; want \['factor'\], each named"),
    (8, 10.0, {"kind": "linear", "factor": 2.0, "mscale": 1.0}, ValueError, r"got fields \['factor', 'mscale'\] for linear"),
    (8, 10.0, {"kind": "linear", "factor": 0.0}, ValueError, "factor: got 0.0; want a finite number > 0"),
    (8, 10.0, {**YARN, "truncate": 1}, TypeError, "truncate: got 1; want True or False"),
    (8, 10.0, {**YARN, "beta_fast": 0.5}, ValueError, "scaling: got beta_fast 0.5 beside beta_slow 1.0"),
    (8, 1.0, YARN, ValueError, "base: got 1.0 for yarn"),
    (8, 10.0, {**LLAMA3, "high_freq_factor": 1.0}, ValueError, "got high_freq_factor 1.0 beside low_freq_factor 1.0; want a larger"),
    (2, 10.0, {"kind": "ntk", "factor": 2.0}, ValueError, "rotary_dim: got 2 for ntk"),
])
def test_bad_input_is_refused_by_name(R: int, base: float, scaling: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rope_frequencies(R, base=base, scaling=scaling)
