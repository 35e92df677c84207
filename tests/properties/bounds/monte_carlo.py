"""One run of a simulated kernel against its bounds, and the tally of many: the largest observed error over bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.properties import simulated_kernels
from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.properties.bounds import attention_backward_bound, attention_bound
from oracles.properties.simulated_kernels import Array, Plan
from oracles.reference import FloatFormat, attention
from oracles.reference.attention_backward import attention_backward

from .drawn_problems import CONTRACTS, draw_arrays, draw_options, draw_plan, problem_of, resolved


def ratios(got: Mapping[str, Array], exact: Mapping[str, Array], bound: Mapping[str, Array]) -> dict[str, float]:
    """The largest |got - exact| / bound of each result; inf where something differs under a bound of 0 or is NaN.

    Not compared: elements whose bound is inf.
    """
    worst = {}
    for name, b in bound.items():
        x, y = np.asarray(got[name], np.float64), np.asarray(exact[name], np.float64)
        if not x.shape == y.shape == b.shape:
            raise AssertionError(f"{name}: got shapes {x.shape}, {y.shape}, {b.shape}; want one shape")
        if not (b >= 0).all():
            raise AssertionError(f"{name}: the bound is negative")
        compared = np.isfinite(b) & ~((x == y) | (np.isnan(x) & np.isnan(y)))
        with np.errstate(invalid="ignore", divide="ignore"):
            r = np.abs(x[compared] - y[compared]) / b[compared]
        worst[name] = float(np.where(np.isnan(r), np.inf, r).max(initial=0.0))
    return worst


def run_forward(a: ResolvedArithmetic, plan: Plan, arrays: dict[str, Any], options: dict[str, Any], *,
                oracle: ResolvedArithmetic | None = None) -> dict[str, float]:
    """A simulated forward pass, judged: {"out", "lse"} -> ratio. oracle: an arithmetic whose bound is added to the kernel's."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    problem, _ = problem_of(arrays, options, np.float64 if a.elementwise == "float64" else np.float32)
    out, lse = simulated_kernels.forward(a, plan, problem)
    exact_out, exact_lse = attention(q, k, v, **options)
    bound = attention_bound(a, q, k, v, **options)
    if oracle is not None:
        bound = _added(bound, attention_bound(oracle, q, k, v, **options))
    return ratios({"out": out.reshape(exact_out.shape), "lse": lse.reshape(exact_lse.shape)}, {"out": exact_out, "lse": exact_lse}, bound)


def run_backward(a: ResolvedArithmetic, plan: Plan, arrays: dict[str, Any], options: dict[str, Any], *,
                 oracle: ResolvedArithmetic | None = None) -> dict[str, float]:
    """A simulated backward pass, handed the exact out and lse, each rounded once."""
    q, k, v, dout = (arrays[name] for name in ("q", "k", "v", "dout"))
    working = np.float64 if a.elementwise == "float64" else np.float32
    problem, dout_rows = problem_of(arrays, options, working)
    out, lse = attention(q, k, v, **options)
    handed_out, handed_lse = FloatFormat(a.out).cast(out), FloatFormat(a.lse).cast(lse)
    rows = (problem.q.shape[0], problem.q.shape[1], -1)
    got = simulated_kernels.backward(a, plan, problem, handed_out.astype(working).reshape(rows),
                                     handed_lse.astype(working).reshape(rows), dout_rows)
    exact = attention_backward(q, k, v, handed_out, handed_lse, dout, **options)
    bound = attention_backward_bound(a, q, k, v, handed_out, handed_lse, dout, **options)
    if oracle is not None:
        bound = _added(bound, attention_backward_bound(oracle, q, k, v, handed_out, handed_lse, dout, **options))
    result: dict[str, NDArray[Any]] = {name: got[name].reshape(exact[name].shape) for name in ("dq", "dk", "dv")}
    shape = (1, q.shape[1], q.shape[2], k.shape[2])
    if "bias" in options:
        ds = got["ds"].reshape(shape).astype(np.float64)
        result["dbias"] = simulated_kernels.store(_sum_to(ds, options["bias"].shape).astype(working), a.out, a.flush_to_zero)
    if "sinks" in options:
        with np.errstate(invalid="ignore", over="ignore"):
            dsink = got["dsink"].reshape(shape[:3]).sum(axis=(0, 2), dtype=working)
        result["dsinks"] = simulated_kernels.store(dsink, a.out, a.flush_to_zero)
    return ratios(result, exact, bound)


def _added(a: Mapping[str, Array], b: Mapping[str, Array]) -> dict[str, Array]:
    return {name: a[name] + b[name] for name in a}


def _sum_to(x: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):
        return x.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)


def draw(contract: str, seed: int, *, long: bool = False) -> tuple[ResolvedArithmetic, Plan, dict[str, Any], dict[str, Any]]:
    """The run of that number: arithmetic, plan, arrays, options."""
    a, inputs = resolved(contract), CONTRACTS[contract][1]
    rng = np.random.default_rng([seed, list(CONTRACTS).index(contract)])
    arrays = draw_arrays(rng, inputs, long=long)
    options = draw_options(rng, arrays["q"].shape[1], arrays["q"].shape[2], arrays["k"].shape[2], arrays["q"].shape[3])
    return a, draw_plan(rng, a), arrays, options


def tally(contract: str, seeds: range, *, long: bool = False) -> dict[str, float]:
    """The largest ratio of each result over forward and backward runs of a contract; a ratio above 1 is an AssertionError."""
    worst: dict[str, float] = {}
    for seed in seeds:
        a, plan, arrays, options = draw(contract, seed, long=long)
        found = {**run_forward(a, plan, arrays, options), **run_backward(a, plan, arrays, options)}
        for name, ratio in found.items():
            worst[name] = max(worst.get(name, 0.0), ratio)
            if ratio > 1.0:
                raise AssertionError(f"{contract}, seed {seed}: {name} is at {ratio} of its bound; {arrays['family']}, q "
                                     f"{arrays['q'].shape}, k {arrays['k'].shape}, {[*options]}, causal {options['causal']}, "
                                     f"scale {options.get('scale')}, {plan}")
    return worst
