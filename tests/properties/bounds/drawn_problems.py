"""Problems for simulated kernels: input families, options, contracts and plans, drawn from a generator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracles.properties import Arithmetic
from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.properties.simulated_kernels import Array, Plan, Problem, as_problem, grouped_rows
from oracles.reference import FloatFormat

# name: (what is declared, input format)
CONTRACTS: dict[str, tuple[Arithmetic, str]] = {
    "float32": (Arithmetic(), "float32"),
    "float32, truncating": (Arithmetic(truncating=True), "float32"),
    "float32, flush to zero": (Arithmetic(flush_to_zero=True), "float32"),
    "float32, recomputes": (Arithmetic(recomputes=True), "float32"),
    "bfloat16, flash_gpu": (Arithmetic.preset("flash_gpu"), "bfloat16"),
    "bfloat16, recomputes": (Arithmetic(probabilities="input", recomputes=True), "bfloat16"),
    "float16, P float16": (Arithmetic(probabilities="input"), "float16"),
    "float16, scaled q": (Arithmetic(probabilities="input", scaled_q=True), "float16"),
    "bfloat16, scores bfloat16": (Arithmetic(scores="input", probabilities="input"), "bfloat16"),
    "bfloat16, sum of rounded P": (Arithmetic(probabilities="input", row_sum_rounded=True), "bfloat16"),
    "bfloat16, gradient bfloat16": (Arithmetic(probabilities="input", gradient="input", gradient_blocks=4), "bfloat16"),
    "bfloat16, eager": (Arithmetic.preset("eager"), "bfloat16"),
    "bfloat16, elementwise bfloat16": (Arithmetic(elementwise="input", exp_ulps=1.0, log_ulps=1.0, tanh_ulps=1.0), "bfloat16"),
    "float16, accumulate float16": (Arithmetic(accumulate="input", probabilities="input"), "float16"),
    "float8_e4m3fn, out bfloat16": (Arithmetic(probabilities="input", out="bfloat16", row_sum_rounded=True), "float8_e4m3fn"),
}


def resolved(contract: str) -> ResolvedArithmetic:
    arithmetic, inputs = CONTRACTS[contract]
    return arithmetic.resolve(inputs)


def _normal(rng: np.random.Generator, Lq: int, Lk: int, D: int, Dv: int) -> tuple[Array, Array, Array, Array]:
    return (rng.standard_normal((Lq, D)), rng.standard_normal((Lk, D)), rng.standard_normal((Lk, Dv)), rng.standard_normal((Lq, Dv)))


# name: what becomes of normal q, k, v, dout. `u` is a row of uniforms, one for each key.
def _family(name: str, rng: np.random.Generator, q: Array, k: Array, v: Array, dout: Array) -> tuple[Array, Array, Array, Array]:
    Lk, n = len(k), np.arange(len(k))[:, None]
    if name == "large logits":
        return q * 6, k * 4, v, dout
    if name == "offset values":
        return q, k, v + rng.choice([10.0, 100.0]), dout
    if name == "offset keys":
        return q, k + 5, v, dout + 3
    if name == "one-hot":
        return q * 20, np.where(n == rng.integers(Lk), k * 20, k), v, dout
    if name == "equal":
        return np.ones_like(q), np.ones_like(k), np.full_like(v, 1.0 + 2.0**-7), np.ones_like(dout)
    if name == "same direction":                                                # every rounding goes the same way
        return np.abs(q), np.full_like(k, 1.3), np.full_like(v, 1 / 3), np.full_like(dout, 1 / 3)
    if name == "alternating":
        return q, k, v * 0.01 + np.where(n % 2, -8.0, 8.0), dout
    if name == "mixed magnitudes":
        return tuple(x * 2.0 ** rng.integers(-10, 11, x.shape) for x in (q * 0.05, k * 0.05, v, dout))    # type: ignore[return-value]
    if name in ("ascending", "descending"):
        ramp = n / max(Lk - 1, 1) * 30 * (1 if name == "ascending" else -1)
        return np.abs(q) + 0.5, k * 0.1 + ramp / np.sqrt(k.shape[1]), v, dout
    if name == "subnormal":
        return q, k, v * 2.0 ** -rng.choice([16, 126, 140]), dout * 2.0 ** -rng.choice([0, 16, 126])
    if name == "near overflow":
        return q, k, v * rng.choice([200.0, 2.0**15, 2.0**120]), dout * rng.choice([1.0, 100.0])
    if name == "constant values":
        return q, k, np.full_like(v, 0.7), dout
    return q, k, v, dout


FAMILIES = ("normal", "large logits", "offset values", "offset keys", "one-hot", "equal", "same direction", "alternating",
            "mixed magnitudes", "ascending", "descending", "subnormal", "near overflow", "constant values")


def draw_arrays(rng: np.random.Generator, inputs: str, *, long: bool = False) -> dict[str, Any]:
    """q, k, v, dout as arguments of the oracle, and the family they come from."""
    Hkv, G = int(rng.integers(1, 3)), int(rng.choice([1, 1, 2]))
    Lq, Lk = (int(rng.choice([1, 2, 5, 16, 17, 33, 40, 70] + [130] * long)) for _ in range(2))
    D, Dv = int(rng.choice([1, 3, 8, 16, 32])), int(rng.choice([1, 4, 16]))
    family = str(rng.choice(FAMILIES))
    heads = []
    for _ in range(Hkv * G):
        heads.append(_family(family, rng, *_normal(rng, Lq, Lk, D, Dv)))
    q, k, v, dout = (np.stack([head[i] for head in heads])[None] for i in range(4))
    k, v = k[:, ::G], v[:, ::G]
    form = FloatFormat(inputs)
    wide = "bfloat16" if inputs.startswith("float8") else inputs
    cast = {name: FloatFormat(form_name).cast(np.clip(x, -FloatFormat(form_name).max, FloatFormat(form_name).max))
            for name, x, form_name in (("q", q, form.name), ("k", k, form.name), ("v", v, form.name), ("dout", dout, wide))}
    return {**cast, "family": family}


def draw_options(rng: np.random.Generator, Hq: int, Lq: int, Lk: int, D: int) -> dict[str, Any]:
    """Options of attention: each is off more often than on."""
    options: dict[str, Any] = {"causal": [None, "bottom_right", "top_left"][rng.integers(3)]}
    if rng.random() < 0.2:
        options["window"] = (int(rng.integers(0, Lk + 1)), None if rng.random() < 0.5 else int(rng.integers(0, Lk + 1)))
    if rng.random() < 0.3:
        options["scale"] = float(np.float32(rng.choice([-0.3, 1.0, 0.07, -1.0])))
    if rng.random() < 0.25:
        options["softcap"] = float(rng.choice([0.5, 5.0, 30.0]))
    if rng.random() < 0.25:
        bias = rng.standard_normal((1, Hq if rng.random() < 0.5 else 1, Lq, Lk)) * rng.choice([1.0, 50.0])
        if rng.random() < 0.3:
            bias = np.where(rng.random(bias.shape) < 0.3, rng.choice([-1e9, -3e4, -np.inf]), bias)
        options["bias"] = bias.astype(np.float32)
    if rng.random() < 0.2:
        options["alibi_slopes"] = (2.0 ** -rng.integers(0, 8, Hq) * rng.choice([1.0, 1.3])).astype(np.float32)
    if rng.random() < 0.25:
        sinks = rng.standard_normal(Hq) * rng.choice([1.0, 10.0])
        options["sinks"] = np.where(rng.random(Hq) < 0.1, -np.inf, sinks).astype(np.float32)
    if rng.random() < 0.2:
        options["mask"] = rng.random((1, 1, Lq, Lk)) < 0.7
    if rng.random() < 0.15:
        options["kv_lengths"] = np.array([rng.integers(0, Lk + 1)])
    if rng.random() < 0.2:
        options["dropout_p"] = float(rng.choice([0.1, 0.5]))
        options["dropout_mask"] = rng.random((1, Hq, Lq, Lk)) >= options["dropout_p"]
    return options


def draw_plan(rng: np.random.Generator, a: ResolvedArithmetic) -> Plan:
    """A way to compute that the arithmetic allows."""
    tile = [None, None, 16, 17, 32, 64, 128][rng.integers(7)]
    products = ["forward", "backward"] + ["blas"] * (a.accumulate != "float16") + ["blocks"] * 2 * a.truncating
    plan = Plan(product=str(rng.choice(products)), tile=tile, reverse=bool(rng.random() < 0.4), splits=int(rng.choice([1, 1, 1, 2, 3, 4])),
                base2=bool(rng.random() < 0.5), normalise=str(rng.choice(["divide", "divide", "reciprocal", "each_step"])),
                sink_first=bool(rng.random() < 0.5), bias_with_alibi=bool(rng.random() < 0.5), delta_from_p=bool(rng.random() < 0.4),
                dropout_at_end=bool(rng.random() < 0.3), scale_before_rounding=bool(rng.random() < 0.5),
                sloppiness=[0.0, 0.0, 1.0, -1.0, None][rng.integers(5)], rng=rng)
    if tile is None and not a.row_sum_rounded and rng.random() < 0.3:
        plan = replace(plan, normalise="first")
    return plan


def problem_of(arrays: dict[str, Any], options: dict[str, Any], working: type = np.float32) -> tuple[Problem, Array]:
    """The call in the simulator's grouped form, and dout."""
    return as_problem(arrays, options, working), grouped_rows(arrays["dout"].astype(working), arrays["k"].shape[1])
