"""Problem: the validated arguments of one attention, forward or backward, in the form its kernels take them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import arguments
from .launching import Launcher

QUERIES_A_BLOCK, KEYS_A_BLOCK = 16, 32                                          # BM and BN of kernels/attention.cuh
BLOCK, FLOAT = (32, 4), 4                                                       # threads; bytes
PADDED = (64, 128, 256)                                                         # instances of the kernels: columns of a tile


@dataclass(frozen=True)
class Problem:
    """What all attention kernels take after their tensors: `arrays`, then `numbers`; see kernels/attention.cuh.

    tensors  q, k, v and whatever else has their format. broadcast: bias, mask, dropout_mask with their steps.
    """

    tensors: dict[str, Any]
    sequences: int
    lengths: tuple[int, int]                                                    # Lq, Lk; Tq, Tk where packed
    longest: tuple[int, int]                                                    # of a sequence
    heads: tuple[int, int]
    head_dims: tuple[int, int]
    causal: int
    window: tuple[int, int]
    scale: float
    softcap: float
    is_packed: bool = False
    kv_lengths: NDArray[np.int32] | None = None
    offsets: tuple[NDArray[np.int32], NDArray[np.int32]] | tuple[None, None] = (None, None)
    broadcast: dict[str, tuple[Any, list[int]]] = field(default_factory=dict)
    sinks: Any = None
    slopes: Any = None
    factor: float = 1.0

    @property
    def dtype(self) -> str:
        return str(self.tensors["q"].dtype.name)

    @property
    def Hq(self) -> int:
        return self.heads[0]

    @property
    def longest_q(self) -> int:
        return self.longest[0]

    @property
    def rows(self) -> int:
        """Rows of queries, in all sequences and heads."""
        return self.Hq * self.lengths[0] * (1 if self.is_packed else self.sequences)

    @property
    def padded(self) -> int:
        """Columns of a tile: the smallest instance that holds D and Dv."""
        return min(C for C in PADDED if max(self.head_dims) <= C)

    def arrays(self, run: Launcher) -> list[Any]:
        """kv_lengths, cu_q, cu_k, bias, mask, kept, slopes, steps."""
        lengths = [None if x is None else run.take(x) for x in (self.kv_lengths, *self.offsets)]
        taken: list[Any] = []
        for name, dtype in (("bias", "float32"), ("mask", "uint8"), ("dropout_mask", "uint8")):
            x = self.broadcast.get(name, (None, []))[0]
            taken.append(None if x is None else run.take(x, dtype))
        steps = np.array([self.broadcast[name][1] if name in self.broadcast else [0] * 4 for name in ("bias", "mask", "dropout_mask")])
        return [*lengths, *taken, None if self.slopes is None else run.take(self.slopes, "float32"), run.take(steps, "int64")]

    @property
    def numbers(self) -> list[int | float]:
        """Hq, Hkv, Lq, Lk, D, Dv, causal, left, right, scale, softcap, factor."""
        return [*self.heads, *self.lengths, *self.head_dims, self.causal, *self.window, self.scale, self.softcap, self.factor]


def batched(q: Any, k: Any, v: Any, *, causal: Any, window: Any, scale: float | None, softcap: float | None, bias: Any, mask: Any,
            kv_lengths: Any, sinks: Any, alibi_slopes: Any, dropout_mask: Any, dropout_p: float, **others: Any) -> Problem:
    """The problem of q (B, Hq, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv); others: tensors like q in format."""
    q = arguments.floats("q", q, ndim=4)
    k, v = arguments.floats("k", k, ndim=4, like=q), arguments.floats("v", v, ndim=4, like=q)
    (B, Hq, Lq, D), (_, Hkv, Lk, Dv) = q.shape, v.shape
    if k.shape[0] != B:
        raise ValueError(f"k: got a batch of {k.shape[0]} beside {B} in q; want {B}")
    arguments.heads(q, k, v, axis=1)
    shape, factor = (B, Hq, Lq, Lk), arguments.dropout(dropout_mask, dropout_p)
    broadcast = {}
    for name, x in (("bias", bias), ("mask", mask), ("dropout_mask", dropout_mask)):
        if x is not None:
            x = arguments.floats(name, x) if name == "bias" else arguments.booleans(name, x)
            broadcast[name] = (x, arguments.broadcast_steps(name, x, shape))
    return Problem(
        {"q": q, "k": k, "v": v, **others}, B, (Lq, Lk), (Lq, Lk), (Hq, Hkv), (D, Dv), arguments.causal_rule(causal),
        arguments.window_sides(window), _scale(scale, D), _softcap(softcap), broadcast=broadcast, factor=factor,
        kv_lengths=None if kv_lengths is None else arguments.integers("kv_lengths", kv_lengths, least=0, most=Lk, shape=(B,)),
        sinks=None if sinks is None else arguments.floats("sinks", sinks, (Hq,)),
        slopes=None if alibi_slopes is None else arguments.floats("alibi_slopes", alibi_slopes, (Hq,)),
    )  # fmt: skip


def packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, window: Any, scale: float | None, softcap: float | None,
           **others: Any) -> Problem:
    """The problem of q (Tq, Hq, D), k (Tk, Hkv, D), v (Tk, Hkv, Dv) with the offsets of their sequences."""
    q = arguments.floats("q", q, ndim=3)
    k, v = arguments.floats("k", k, ndim=3, like=q), arguments.floats("v", v, ndim=3, like=q)
    arguments.heads(q, k, v, axis=1)
    offsets = arguments.offsets("cu_q", cu_q, q.shape[0]), arguments.offsets("cu_k", cu_k, k.shape[0])
    if len(offsets[0]) != len(offsets[1]):
        raise ValueError(f"cu_k: got offsets of {len(offsets[1]) - 1} sequences beside {len(offsets[0]) - 1} in cu_q; want as many")
    longest_q, longest_k = (int(np.diff(cu).max(initial=0)) for cu in offsets)
    return Problem(
        {"q": q, "k": k, "v": v, **others}, len(offsets[0]) - 1, (q.shape[0], k.shape[0]), (longest_q, longest_k),
        (q.shape[1], k.shape[1]), (q.shape[2], v.shape[2]), arguments.causal_rule(causal), arguments.window_sides(window),
        _scale(scale, q.shape[2]), _softcap(softcap), is_packed=True, offsets=offsets,
    )  # fmt: skip


def _scale(scale: float | None, D: int) -> float:
    return 1.0 / math.sqrt(D) if scale is None else arguments.real_number("scale", scale)


def _softcap(softcap: float | None) -> float:
    """0 stands for none in the kernels."""
    return 0.0 if softcap is None else arguments.real_number("softcap", softcap, positive=True)
