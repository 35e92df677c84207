"""Kernels of routing and of experts that round as they declare, against their bounds; and what the bounds must not let through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds import (
    balance_loss_backward_bound,
    balance_loss_bound,
    expert_parallel_backward_bound,
    moe_layer_bound,
    route_bound,
)
from oracles.properties.bounds.experts import choice
from oracles.properties.simulated_kernels import Array, Kernel, Plan, store
from oracles.reference import balance_loss, balance_loss_backward, expert_parallel_backward, moe_layer, route

from .monte_carlo import ratios

# contract -> (declared, input format)
CONTRACTS = {
    "float32": (Arithmetic(), "float32"),
    "float32, flush to zero": (Arithmetic(flush_to_zero=True), "float32"),
    "float16": (Arithmetic(), "float16"),
    "bfloat16": (Arithmetic(), "bfloat16"),
    "bfloat16, gates and products stored": (Arithmetic(probabilities="input", projected="input"), "bfloat16"),
}
F = np.float32


class Router:
    """Probabilities and gates, each operation rounded by a `Kernel`, stored where the contract says so."""

    def __init__(self, c: Kernel, z: Array, ids: Array, normalize: bool) -> None:
        self.c, self.ids, self.normalize = c, ids, normalize
        e = c.function("exp", c.e(z.astype(F) - z.astype(F).max(axis=-1, keepdims=True)))
        self.p = self._kept(c.e(e / c.sum(e)))
        mine = np.take_along_axis(self.p, ids, axis=-1)
        self.gates = self._kept(c.e(mine / c.sum(mine))) if normalize else mine

    def _kept(self, x: Array) -> Array:
        return store(x, self.c.a.probabilities, self.c.a.flush_to_zero)

    def back(self, dg: Array, in_two_steps: bool) -> Array:
        """dlogits of dgates: of the chosen alone, or by way of all probabilities."""
        c, dz = self.c, np.zeros_like(self.p)
        if self.normalize and not in_two_steps:
            s = c.sum(c.e(self.gates * dg))
            np.put_along_axis(dz, self.ids, c.e(self.gates * c.e(dg - s)), axis=-1)
            return dz
        if self.normalize:
            S = c.sum(np.take_along_axis(self.p, self.ids, axis=-1))
            dg = c.e(c.e(dg - c.sum(c.e(self.gates * dg))) / S)
        dp = np.zeros_like(self.p)
        np.put_along_axis(dp, self.ids, dg, axis=-1)
        return c.e(self.p * c.e(dp - c.sum(c.e(self.p * dp))))


def _problem(rng: np.random.Generator, inputs: str) -> tuple[dict[str, Array], dict[str, Any]]:
    T, E, D, G = (int(rng.choice(sizes)) for sizes in ((1, 5, 12), (2, 4, 9), (1, 3, 33), (1, 2, 17)))
    scale = float(rng.choice([0.1, 1.0, 6.0]))
    drawn = {"x": (T, D), "logits": (T, E), "weights": (E, D, G), "dout": (T, G)}
    wide = {name: rng.standard_normal(shape).astype(F) for name, shape in drawn.items()}
    wide["logits"] *= F(scale)
    options = {"k": int(rng.integers(1, E + 1)), "normalize": bool(rng.random() < 0.5)}
    return {name: store(array, inputs) for name, array in wide.items()}, options


def _run(contract: str, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """The worst error of one kernel run over the bound, and the share of elements that the bound speaks of."""
    declared, inputs = CONTRACTS[contract]
    a = declared.resolve(inputs)
    rng = np.random.default_rng([seed, list(CONTRACTS).index(contract)])
    plan = Plan(product=str(rng.choice(["blas", "forward", "backward"])), sloppiness=[0.0, 1.0, -1.0, None][rng.integers(4)], rng=rng)
    c = Kernel(a, plan)
    given, options = _problem(rng, inputs)
    x, z, w, d = (given[name].astype(F) for name in ("x", "logits", "weights", "dout"))
    ids, _ = route(given["logits"], **options)
    router, out = Router(c, z, ids, options["normalize"]), lambda y: store(y, a.out, a.flush_to_zero)
    y = store(_each(c, x, w, ids), a.projected, a.flush_to_zero)                # (T, k, F)
    total = c.sum(np.swapaxes(c.e(router.gates[..., None] * y), 1, 2))[..., 0]
    dg = c.sum(c.e(y * d[:, None]))[..., 0]
    through = _each(c, d, np.swapaxes(w, 1, 2), ids)                            # (T, k, D)
    dx = c.sum(np.swapaxes(c.e(router.gates[..., None] * through), 1, 2))[..., 0]
    dense = np.zeros(z.shape, F)
    np.put_along_axis(dense, ids, router.gates, axis=-1)
    dw = np.stack([c.product(c.e(x * dense[:, e : e + 1]).T[None], d[None])[0] for e in range(w.shape[0])])
    got = {"gates": out(router.gates), "out": out(total), "dx": out(dx), "dweights": out(dw),
           "dlogits": out(router.back(dg, bool(rng.random() < 0.5)))}
    one = {name: array[None] for name, array in given.items()}
    exact_out, _ = moe_layer(given["x"], given["logits"], given["weights"], **options)
    exact = {"gates": route(given["logits"], **options)[1], "out": exact_out,
             **{name: parts[0] for name, parts in expert_parallel_backward(**one, **options).items()}}
    backward = expert_parallel_backward_bound(a, **one, **options)
    bound = {"gates": route_bound(a, given["logits"], **options)["gates"],
             "out": moe_layer_bound(a, given["x"], given["logits"], given["weights"], **options)["out"],
             **{name: bound[0] for name, bound in backward.items()}}
    return ratios(got, exact, bound), {name: float(np.isfinite(b).mean()) for name, b in bound.items()}


def _each(c: Kernel, x: Array, w: Array, ids: Array) -> Array:
    """Every token through its experts: (T, k, F)."""
    return np.stack([[c.product(x[t][None, None], w[e][None])[0, 0] for e in ids[t]] for t in range(len(x))])


@pytest.mark.parametrize("contract", CONTRACTS)
def test_legal_kernels_stay_within_the_bound_and_it_speaks_of_nearly_all(contract: str) -> None:
    worst, spoken = dict.fromkeys(("gates", "out", "dx", "dweights", "dlogits"), 0.0), []
    for seed in range(120):
        found, share = _run(contract, seed)
        assert max(found.values()) <= 1.0, f"{contract}, seed {seed}: {found}"
        worst = {name: max(worst[name], found[name]) for name in worst}
        spoken.append(min(share.values()))
    assert min(worst.values()) > 0.05                                           # and not by an idle margin
    assert np.mean(spoken) > 0.8


@pytest.mark.parametrize("contract", ["float32", "bfloat16"])
def test_legal_balance_losses_stay_within_the_bound(contract: str) -> None:
    declared, inputs = CONTRACTS[contract]
    a, worst = declared.resolve(inputs), 0.0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        T, E = int(rng.choice([1, 7, 60])), int(rng.choice([2, 5, 16]))
        p = store(rng.dirichlet(np.ones(E), T).astype(F), inputs)
        ids, dloss = np.argsort(rng.random((T, E)), axis=-1)[:, :2], store(np.asarray(rng.standard_normal(), F), inputs)
        f = np.bincount(ids.ravel(), minlength=E).astype(F) / F(ids.size)
        P = np.zeros(E, F)
        for row in p.astype(F)[:: rng.choice([1, -1])]:
            P = P + row
        loss = store(np.asarray(F(E) * (f * (P / F(T))).sum(dtype=F)), a.out)
        row = store(dloss.astype(F) * F(E) * f / F(T), a.out)
        found = ratios({"loss": loss}, {"loss": balance_loss(p, ids)}, balance_loss_bound(a, p, ids))
        found |= ratios({"dprobs": np.broadcast_to(row, p.shape)}, {"dprobs": balance_loss_backward(p, ids, dloss)},
                        balance_loss_backward_bound(a, p, ids, dloss))
        assert max(found.values()) <= 1.0, f"{contract}, seed {seed}: {found}"
        worst = max(worst, *found.values())
    assert worst > 0.2


def test_a_choice_is_open_exactly_where_a_rounding_may_turn_it() -> None:
    a = Arithmetic().resolve("float32")
    z = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 1.0], [0.0, 1.0 + 2.0**-24, 1.0]])
    assert choice(a, z, k=1).sure[:, 0].tolist() == [True, True, False]        # apart; equal, so by index; a rounding apart
    assert choice(a, z, k=2).sure.tolist() == [[True, True], [True, True], [False, False]]
    assert choice(a, z, k=2).sure_set.tolist() == [True, True, True]            # the same two, in whatever order
    assert choice(a, z, k=1, bias=np.array([0.0, 0.0, -1e-9])).sure[:, 0].tolist() == [True, False, False]


def test_what_follows_from_an_open_choice_is_open() -> None:
    a, x = Arithmetic().resolve("float32"), np.ones((2, 1))
    z, w = np.array([[0.0, 2.0**-30], [3.0, 0.0]]), np.ones((2, 1, 1))
    free, limited = (moe_layer_bound(a, x, z, w, k=1, normalize=True, capacity=c) for c in (None, 1))
    assert np.isinf(free["out"][:, 0]).tolist() == [True, False]
    assert np.isinf(limited["out"]).all()
    assert np.isinf(free["slots"]).all()


@pytest.mark.parametrize("by", [1e-5, -1e-5])
def test_a_gate_off_by_a_hundred_thousandth_is_outside_in_float32(by: float) -> None:
    z = np.random.default_rng(0).standard_normal((4, 4)).astype(F)
    gates = route(z, k=2, normalize=True)[1]
    bound = route_bound(Arithmetic().resolve("float32"), z, k=2, normalize=True)["gates"]
    assert (np.abs(gates * by) > bound).all()
