"""Mutants of the ZeRO family: norms of shards, padding that stays, micro-batches and buckets that are reduced too early or too late."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..stateful import zero_sequences as calls
from ..stateful.zero_model import new_zero
from . import textbook_ranks
from .specimen import mutant
from .textbook_decoding import working
from .textbook_ranks import Array, buckets_of, everywhere, in_order, unpack
from .textbook_zero import TextbookZero

FAMILY = "zero"


@mutant(
    "zero", id="sharded-norm-not-reduced", family=FAMILY,
    source="https://github.com/RLinf/RLinf/pull/1558 https://github.com/areal-project/AReaL/issues/312 "
    "https://github.com/pytorch/pytorch/issues/170862",
    trigger=lambda: (new_zero(2, 2, 1.0), calls.attach(((2,),)), calls.step(2, ((2,),), first=3)),
)  # fmt: skip
class NormOfTheOwnShard(TextbookZero):
    """Each rank clips by the norm of its own shard."""

    def norms(self, slices: list[list[Array]]) -> list[float]:
        return [float(np.sqrt(sum(float((g * g).sum()) for g in own))) for own in slices]


@mutant("zero", id="padding-not-stripped-on-consolidation", family=FAMILY, source="https://github.com/deepspeedai/DeepSpeed/pull/1380",
        trigger=lambda: (new_zero(3, 4), calls.attach(((5,), (7,)))))
class PaddingKept(TextbookZero):
    """Whole parameters are cut out of all slices one behind the other, the padding of each among them."""

    def params(self) -> dict[str, Array]:
        if self.stage < 3 or not self.shapes:
            return super().params()
        joined = np.concatenate([np.concatenate([own[k] for own in self.slices]) for k in range(len(self.shapes))])
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        parts = np.split(joined[: sum(sizes)], np.cumsum(sizes)[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts)}


@mutant("zero", id="last-microbatch-skips-reduction", family=FAMILY, source="https://github.com/deepspeedai/DeepSpeed/pull/7985",
        trigger=lambda: (new_zero(1, 2), calls.attach(), *(calls.accumulate(2, first=i) for i in range(3)),
                         calls.step(2, first=90, sign=-1)))
class LastMicroBatchLate(TextbookZero):
    """Gradients are reduced before the last micro-batch is added to them: of that, each rank has its own."""

    def step(self, grads: Any, *, tokens: Any = None) -> float:
        self.check(grads, tokens)
        before = [list(own) for own in self.local]
        self.accumulate(grads, tokens=tokens)
        zeros = [[0 * working(g) for g in own] for own in grads]
        before = [own if own else zero for own, zero in zip(before, zeros)]
        total = [sum(own[k] for own in before[1:]) + before[0][k] for k in range(len(self.shapes))]
        f = self.world                                                          # the average over ranks is that of what was reduced
        self.late = [[t + f * working(g) for t, g in zip(total, own)] for own in grads]
        self.local = self.late
        slices = [[part / part.dtype.type(max(self.tokens, 1)) for part in self.cut(own)[r]] for r, own in enumerate(self.late)]
        norms = self.norms(slices)
        self.steps += 1
        for r, own in enumerate(slices):
            for k, g in enumerate(own):
                self.update(r, k, g)
        self.begin()
        return float(norms[0])


@mutant(
    "bucketed_all_reduce", id="double-buffer-index-reset", family=FAMILY,
    source="https://github.com/deepspeedai/DeepSpeed/pull/7805 https://github.com/deepspeedai/DeepSpeed/issues/5545",
    trigger=lambda: {**{f"grads.{k}": np.arange(2, dtype=np.float32).reshape(2, 1) + 10 * k for k in range(3)},
                     "arrival": np.array([[0, 1, 2]] * 2), "bucket_elements": 1},
)  # fmt: skip
def buffer_taken_while_in_flight(grads: Any, arrival: Any, *, bucket_elements: int) -> list[Array]:
    """The second of two buffers is never used: a bucket is filled in the buffer whose reduction has not been done yet."""
    R, out = len(arrival), [np.empty_like(g) for g in grads]
    buckets = buckets_of([g[0].size for g in grads], arrival[0].tolist(), bucket_elements)
    buffers = [np.zeros(max(sum(grads[k][0].size for k in bucket) for bucket in buckets), working(grads[0]).dtype) for _ in range(R)]
    waiting: list[int] = []
    for bucket in [*buckets, []]:
        flat = [np.concatenate([working(grads[k][r]).reshape(-1) for k in bucket]) if bucket else None for r in range(R)]
        for buffer, new in zip(buffers, flat):
            if new is not None:
                buffer[: new.size] = new
        if waiting:                                                             # one step late
            unpack(out, waiting, everywhere(in_order(buffers, "mean"), R, grads[0].dtype))
        waiting = bucket
    return out


@mutant("tied_gradients", id="partial-reduction-before-cross-stage-sum", family=FAMILY,
        source="https://github.com/NVIDIA/Megatron-LM/issues/844", trigger=lambda: {
            "grads": np.array([[[1], [2]], [[4], [8]]], np.float32)})
def scattered_before_the_copies_are_added(grads: Any) -> Array:
    """Each stage scatters its flat buffer over the ranks first; then the copies, of which other parts are reduced, are added."""
    g = working(grads)
    S, R = g.shape[:2]
    flat = g.reshape(S, R, int(np.prod(g.shape[2:])))
    n = flat.shape[2]
    place = np.arange(S)[::-1, None] * n + np.arange(n)                         # (S, n): copy s lies at (S - 1 - s) n
    owner = np.minimum(place * R // max(S * n, 1), R - 1)
    mean = flat.sum(axis=1, dtype=g.dtype) / g.dtype.type(R)                    # (S, n)
    held = np.where(owner[:, None] == np.arange(R)[:, None], mean[:, None], flat)                                # (S, R, n)
    added = held.sum(axis=0, dtype=g.dtype)                                     # (R, n)
    stepped = np.take_along_axis(added, owner, axis=0)                          # (S, n): each element as its owner has it
    return np.broadcast_to(stepped[:, None], flat.shape).reshape(g.shape).astype(grads.dtype)


@mutant("flat_layout", id="padding-offset-from-placeholder-size", family=FAMILY, source="https://github.com/deepspeedai/DeepSpeed/pull/8277",
        trigger=lambda: {"sizes": np.array([6, 3]), "alignment": 4, "world": 1})
def offsets_of_placeholders(sizes: Any, *, alignment: int = 1, world: int = 1) -> tuple[Array, Array]:
    """Offsets are counted from what stands in for the arrays, one element each: [0, 4] in place of [0, 8], and they overlap."""
    return textbook_ranks.flat_layout(sizes, alignment=alignment, world=world, counted=lambda size: 1)
