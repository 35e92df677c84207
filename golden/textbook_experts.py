"""The textbook formulas of mixtures of experts, one element at a time, in mpmath: probabilities, the choice, each gate's slope."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from .textbook_attention import mp
from .textbook_collectives import number

Element = Callable[[str, tuple[int, ...]], Any]


def route(arguments: Mapping[str, Any]) -> Element:
    """The experts in descending order of probability and bias together, and their probabilities."""
    routed = _Routed(arguments["logits"], arguments)
    return lambda name, index: mp().mpf(routed.ids[index[0]][index[1]]) if name == "ids" else routed.gate(*index)


def balance_loss(arguments: Mapping[str, Any]) -> Element:
    """E sum_e f_e P_e."""
    share, real = _shares(arguments)
    probs = np.asarray(arguments["probs"])
    E = probs.shape[1]

    def element(name: str, index: tuple[int, ...]) -> Any:
        if not real:
            return mp().mpf(0)
        return E * mp().fsum(share[e] * mp().fsum(number(probs, (t, e)) for t in real) / len(real) for e in range(E))

    return element


def balance_loss_backward(arguments: Mapping[str, Any]) -> Element:
    """dloss E f_e / T."""
    share, real = _shares(arguments)

    def element(name: str, index: tuple[int, ...]) -> Any:
        if index[0] not in real:
            return mp().mpf(0)
        return number(arguments["dloss"], ()) * len(share) * share[index[1]] / len(real)

    return element


def _shares(arguments: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
    """f of each expert, and the real tokens."""
    ids, mask = np.asarray(arguments["ids"]), arguments.get("mask")
    real = [t for t in range(len(ids)) if mask is None or mask[t]]
    assigned = [int(e) for t in real for e in ids[t]]
    return [mp().mpf(assigned.count(e)) / max(len(assigned), 1) for e in range(np.shape(arguments["probs"])[1])], real


def moe_layer(arguments: Mapping[str, Any]) -> Element:
    """The gates' sum of what the experts make of a token; a slot is how many came to its expert before."""
    x, w, routed = np.asarray(arguments["x"]), np.asarray(arguments["weights"]), _Routed(arguments["logits"], arguments)

    def element(name: str, index: tuple[int, ...]) -> Any:
        if name == "slots":
            return mp().mpf(routed.slot(*index))
        t, f = index
        return mp().fsum(routed.gate(t, j) * number(x, (t, c)) * number(w, (e, c, f))
                         for j, e in enumerate(routed.ids[t]) if routed.slot(t, j) >= 0 for c in range(x.shape[1]))  # fmt: skip

    return element


def expert_parallel_backward(arguments: Mapping[str, Any]) -> Element:
    """Each gate's derivative written out; token t of rank r is number r T + t of all, and so are experts."""
    x, z, dout = (np.concatenate(list(np.asarray(arguments[name]))) for name in ("x", "logits", "dout"))
    w, T, n = np.concatenate(list(np.asarray(arguments["weights"]))), np.shape(arguments["x"])[1], np.shape(arguments["weights"])[1]
    routed, (D, F) = _Routed(z, arguments), w.shape[1:]

    @cache
    def upstream(t: int, j: int) -> Any:
        """dgate."""
        return mp().fsum(number(x, (t, c)) * number(w, (routed.ids[t][j], c, f)) * number(dout, (t, f)) for c in range(D) for f in range(F))

    def element(name: str, index: tuple[int, ...]) -> Any:
        if name == "dweights":
            r, i, c, f = index
            places = [(t, j) for t, ids in enumerate(routed.ids) for j, e in enumerate(ids) if e == r * n + i and routed.slot(t, j) >= 0]
            return mp().fsum(routed.gate(t, j) * number(x, (t, c)) * number(dout, (t, f)) for t, j in places)
        t, last = index[0] * T + index[1], index[2]
        kept = [(j, e) for j, e in enumerate(routed.ids[t]) if routed.slot(t, j) >= 0]
        if name == "dx":
            return mp().fsum(routed.gate(t, j) * number(w, (e, last, f)) * number(dout, (t, f)) for j, e in kept for f in range(F))
        return mp().fsum(upstream(t, j) * routed.slope(t, j, last) for j, _ in kept)

    return element


class _Routed:
    """Where tokens go: ids of each token, its gates, their derivatives, and places at the experts."""

    def __init__(self, logits: Any, arguments: Mapping[str, Any]) -> None:
        self.normalize, self.capacity, k = arguments["normalize"], arguments.get("capacity"), int(arguments["k"])
        self.p = [_probabilities(row) for row in np.asarray(logits).astype(np.float64)]
        bias = arguments.get("bias")
        added = [mp().mpf(0) if bias is None else number(bias, (e,)) for e in range(np.shape(logits)[1])]
        self.ids = [sorted(range(len(p)), key=lambda e: (-(p[e] + added[e]), e))[:k] for p in self.p]
        self.slot = cache(self._slot)

    def gate(self, t: int, j: int) -> Any:
        p, ids = self.p[t], self.ids[t]
        return p[ids[j]] / (mp().fsum(p[e] for e in ids) if self.normalize else 1)

    def slope(self, t: int, j: int, c: int) -> Any:
        """The derivative of a gate with respect to logit c."""
        same = 1 if self.ids[t][j] == c else 0
        if not self.normalize:
            return self.gate(t, j) * (same - self.p[t][c])
        return self.gate(t, j) * (same - (self.gate(t, self.ids[t].index(c)) if c in self.ids[t] else 0))

    def _slot(self, t: int, j: int) -> int:
        e = self.ids[t][j]
        earlier = sum(ids[:j].count(e) for ids in self.ids)                     # all earlier choices of all tokens
        place = earlier + sum(ids[j] == e for ids in self.ids[:t])
        return place if self.capacity is None or place < self.capacity else -1


def _probabilities(row: Any) -> list[Any]:
    powers = [mp().mpf(0) if np.isneginf(x) else mp().exp(mp().mpf(float(x))) for x in row]
    return [one / mp().fsum(powers) for one in powers]
