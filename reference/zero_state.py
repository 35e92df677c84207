"""ZeRO state: the flat buffer that ranks share out, and where each parameter lies in it. What is done with it is left to `zero`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Int64


def flat_layout(sizes: ArrayLike, *, alignment: int = 1, world: int = 1) -> tuple[Int64, Int64]:
    """Where each of K arrays begins in one flat buffer, and how long the buffer is: offsets (K,), total ().

        offset_k = a ceil(end_(k-1) / a),   end_k = offset_k + size_k          total = R ceil(end / R)

    a = alignment, R = world. The size is that of the parameter, whatever stands in its place just now
    (deepspeedai/DeepSpeed#8277). Arrays never overlap, whatever their sizes, 0 among them.

    >>> flat_layout([6, 3], alignment=4, world=2)
    (array([0, 8]), array(12))

    Raises ValueError for negative sizes, an alignment or a world below 1. Exact integers.
    Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 5.
    """
    n = arguments.integers("sizes", sizes, least=0, most=2**53)
    if n.ndim != 1:
        raise ValueError(f"sizes: got shape {n.shape}; want (K,)")
    a, R = arguments.whole_number("alignment", alignment, least=1), arguments.whole_number("world", world, least=1)
    offsets, end = [], 0
    for size in n.tolist():
        offsets.append(-(-end // a) * a)
        end = offsets[-1] + size
    return np.array(offsets, np.int64), np.asarray(-(-end // R) * R)


class FlatBuffer:
    """Named arrays as one flat buffer of `elements`, filled up to `padded` = R equal shards.

    >>> buffer = FlatBuffer({"a": (2, 2), "b": (1,)}, world=2)
    >>> buffer.elements, buffer.padded, buffer.shard_elements
    (5, 6, 3)
    >>> flat = buffer.flatten({"a": np.eye(2), "b": np.ones(1)})
    >>> [shard.tolist() for shard in buffer.cut(flat)], buffer.unflatten(flat)["b"]
    ([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], array([1.]))

    What fills it up is 0, belongs to no array, and never comes back (deepspeedai/DeepSpeed#1380).
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], *, world: int, alignment: int = 1) -> None:
        self.shapes = dict(shapes)
        self.world = arguments.whole_number("world", world, least=1)
        self._sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        offsets, padded = flat_layout(self._sizes, alignment=alignment, world=world)
        self.offsets: list[int] = offsets.tolist()
        self.padded = int(padded)
        self.elements = self.offsets[-1] + self._sizes[-1] if self.offsets else 0

    @property
    def shard_elements(self) -> int:
        return self.padded // self.world

    def flatten(self, arrays: Mapping[str, ArrayLike]) -> Float64:
        """All arrays in one: (elements,). Raises ValueError for other names or shapes."""
        if list(arrays) != list(self.shapes):
            raise ValueError(f"params: got {', '.join(arrays) or 'none'}; want {', '.join(self.shapes)}")
        flat = np.zeros(self.elements)
        for (name, x), start, size in zip(arrays.items(), self.offsets, self._sizes):
            flat[start : start + size] = arguments.widen(name, x, self.shapes[name]).reshape(-1)
        return flat

    def unflatten(self, flat: Float64) -> dict[str, Float64]:
        """Every array again, from the flat buffer, filled up or not."""
        found = zip(self.shapes.items(), self.offsets, self._sizes)
        return {name: flat[start : start + size].reshape(shape).copy() for (name, shape), start, size in found}

    def fill_up(self, flat: Float64) -> Float64:
        """The buffer with zeros behind, in equal parts: (padded,)."""
        return np.concatenate([flat, np.zeros(self.padded - self.elements)])

    def cut(self, flat: Float64) -> list[Float64]:
        """One shard for each rank: R of (shard_elements,)."""
        return [shard.copy() for shard in np.split(self.fill_up(flat), self.world)]
