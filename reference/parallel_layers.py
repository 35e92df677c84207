"""Parallel layers: a linear map by columns or by rows, and a norm, on a mesh, forward and backward by hand, each checking placements.

    column   x replicated over tp → out sharded on its columns           backward: dx is a partial sum, then reduced
    row      x sharded on its columns → a partial sum, then reduced       backward: dx sharded on its columns
    norm     x sharded on its tokens or replicated                        backward: dweight a partial sum over what shards the vectors

With `sequence` (the axis of the array that holds the tokens) activations between the layers are sharded on it: a column layer first
gathers, a row layer scatters as it reduces, and the backward pass does the opposite. Gradients of weights come as they are: partial sums
over the axes that shard the tokens (data, context), which `synchronised` reduces, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .arguments import Float64
from .placed_arithmetic import added, applied, matmul, transposed
from .placed_collectives import Ledger, gathered, reduce_scattered, reduced
from .placement import Partial, Placed, PlacementError, Placements, Replicated, Shard, want


@dataclass(frozen=True)
class ColumnLinear:
    """x W + b, the columns of W and b sharded over `axis`.

    >>> from .placement import Mesh, place
    >>> mesh = Mesh({"tp": 2})
    >>> up = ColumnLinear("up", place("w", np.eye(2), mesh, tp=Shard(1)), place("b", np.zeros(2), mesh, tp=Shard(0)))
    >>> print(up.forward(place("x", np.ones((1, 2)), mesh)))
    up.out: sharded on axis 1 over tp

    Raises PlacementError where weights, inputs or gradients are not what the layer takes.
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; sequence: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.
    """

    name: str
    w: Placed
    bias: Placed | None = None
    axis: str = "tp"
    sequence: int | None = None
    ledger: Ledger | None = None

    def forward(self, x: Placed) -> Placed:
        """x (..., C), replicated over the axis or sharded on its tokens → out (..., N), sharded on its columns."""
        want(self.name, self.w, **{self.axis: Shard(1)})
        whole = _all_tokens(self, x)
        y = matmul(whole, self.w, layer=self.name, name=f"{self.name}.out")
        return y if self.bias is None else added(y, self.bias, layer=self.name, name=y.name)

    def backward(self, x: Placed, dy: Placed) -> tuple[Placed, dict[str, Placed]]:
        """dx as x is placed, and the gradients of w and bias by name."""
        want(self.name, dy, **{self.axis: Shard(dy.arrays[0].ndim - 1)})
        whole = _all_tokens(self, x)
        dx = matmul(dy, transposed(self.w), layer=self.name, name=f"{self.name}.dx")
        dx = _brought_together(self, dx)
        return dx, _weight_gradients(self.name, whole, dy, self.bias)


@dataclass(frozen=True)
class RowLinear:
    """x W + b, the rows of W sharded over `axis`, the bias whole and added once.

    >>> from .placement import Mesh, place
    >>> mesh = Mesh({"tp": 2})
    >>> down = RowLinear("down", place("w", np.eye(2), mesh, tp=Shard(0)), place("b", np.ones(2), mesh))
    >>> y = down.forward(place("x", np.ones((1, 2)), mesh, tp=Shard(1)))
    >>> print(y), y.arrays[0].tolist()
    down.out: replicated over tp
    (None, [[2.0, 2.0]])

    reduces=False leaves the all_reduce out, as a forgotten one would: whoever takes the output next says so.
    Raises and source as `ColumnLinear`.
    """

    name: str
    w: Placed
    bias: Placed | None = None
    axis: str = "tp"
    sequence: int | None = None
    ledger: Ledger | None = None
    reduces: bool = True

    def forward(self, x: Placed) -> Placed:
        """x (..., C), sharded on its columns → out (..., N), replicated over the axis or sharded on its tokens."""
        want(self.name, self.w, **{self.axis: Shard(0)})
        want(self.name, x, **{self.axis: Shard(x.arrays[0].ndim - 1)})
        y = matmul(x, self.w, layer=self.name, name=f"{self.name}.out")
        y = _brought_together(self, y) if self.reduces else y
        return y if self.bias is None else added(y, self.bias, layer=self.name, name=y.name)

    def backward(self, x: Placed, dy: Placed) -> tuple[Placed, dict[str, Placed]]:
        """dx sharded on its columns, and the gradients of w and bias by name."""
        whole = _all_tokens(self, dy)
        dx = matmul(whole, transposed(self.w), layer=self.name, name=f"{self.name}.dx")
        gradients = _weight_gradients(self.name, x, whole, None)
        if self.bias is not None:                                               # dy as it came: of sharded tokens, a partial sum
            gradients["bias"] = _over_tokens(self.name, dy, f"{self.name}.bias")
        return dx, gradients


@dataclass(frozen=True)
class Norm:
    """`rms_norm` of vectors that are whole on each rank, the tokens or the heads sharded, the weight replicated everywhere.

    >>> from .placement import Mesh, place
    >>> mesh = Mesh({"tp": 2})
    >>> norm, x = Norm("norm", place("weight", np.ones(1), mesh), eps=0.0), place("x", [[2.0], [5.0]], mesh, tp=Shard(0))
    >>> print(norm.backward(x, x)[1]["weight"])
    norm.weight: partial sum over tp

    Raises PlacementError for a weight that is not replicated and for vectors that are cut.
    Source: Zhang and Sennrich 2019 (arXiv 1910.07467).
    """

    name: str
    weight: Placed
    eps: float = 1e-6

    def forward(self, x: Placed) -> Placed:
        self._check(x)
        n = applied(lambda a: np.asarray(a / self._root(a)), x, layer=self.name, name=f"{self.name}.out")
        return n.with_arrays([a * w for a, w in zip(n.arrays, self.weight.arrays)])

    def backward(self, x: Placed, dy: Placed) -> tuple[Placed, dict[str, Placed]]:
        """dx as x is placed, and the gradient of the weight: a partial sum over every axis that shards the vectors."""
        self._check(x)
        arrays, products = [], []
        for a, d, w in zip(x.arrays, dy.arrays, self.weight.arrays):
            r = self._root(a)
            n = a / r
            arrays.append((w * d - n * (w * d * n).mean(axis=-1, keepdims=True)) / r)
            products.append(d * n)
        both = applied(lambda a, d: d, x, dy, layer=self.name)                  # the same placement, and no partial sum
        dx = both.with_arrays(arrays, name=f"{self.name}.dx")
        return dx, {"weight": _over_tokens(self.name, both.with_arrays(products), f"{self.name}.weight")}

    def _root(self, a: Float64) -> Float64:
        return np.asarray(np.sqrt((a * a).mean(axis=-1, keepdims=True) + self.eps))

    def _check(self, x: Placed) -> None:
        last = x.arrays[0].ndim - 1
        for axis in x.mesh.axes:
            want(self.name, self.weight, **{axis: Replicated()})
            if x.along(axis) == Shard(last):
                want(self.name, x, **{axis: Replicated()})


def synchronised(gradients: dict[str, Placed], placements: dict[str, Placements], *, layer: str,
                 ledger: Ledger | None = None) -> dict[str, Placed]:
    """Gradients as their parameters are placed: whatever is a partial sum is reduced over the axes along which it is one.

    Raises PlacementError where a gradient is neither placed like its parameter nor a partial sum of it.
    """
    done = {}
    for name, gradient in gradients.items():
        for axis in gradient.mesh.axes:
            wanted = placements[name].get(axis, Replicated())
            if gradient.along(axis) == Partial() and wanted == Replicated():
                gradient = reduced(gradient, axis, layer=layer, ledger=ledger)
            want(layer, gradient, **{axis: wanted})
        done[name] = gradient
    return done


def clip_placed(gradients: Sequence[Placed], *, max_norm: float, ledger: Ledger | None = None) -> tuple[list[Placed], float]:
    """`clip_grad_norm` of gradients on a mesh: every element counts once, whatever copies there are. The clipped ones, and the norm.

    Along an axis the squares of shards are added up over the ranks, those of copies are not: on each rank a gradient that n ranks
    hold copies of counts 1 / n, and one all_reduce over the mesh adds all (ROCm/TransformerEngine#715 counted copies tp times).

    >>> from .placement import Mesh, place
    >>> mesh = Mesh({"tp": 4})
    >>> grads, norm = clip_placed([place("w", np.full(4, 1.5), mesh, tp=Shard(0)), place("g", [4.0], mesh)], max_norm=2.5)
    >>> norm, grads[1].arrays[3]
    (5.0, array([2.]))

    Raises PlacementError for a partial sum: the norm of the parts is not the norm of the sum.
    """
    squares = [0.0] * gradients[0].mesh.ranks
    for gradient in gradients:
        copies = 1
        for axis in gradient.mesh.axes:
            if gradient.along(axis) == Partial():
                raise PlacementError(f"clip_grad_norm: {gradient.name}: {gradient.along(axis).over(axis)}, wanted the sum itself; "
                                     f"an all_reduce over {axis} is missing before it")  # fmt: skip
            copies *= gradient.mesh.size(axis) if gradient.along(axis) == Replicated() else 1
        squares = [s + float((a * a).sum()) / copies for s, a in zip(squares, gradient.arrays)]
    mesh = gradients[0].mesh
    total = Placed("squares", [np.asarray(s) for s in squares], mesh, {axis: Partial() for axis in mesh.axes})
    for axis in mesh.axes:
        total = reduced(total, axis, layer="clip_grad_norm", ledger=ledger)
    norm = float(np.sqrt(total.arrays[0]))
    factor = min(1.0, max_norm / norm) if norm > 0.0 else 1.0
    return [replace(g, arrays=[a * factor for a in g.arrays]) for g in gradients], norm


def _all_tokens(layer: ColumnLinear | RowLinear, x: Placed) -> Placed:
    """x with all tokens on every rank of the axis: gathered under sequence parallelism, as it is else."""
    if layer.sequence is None:
        return want(layer.name, x, **{layer.axis: Replicated()})
    want(layer.name, x, **{layer.axis: Shard(layer.sequence)})
    return gathered(x, layer.axis, layer=layer.name, ledger=layer.ledger)


def _brought_together(layer: ColumnLinear | RowLinear, y: Placed) -> Placed:
    """A partial sum over the axis added up: on every rank, or each rank its tokens under sequence parallelism."""
    if layer.sequence is None:
        return reduced(y, layer.axis, layer=layer.name, ledger=layer.ledger)
    return reduce_scattered(y, layer.axis, layer.sequence, layer=layer.name, ledger=layer.ledger)


def _weight_gradients(name: str, x: Placed, dy: Placed, bias: Placed | None) -> dict[str, Placed]:
    """x^T dy, and dy added up over all tokens, with leading axes counted as tokens."""
    gradients = {"w": matmul(transposed(_as_rows(x)), _as_rows(dy), layer=name, name=f"{name}.w")}
    return gradients if bias is None else {**gradients, "bias": _over_tokens(name, dy, f"{name}.bias")}


def _as_rows(x: Placed) -> Placed:
    """(..., C) as (T, C): shards of any leading axis are shards of the rows."""
    last = x.arrays[0].ndim - 1
    turned: dict[str, Replicated | Shard | Partial] = {
        axis: Shard(1) if p == Shard(last) else Shard(0) if isinstance(p, Shard) else p for axis, p in x.placements.items()
    }
    return x.with_arrays([a.reshape(-1, a.shape[-1]) for a in x.arrays], turned)


def _over_tokens(layer: str, x: Placed, name: str) -> Placed:
    """x (..., C) added up over all but the last axis: (C,), a partial sum over every axis that shards the vectors."""
    rows = _as_rows(x)
    turned: dict[str, Replicated | Shard | Partial] = {
        axis: Partial() if p == Shard(0) else Shard(0) if p == Shard(1) else p for axis, p in rows.placements.items()
    }
    if any(isinstance(p, Partial) for p in x.placements.values()):
        raise PlacementError(f"{layer}: {x}, wanted the sum itself; an all_reduce is missing before it")
    return rows.with_arrays([a.sum(axis=0) for a in rows.arrays], turned, name=name)
