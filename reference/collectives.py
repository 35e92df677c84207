"""Collectives: what R simulated ranks exchange, message by message, with every step and byte counted. Placements are left to `placement`.

A collective takes the list of what each rank holds and gives the list of what each rank then holds, and its `Traffic`. Nothing is
shared between ranks: a rank computes with what it holds and with what a `Wire` brought it, so the counts are of what was really sent.
How a layer uses them: lists of arrays through these functions, arrays on a mesh through `placed_collectives`, which checks first what
the arrays are on each axis; who sends from rank to rank (a pipeline, a ring of keys) takes a `Wire` or `shift`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array

Op = Literal["sum", "mean", "max", "min"]
Algorithm = Literal["ring", "tree"]
_OPS: dict[str, Callable[[Any, Any], Any]] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class Traffic:
    """steps: rounds in which every rank sends at most one message to each other rank; sent, received: bytes of each rank.

    >>> Traffic(1, (8, 0), (0, 8)) + Traffic(2, (4, 4), (4, 4))
    Traffic(steps=3, sent=(12, 4), received=(4, 12))
    """

    steps: int
    sent: tuple[int, ...]
    received: tuple[int, ...]

    def __add__(self, other: Traffic) -> Traffic:
        if len(self.sent) != len(other.sent):
            raise ValueError(f"other: got the traffic of {len(other.sent)} ranks; want that of {len(self.sent)}")
        pairs = ((self.sent, other.sent), (self.received, other.received))
        return Traffic(self.steps + other.steps, *(tuple(a + b for a, b in zip(*pair)) for pair in pairs))


def no_traffic(ranks: int) -> Traffic:
    """Nothing sent among so many ranks."""
    return Traffic(0, (0,) * ranks, (0,) * ranks)


class Wire:
    """Messages between simulated ranks: `send` them, `step` delivers all of one round, `receive` takes one out.

    element_bytes: what an element counts for; None: what it occupies. The oracles compute in float64, and count the format they were given.

    >>> wire = Wire(2)
    >>> wire.send(0, 1, np.ones(3))
    >>> wire.step()
    >>> wire.receive(1, 0), wire.traffic
    (array([1., 1., 1.]), Traffic(steps=1, sent=(24, 0), received=(0, 24)))

    Raises ValueError for a rank that is not there, a message to oneself, two messages on one way in one step, a message that
    never came, and one that nobody took.
    """

    def __init__(self, ranks: int, *, element_bytes: int | None = None) -> None:
        self._ranks = arguments.whole_number("ranks", ranks, least=1)
        self._element_bytes = element_bytes
        self._under_way: dict[tuple[int, int], Array] = {}
        self._arrived: dict[tuple[int, int], Array] = {}
        self._steps, self._sent, self._received = 0, [0] * ranks, [0] * ranks

    def send(self, source: int, target: int, message: Array) -> None:
        """A copy of an array on its way: what the sender writes later does not reach the receiver."""
        for name, rank in (("source", source), ("target", target)):
            if not 0 <= rank < self._ranks:
                raise ValueError(f"{name}: got rank {rank}; want 0..{self._ranks - 1}")
        if source == target or (source, target) in self._under_way:
            raise ValueError(f"target: got {target} from {source}; want another rank, and one message on each way in a step")
        self._under_way[source, target] = np.array(message)
        count = message.size * (message.dtype.itemsize if self._element_bytes is None else self._element_bytes)
        self._sent[source] += count
        self._received[target] += count

    def step(self) -> None:
        """End one round: what was sent in it has arrived. Raises ValueError where it would cover a message that nobody took."""
        covered = self._under_way.keys() & self._arrived.keys()
        if covered:
            source, target = min(covered)
            raise ValueError(f"target: rank {target} has not taken what rank {source} sent it in an earlier step")
        self._arrived |= self._under_way
        self._under_way = {}
        self._steps += 1

    def receive(self, target: int, source: int) -> Array:
        """What `source` sent to `target`, once."""
        if (source, target) not in self._arrived:
            raise ValueError(f"source: rank {target} waits for a message of rank {source} that was not sent, or not in an earlier step")
        return self._arrived.pop((source, target))

    @property
    def traffic(self) -> Traffic:
        return Traffic(self._steps, tuple(self._sent), tuple(self._received))


def all_reduce(arrays: Sequence[ArrayLike], *, op: Op = "sum", algorithm: Algorithm = "ring") -> tuple[list[Array], Traffic]:
    """The sum (mean, max, min) of the arrays of all ranks, on every rank: R equal arrays.

        ring    reduce_scatter over R parts of near equal size, then all_gather of the parts: 2 (R - 1) steps, 2 N (R - 1) / R sent
        tree    halves of the ranks send to the other half up to rank 0, and back: 2 ceil(log2 R) steps, 2 N (R - 1) sent by all together

    All ranks hold the same bits, for each sum is made once and then copied. The order of the additions is the algorithm's: the ring
    starts part r at rank r + 1, the tree adds pairs. N need not be a multiple of R. NaN spreads.

    >>> out, traffic = all_reduce([[1.0, 2.0], [3.0, 5.0]])
    >>> out[1], traffic.steps, traffic.sent
    (array([4., 7.]), 2, (16, 16))

    Floats come back as float64, integers as int64; bytes are counted in the format given. Raises ValueError for no ranks, shapes that
    differ, an unknown op or algorithm. Error bound: `properties.bounds.parallel.reduced_bound`.
    Source: Patarasu and Yuan 2009 (doi 10.1016/j.jpdc.2008.09.002); the tree: Thakur, Rabenseifner and Gropp 2005
    (doi 10.1177/1094342005051521).
    """
    held, element_bytes = _equal_shapes(arrays)
    if op not in _OPS:
        raise ValueError(f"op: got {op!r}; want one of {', '.join(_OPS)}")
    if algorithm not in ("ring", "tree"):
        raise ValueError(f"algorithm: got {algorithm!r}; want ring or tree")
    wire = Wire(len(held), element_bytes=element_bytes)
    if algorithm == "tree":
        reduced = _tree(held, _OPS[op], wire)
    else:
        parts = [np.array_split(x.reshape(-1), len(held)) for x in held]        # [rank][part], sizes differ by at most one
        mine = _ring_reduce_scatter(parts, _OPS[op], wire)
        reduced = [np.concatenate(whole).reshape(held[0].shape) for whole in _ring_all_gather(mine, wire)]
    return [x / len(held) if op == "mean" else x for x in reduced], wire.traffic


def reduce_scatter(arrays: Sequence[ArrayLike], *, op: Op = "sum") -> tuple[list[Array], Traffic]:
    """Rank r gets part r of axis 0 of the sum (mean, max, min), the axis being cut into R equal parts: a ring.

        R - 1 steps, N (R - 1) / R sent by each rank

    >>> out, traffic = reduce_scatter([[1.0, 2.0], [3.0, 5.0]])
    >>> out, traffic.sent
    ([array([4.]), array([7.])], (8, 8))

    Raises ValueError where axis 0 is not a multiple of R, and as `all_reduce` does. Error bound: as there.
    Source: Patarasu and Yuan 2009 (doi 10.1016/j.jpdc.2008.09.002), section 4.
    """
    held, element_bytes = _equal_shapes(arrays)
    if op not in _OPS:
        raise ValueError(f"op: got {op!r}; want one of {', '.join(_OPS)}")
    parts = [_equal_parts(x, len(held)) for x in held]
    wire = Wire(len(held), element_bytes=element_bytes)
    mine = _ring_reduce_scatter(parts, _OPS[op], wire)
    return [x / len(held) if op == "mean" else x for x in mine], wire.traffic


def all_gather(arrays: Sequence[ArrayLike]) -> tuple[list[Array], Traffic]:
    """The arrays of all ranks one behind the other along axis 0, on every rank: a ring. Lengths of axis 0 may differ.

        R - 1 steps; each rank sends every part but that of its right neighbour: n (R - 1) for equal parts of n

    >>> out, traffic = all_gather([[1.0], [2.0, 3.0]])
    >>> out[0], traffic.sent
    (array([1., 2., 3.]), (8, 16))

    Bits move, and the dtype stays. Raises ValueError for no ranks, arrays without axes, other axes that differ. Error bound: 0.
    Source: Thakur, Rabenseifner and Gropp 2005 (doi 10.1177/1094342005051521), section 4.1.
    """
    held = [np.asarray(x) for x in _some(arrays)]
    for r, x in enumerate(held):
        if x.ndim == 0 or x.shape[1:] != held[0].shape[1:] or x.dtype != held[0].dtype:
            raise ValueError(f"arrays[{r}]: got {x.dtype} {x.shape}; want {held[0].dtype} {held[0].shape}, or another axis 0")
    wire = Wire(len(held))
    return [np.concatenate(whole) for whole in _ring_all_gather(held, wire)], wire.traffic


def all_to_all(arrays: Sequence[ArrayLike]) -> tuple[list[Array], Traffic]:
    """Each array cut into R equal parts along axis 0: part j of rank i becomes part i of rank j.

        one step; each rank sends N (R - 1) / R

    Its own inverse. Bits move, and the dtype stays. Parts of other sizes: `exchange`.

    >>> all_to_all([[0, 1], [10, 11]])[0]
    [array([ 0, 10]), array([ 1, 11])]

    Raises ValueError where axis 0 is not a multiple of R. Error bound: 0.
    Source: the message passing interface, MPI_Alltoall; Thakur, Rabenseifner and Gropp 2005 (doi 10.1177/1094342005051521), section 5.
    """
    held = [np.asarray(x) for x in _some(arrays)]
    for r, x in enumerate(held):
        if x.shape != held[0].shape:
            raise ValueError(f"arrays[{r}]: got shape {x.shape}; want {held[0].shape}, that of rank 0")
    received, traffic = exchange([_equal_parts(x, len(held)) for x in held])
    return [np.concatenate(parts) for parts in received], traffic


def exchange(parts: Sequence[Sequence[ArrayLike]]) -> tuple[list[list[Array]], Traffic]:
    """parts[i][j] goes from rank i to rank j, whatever its size: received[j][i]. One step. What stays on its rank is not sent.

    >>> received, traffic = exchange([[[1.0], [2.0, 3.0]], [[4.0], np.zeros(0)]])
    >>> received[0], traffic.sent
    ([array([1.]), array([4.])], (16, 8))

    Raises ValueError where a rank has not one part for every rank. Error bound: 0.
    """
    R = len(_some(parts))
    for i, row in enumerate(parts):
        if len(row) != R:
            raise ValueError(f"parts[{i}]: got {len(row)} parts; want {R}, one for every rank")
    wire = Wire(R)
    for i, j in ((i, j) for i in range(R) for j in range(R) if i != j):
        wire.send(i, j, np.asarray(parts[i][j]))
    wire.step()
    return [[np.array(parts[j][j]) if i == j else wire.receive(j, i) for i in range(R)] for j in range(R)], wire.traffic


def broadcast(array: ArrayLike, *, ranks: int, root: int = 0) -> tuple[list[Array], Traffic]:
    """The array of rank `root` on every rank: down a tree in which who has it sends to one who has not.

        ceil(log2 R) steps, N (R - 1) sent by all together

    >>> out, traffic = broadcast([1.0], ranks=3)
    >>> len(out), traffic
    (3, Traffic(steps=2, sent=(16, 0, 0), received=(0, 8, 8)))

    Bits move, and the dtype stays. Raises ValueError for no ranks and for a root that is none of them. Error bound: 0.
    Source: Thakur, Rabenseifner and Gropp 2005 (doi 10.1177/1094342005051521), section 6.
    """
    R, root = arguments.whole_number("ranks", ranks, least=1), arguments.whole_number("root", root, least=0)
    if root >= R:
        raise ValueError(f"root: got {root}; want a rank in 0..{R - 1}")
    wire = Wire(R)
    by_distance = _down_the_tree(np.array(array), R, lambda rank: (rank + root) % R, wire)
    return [by_distance[(rank - root) % R] for rank in range(R)], wire.traffic


def shift(arrays: Sequence[ArrayLike], *, by: int = 1) -> tuple[list[Array], Traffic]:
    """Every rank's array to the rank `by` further round the ring: rank r holds what r - by held. One step.

    >>> shift([[0.0], [1.0], [2.0]])[0]
    [array([2.]), array([0.]), array([1.])]

    Error bound: 0.
    """
    held = [np.array(x) for x in _some(arrays)]
    R = len(held)
    if by % R == 0:
        return held, no_traffic(R)
    wire = Wire(R)
    for r, x in enumerate(held):
        wire.send(r, (r + by) % R, x)
    wire.step()
    return [wire.receive(r, (r - by) % R) for r in range(R)], wire.traffic


def _ring_reduce_scatter(parts: Sequence[Sequence[Array]], combine: Callable[[Any, Any], Any], wire: Wire) -> list[Array]:
    """parts[rank][part] → the reduced part r on rank r: part c starts at rank c + 1, and every rank on its way adds its own."""
    R = len(parts)
    running = [parts[r][(r - 1) % R] for r in range(R)]
    for t in range(1, R):
        for r in range(R):
            wire.send(r, (r + 1) % R, running[r])
        wire.step()
        running = [combine(wire.receive(r, (r - 1) % R), parts[r][(r - 1 - t) % R]) for r in range(R)]
    return [np.array(x) for x in running]


def _ring_all_gather(mine: Sequence[Array], wire: Wire) -> list[list[Array]]:
    """mine[r], the part r → all parts in order, on every rank: each passes on what it received last."""
    R = len(mine)
    gathered: list[dict[int, Array]] = [{r: mine[r]} for r in range(R)]
    for t in range(R - 1):
        for r in range(R):
            wire.send(r, (r + 1) % R, gathered[r][(r - t) % R])
        wire.step()
        for r in range(R):
            gathered[r][(r - 1 - t) % R] = wire.receive(r, (r - 1) % R)
    return [[found[part] for part in range(R)] for found in gathered]


def _tree(held: Sequence[Array], combine: Callable[[Any, Any], Any], wire: Wire) -> list[Array]:
    """Ranks at odd multiples of 1, 2, 4, … send to the even one before them; then rank 0 has the sum, and it goes back down."""
    R, running, half = len(held), [np.array(x) for x in held], 1
    while half < R:
        senders = range(half, R, 2 * half)
        for r in senders:
            wire.send(r, r - half, running[r])
        wire.step()
        for r in senders:
            running[r - half] = combine(running[r - half], wire.receive(r - half, r))
        half *= 2
    return _down_the_tree(running[0], R, lambda rank: rank, wire)


def _down_the_tree(x: Array, R: int, name: Callable[[int], int], wire: Wire) -> list[Array]:
    """x from node 0 to all R nodes; name(node) is the rank that stands there."""
    found = {0: x}
    half = 1 << max((R - 1).bit_length() - 1, 0)
    while half and len(found) < R:
        targets = [node + half for node in found if node + half < R]
        for node in targets:
            wire.send(name(node - half), name(node), found[node - half])
        wire.step()
        found |= {node: wire.receive(name(node), name(node - half)) for node in targets}
        half //= 2
    return [found[node] for node in range(R)]


def _some(arrays: Sequence[Any]) -> Sequence[Any]:
    if len(arrays) == 0:
        raise ValueError("arrays: got none; want one for every rank, at least one")
    return arrays


def _equal_shapes(arrays: Sequence[ArrayLike]) -> tuple[list[Array], int]:
    """The arrays in the format that is computed in, and what an element counts for on the wire."""
    held = [np.asarray(x) for x in _some(arrays)]
    for r, x in enumerate(held):
        if x.shape != held[0].shape or x.dtype != held[0].dtype:
            raise ValueError(f"arrays[{r}]: got {x.dtype} {x.shape}; want {held[0].dtype} {held[0].shape}, as rank 0 has")
    if held[0].dtype.kind in "iu":
        return [x.astype(np.int64) for x in held], held[0].dtype.itemsize
    return [arguments.widen(f"arrays[{r}]", x) for r, x in enumerate(held)], held[0].dtype.itemsize


def _equal_parts(x: Array, R: int) -> list[Array]:
    """x cut into R equal parts of axis 0."""
    if x.ndim == 0 or x.shape[0] % R:
        raise ValueError(f"arrays: got shape {x.shape} for {R} ranks; want a multiple of {R} in axis 0")
    return list(np.split(x, R))
