"""The textbook formulas of losses over rows of logits, one element at a time, in mpmath: softmax first, its logarithm after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from .textbook_attention import mp

Element = Callable[[str, tuple[int, ...]], Any]


def cross_entropy(arguments: Mapping[str, Any]) -> Element:
    """-sum_c w_c q_c ln p_c of a row, q the smoothed target; with z_loss times w_y (ln sum e^z)^2."""
    rows = _Rows(arguments)

    def element(name: str, index: tuple[int, ...]) -> Any:
        if arguments["reduction"] == "none":
            return rows.loss(index)
        total = mp().fsum(rows.loss(place) for place in rows.places)
        weight = mp().fsum(rows.weight(place) for place in rows.places)
        return total if arguments["reduction"] == "sum" or not weight else total / weight

    return element


def vocab_parallel_cross_entropy(arguments: Mapping[str, Any]) -> Element:
    """The same, class c read from shard c // (V / R)."""
    shards = np.asarray(arguments["shards"])
    R, n = shards.shape[0], shards.shape[-1]
    logits = np.stack([shards[c // n, ..., c % n] for c in range(R * n)], axis=-1)
    return cross_entropy({**arguments, "logits": logits})


def cross_entropy_backward(arguments: Mapping[str, Any]) -> Element:
    """-sum_i w_i q_i d(ln p_i)/dz_c + z_loss w_y 2 lse p_c,   d(ln p_i)/dz_c = [i = c] - p_c."""
    rows = _Rows(arguments)
    dloss = np.broadcast_to(np.asarray(arguments["dloss"]).astype(np.float64), rows.y.shape)

    def element(name: str, index: tuple[int, ...]) -> Any:
        place, c = index[:-1], index[-1]
        weight = mp().fsum(rows.weight(one) for one in rows.places) if arguments["reduction"] == "mean" else mp().mpf(1)
        if not rows.counts(place) or not weight:
            return mp().mpf(0)
        p, q = rows.probabilities(place), rows.smoothed(place)
        slope = mp().fsum(-rows.w[i] * q[i] * ((1 if i == c else 0) - p[c]) for i in range(rows.V))
        slope += rows.z_loss * rows.weight(place) * 2 * rows.log_sum(place) * p[c]
        return mp().mpf(float(dloss[place])) * slope / weight

    return element


def distillation_loss(arguments: Mapping[str, Any]) -> Element:
    """alpha T^2 mean D + (1 - alpha) mean of -ln p_y."""
    T, alpha, beta = (mp().mpf(float(arguments.get(name, 0.5))) for name in ("temperature", "alpha", "beta"))
    sides = [_Rows({"logits": arguments[side], "targets": arguments["targets"]}) for side in ("teacher", "student")]

    def divergence(place: tuple[int, ...]) -> Any:
        t, s = (side.probabilities(place, T) for side in sides)
        if arguments["divergence"] == "forward_kl" or (arguments["divergence"] == "jsd" and beta == 0):
            return _kl(t, s)
        if arguments["divergence"] == "reverse_kl" or (arguments["divergence"] == "jsd" and beta == 1):
            return _kl(s, t)
        m = [beta * a + (1 - beta) * b for a, b in zip(t, s)]
        return beta * _kl(t, m) + (1 - beta) * _kl(s, m)

    def element(name: str, index: tuple[int, ...]) -> Any:
        places = sides[1].places
        if not places:
            return mp().mpf(0)
        soft, hard = mp().fsum(map(divergence, places)), mp().fsum(map(sides[1].loss, places))
        return (alpha * T**2 * soft + (1 - alpha) * hard) / len(places)

    return element


def distillation_loss_backward(arguments: Mapping[str, Any]) -> Element:
    """dloss / n (alpha T^2 sum_i dD/ds_i ds_i/dz_c + (1 - alpha) (p_c - [c = y])),   ds_i/dz_c = s_i ([i = c] - s_c) / T."""
    T, alpha, beta = (mp().mpf(float(arguments.get(name, 0.5))) for name in ("temperature", "alpha", "beta"))
    sides = [_Rows({"logits": arguments[side], "targets": arguments["targets"]}) for side in ("teacher", "student")]
    dloss = mp().mpf(float(np.asarray(arguments["dloss"]).astype(np.float64)))

    def slope(t: Any, s: Any) -> Any:
        """dD/ds of one class, s alone moved."""
        if arguments["divergence"] == "forward_kl" or (arguments["divergence"] == "jsd" and beta == 0):
            return -t / s
        if arguments["divergence"] == "reverse_kl" or (arguments["divergence"] == "jsd" and beta == 1):
            return mp().log(s / t) + 1
        m = beta * t + (1 - beta) * s
        return (1 - beta) * (-beta * t / m + mp().log(s / m) + 1 - s * (1 - beta) / m)

    def element(name: str, index: tuple[int, ...]) -> Any:
        place, c = index[:-1], index[-1]
        if not sides[1].counts(place):
            return mp().mpf(0)
        t, s = (side.probabilities(place, T) for side in sides)
        soft = mp().fsum(slope(t[i], s[i]) * s[i] * ((1 if i == c else 0) - s[c]) / T for i in range(len(s)))
        hard = sides[1].probabilities(place)[c] - (1 if sides[1].y[place] == c else 0)
        return dloss * (alpha * T**2 * soft + (1 - alpha) * hard) / len(sides[1].places)

    return element


def _kl(p: list[Any], q: list[Any]) -> Any:
    return mp().fsum(a * mp().log(a / b) for a, b in zip(p, q))


class _Rows:
    """Logits, targets and options of a loss; a place is the index of a row."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.z, self.y = np.asarray(arguments["logits"]).astype(np.float64), np.asarray(arguments["targets"])
        self.V, self.ignored = self.z.shape[-1], arguments.get("ignore_index", -100)
        self.e, self.z_loss = (mp().mpf(float(arguments.get(name, 0.0))) for name in ("label_smoothing", "z_loss"))
        self.w = [mp().mpf(float(x)) for x in np.asarray(arguments.get("weights", np.ones(self.V))).astype(np.float64)]
        self.probabilities = cache(self._probabilities)
        self.places = [place for place in np.ndindex(*self.y.shape) if self.counts(place)]

    def counts(self, place: tuple[int, ...]) -> bool:
        return bool(self.y[place] != self.ignored)

    def weight(self, place: tuple[int, ...]) -> Any:
        return self.w[self.y[place]]

    def smoothed(self, place: tuple[int, ...]) -> list[Any]:
        return [(1 - self.e if c == self.y[place] else 0) + self.e / self.V for c in range(self.V)]

    def _powers(self, place: tuple[int, ...], T: Any = 1) -> list[Any]:
        return [mp().mpf(0) if np.isneginf(x) else mp().exp(mp().mpf(float(x)) / T) for x in self.z[place]]

    def _probabilities(self, place: tuple[int, ...], T: Any = 1) -> list[Any]:
        powers = self._powers(place, T)
        total = mp().fsum(powers)
        return [x / total for x in powers]

    def log_sum(self, place: tuple[int, ...]) -> Any:
        return mp().log(mp().fsum(self._powers(place)))

    def loss(self, place: tuple[int, ...]) -> Any:
        """0 for a row that is ignored."""
        if not self.counts(place):
            return mp().mpf(0)
        p, q = self.probabilities(place), self.smoothed(place)
        surprise = mp().fsum(-w * one * mp().log(p_c) for w, one, p_c in zip(self.w, q, p) if w * one)
        return surprise + self.z_loss * self.weight(place) * self.log_sum(place) ** 2
