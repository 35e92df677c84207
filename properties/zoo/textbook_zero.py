"""A textbook sharded optimizer: every parameter cut by itself, filled up to equal slices. What mutants are made of, and no oracle is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .textbook_decoding import working
from .textbook_losses import Array


class TextbookZero:
    """AdamW on `world` ranks, of which each has a slice of every parameter and moment; whole parameters are put together when asked for.

    What it does is the same in every stage: stages differ in what is kept, which nobody asks it.
    """

    def __init__(self, stage: int, world: int, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
                 max_norm: float | None = None) -> None:
        if stage not in (0, 1, 2, 3) or world < 1:
            raise ValueError(f"stage, world: got {stage}, {world}; want 0..3 and at least one rank")
        self.stage, self.world, self.max_norm = stage, world, max_norm
        self.lr, self.beta1, self.beta2, self.eps, self.decay = lr, beta1, beta2, eps, weight_decay
        self.shapes: dict[str, tuple[int, ...]] = {}

    def attach(self, params: Mapping[str, Any]) -> None:
        self.shapes = {name: np.shape(x) for name, x in params.items()}
        self.slices = self.cut([working(x) for x in params.values()])           # [rank][parameter]
        self.m, self.v = ([[0 * part for part in own] for own in self.slices] for _ in "mv")
        self.steps = 0
        self.begin()

    def begin(self) -> None:
        """Forget what was accumulated."""
        self.local: list[list[Array]] = [[] for _ in range(self.world)]         # each rank's own sums, [rank][parameter]
        self.tokens, self.pending = 0, 0

    def accumulate(self, grads: Sequence[Sequence[Any]], *, tokens: Sequence[int] | None = None) -> None:
        self.check(grads, tokens)
        self.local = [[working(g) for g in own] if not old else [a + working(g) for a, g in zip(old, own)]
                      for old, own in zip(self.local, grads)]  # fmt: skip
        self.tokens += self.world if tokens is None else sum(tokens)
        self.pending += 1

    def step(self, grads: Sequence[Sequence[Any]], *, tokens: Sequence[int] | None = None) -> float:
        self.accumulate(grads, tokens=tokens)
        slices = self.reduced()
        norms = self.norms(slices)
        self.steps += 1
        for r, own in enumerate(slices):
            factor = 1.0 if self.max_norm is None or norms[r] <= self.max_norm else self.max_norm / norms[r]
            for k, g in enumerate(own):
                self.update(r, k, g * g.dtype.type(factor))
        self.begin()
        return float(norms[0])

    def reduced(self) -> list[list[Array]]:
        """Each rank's slices of the averaged gradient."""
        total = [sum(own[k] for own in self.local[1:]) + self.local[0][k] for k in range(len(self.shapes))]
        return [[g / g.dtype.type(max(self.tokens, 1)) * g.dtype.type(self.tokens > 0) for g in own] for own in self.cut(total)]

    def norms(self, slices: list[list[Array]]) -> list[float]:
        """The norm that each rank clips by: that of everything."""
        square = sum(float((g * g).sum(dtype=g.dtype)) for own in slices for g in own)
        return [float(np.sqrt(square))] * self.world

    def update(self, r: int, k: int, g: Array) -> None:
        """AdamW of one slice."""
        f = g.dtype.type
        self.m[r][k] = f(self.beta1) * self.m[r][k] + f(1 - self.beta1) * g
        self.v[r][k] = f(self.beta2) * self.v[r][k] + f(1 - self.beta2) * g * g
        m, v = (x / f(1 - beta**self.steps) for x, beta in ((self.m[r][k], self.beta1), (self.v[r][k], self.beta2)))
        self.slices[r][k] = self.slices[r][k] * f(1 - self.lr * self.decay) - f(self.lr) * m / (np.sqrt(v) + f(self.eps))

    def params(self) -> dict[str, Array]:
        return {name: self.joined(self.slices, k, shape) for k, (name, shape) in enumerate(self.shapes.items())}

    def save(self) -> dict[str, Any]:
        if self.pending:
            raise ValueError(f"grads: {self.pending} micro-batches are accumulated; want a whole step")
        kept = {"params": self.slices, "m": self.m, "v": self.v}
        whole = {key: {name: self.joined(x, k, shape) for k, (name, shape) in enumerate(self.shapes.items())} for key, x in kept.items()}
        return {**whole, "step": self.steps}

    def load(self, state: Mapping[str, Any]) -> None:
        self.slices, self.m, self.v = (self.cut([state[key][name] for name in self.shapes]) for key in ("params", "m", "v"))
        self.steps = state["step"]
        self.begin()

    def cut(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """Equal slices of each array, filled up with zeros."""
        parts = []
        for x in arrays:
            n = -(-x.size // self.world)
            parts.append(np.concatenate([x.reshape(-1), np.zeros(n * self.world - x.size, x.dtype)]).reshape(self.world, n))
        return [[part[r].copy() for part in parts] for r in range(self.world)]

    def joined(self, slices: list[list[Array]], k: int, shape: tuple[int, ...]) -> Array:
        """Parameter k from all ranks' slices, without what it was filled up with."""
        size = int(np.prod(shape))
        return np.concatenate([own[k] for own in slices])[:size].reshape(shape)

    def check(self, grads: Sequence[Sequence[Any]], tokens: Sequence[int] | None) -> None:
        """Raises ValueError for what does not fit."""
        if not self.shapes:
            raise ValueError("params: nothing is attached")
        shapes = [[np.shape(g) for g in own] for own in grads]
        if shapes != [list(self.shapes.values())] * self.world or (tokens is not None and len(tokens) != self.world):
            raise ValueError(f"grads: got shapes {shapes}; want those of the parameters, for each of {self.world} ranks")
