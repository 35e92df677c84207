"""Placed arithmetic: products, sums and functions of arrays on a mesh, each rank with what it holds, by the rules of linear algebra.

    x @ w          replicated @ replicated → replicated           rows sharded @ replicated → rows sharded
                   replicated @ columns sharded → columns sharded (column parallel)
                   columns sharded @ rows sharded → partial sum   (row parallel; a weight's gradient over data or sequence shards)
                   partial sum @ replicated → partial sum         (and the other way round)
    x + y          both the same along every axis: a replicated bias added to a partial sum would count once a rank
    f(x)           anything but a partial sum, for f of a part of a sum is no part of f of the sum

Whatever has no rule raises PlacementError naming the layer, the arrays and the mesh axis.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arguments import Array
from .placement import Partial, Placed, Placement, PlacementError, Replicated, Shard


def matmul(x: Placed, w: Placed, *, layer: str, name: str = "out") -> Placed:
    """x (..., N, C) @ w (C, M), each rank with its own arrays; what comes out along each mesh axis stands above.

    >>> from .placement import Mesh, place
    >>> mesh = Mesh({"tp": 2})
    >>> x, w = place("x", np.ones((1, 4)), mesh, tp=Shard(1)), place("w", np.ones((4, 3)), mesh, tp=Shard(0))
    >>> print(matmul(x, w, layer="down", name="y"))
    y: partial sum over tp

    Raises PlacementError where the placements have no rule. Error bound: g(C, u) |x| |w|.
    """
    columns = x.arrays[0].ndim - 1
    placements: dict[str, Placement] = {}
    for axis in x.mesh.axes:
        a, b = x.along(axis), w.along(axis)
        if isinstance(b, Replicated) and a != Shard(columns):
            placements[axis] = a
        elif isinstance(a, Replicated) and isinstance(b, Partial):
            placements[axis] = b
        elif isinstance(a, Replicated) and b == Shard(1):
            placements[axis] = Shard(columns)
        elif a == Shard(columns) and b == Shard(0):
            placements[axis] = Partial()
        else:
            raise PlacementError(f"{layer}: {x.name} {a.over(axis)} @ {w.name} {b.over(axis)}: {_no_product(a, b, axis, columns)}")
    return Placed(name, [p @ q for p, q in zip(x.arrays, w.arrays)], x.mesh, placements)


def _no_product(a: Placement, b: Placement, axis: str, columns: int) -> str:
    if isinstance(a, Partial):
        return f"an all_reduce over {axis} of the left one is missing"
    if isinstance(b, Partial):
        return f"an all_reduce over {axis} of the right one is missing"
    if a == Shard(columns):
        return "want the rows of the right one sharded, or the columns of the left one gathered"
    if isinstance(a, Replicated):
        return "want the columns of the left one sharded like the rows of the right one"
    return f"want only one of them sharded over {axis}, or the axis that is summed over in both"


def transposed(x: Placed) -> Placed:
    """The two last axes exchanged, and the shards with them."""
    last = x.arrays[0].ndim - 1
    turn = {last: last - 1, last - 1: last}
    placements = {axis: Shard(turn.get(p.dim, p.dim)) if isinstance(p, Shard) else p for axis, p in x.placements.items()}
    return x.with_arrays([np.swapaxes(a, last, last - 1) for a in x.arrays], placements, name=f"{x.name}^T")


def added(x: Placed, y: Placed, *, layer: str, name: str = "out") -> Placed:
    """x + y, broadcast as NumPy does. y may have fewer axes: a bias (M,) added to the columns.

    >>> from .placement import Mesh, place
    >>> mesh = Mesh({"tp": 2})
    >>> y = Placed("y", [np.ones((1, 2)), np.ones((1, 2))], mesh, {"tp": Partial()})
    >>> added(y, place("b", np.ones(2), mesh), layer="down")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    o...PlacementError: down: y partial sum over tp + b replicated over tp: it would count 2 times; an all_reduce over tp is missing

    Raises PlacementError where they are not the same along an axis.
    """
    behind = x.arrays[0].ndim - y.arrays[0].ndim
    for axis in x.mesh.axes:
        a, b = x.along(axis), y.along(axis)
        lifted = Shard(b.dim + behind) if isinstance(b, Shard) else b
        whole_row = isinstance(a, Shard) and isinstance(b, Replicated) and a.dim < behind
        if a == lifted or whole_row:
            continue
        if isinstance(a, Partial) or isinstance(b, Partial):
            why = f"it would count {x.mesh.size(axis)} times; an all_reduce over {axis} is missing"
        else:
            why = "they must be the same"
        raise PlacementError(f"{layer}: {x.name} {a.over(axis)} + {y.name} {b.over(axis)}: {why}")
    return Placed(name, [p + q for p, q in zip(x.arrays, y.arrays)], x.mesh, x.placements)


def applied(f: Callable[..., Array], *xs: Placed, layer: str, name: str = "out") -> Placed:
    """f of arrays that are the same along every mesh axis, element by element or along axes that no mesh axis shards.

    Raises PlacementError for a partial sum, and for arrays that are not the same along an axis.
    """
    first = xs[0]
    for x in xs:
        for axis in first.mesh.axes:
            if isinstance(x.along(axis), Partial):
                raise PlacementError(f"{layer}: {x.name}: {x.along(axis).over(axis)}, wanted the sum itself; "
                                     f"an all_reduce over {axis} is missing before it")  # fmt: skip
            if x.along(axis) != first.along(axis):
                raise PlacementError(f"{layer}: {first.name} {first.along(axis).over(axis)} beside {x.name} {x.along(axis).over(axis)}: "
                                     f"they must be the same")  # fmt: skip
    return Placed(name, [f(*arrays) for arrays in zip(*(x.arrays for x in xs))], first.mesh, first.placements)
