"""Placed collectives: the moves from one placement to another along one mesh axis, each checked by name and counted in a ledger.

    reduced            partial sum → replicated     all_reduce
    reduce_scattered   partial sum → shard          reduce_scatter
    gathered           shard → replicated           all_gather
    exchanged          shard → another shard        all_to_all
    sliced             replicated → shard           nothing is sent

Each takes the name of the layer that asks, and raises PlacementError where the array is not what the move starts from: a second
all_reduce finds a replicated array, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from . import arguments
from .arguments import Array
from .collectives import Algorithm, Traffic, all_gather, all_reduce, exchange, no_traffic
from .placement import Mesh, Partial, Placed, PlacementError, Replicated, Shard, partition, want


@dataclass
class Ledger:
    """What was sent: one entry a collective, (layer, collective, mesh axis, traffic of all ranks of the mesh).

    >>> mesh, ledger = Mesh({"tp": 2}), Ledger()
    >>> y = reduced(Placed("y", [np.ones(2), np.ones(2)], mesh, {"tp": Partial()}), "tp", layer="row", ledger=ledger)
    >>> ledger.entries[0][:3], ledger.total(mesh).sent
    (('row', 'all_reduce', 'tp'), (16, 16))
    """

    entries: list[tuple[str, str, str, Traffic]] = field(default_factory=list)

    def total(self, mesh: Mesh, *, axis: str | None = None) -> Traffic:
        """All of it, or all along one mesh axis."""
        return sum((entry[3] for entry in self.entries if axis in (None, entry[2])), start=no_traffic(mesh.ranks))


def reduced(x: Placed, axis: str, *, layer: str, algorithm: Algorithm = "ring", ledger: Ledger | None = None) -> Placed:
    """Partial sums along a mesh axis added up, on every rank of it.

    Raises PlacementError where x is no partial sum along the axis: a doubled all_reduce.
    """
    _partial(layer, "all_reduce", x, axis)
    arrays = _along(x, axis, layer, "all_reduce", lambda group: all_reduce(group, algorithm=algorithm), ledger)
    return x.with_arrays(arrays, {axis: Replicated()})


def reduce_scattered(x: Placed, axis: str, dim: int, *, layer: str, ledger: Ledger | None = None) -> Placed:
    """Partial sums along a mesh axis added up, of which each rank keeps its part of axis `dim`, equal or not.

    Raises PlacementError where x is no partial sum along the axis.
    """
    _partial(layer, "reduce_scatter", x, axis)
    _not_sharded_behind(layer, x, axis, dim)
    _has_axis(x, dim)

    def scatter(group: Sequence[Array]) -> tuple[list[Array], Traffic]:
        cut = [_parts(a, len(group), dim) for a in group]
        received, traffic = exchange(cut)
        return [np.asarray(sum(parts[1:], start=arguments.widen(x.name, parts[0]))) for parts in received], traffic

    arrays = _along(x, axis, layer, "reduce_scatter", scatter, ledger)
    return x.with_arrays(arrays, {axis: Shard(dim)})


def gathered(x: Placed, axis: str, *, layer: str, ledger: Ledger | None = None) -> Placed:
    """The parts along a mesh axis side by side, on every rank of it.

    Raises PlacementError where x is not sharded along the axis.
    """
    dim = _shard(layer, "all_gather", x, axis).dim
    _not_sharded_behind(layer, x, axis, dim)

    def gather(group: Sequence[Array]) -> tuple[list[Array], Traffic]:
        found, traffic = all_gather([np.moveaxis(a, dim, 0) for a in group])
        return [np.moveaxis(a, 0, dim) for a in found], traffic

    return x.with_arrays(_along(x, axis, layer, "all_gather", gather, ledger), {axis: Replicated()})


def exchanged(x: Placed, axis: str, dim: int, *, layer: str, ledger: Ledger | None = None) -> Placed:
    """Sharded on another axis of the array: each rank sends every other the part that it shall hold.

    Raises PlacementError where x is not sharded along the mesh axis, or on that axis already.
    """
    old = _shard(layer, "all_to_all", x, axis).dim
    _has_axis(x, dim)
    if old == dim:
        raise PlacementError(f"{layer}: {x.name}: {x.along(axis).over(axis)}, wanted another axis; one all_to_all over {axis} too many")
    for sharded in (old, dim):
        _not_sharded_behind(layer, x, axis, sharded)

    def trade(group: Sequence[Array]) -> tuple[list[Array], Traffic]:
        received, traffic = exchange([_parts(a, len(group), dim) for a in group])
        return [np.concatenate(parts, axis=old) for parts in received], traffic

    return x.with_arrays(_along(x, axis, layer, "all_to_all", trade, ledger), {axis: Shard(dim)})


def sliced(x: Placed, axis: str, dim: int, *, layer: str) -> Placed:
    """Each rank keeps its part of axis `dim` of what all ranks along the mesh axis hold. Nothing is sent.

    Raises PlacementError where x is not replicated along the axis.
    """
    want(layer, x, **{axis: Replicated()})
    _has_axis(x, dim)
    _not_sharded_behind(layer, x, axis, dim)
    R = x.mesh.size(axis)
    arrays = [_parts(a, R, dim)[x.mesh.coordinate(rank, axis)] for rank, a in enumerate(x.arrays)]
    return x.with_arrays(arrays, {axis: Shard(dim)})


def _along(x: Placed, axis: str, layer: str, name: str, collective: Callable[[Sequence[Array]], tuple[list[Array], Traffic]],
           ledger: Ledger | None) -> list[Array]:
    """The collective in every group of ranks along the axis, all groups at once."""
    found: dict[int, Array] = {}
    sent, received, steps = [0] * x.mesh.ranks, [0] * x.mesh.ranks, 0
    for group in x.mesh.groups(axis):
        arrays, traffic = collective([x.arrays[rank] for rank in group])
        steps = max(steps, traffic.steps)
        for i, rank in enumerate(group):
            found[rank], sent[rank], received[rank] = arrays[i], traffic.sent[i], traffic.received[i]
    if ledger is not None:
        ledger.entries.append((layer, name, axis, Traffic(steps, tuple(sent), tuple(received))))
    return [found[rank] for rank in range(x.mesh.ranks)]


def _partial(layer: str, collective: str, x: Placed, axis: str) -> None:
    found = x.along(axis)
    if not isinstance(found, Partial):
        raise PlacementError(f"{layer}: {x.name}: {found.over(axis)}, wanted a partial sum; one {collective} over {axis} too many")


def _shard(layer: str, collective: str, x: Placed, axis: str) -> Shard:
    found = x.along(axis)
    if not isinstance(found, Shard):
        raise PlacementError(f"{layer}: {x.name}: {found.over(axis)}, wanted a shard; an {collective} over {axis} moves parts only")
    return found


def _not_sharded_behind(layer: str, x: Placed, axis: str, dim: int) -> None:
    """Parts of one axis of the array by several mesh axes are put together last axis first: else they come in another order."""
    for other in x.mesh.axes[x.mesh.axes.index(axis) + 1 :]:
        if x.along(other) == Shard(dim):
            raise PlacementError(f"{layer}: {x.name}: {x.along(other).over(other)} inside {axis}; want {other} gathered first")


def _has_axis(x: Placed, dim: int) -> None:
    if not 0 <= dim < x.arrays[0].ndim:
        raise ValueError(f"dim: got {dim} for {x.name} of shape {x.arrays[0].shape}; want an axis of it")


def _parts(a: Array, world: int, dim: int) -> list[Array]:
    return [np.take(a, range(start, stop), axis=dim) for start, stop in partition(a.shape[dim], world)]
