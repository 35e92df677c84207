"""The second route of what stands behind a training step: exact fractions, one number at a time, no ranks, no arrays."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

from .traces import Step

_MOST, _LEAST = Fraction(2) ** 128 - Fraction(2) ** 104, Fraction(2) ** -126    # of the normal numbers of float32
FORMATS = {"bfloat16": (8, -126), "float16": (11, -14)}                         # bits of the significand, least exponent of a normal number


class _Refused(Exception):
    """A ValueError is due."""


class _Answering:
    def answered(self, step: Step) -> Step:
        """The step with this object's answer."""
        try:
            return replace(step, answer=getattr(self, step.call)(**step.arguments))
        except _Refused:
            return replace(step, raises="ValueError")


def _number(x: Any) -> Fraction | str:
    return x if isinstance(x, str) else Fraction(x)


def _told(x: Fraction | str) -> Any:
    if isinstance(x, str):
        return x
    assert Fraction(float(x)) == x, "a number that is not exact belongs in no trace"
    return float(x)


class Scaler(_Answering):
    """A scale, how many updates without an overflow in a row, and the gradients that were unscaled last."""

    def __init__(self, init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000) -> None:
        self.at, self.growth, self.backoff = (Fraction(x) for x in (init_scale, growth_factor, backoff_factor))
        self.interval, self.run, self.spoilt = growth_interval, 0, False

    def value(self) -> float:
        return float(self.at)

    def scale(self, loss: float) -> Any:
        return _told(Fraction(loss) * self.at)

    def unscale(self, grads: Any) -> dict[str, Any]:
        self.spoilt = any(isinstance(x, str) for g in grads for x in g)
        return {"grads": [[x if isinstance(x, str) else _told(Fraction(x) / self.at) for x in g] for g in grads], "found_inf": self.spoilt}

    def step(self) -> bool:
        return not self.spoilt

    def update(self) -> None:
        if self.spoilt:
            self._move(self.backoff)
        elif self.run + 1 >= self.interval:
            self._move(self.growth)
        else:
            self.run += 1

    def _move(self, factor: Fraction) -> None:
        self.run = 0
        if _LEAST <= self.at * factor <= _MOST:
            self.at *= factor

    def state(self) -> dict[str, Any]:
        return {"value": float(self.at), "run": self.run}

    def load(self, state: dict[str, Any]) -> None:
        if set(state) != {"value", "run"} or state["run"] < 0 or not _LEAST <= Fraction(state["value"]) <= _MOST:
            raise _Refused
        self.at, self.run = Fraction(state["value"]), state["run"]


class Masters(_Answering):
    """Each master moves by the learning rate of the steps taken; "m" is the gradient, "v" its square."""

    def __init__(self, weights: Any, fmt: str, lr: list[float], beta1: float, beta2: float, eps: float) -> None:
        assert beta1 == beta2 == eps == 0.0, "with momentum or eps a step is not exact"
        self.master, self.format, self.rates = [Fraction(x) for x in weights], FORMATS[fmt], [Fraction(x) for x in lr]
        self.m, self.v = [Fraction(0)] * len(weights), [Fraction(0)] * len(weights)
        self.taken, self.gathered, self.states = 0, list[Any](self.m), list[Any]()

    def weights(self) -> list[Any]:
        return [_told(_rounded(x, *self.format)) for x in self.master]

    def accumulate(self, grad: Any) -> None:
        self._fits(grad)
        self.gathered = [a if isinstance(a, str) else b if isinstance(b, str) else a + b for a, b in zip(self.gathered, map(_number, grad))]

    def step(self, loss_scale: float) -> bool:
        grads, self.gathered = self.gathered, [Fraction(0)] * len(self.master)
        if any(isinstance(g, str) for g in grads):
            return False
        self.m = [g / Fraction(loss_scale) for g in grads]
        self.v = [g * g for g in self.m]
        rate = self.rates[min(self.taken, len(self.rates) - 1)]
        self.master = [x - rate * _sign(g) for x, g in zip(self.master, self.m)]
        self.taken += 1
        return True

    def load(self, weights: Any) -> None:
        self._fits(weights)
        self.master = [Fraction(x) for x in weights]

    def state(self) -> dict[str, Any]:
        self.states.append((list(self.master), list(self.m), list(self.v), self.taken))
        return {"master": list(map(_told, self.master)), "m": list(map(_told, self.m)), "v": list(map(_told, self.v)), "step": self.taken}

    def resume(self, number: int) -> None:
        self.master, self.m, self.v, self.taken = self.states[number]
        self.gathered = [Fraction(0)] * len(self.master)

    def _fits(self, numbers: Any) -> None:
        if len(numbers) != len(self.master):
            raise _Refused


class Sharded(_Answering):
    """One rank that does it all; what each of several would hold is counted, 8 bytes a number."""

    def __init__(self, stage: int, world: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
                 alignment: int) -> None:
        assert beta1 == beta2 == eps == 0.0, "with momentum or eps a step is not exact"
        self.stage, self.world, self.alignment = stage, world, alignment
        self.rate, self.decay = Fraction(lr), Fraction(weight_decay)
        self.values: dict[str, list[Fraction]] = {}
        self._begin()

    def _begin(self) -> None:
        self.sums = [[Fraction(0)] * len(x) for x in self.values.values()]
        self.counted, self.pending = 0, False

    def attach(self, params: Any) -> None:
        self.values = {name: [Fraction(x) for x in numbers] for name, numbers in params}
        self._begin()

    def accumulate(self, grads: Any, tokens: Any = None) -> None:
        lengths = [len(x) for x in self.values.values()]
        if len(grads) != self.world or any([len(g) for g in own] != lengths for own in grads):
            raise _Refused
        for own in grads:
            self.sums = [[a + Fraction(b) for a, b in zip(total, g)] for total, g in zip(self.sums, own)]
        self.counted, self.pending = self.counted + (self.world if tokens is None else sum(tokens)), True

    def step(self, grads: Any, tokens: Any = None) -> None:
        self.accumulate(grads, tokens)
        for (name, x), gradient in zip(self.values.items(), self.sums):
            signs = [_sign(g) if self.counted else 0 for g in gradient]
            self.values[name] = [a - self.rate * (sign + self.decay * a) for a, sign in zip(x, signs)]
        self._begin()

    def params(self) -> dict[str, Any]:
        return {name: list(map(_told, x)) for name, x in self.values.items()}

    def held(self) -> list[dict[str, int]]:
        end = 0
        for x in self.values.values():
            while end % self.alignment:
                end += 1
            end += len(x)
        share = len(range(0, end, self.world))
        roles = {"weights": 3, "gradients": 2, "first moment": 1, "second moment": 1}                       # from which stage on shared
        return [{role: 8 * (share if self.stage >= first else end) for role, first in roles.items()}] * self.world

    def reload(self, stage: int, world: int) -> None:
        if self.pending:
            raise _Refused
        self.stage, self.world = stage, world


def _sign(x: Fraction) -> int:
    return (x > 0) - (x < 0)


def _rounded(x: Fraction, bits: int, least: int) -> Fraction:
    """The nearest multiple of the quantum; Python's round goes to even at a tie."""
    if not x:
        return x
    exponent = max(math.frexp(float(abs(x)))[1] - 1, least)
    quantum = Fraction(2) ** (exponent - bits + 1)
    return round(x / quantum) * quantum


OBJECTS = {"loss_scaler": Scaler, "master_weights": Masters, "zero": Sharded}
