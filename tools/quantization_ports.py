"""Our own fast quantization and pruning in float32, held to the oracles by `oracles check` without a subject."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties import Arithmetic, subject
from oracles.reference.quantization import blocks_of, code_range, spread_over

FORMATS = ("float32", "float16", "bfloat16")
KEPT_WIDE = Arithmetic(out="float32")


@subject("quantize", dtypes=FORMATS, arithmetic=KEPT_WIDE, only={"symmetric": ["yes"]}, promises=["deterministic"])
def quantize_in_float32(x: Any, *, bits: int, axis: Any = None, group: Any = None, scale: Any = None) -> Any:
    """Symmetric codes of blocks laid next to each other, by the reciprocal of a float32 scale."""
    wide, high = x.astype(np.float32), np.float32(code_range(bits, True)[1])
    s = np.abs(blocks_of(wide, axis=axis, group=group)).max(axis=-1, initial=0) / high if scale is None else scale.astype(np.float32)
    s = np.where(s == 0, np.float32(1), s)
    with np.errstate(over="ignore", invalid="ignore"):
        t = wide * spread_over(np.float32(1) / s, x.shape, axis=axis, group=group)
    return np.clip(np.rint(np.nan_to_num(t)), -high, high).astype(np.int32), s, np.zeros(s.shape, np.int64)


@subject("dequantize", dtypes=FORMATS, arithmetic=KEPT_WIDE, promises=["deterministic"])
def dequantize_in_float32(q: Any, scale: Any, zero: Any = 0, *, axis: Any = None, group: Any = None) -> Any:
    """The difference in whole numbers, one float32 product."""
    z = spread_over(np.asarray(zero), q.shape, axis=axis, group=group)
    return (q - z).astype(np.float32) * spread_over(scale.astype(np.float32), q.shape, axis=axis, group=group)


@subject("quantized_matmul", dtypes=FORMATS, arithmetic=KEPT_WIDE, promises=["deterministic"])
def matmul_in_pieces_of_1024(x: Any, q: Any, scale: Any, *, x_scale: Any, bias: Any = None) -> Any:
    """Pieces of 1,024 products, whose sums float32 holds exactly, by its fast product; the pieces are added up in int32."""
    total = np.zeros((x.shape[0], q.shape[1]), np.int32)
    for start in range(0, x.shape[1], 1024):
        piece = slice(start, start + 1024)                                      # 1,024 times 128 times 128 is 2^24
        total += (x[:, piece].astype(np.float32) @ q[piece].astype(np.float32)).astype(np.int32)
    scales = np.asarray(x_scale, np.float32).reshape(-1, 1) * np.asarray(scale, np.float32).reshape(1, -1)
    out = total.astype(np.float32) * scales
    return out if bias is None else out + bias.astype(np.float32)


@subject("prune_2_4", dtypes=FORMATS, promises=["deterministic"])
def two_four_by_comparing(w: Any, *, axis: int) -> Any:
    """Six comparisons a four: a weight stays where at most one of the others comes before it."""
    rows = np.moveaxis(np.abs(w.astype(np.float32)), axis, -1)
    n = rows.shape[-1]
    fours = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -n % 4)], constant_values=-1).reshape(*rows.shape[:-1], -(-n // 4), 4)
    behind = np.zeros(fours.shape, np.int64)
    for i in range(4):
        for j in range(i + 1, 4):
            second = fours[..., j] > fours[..., i]
            behind[..., i] += second
            behind[..., j] += ~second
    return np.moveaxis((behind < 2).reshape(*rows.shape[:-1], -(-n // 4) * 4)[..., :n], -1, axis)
