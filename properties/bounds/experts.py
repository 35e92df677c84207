"""Error bounds of routing and of layers of experts: which choices a rounding may turn, gates, sums over experts, and their gradients.

A choice that a rounding may turn is left open: the bound of everything that follows from it is inf. What a subject makes of an
open choice is judged by the laws, under the subject's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import expert_slots, softmax
from oracles.reference.arguments import Array, Bool, Float64, Int64

from .softmax import softmax_bound
from .sums import Roundings, checked, dot_bound, g, roundings

_OWN = 2.0**-53


@dataclass(frozen=True)
class Choice:
    """What is known of a routing before it is rounded anywhere.

    p, p_error    probabilities (T, E) and how far computed ones may be
    before        (T, E, E): i is surely taken before j
    ids           the oracle's experts (T, k)
    sure          (T, k): every legal computation has that expert there;   sure_set (T,): the same experts, in whatever order
    """

    p: Float64
    p_error: Float64
    before: Bool
    ids: Int64
    sure: Bool
    sure_set: Bool


def choice(
    arithmetic: ResolvedArithmetic, logits: ArrayLike, *, k: int, bias: ArrayLike | None = None, ties: str = "lowest"
) -> Choice:  # fmt: skip
    """Which experts every legal computation chooses.

        e_i = error of p_i as in `softmax_bound`, stored as `probabilities`, + u (|p_i + bias_i| + error)
        i comes surely before j where p_i + bias_i - e_i > p_j + bias_j + e_j, or both logits and biases are equal and i < j
        (where `ties` are "any", equal ones are open too)

    >>> from oracles.properties import Arithmetic
    >>> choice(Arithmetic().resolve("float32"), [[0.0, 1.0, 1.0]], k=1).sure.tolist()
    [[True]]
    """
    r, z = roundings(arithmetic), np.asarray(logits, np.float64)
    b = np.zeros(z.shape[1]) if bias is None else np.asarray(bias, np.float64)
    p = softmax(z)
    p_error = r.probabilities.bound(p, softmax_bound(replace(arithmetic, out="float64"), z)["p"])
    s = p + b
    e = p_error + (0.0 if bias is None else 1.0) * ((r.elementwise.u + _OWN) * (np.abs(s) + p_error) + r.elementwise.eta)
    i = np.arange(z.shape[1])
    same = (z[:, :, None] == z[:, None]) & (b[:, None] == b) & (i[:, None] < i) & (ties == "lowest")
    before = ((s - e)[:, :, None] > (s + e)[:, None]) | same                    # (T, E, E)
    order = np.argsort(-s, axis=-1, kind="stable")
    ranked = np.take_along_axis(np.take_along_axis(before, order[:, :, None], axis=1), order[:, None], axis=2)
    later = i[:, None] < i
    broken = later & ~ranked                                                    # a pair of ranks that may be the other way round
    sure = ~(broken.any(axis=2) | broken.any(axis=1))[:, :k]
    return Choice(p, np.asarray(p_error), before, order[:, :k].astype(np.int64), sure, ~broken[:, :k, k:].any(axis=(1, 2)))


def gate_errors(r: Roundings, chosen: Choice, ids: Int64, *, normalize: bool) -> tuple[Float64, Float64]:
    """The gates of given experts and how far legal ones may be, before they are returned: (T, k) each.

        plain        p and its error
        normalized   (e_i + gate_i E) / (S - E) + 2 u gate_i,   S = sum of the chosen p,  E = sum of their errors + g(k, u_a) S

    The quotient of probabilities: the softmax of the chosen logits alone rounds less. inf where S may vanish.
    """
    p, e = (np.take_along_axis(x, ids, axis=-1) for x in (chosen.p, chosen.p_error))
    if not normalize:
        return p, e
    S = p.sum(axis=-1, keepdims=True)
    E = e.sum(axis=-1, keepdims=True) + g(float(ids.shape[1]), r.accumulate.u + _OWN) * S
    gates, left = p / np.where(S > 0.0, S, 1.0), S - E
    error = (e + gates * E) / np.where(left > 0.0, left, 1.0) + 2.0 * (r.elementwise.u + _OWN) * gates + r.elementwise.eta
    return gates, np.where(left > 0.0, error, np.inf)


def route_bound(
    arithmetic: ResolvedArithmetic, logits: ArrayLike, *, k: int, normalize: bool, bias: ArrayLike | None = None, ties: str = "lowest"
) -> dict[str, Float64]:  # fmt: skip
    """How far legal routing may be from the exact one: {"ids", "gates"}, (T, k) each.

    ids: 0 where the choice is sure (`choice`), inf where a rounding may turn it. gates: `gate_errors`, then one rounding of `out`;
    inf where the expert is not sure, and normalized where the experts of the token are not.

    >>> from oracles.properties import Arithmetic
    >>> bound = route_bound(Arithmetic().resolve("float32"), [[0.0, 1.0, 1.0 + 2.0**-30]], k=2, normalize=True)
    >>> bound["ids"].tolist(), bool(bound["gates"].max() < 1e-5)
    ([[inf, inf]], False)
    """
    r, chosen = roundings(arithmetic), choice(arithmetic, logits, k=k, bias=bias, ties=ties)
    gates, error = gate_errors(r, chosen, chosen.ids, normalize=normalize)
    known = chosen.sure & (chosen.sure_set[:, None] | (not normalize))
    return checked({"ids": np.where(chosen.sure, 0.0, np.inf), "gates": np.where(known, r.out.bound(gates, error), np.inf)})


def balance_loss_bound(
    arithmetic: ResolvedArithmetic, probs: ArrayLike, ids: ArrayLike, *, mask: ArrayLike | None = None
) -> dict[str, Float64]:  # fmt: skip
    """How far a legal balance loss may be from the exact one: {"loss"}, ().

        (g(T + E + 4, u_a) + 8 u) E sum_e f_e mean |p_e|, then one rounding of `out`

    >>> from oracles.properties import Arithmetic
    >>> bool(balance_loss_bound(Arithmetic().resolve("float32"), [[0.5, 0.5]], [[0]])["loss"] < 2e-6)
    True
    """
    r, p, share, real = _balance(arithmetic, probs, ids, mask)
    T, E = max(int(real.sum()), 1), p.shape[1]
    most = E * (share * np.abs(p[real]).sum(axis=0)).sum() / T
    growth = float(g(T + E + 4.0, r.accumulate.u + _OWN)) + 8.0 * (r.elementwise.u + _OWN)
    lost = E * (r.accumulate.eta + r.elementwise.eta) * (T + E) if most else 0.0
    return checked({"loss": np.asarray(r.out.bound(np.asarray(most), np.asarray(growth * most + lost)))})


def balance_loss_backward_bound(
    arithmetic: ResolvedArithmetic, probs: ArrayLike, ids: ArrayLike, dloss: ArrayLike, *, mask: ArrayLike | None = None
) -> dict[str, Float64]:  # fmt: skip
    """How far its legal gradient may be from the exact one: {"dprobs"}, (T, E): 8 u of each element, then one rounding of `out`.

    >>> from oracles.properties import Arithmetic
    >>> bool(balance_loss_backward_bound(Arithmetic().resolve("float32"), [[0.5, 0.5]], [[0]], 1.0)["dprobs"].max() < 3e-6)
    True
    """
    r, p, share, real = _balance(arithmetic, probs, ids, mask)
    size = np.where(real[:, None], np.abs(np.asarray(dloss, np.float64)) * p.shape[1] * share / max(int(real.sum()), 1), 0.0)
    error = 8.0 * (r.elementwise.u + _OWN) * size + 4.0 * r.elementwise.eta * (size > 0.0)
    return checked({"dprobs": r.out.bound(size, error)})


def moe_layer_bound(
    arithmetic: ResolvedArithmetic, x: ArrayLike, logits: ArrayLike, weights: ArrayLike, *, k: int, normalize: bool,
    bias: ArrayLike | None = None, capacity: int | None = None,
) -> dict[str, Float64]:  # fmt: skip
    """How far a legal layer of experts may be from the exact one: {"out" (T, F), "slots" (T, k)}.

        y = x w of one expert, its error  d = g(D + 2, u_a) |x| |w|,  stored as `projected`
        out   sum over j of (e_j |y| + (gate_j + e_j) d) + g(k + 2, u_a) sum of sizes, then one rounding of `out`

    e_j: `gate_errors`. A gate may multiply x before the product, or y behind it. inf for tokens whose experts are not sure; for
    all of them where places are limited and any token's are not, and for slots wherever one is not.

    >>> from oracles.properties import Arithmetic
    >>> one = np.ones((1, 1, 1))
    >>> bool(moe_layer_bound(Arithmetic().resolve("float32"), one[0], one[0], one, k=1, normalize=True)["out"].max() < 3e-6)
    True
    """
    r, given = roundings(arithmetic), _Layer.of(arithmetic, x, logits, weights, k, normalize, bias, capacity)
    y, size = given.products(), given.products(absolute=True)                   # (T, k, F)
    d = r.projected.bound(y, dot_bound(r.accumulate, size * (1.0 + _OWN), given.D + 2.0) + 2.0 * _OWN * size)
    gate, e = given.gates[..., None], given.gate_error[..., None]
    each = np.where(given.kept[..., None], (gate + e) * (size + d), 0.0)
    error = np.where(given.kept[..., None], e * np.abs(y) + (gate + e) * d, 0.0).sum(axis=1)
    error = error + g(k + 2.0, r.accumulate.u + _OWN) * each.sum(axis=1) + 2.0 * k * r.accumulate.eta * (each.sum(axis=1) > 0.0)
    out = np.where(given.known[:, None], r.out.bound(each.sum(axis=1), error), np.inf)
    sure = bool(given.chosen.sure.all())
    return checked({"out": out, "slots": np.full(given.chosen.ids.shape, 0.0 if sure else np.inf)})


def expert_parallel_backward_bound(
    arithmetic: ResolvedArithmetic, x: Sequence[ArrayLike], logits: Sequence[ArrayLike], weights: Sequence[ArrayLike],
    dout: Sequence[ArrayLike], *, k: int, normalize: bool, bias: ArrayLike | None = None, capacity: int | None = None,
) -> dict[str, Float64]:  # fmt: skip
    """How far legal gradients of experts may be from the exact ones: {"dx", "dlogits", "dweights"}, each (R, …).

        dx         sum_j (e_j + (gate_j + e_j) (g(F + k + 4, u_a))) |dout| |w|^T
        dweights   sum over assignments of (e_j + (gate_j + e_j) g(n + 4, u_a)) |x|^T |dout|,   n the assignments of the expert
        dgates     E = (g(D + F + 2, u_a) + u_p) |x| |w| |dout|
        dlogits    dz_j = gate_j (dgate_j - s),  s = sum gate dgate, with its error N_j carried through, and (p_c / S) sum_j N_j
                   for all c, since who goes through all probabilities cancels there;  or the same of p without normalize

    then one rounding of `out` each. inf as in `moe_layer_bound`; dweights of all experts where any token's experts are not sure.

    >>> from oracles.properties import Arithmetic
    >>> one = np.ones((1, 1, 1))
    >>> a = Arithmetic().resolve("float32")
    >>> bool(expert_parallel_backward_bound(a, one, one, one[None], one, k=1, normalize=True)["dweights"].max() < 3e-6)
    True
    """
    r, stacked = roundings(arithmetic), [np.asarray(a, np.float64) for a in (x, logits, dout)]
    rows, z, d = (a.reshape(-1, a.shape[-1]) for a in stacked)
    per_rank = np.asarray(weights, np.float64)                                  # (R, E / R, D, F)
    w = per_rank.reshape(-1, *per_rank.shape[2:])
    given = _Layer.of(arithmetic, rows, z, w, k, normalize, bias, capacity)
    ua, F = r.accumulate.u + _OWN, w.shape[2]
    gate, e = np.where(given.kept, given.gates, 0.0), np.where(given.kept, given.gate_error, 0.0)
    back = np.abs(w)[given.chosen.ids].swapaxes(-1, -2)                         # (T, k, F, D)
    through = np.einsum("tf,tkfd->tkd", np.abs(d), back)
    most = ((gate + e)[..., None] * through).sum(axis=1)
    lost = 2.0 * (F + k) * r.accumulate.eta
    dx = (e[..., None] * through).sum(axis=1) + (g(F + k + 4.0, ua) + r.projected.u) * most + lost * (most > 0.0)
    bounds = {"dx": np.where(given.known[:, None], r.out.bound(most, dx), np.inf).reshape(stacked[0].shape)}
    bounds["dweights"] = _weight_errors(r, given, gate, e, np.abs(d), len(w)).reshape(per_rank.shape)
    dlogits = _router_errors(r, given, d, normalize)
    bounds["dlogits"] = np.where(given.known[:, None], dlogits, np.inf).reshape(stacked[1].shape)
    return checked(bounds)


def _weight_errors(r: Roundings, given: _Layer, gate: Float64, e: Float64, d: Float64, experts: int) -> Float64:
    found = np.zeros((experts, given.D, d.shape[1]))
    for expert in range(experts):
        t, j = np.nonzero(given.kept & (given.chosen.ids == expert))
        size, error = gate[t, j] + e[t, j], e[t, j]
        x, n = np.abs(given.x[t]), float(len(t))
        most = (x * size[:, None]).T @ d[t]
        whole = (x * error[:, None]).T @ d[t] + g(n + 4.0, r.accumulate.u + _OWN) * most
        found[expert] = r.out.bound(most, whole + 2.0 * n * r.accumulate.eta * (most > 0.0))
    return found if given.known.all() else np.full_like(found, np.inf)


def _router_errors(r: Roundings, given: _Layer, dout: Float64, normalize: bool) -> Float64:
    ua, u = r.accumulate.u + _OWN, r.elementwise.u + _OWN
    sizes = (given.products(absolute=True) * np.abs(dout)[:, None]).sum(axis=-1)
    d = np.where(given.kept, (given.products() * dout[:, None]).sum(axis=-1), 0.0)                  # (T, k)
    E = np.where(given.kept, (g(given.D + dout.shape[1] + 2.0, ua) + r.projected.u) * sizes, 0.0)
    E = E + 2.0 * (given.D + dout.shape[1]) * r.accumulate.eta * (sizes > 0.0)
    k, p, ids = d.shape[1], given.chosen.p, given.chosen.ids
    q, e = (given.gates, given.gate_error) if normalize else (np.take_along_axis(a, ids, -1) for a in (p, given.chosen.p_error))
    s_size = (q * np.abs(d)).sum(axis=-1, keepdims=True)
    s_error = (e * np.abs(d) + (q + e) * E).sum(axis=-1, keepdims=True) + (g(k + 2.0, ua) + 2.0 * u) * s_size
    own = e * (np.abs(d) + s_size) + (q + e) * (E + s_error) + 6.0 * u * q * (np.abs(d) + s_size)   # at the chosen
    if normalize:
        S = np.take_along_axis(p, ids, -1).sum(axis=-1, keepdims=True)
        error = 2.0 * p / np.where(S > 0.0, S, 1.0) * own.sum(axis=-1, keepdims=True)
        error = np.where(S > 0.0, error, np.inf)
        most = np.zeros_like(p)
        np.put_along_axis(most, ids, q * (np.abs(d) + s_size), axis=-1)
    else:
        error = (p + given.chosen.p_error) * s_error + given.chosen.p_error * s_size + 6.0 * u * p * s_size
        most = p * s_size
        np.put_along_axis(most, ids, q * (np.abs(d) + s_size), axis=-1)
    total = error.copy()
    np.put_along_axis(total, ids, np.take_along_axis(error, ids, -1) + own, axis=-1)
    nothing = s_size + E.sum(axis=-1, keepdims=True) == 0.0
    return np.asarray(np.where(nothing, 0.0, r.out.bound(most, total + r.elementwise.eta)))


@dataclass(frozen=True)
class _Layer:
    """A layer's tokens, choice and gates: known (T,) where the choice of its experts, and of who is dropped, is sure."""

    x: Float64
    weights: Float64
    chosen: Choice
    gates: Float64
    gate_error: Float64
    kept: Bool
    known: Bool

    @property
    def D(self) -> int:
        return int(self.x.shape[1])

    @classmethod
    def of(cls, arithmetic: ResolvedArithmetic, x: ArrayLike, logits: ArrayLike, weights: ArrayLike, k: int, normalize: bool,
           bias: ArrayLike | None, capacity: int | None) -> _Layer:
        r, chosen = roundings(arithmetic), choice(arithmetic, logits, k=k, bias=bias)
        gates, error = gate_errors(r, chosen, chosen.ids, normalize=normalize)
        error = r.probabilities.bound(gates, error)
        kept = expert_slots(chosen.ids, experts=np.shape(weights)[0], capacity=capacity) >= 0
        known = chosen.sure_set if capacity is None else np.full(len(chosen.ids), bool(chosen.sure.all()))
        known = known & np.isfinite(error).all(axis=-1)
        error = np.where(known[:, None], error, 0.0)
        return cls(np.asarray(x, np.float64), np.asarray(weights, np.float64), chosen, gates, error, kept, known)

    def products(self, *, absolute: bool = False) -> Float64:
        """What each chosen expert makes of the token: (T, k, F)."""
        x, w = (np.abs(self.x), np.abs(self.weights)) if absolute else (self.x, self.weights)
        return np.asarray(np.einsum("td,tkdf->tkf", x, w[self.chosen.ids]))


def _balance(
    arithmetic: ResolvedArithmetic, probs: ArrayLike, ids: ArrayLike, mask: ArrayLike | None
) -> tuple[Roundings, Float64, Float64, Array]:  # fmt: skip
    p, chosen = np.asarray(probs, np.float64), np.asarray(ids)
    real = np.ones(len(p), np.bool_) if mask is None else np.asarray(mask)
    counts = np.bincount(chosen[real].ravel(), minlength=p.shape[1])
    return roundings(arithmetic), p, counts / max(int(counts.sum()), 1), real
