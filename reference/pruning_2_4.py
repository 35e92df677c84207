"""Two of every four weights: the pattern that sparse tensor cores multiply, its mask and its packed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import arguments
from .arguments import Bool, Float64, Int64


def prune_2_4(w: ArrayLike, *, axis: int) -> Bool:
    """A mask that keeps the two largest magnitudes of every four consecutive weights along an axis.

    Of equals the lowest index stays. A short last group stands by itself: of one or two weights none goes, of three the smallest.
    w of any shape, float or whole numbers (codes of signed integers: those with an offset do not have their magnitude on their
    face, IST-DASLab/Sparse-Marlin#4); the mask, of bool, has its shape. Raises ValueError for NaN and infinities.
    Source: Mishra et al. 2021 (arXiv 2104.08378), section 2.

    >>> prune_2_4([4.0, -1.0, 2.0, -3.0, 5.0, 6.0], axis=0).tolist()
    [True, False, False, True, True, True]
    """
    w = np.asarray(w)
    magnitudes = np.abs(w.astype(np.float64) if w.dtype.kind in "iu" else arguments.widen("w", w))
    if not np.isfinite(magnitudes).all():
        raise ValueError(f"w: got {w[~np.isfinite(magnitudes)][0]}; want finite numbers")
    if not -w.ndim <= axis < w.ndim:
        raise ValueError(f"axis: got {axis} for {w.ndim} axes; want -{w.ndim}..{w.ndim - 1}")
    rows = np.moveaxis(magnitudes, axis, -1)                                    # (..., n)
    n = rows.shape[-1]
    fours = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -n % 4)], constant_values=-1.0)
    fours = fours.reshape(*rows.shape[:-1], -(-n // 4), 4)
    rank = np.argsort(np.argsort(-fours, axis=-1, kind="stable"), axis=-1)
    return np.moveaxis((rank < 2).reshape(*rows.shape[:-1], -(-n // 4) * 4)[..., :n], -1, axis)


def pack_2_4(w: ArrayLike, mask: Bool) -> tuple[Float64, NDArray[np.uint8]]:
    """The weights that stay, and where in their four each of them stood: two values and two indices of 2 bits a four.

    w (..., n), n a multiple of 4, mask True at at most two of every four along the last axis. Returns values (..., n / 2) in float64 and
    indices (..., n / 4), uint8: the first in bits 0 and 1, the second in bits 2 and 3, in rising order. Fours with fewer than two are
    filled up with zeros at places that are free. Source: Mishra et al. 2021 (arXiv 2104.08378), figure 2.

    >>> values, indices = pack_2_4([0.0, 5.0, 0.0, 7.0], np.array([False, True, False, True]))
    >>> values.tolist(), [bin(i) for i in indices]
    ([5.0, 7.0], ['0b1101'])
    """
    w = arguments.widen("w", w)
    mask = arguments.boolean_mask("mask", mask, w.shape)
    if w.shape[-1] % 4:
        raise ValueError(f"w: got {w.shape[-1]} weights along the last axis; want a multiple of 4")
    fours = mask.reshape(*w.shape[:-1], w.shape[-1] // 4, 4)
    if fours.size and int(fours.sum(axis=-1).max()) > 2:
        raise ValueError(f"mask: got {int(fours.sum(axis=-1).max())} of a four; want at most 2")
    places = np.sort(np.argsort(~fours, axis=-1, kind="stable")[..., :2], axis=-1)                  # (..., n / 4, 2)
    values = np.take_along_axis(np.where(fours, w.reshape(fours.shape), 0.0), places, axis=-1)
    return values.reshape(*w.shape[:-1], w.shape[-1] // 2), (places[..., 0] | places[..., 1] << 2).astype(np.uint8)


def unpack_2_4(values: ArrayLike, indices: ArrayLike) -> Float64:
    """The dense weights of `pack_2_4`, zero where they were pruned.

    >>> unpack_2_4([5.0, 7.0], [13]).tolist()
    [0.0, 5.0, 0.0, 7.0]
    """
    v = arguments.widen("values", values)
    i: Int64 = arguments.integers("indices", indices, (*v.shape[:-1], v.shape[-1] // 2), least=0, most=15)
    places = np.stack([i & 3, i >> 2], axis=-1)
    if (places[..., 0] >= places[..., 1]).any():
        raise ValueError("indices: got two that do not rise; want each pair in rising order")
    fours = np.zeros((*i.shape, 4))
    np.put_along_axis(fours, places, v.reshape(*i.shape, 2), axis=-1)
    return fours.reshape(*v.shape[:-1], 2 * v.shape[-1])
