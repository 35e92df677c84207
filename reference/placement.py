"""Placements: what each array on a mesh of simulated ranks is along each mesh axis, and the layers' demand that it be that.

Along an axis of the mesh an array is `Replicated` (every rank holds the same), `Shard(dim)` (each rank holds its part of that axis of
the array) or `Partial()` (the ranks' arrays still have to be added). A layer states what it takes with `want`, and a missing or doubled
all-reduce then fails by name before it fails as a number:

    PlacementError: layer 3 attention.wo: x: partial sum over tp, wanted replicated; an all_reduce over tp is missing before it

How a layer uses them: `place` cuts weights and inputs, `placed_arithmetic` multiplies and adds with the rules of linear algebra,
`placed_collectives` turns one placement into another by what is sent, `whole` puts an array together again, to be compared with one rank's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array


class PlacementError(ValueError):
    """An array that is not what a layer takes: which layer, which array, which mesh axis, what it is, what is wanted."""


@dataclass(frozen=True)
class Replicated:
    """Every rank along the mesh axis holds the same array."""

    def __str__(self) -> str:
        return "replicated"

    def over(self, axis: str) -> str:
        return f"replicated over {axis}"


@dataclass(frozen=True)
class Shard:
    """Each rank along the mesh axis holds its part of axis `dim` of the array: `partition` says which."""

    dim: int

    def __post_init__(self) -> None:
        arguments.whole_number("dim", self.dim, least=0)

    def __str__(self) -> str:
        return f"sharded on axis {self.dim}"

    def over(self, axis: str) -> str:
        return f"sharded on axis {self.dim} over {axis}"


@dataclass(frozen=True)
class Partial:
    """The array is the sum of what the ranks along the mesh axis hold."""

    def __str__(self) -> str:
        return "a partial sum"

    def over(self, axis: str) -> str:
        return f"partial sum over {axis}"


Placement = Replicated | Shard | Partial
Placements = Mapping[str, Placement]


@dataclass(frozen=True)
class Mesh:
    """Ranks in a grid of named axes, numbered row by row: the last axis runs fastest.

    >>> mesh = Mesh({"dp": 2, "tp": 3})
    >>> mesh.ranks, mesh.groups("tp"), mesh.coordinate(4, "tp")
    (6, [[0, 1, 2], [3, 4, 5]], 1)

    Raises ValueError for an axis of no ranks.
    """

    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        for axis, size in self.sizes.items():
            arguments.whole_number(axis, size, least=1)
        object.__setattr__(self, "sizes", dict(self.sizes))

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @property
    def ranks(self) -> int:
        return prod(self.sizes.values())

    def size(self, axis: str) -> int:
        if axis not in self.sizes:
            raise ValueError(f"axis: got {axis!r}; want one of {', '.join(self.sizes)}")
        return self.sizes[axis]

    def coordinate(self, rank: int, axis: str) -> int:
        """Where a rank stands along an axis."""
        size, behind = self.size(axis), self.axes[self.axes.index(axis) + 1 :]
        return rank // prod(self.sizes[name] for name in behind) % size

    def groups(self, axis: str) -> list[list[int]]:
        """The ranks that differ along that axis only, one list for each place on the others."""
        self.size(axis)
        places = [range(n) for n in self.sizes.values()]
        numbers = {place: rank for rank, place in enumerate(product(*places))}
        at = self.axes.index(axis)
        return [[numbers[*place[:at], i, *place[at + 1 :]] for i in places[at]] for place in numbers if place[at] == 0]


@dataclass(frozen=True)
class Placed:
    """One array on a mesh: what each rank holds, and what that is along each mesh axis. Axes not named are replicated.

    >>> x = Placed("x", [np.ones(2), np.ones(2)], Mesh({"tp": 2}), {"tp": Partial()})
    >>> print(x)
    x: partial sum over tp
    """

    name: str
    arrays: Sequence[Array]
    mesh: Mesh
    placements: Placements = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.arrays) != self.mesh.ranks:
            raise ValueError(f"{self.name}: got {len(self.arrays)} arrays; want {self.mesh.ranks}, one for each rank of {self.mesh.sizes}")
        for axis in self.placements:
            self.mesh.size(axis)
        object.__setattr__(self, "placements", {axis: self.placements.get(axis, Replicated()) for axis in self.mesh.axes})

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(placement.over(axis) for axis, placement in self.placements.items())}"

    def along(self, axis: str) -> Placement:
        """What it is along one mesh axis."""
        self.mesh.size(axis)
        return self.placements[axis]

    def with_arrays(self, arrays: Sequence[Array], placements: Placements | None = None, *, name: str | None = None) -> Placed:
        """Other arrays in its place, under another name, with other placements along the axes named."""
        return replace(self, name=name or self.name, arrays=list(arrays), placements={**self.placements, **(placements or {})})


# What stands between what an array is and what a layer takes.
_BETWEEN: dict[tuple[type, type], str] = {
    (Partial, Replicated): "an all_reduce over {axis} is missing before it",
    (Partial, Shard): "a reduce_scatter over {axis} is missing before it",
    (Shard, Replicated): "an all_gather over {axis} is missing before it",
    (Shard, Shard): "an all_to_all over {axis} is missing before it",
    (Replicated, Partial): "it was reduced over {axis} already: one all_reduce too many",
    (Shard, Partial): "it was scattered over {axis} already",
    (Replicated, Shard): "every rank of {axis} holds all of it",
}


def want(layer: str, x: Placed, /, **placements: Placement) -> Placed:
    """x, if along each mesh axis named it is what the layer takes.

    Raises PlacementError naming layer, array, axis, what came and what is wanted.
    """
    for axis, wanted in placements.items():
        found = x.along(axis)
        if found != wanted:
            raise PlacementError(f"{layer}: {x.name}: {found.over(axis)}, wanted {wanted}; "
                                 f"{_BETWEEN[type(found), type(wanted)].format(axis=axis)}")  # fmt: skip
    return x


def partition(n: int, world: int) -> list[tuple[int, int]]:
    """(start, stop) of each of `world` parts of n elements: a disjoint cover, the first n mod world parts one longer.

    >>> partition(5, 3), partition(1, 2)
    ([(0, 2), (2, 4), (4, 5)], [(0, 1), (1, 1)])
    """
    n, R = arguments.whole_number("n", n, least=0), arguments.whole_number("world", world, least=1)
    starts = [r * (n // R) + min(r, n % R) for r in range(R + 1)]
    return list(pairwise(starts))


def place(name: str, x: ArrayLike, mesh: Mesh, /, **placements: Placement) -> Placed:
    """A whole array on a mesh: cut along the axes that are sharded, copied along the others.

    An axis of the array that several mesh axes shard is cut by the first of them, each part by the next.

    >>> [a.tolist() for a in place("w", np.arange(3.0), Mesh({"dp": 2, "tp": 2}), tp=Shard(0)).arrays]
    [[0.0, 1.0], [2.0], [0.0, 1.0], [2.0]]

    Raises ValueError for an axis that the mesh or the array does not have, and for partial sums: of a whole there are many.
    """
    whole_array = np.asarray(x)
    for axis, placement in placements.items():
        mesh.size(axis)
        if isinstance(placement, Partial):
            raise ValueError(f"{axis}: got a partial sum for {name}; want replicated or a shard")
        if isinstance(placement, Shard) and placement.dim >= whole_array.ndim:
            raise ValueError(f"{axis}: got {placement} for {name} of shape {whole_array.shape}; want an axis of it")
    arrays = []
    for rank in range(mesh.ranks):
        part = whole_array
        for axis in mesh.axes:
            placement = placements.get(axis, Replicated())
            if isinstance(placement, Shard):
                start, stop = partition(part.shape[placement.dim], mesh.size(axis))[mesh.coordinate(rank, axis)]
                part = np.take(part, range(start, stop), axis=placement.dim)
        arrays.append(np.array(part))
    return Placed(name, arrays, mesh, placements)


def whole(x: Placed, *, layer: str = "whole") -> Array:
    """The one array that the ranks hold together: parts put side by side, partial sums added, copies compared bit by bit.

    >>> whole(Placed("x", [np.ones(1), np.full(1, 2.0)], Mesh({"tp": 2}), {"tp": Partial()}))
    array([3.])

    Raises PlacementError where ranks that are said to hold the same do not: the first pair of them, and the place.
    """
    held = dict(enumerate(x.arrays))
    for axis in reversed(x.mesh.axes):
        placement = x.along(axis)
        for group in x.mesh.groups(axis):
            there = [rank for rank in group if rank in held]
            if len(there) < len(group):
                continue                                                        # put together with ranks of a later axis already
            parts = [held.pop(rank) for rank in group]
            if isinstance(placement, Shard):
                held[group[0]] = np.concatenate(parts, axis=placement.dim)
            elif isinstance(placement, Partial):
                held[group[0]] = sum(parts[1:], start=parts[0])
            else:
                held[group[0]] = parts[0]
                for rank, part in zip(group[1:], parts[1:]):
                    _compare(layer, x, axis, (group[0], parts[0]), (rank, part))
    return held[0]


def _compare(layer: str, x: Placed, axis: str, first: tuple[int, Array], other: tuple[int, Array]) -> None:
    (r, a), (s, b) = first, other
    if a.shape != b.shape:
        raise PlacementError(f"{layer}: {x.name}: said to be replicated over {axis}, but {a.shape} on rank {r} and {b.shape} on rank {s}")
    differ = np.argwhere(~((a == b) | ((a != a) & (b != b))))
    if len(differ):
        place = tuple(int(i) for i in differ[0])
        raise PlacementError(f"{layer}: {x.name}: said to be replicated over {axis}, but {a[place]} on rank {r} and {b[place]} on rank {s} "
                             f"at {list(place)}; an all_reduce over {axis} is missing, or one rank stepped alone")  # fmt: skip
