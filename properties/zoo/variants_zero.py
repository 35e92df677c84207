"""Legal variants of the ZeRO family: slices of each parameter, one flat buffer with its padding in front, in float32 or float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .specimen import variant
from .textbook_losses import Array
from .textbook_zero import TextbookZero

FAMILY = "zero"


@variant("zero", id="zero-slice-by-slice", family=FAMILY)
class SliceBySlice(TextbookZero):
    """Every parameter is cut by itself."""


@variant("zero", id="zero-in-float64", family=FAMILY)
class InFloat64(TextbookZero):
    """Everything in float64, whatever comes."""

    def attach(self, params: Mapping[str, Any]) -> None:
        super().attach({name: np.asarray(x, np.float64) for name, x in params.items()})

    def accumulate(self, grads: Sequence[Sequence[Any]], *, tokens: Sequence[int] | None = None) -> None:
        super().accumulate([[np.asarray(g, np.float64) for g in own] for own in grads], tokens=tokens)


@variant("zero", id="zero-padding-in-front", family=FAMILY)
class PaddingInFront(TextbookZero):
    """Slices are filled up in front."""

    def cut(self, arrays: Sequence[Array]) -> list[list[Array]]:
        parts = []
        for x in arrays:
            n = -(-x.size // self.world)
            parts.append(np.concatenate([np.zeros(n * self.world - x.size, x.dtype), x.reshape(-1)]).reshape(self.world, n))
        return [[part[r].copy() for part in parts] for r in range(self.world)]

    def joined(self, slices: list[list[Array]], k: int, shape: tuple[int, ...]) -> Array:
        whole = np.concatenate([own[k] for own in slices])
        return whole[whole.size - int(np.prod(shape)) :].reshape(shape)


@variant("zero", id="zero-ranks-the-other-way-round", family=FAMILY)
class RanksTheOtherWayRound(TextbookZero):
    """Gradients are added from the last rank to the first, each divided by the number of tokens before."""

    def reduced(self) -> list[list[Array]]:
        n = max(self.tokens, 1)
        total = []
        for k in range(len(self.shapes)):
            g = self.local[-1][k] / self.local[-1][k].dtype.type(n)
            for own in self.local[-2::-1]:
                g = g + own[k] / g.dtype.type(n)
            total.append(g if self.tokens else 0 * g)
        return self.cut(total)


@variant("zero", id="zero-norm-of-norms", family=FAMILY)
class NormOfNorms(TextbookZero):
    """The norm of the norms of all shards."""

    def norms(self, slices: list[list[Array]]) -> list[float]:
        own = [np.sqrt(np.sum([(g * g).sum(dtype=g.dtype) for g in parts])) for parts in slices]
        return [float(np.sqrt(np.sum(np.square(own))))] * self.world
