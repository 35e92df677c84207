"""Rotary kernels of every form and arithmetic against their bound, at near and far positions; and what must lie outside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.properties.bounds import rope_bound, write_kv_bound
from oracles.properties.bounds.rope import frequency_error, pair_norm_bound
from oracles.properties.bounds.sums import roundings
from oracles.properties.cases.rope import SCALINGS
from oracles.reference import FloatFormat, rope, rope_frequencies, yarn_mscale

from .monte_carlo import ratios

Array = np.ndarray[Any, np.dtype[Any]]
# contract -> (declared, input format)
CONTRACTS: dict[str, tuple[Arithmetic, str]] = {
    "float32": (Arithmetic(), "float32"),
    "float32, tables in float64": (Arithmetic(phases="float64"), "float32"),
    "float32, tables in bfloat16": (Arithmetic(phases="bfloat16"), "float32"),
    "float32, flush to zero": (Arithmetic(flush_to_zero=True), "float32"),
    "bfloat16": (Arithmetic(), "bfloat16"),
    "bfloat16 throughout, phases in float32": (Arithmetic(elementwise="input", phases="float32"), "bfloat16"),
    "float16 throughout, phases in float32": (Arithmetic(elementwise="input", phases="float32"), "float16"),
    "float64": (Arithmetic(), "float64"),
}
FORMS = ("power", "reciprocal", "base e", "base 2")


class Machine:
    """Rounds each operation to a format, functions as badly as declared: sloppiness -1, 0 or 1 of their ulps, None: at random."""

    def __init__(self, a: ResolvedArithmetic, rng: np.random.Generator) -> None:
        self.a, self.rng = a, rng
        self.sloppiness = [0.0, 1.0, -1.0, None][rng.integers(4)]

    def p(self, x: Any) -> Array:
        return self.stored(x, self.a.phases)

    def e(self, x: Any) -> Array:
        return self.stored(x, self.a.elementwise)

    def stored(self, x: Any, name: str) -> Array:
        fmt = FloatFormat(name)
        y = fmt.round(np.asarray(x, np.float64))
        return np.where(np.abs(y) < fmt.tiny, 0.0, y) if self.a.flush_to_zero else y

    def function(self, value: Any, ulps: float) -> Array:
        """A value off by almost so many roundoffs of `phases`, and stored there."""
        value = np.asarray(value, np.float64)
        share = self.rng.uniform(-1, 1, value.shape) if self.sloppiness is None else self.sloppiness
        u = FloatFormat(self.a.phases).unit_roundoff
        return self.p(value * (1.0 + share * max(0.0, ulps - 1.0) * u)) if self.a.phases != "float64" else value

    def power(self, base: float, exponent: Array, form: str) -> Array:
        """base^exponent, the exponent given as a fraction not yet rounded."""
        exponent = self.p(exponent)
        if form == "power":
            return np.where(exponent == 0, 1.0, self.function(base**exponent, self.a.exp_ulps))
        if form == "reciprocal":
            return self.p(1.0 / np.where(exponent == 0, 1.0, self.function(base**-exponent, self.a.exp_ulps)))
        log, exp = (np.log, np.exp) if form == "base e" else (np.log2, np.exp2)
        product = self.p(exponent * self.function(log(base), self.a.log_ulps))
        return np.where(product == 0, 1.0, self.function(exp(product), self.a.exp_ulps))


def frequencies(c: Machine, R: int, base: float, scaling: Any, form: str) -> Array:
    """f of each kind, every step rounded."""
    if scaling is not None and scaling["kind"] == "ntk":
        base = float(c.p(base * c.power(scaling["factor"], np.array(R / (R - 2)), form)))
    f = c.power(base, -np.arange(0, R, 2) / R, form)
    if scaling is None or scaling["kind"] == "ntk":
        return f
    slow = c.p(f / c.p(scaling["factor"]))
    if scaling["kind"] == "linear":
        return slow
    original = scaling["original_max_position_embeddings"]
    if scaling["kind"] == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = c.p(original / c.p(c.p(2 * np.pi) / f))
        kept = np.clip(c.p(c.p(turns - low) / c.p(high - low)), 0, 1)
        return c.p(c.p(c.p(1 - kept) * slow) + c.p(kept * f))
    edges = [c.p(c.p(R * c.function(np.log(c.p(original / c.p(beta * c.p(2 * np.pi)))), c.a.log_ulps))
                 / c.p(2 * c.function(np.log(base), c.a.log_ulps))) for beta in (scaling["beta_fast"], scaling["beta_slow"])]
    low, high = (np.floor(edges[0]), np.ceil(edges[1])) if scaling["truncate"] else edges
    low, high = min(max(float(low), 0.0), R - 1.0), max(min(float(high), R - 1.0), 0.0)
    r = np.clip(c.p(c.p(np.arange(R // 2) - low) / c.p(high - low if high != low else 0.001)), 0, 1)
    kept = c.p(1 - r)
    return c.p(c.p(slow * c.p(1 - kept)) + c.p(f * kept))


def kernel(c: Machine, x: Array, p: Array, scaling: Any, base: float, form: str, *, fused: bool, scaled_last: bool) -> Array:
    """A rotation in halves, every step rounded."""
    R = x.shape[-1]
    f = frequencies(c, R, base, scaling, form)
    t = c.p(c.p(p)[..., None] * f)
    m = 1.0
    if scaling is not None and scaling["kind"] == "yarn":
        m = float(c.e(yarn_mscale(scaling["factor"], scaling["mscale"]) / yarn_mscale(scaling["factor"], scaling["mscale_all_dim"])))
    cos, sin = (c.e(np.where(t == 0, g(0.0), c.function(g(t), c.a.trig_ulps))) for g in (np.cos, np.sin))
    if m != 1.0 and not scaled_last:
        cos, sin = c.e(cos * m), c.e(sin * m)
    a, b = c.e(x[..., : R // 2]), c.e(x[..., R // 2 :])
    if fused:
        first, second = c.e(a * cos - c.e(b * sin)), c.e(b * cos + c.e(a * sin))
    else:
        first, second = c.e(c.e(a * cos) - c.e(b * sin)), c.e(c.e(b * cos) + c.e(a * sin))
    out = np.concatenate([first, second], axis=-1)
    return c.stored(c.e(out * m) if m != 1.0 and scaled_last else out, c.a.out)


def vectors(rng: np.random.Generator, family: str, inputs: str, R: int) -> Array:
    fmt = FloatFormat(inputs)
    x = rng.standard_normal((3, 5, R))
    drawn = {"normal": x, "large": x * fmt.max**0.5, "small": x * fmt.tiny * 4, "one-hot": (np.arange(R) == rng.integers(R)) * 3.0,
             "cancelling": np.ones(x.shape) * rng.choice([-1.0, 1.0], R)}[family]  # fmt: skip
    return fmt.round(np.broadcast_to(drawn, x.shape))


def positions_of(rng: np.random.Generator, family: str) -> Array:
    return {"near": rng.integers(0, 64, (3, 5)), "context": rng.integers(0, 8192, (3, 5)), "far": rng.integers(0, 2**20, (3, 5)),
            "negative": -rng.integers(0, 8192, (3, 5)), "beyond": 2**24 + rng.integers(0, 9, (3, 5)),
            "quarter turns": np.rint(np.pi / 2 * rng.integers(0, 2600, (3, 5))).astype(np.int64)}[family]  # fmt: skip


def problem(contract: str, seed: int) -> tuple[ResolvedArithmetic, Machine, Array, Array, dict[str, Any], np.random.Generator]:
    declared, inputs = CONTRACTS[contract]
    a, rng = declared.resolve(inputs), np.random.default_rng([seed, list(CONTRACTS).index(contract)])
    R = int(rng.choice([2, 4, 8, 64, 128]))
    scaling = SCALINGS[str(rng.choice([name for name in SCALINGS if name != "ntk" or R > 2]))]
    x = vectors(rng, str(rng.choice(["normal", "large", "small", "one-hot", "cancelling"])), inputs, R)
    p = positions_of(rng, str(rng.choice(["near", "context", "far", "negative", "beyond", "quarter turns"])))
    options = {"base": float(rng.choice([100.0, 10000.0, 500000.0])), "scaling": scaling, "pairing": "half"}
    return a, Machine(a, rng), x, p, options, rng


def tally(contract: str, seeds: range) -> dict[str, float]:
    """The largest error over bound of the elements and of the pairs' norms."""
    worst = {"out": 0.0, "norm": 0.0}
    for seed in seeds:
        a, c, x, p, options, rng = problem(contract, seed)
        with np.errstate(all="ignore"):
            got = kernel(c, x, p, options["scaling"], options["base"], str(rng.choice(FORMS)), fused=bool(rng.integers(2)),
                         scaled_last=bool(rng.integers(2)))  # fmt: skip
            bound = rope_bound(a, x, p, **options)["out"] + (rope_bound(a.widened(), x, p, **options)["out"])
            found = ratios({"out": got}, {"out": rope(x, p, **options)}, {"out": bound})
            norm, allowed = pair_norm_bound(a, x, p, **options)
            half = x.shape[-1] // 2
            off = 8 * 2.0**-53 * norm                                           # of this test's own square root
            found |= ratios({"norm": np.where(np.isinf(allowed), 0, np.hypot(got[..., :half], got[..., half:]))}, {"norm": norm},
                            {"norm": allowed + off})  # fmt: skip
        assert max(found.values()) <= 1.0, f"{contract}, seed {seed}: {found}, {options}, {x.shape}, positions {p.min()} to {p.max()}"
        worst = {name: max(worst[name], found[name]) for name in worst}
    return worst


@pytest.mark.parametrize("contract", CONTRACTS)
def test_legal_kernels_stay_within_the_bound(contract: str) -> None:
    worst = tally(contract, range(150))
    idle = 0.1 if contract == "float64" else 0.3                                # NumPy's functions of float64 are nearly exact
    assert worst["out"] > idle
    assert worst["norm"] > 0.1


@pytest.mark.long
@pytest.mark.parametrize("contract", CONTRACTS)
def test_legal_kernels_stay_within_the_bound_in_a_long_run(contract: str) -> None:
    print(contract, tally(contract, range(150, 20000)))


# What may be lost, term by term -------------------------------------------------------------------------------------------


def allowed(position: int, x: Any, **options: Any) -> Any:
    declared = {name: options.pop(name) for name in ("phases", "elementwise", "out", "flush_to_zero") if name in options}
    return rope_bound(Arithmetic(**declared).resolve("float32"), x, position, **{"pairing": "half", **options})["out"]


def test_the_adversary_reaches_most_of_what_the_angle_may_lose() -> None:
    """All errors of one sign, where the sine is steepest: frequency, product and position off together."""
    a, base, R, p = Arithmetic().resolve("float32"), 10000.0, 8, 4095
    u = 2.0**-24
    error, _ = frequency_error(roundings(a), R, base=base, scaling=None)
    f, _ = rope_frequencies(R, base=base)
    x = np.zeros((R // 2, R))
    x[np.arange(R // 2), np.arange(R // 2)] = 1.0                               # one pair each: out = cos t, sin t
    t, moved = p * f, p * (f + error) * (1 + u)
    bound = rope_bound(a, x, p, pairing="half")["out"]
    pair = np.arange(R // 2)
    for leg, places in ((np.cos, pair), (np.sin, pair + R // 2)):
        ratio = np.abs(leg(moved) - leg(t)) / bound[pair, places]
        assert ratio.max() <= 1.0
        assert ratio.max() > 0.9


def test_the_bound_grows_with_the_angle_unless_tables_are_made_in_float64() -> None:
    narrow, wide = ([allowed(p, [0.0, 1.0, 0.0, 0.0], phases=phases).max() for p in (1, 100, 10000)] for phases in ("float32", "float64"))
    assert narrow[1] > 5 * narrow[0]
    assert narrow[2] > 50 * narrow[1]
    assert max(wide) < 2 * min(wide)


def test_position_zero_allows_nothing() -> None:
    assert not allowed(0, np.ones(4)).any()
    assert not allowed(0, np.ones(4), scaling=SCALINGS["llama3"]).any()
    assert allowed(0, np.ones(4), scaling=SCALINGS["yarn"]).all()               # m is computed
    assert allowed(0, np.ones(4), out="bfloat16").all()
    assert allowed(0, np.ones(4), elementwise="float16").all()


def test_what_does_not_turn_allows_nothing_unless_out_is_narrower() -> None:
    assert not allowed(7, np.ones(6), rotary_dim=4)[4:].any()
    assert allowed(7, np.ones(6), rotary_dim=4)[:4].all()
    assert (allowed(7, np.ones(6), rotary_dim=4, out="bfloat16")[4:] == 2.0**-8).all()


def test_other_pairs_have_no_part_in_it() -> None:
    assert np.flatnonzero(allowed(9, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0])).tolist() == [1, 4]
    assert np.flatnonzero(allowed(9, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0], pairing="interleaved")).tolist() == [2, 3]


def test_no_promise_is_made_where_a_product_or_an_angle_may_overflow() -> None:
    assert np.isinf(allowed(1, np.full(4, 3e38))).tolist() == [True, False, True, False]        # the slow pair hardly grows
    assert np.isinf(allowed(10**5, np.ones(4), phases="float16")).all()
    assert np.isinf(allowed(1, [np.inf, 1.0, 1.0, 1.0])).tolist() == [True, False, True, False]


def test_a_pair_that_is_nan_is_compared_by_kind() -> None:
    assert (allowed(1, [np.nan, 1.0, 1.0, 1.0]) > 0.0).tolist() == [False, True, False, True]


def test_a_position_that_the_format_does_not_hold_costs_a_rounding() -> None:
    held, lost = (allowed(p, [1.0, 0.0]) for p in (2**24, 2**24 + 1))
    assert lost.max() > 1.5 * held.max()


def test_the_norm_knows_nothing_of_the_angle() -> None:
    a, x = Arithmetic(phases="float32").resolve("float32"), np.ones((1, 4))
    near, far = (pair_norm_bound(a, x, p, pairing="half")[1] for p in (1, 10**6))
    assert np.array_equal(near, far)
    assert far.max() < rope_bound(a, x, 10**6, pairing="half")["out"].max() / 100


def test_a_ramp_at_a_whole_number_may_be_truncated_either_way() -> None:
    """R = 8, base 100, 8 turns in the original context: yarn's upper place is 4 ln(8 / beta) / ln 100, 2 for beta = 0.8."""
    record = {"kind": "yarn", "factor": 4.0, "original_max_position_embeddings": 2 * np.pi * 8, "beta_fast": 32.0, "beta_slow": 0.8,
              "mscale": 0.0, "mscale_all_dim": 0.0, "truncate": True}  # fmt: skip
    r = roundings(Arithmetic().resolve("float32"))
    sure, unsure = (frequency_error(r, 8, base=100.0, scaling={**record, "beta_slow": beta})[0] for beta in (0.85, 0.8))
    assert unsure.max() > 100 * sure.max()


# fault -> what is handed back instead of the rotation; each must be seen.
X = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
P = np.array([3, 100, 4000, 4095])
FAULTS: dict[str, Callable[[], Any]] = {
    "the other pairing": lambda: rope(X, P, pairing="interleaved"),
    "positions one off": lambda: rope(X, P + 1, pairing="half"),
    "turned the other way": lambda: rope(X, -P, pairing="half"),
    "base off by 0.1 %": lambda: rope(X, P, pairing="half", base=10010.0),
    "a scaling forgotten": lambda: rope(X, P, pairing="half", scaling={"kind": "linear", "factor": 1.01}),
    "longer by 1e-5": lambda: rope(X, P, pairing="half") * (1 + 1e-5),
    "phases in bfloat16": lambda: kernel(
        Machine(Arithmetic(phases="bfloat16").resolve("float32"), np.random.default_rng(1)), X, P, None, 10000.0, "power", fused=False,
        scaled_last=False),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_outside_the_bound(fault: str) -> None:
    a = Arithmetic().resolve("float32")
    exact, bound = rope(X, P, pairing="half"), rope_bound(a, X, P, pairing="half")
    assert ratios({"out": FAULTS[fault]()}, {"out": exact}, bound)["out"] > 5.0


def test_sixteen_bit_phases_show_at_position_4095_where_float32_is_declared_and_not_where_they_are() -> None:
    narrow = Arithmetic(phases="bfloat16").resolve("float32")
    got = kernel(Machine(narrow, np.random.default_rng(1)), X, np.full(4, 4095), None, 10000.0, "power", fused=False, scaled_last=False)
    exact = {"out": rope(X, 4095, pairing="half")}
    assert ratios({"out": got}, exact, rope_bound(narrow, X, 4095, pairing="half"))["out"] <= 1.0
    assert ratios({"out": got}, exact, rope_bound(replace(narrow, phases="float32"), X, 4095, pairing="half"))["out"] > 1000.0


# Copies ---------------------------------------------------------------------------------------------------------------------


def test_a_copy_allows_nothing() -> None:
    zeros = np.zeros((5, 2, 3)), np.zeros((5, 2, 4))
    bound = write_kv_bound(Arithmetic(out="bfloat16").resolve("float32"), *zeros, zeros[0][:1], zeros[1][:1], [0])
    assert {name: (b.shape, b.any()) for name, b in bound.items()} == {"k_cache": ((5, 2, 3), False), "v_cache": ((5, 2, 4), False)}
